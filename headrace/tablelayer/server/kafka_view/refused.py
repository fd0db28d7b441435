"""Bad records of producers' batches: found one by one, and put into dead letters with the reason.

A batch with a bad record is refused whole (R17.3), unless its table has a dead-letter topic. Then this module finds
every bad record, so that the rest can be written. Decoding a batch reports only one bad record, mostly the first. So
the records before it are decoded, then those behind it, in steps that double while no record is bad. The cost is a few
decodings of the batch, and two small ones for each bad record. Pure; called in executor threads, some steps at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.broker.log.errors import RecordErrors
from headrace.protocol.records.decode import RecordColumns
from headrace.protocol.records.encode import Record, build_batch
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.server.kafka_view.avro import Schemas
from headrace.tablelayer.server.kafka_view.producers import OpenedBatch, decode_produced

LETTERS_BYTES_MAX: Final = 512 << 10
"""Maximum size of a batch of dead letters without the reasons: less than a topic's default limit."""
_REASON_BYTES_MAX: Final = 4 << 10
_DECODED_AT_ONCE: Final = 64
_EXCEPTION: Final = b"org.apache.kafka.common.InvalidRecordException"


class Refused(msgspec.Struct, frozen=True):
    """A bad record: its index in the batch, and the reason."""

    index: int
    reason: str


def without(
    records: RecordColumns, refused: Sequence[Refused]
) -> tuple[RecordColumns, npt.NDArray[np.int64]]:
    """Return the other records, and the index of each in the batch."""
    kept = np.ones(len(records), np.bool_)
    kept[[each.index for each in refused]] = False
    at = np.flatnonzero(kept)
    return _chosen(records, at), at


def _chosen(records: RecordColumns, at: npt.NDArray[np.int64] | slice) -> RecordColumns:
    return RecordColumns(
        header=records.header,
        payload=records.payload,
        offsets=records.offsets[at],
        timestamps=records.timestamps[at],
        key_start=records.key_start[at],
        key_length=records.key_length[at],
        value_start=records.value_start[at],
        value_length=records.value_length[at],
        headers_start=records.headers_start[at],
        headers_count=records.headers_count[at],
    )


class Sifting:
    """A search for the bad records of a batch. `refused` is complete and sorted once `some` returns True."""

    def __init__(self, definition: TableDefinition, records: RecordColumns, schemas: Schemas) -> None:
        self.refused: list[Refused] = []
        self._definition = definition
        self._records = records
        self._schemas = schemas
        self._unknown = [(0, len(records))]
        """Ranges of records that are not checked yet; the first range is last."""
        self._step = len(records)

    def some(self) -> bool:
        """Search on for some steps. Return True if all bad records are found."""
        for _ in range(_DECODED_AT_ONCE):
            if not self._unknown:
                self.refused.sort(key=lambda each: each.index)
                return True
            start, end = self._unknown.pop()
            if end - start > self._step:
                self._unknown.append((start + self._step, end))
                end = start + self._step
            bad = self._bad(start, end)
            if bad is None:
                self._step *= 2
                continue
            self.refused.append(bad)
            self._step = max(1, bad.index - start)
            self._unknown += [
                each for each in ((bad.index + 1, end), (start, bad.index)) if each[0] < each[1]
            ]
        return False

    def _bad(self, start: int, end: int) -> Refused | None:
        """Return a bad record of a range, mostly the first one: invalid UTF-8 is found before the other checks."""
        part = OpenedBatch(_chosen(self._records, slice(start, end)), self._schemas)
        try:
            decode_produced(self._definition, part)
        except RecordErrors as error:
            place, reason = error.errors[0]
            return Refused(start + place, reason)
        return None


def dead_letters(
    records: RecordColumns, refused: Sequence[Refused], topic: str, partition: int
) -> list[bytes]:
    """Return batches of the bad records as they were sent.

    Each record has additional headers as in Kafka Connect (KIP-298): the topic and partition it was sent to, and the
    reason.
    """
    data = records.payload.data
    batches: list[bytes] = []
    letters: list[Record] = []
    size = 0
    for each in refused:
        index = each.index
        headers = [
            *records.headers(index),
            ("__connect.errors.topic", topic.encode()),
            ("__connect.errors.partition", str(partition).encode()),
            ("__connect.errors.stage", b"VALUE_CONVERTER"),
            ("__connect.errors.exception.class.name", _EXCEPTION),
            (
                "__connect.errors.exception.message",
                each.reason.encode("utf-8", "replace")[:_REASON_BYTES_MAX],
            ),
        ]
        key = _piece(data, int(records.key_start[index]), int(records.key_length[index]))
        value = _piece(data, int(records.value_start[index]), int(records.value_length[index]))
        letters.append(Record(key, value, tuple(headers), int(records.timestamps[index])))
        size += len(key or b"") + len(value or b"")
        if size >= LETTERS_BYTES_MAX:
            batches.append(build_batch(letters))
            letters, size = [], 0
    if letters:
        batches.append(build_batch(letters))
    return batches


def _piece(data: memoryview, start: int, length: int) -> bytes | None:
    return None if length < 0 else bytes(data[start : start + length])
