"""Copy the records of a topic into a table: `headrace tables create --from-topic --backfill`.

The records are produced to the table's topic as they are, so the table reads them as it reads those of any producer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import typer

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.client import ClientError, Connection, KafkaRecord, OutgoingRecord
from headrace.tablelayer.client.admin.produce import BATCH_BYTES, partition_of
from headrace.tablelayer.client.progress import progress_text

_EARLIEST = -2
_BATCH_RECORDS = 2_000
_LINE_SECONDS = 0.5
_SHOWN = 5
"""Number of refused records of which each is named."""


@dataclass(slots=True)
class Copied:
    """Numbers of records."""

    written: int = 0
    refused: int = 0


def backfill(
    connection: Connection, topic: str, table: str, *, follow: bool = False, skip_refused: bool = False
) -> Copied:
    """Write the records that a topic has now to the topic of a table, in order; with `follow` also new ones.

    Raises CommandError for a record that the table refuses, unless these are to be skipped.
    """
    kafka, copied, began, shown = connection.kafka, Copied(), perf_counter(), 0.0
    partitions = len(kafka.describe_topic(table).partitions)
    at, ends = kafka.offsets(topic, _EARLIEST), kafka.offsets(topic)
    try:
        while follow or any(at[place] < end for place, end in ends.items()):
            unread = at if follow else {place: offset for place, offset in at.items() if offset < ends[place]}
            found, after = kafka.read(topic, unread)
            if not found and after == unread and not follow:
                break  # only open transactions are left
            chosen = [each for each in found if follow or each.offset < ends[each.partition]]
            for batch in _batches(chosen, partitions):
                _write(connection, topic, table, batch, copied, skip_refused=skip_refused)
            at = {**at, **after}
            if sys.stderr.isatty() and perf_counter() - shown > _LINE_SECONDS:
                shown = perf_counter()
                sys.stderr.write(f"\r\x1b[K{progress_text(copied.written, shown - began, 'copied')}")
                sys.stderr.flush()
    except (ClientError, KafkaError) as error:
        error.add_note(f"{copied.written} records of {topic} were copied before")
        raise
    except KeyboardInterrupt:
        line = "\r\x1b[K" if shown else ""
        typer.echo(f"{line}{copied.written} records of {topic} copied", err=True)
        raise
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
    return copied


_Batch = list[tuple[KafkaRecord, OutgoingRecord]]


def _batches(records: Sequence[KafkaRecord], partitions: int) -> Iterator[_Batch]:
    """Yield records with the rows to write, in batches of one partition of the table's topic: each is written or
    refused as a whole. Records of one key stay in order.
    """
    waiting: dict[int, _Batch] = {}
    sizes: dict[int, int] = {}
    for each in records:
        place = each.partition % partitions if each.key is None else partition_of(each.key, partitions)
        made = OutgoingRecord(each.value, each.key, each.headers, each.timestamp_ms, place)
        if place in waiting and (
            sizes[place] + made.size > BATCH_BYTES or len(waiting[place]) == _BATCH_RECORDS
        ):
            yield waiting.pop(place)
        sizes[place] = made.size + (sizes[place] if place in waiting else 0)
        waiting.setdefault(place, []).append((each, made))
    yield from waiting.values()


def _write(
    connection: Connection, topic: str, table: str, batch: _Batch, copied: Copied, *, skip_refused: bool
) -> None:
    """Write a batch; if it is refused, its halves, down to the record that is refused."""
    try:
        connection.kafka.produce(table, [made for _, made in batch])
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_RECORD:
            raise
        if len(batch) > 1:
            half = len(batch) // 2
            for part in (batch[:half], batch[half:]):
                _write(connection, topic, table, part, copied, skip_refused=skip_refused)
            return
        record, _ = batch[0]
        told = f"record {record.partition}:{record.offset} of {topic} does not fit {table}: {error.message}"
        if not skip_refused:
            raise CommandError(
                f"{told}\n{copied.written} records are in the table. Drop it and create it with other columns, or add"
                " --skip-refused"
            ) from None
        copied.refused += 1
        if copied.refused <= _SHOWN:
            typer.echo(told, err=True)
    else:
        copied.written += len(batch)
