"""`headrace topics produce`, `tail` and `delete-records`: the records of Kafka topics."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.names import topic_names
from headrace.tablelayer.cli.options import DEFAULT_SERVER, Format, FormatOption, ServerOption
from headrace.tablelayer.cli.words import DryRunOption, YesOption, confirm, counted, named_pairs

if TYPE_CHECKING:
    from headrace.tablelayer.client import KafkaRecord


class Lines(StrEnum):
    """Forms of an input line of `topics produce`."""

    VALUE = "value"
    JSON = "json"


_PIECE_RECORDS, _PIECE_BYTES = 5_000, 1 << 20
"""Limits of one write: the input may be larger than memory."""


def produce(
    name: Annotated[
        str, typer.Argument(help="Name of the topic, or of a table.", autocompletion=topic_names)
    ],
    value: Annotated[
        str | None, typer.Option("--value", "-v", help="Value of one record.", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Key of the record.", show_default=False)
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of all records; repeatable."),
    ] = None,
    tombstone: Annotated[
        bool, typer.Option("--tombstone", help="Write one record with --key and no value: a delete.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="File with one record per line; -: standard input."
        ),
    ] = None,
    lines: Annotated[
        Lines,
        typer.Option(
            "--input", "-i", help="Form of a line: a value, or an object as written by `topics tail -o json`."
        ),
    ] = Lines.VALUE,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="Separator of key and value."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="Partition for all records.", show_default=False),
    ] = None,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Write records: one from the command line, or the lines of a file or of standard input.

    A record with a key goes to the partition that Kafka's Java producer would choose. Each record is acknowledged by
    all in-sync replicas and written once, even if connections are lost. Records for a table are checked against it.

    A line of --input json has key, value and headers as [["name", "value"], ...]. It may have a timestamp, which the
    record keeps. Bytes that are not text are base64, with "key_encoding" or "value_encoding" beside them, or a third
    element in a header, "base64". `partition` and `offset` name the origin of a record; its key or --partition decides
    the target.

    \b
      headrace topics produce clicks --key ann --value '{"page": 7}' --header trace=4711
      headrace topics produce clicks --file events.jsonl
      echo '3:{"id": 3, "name": "fig"}' | headrace topics produce default.fruit --key-separator :
      headrace topics produce default.fruit --key 3 --tombstone
      headrace topics tail clicks -n 100 -o json | headrace topics produce copy --input json
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import RowStream
    from headrace.tablelayer.cli.records import from_lines, of_words, pieces

    if file is None and (value is not None or tombstone or key is not None):
        records = iter([of_words(key, value, tombstone=tombstone)])
    else:
        if value is not None or tombstone or key is not None:
            raise CommandError("pass one record with --key and --value, or many with --file, not both")
        records = from_lines(file, key_separator=key_separator, is_json=lines is Lines.JSON)
    common = [(header, text.encode()) for header, text in named_pairs(headers or [], "--header")]
    written, shown = 0, RowStream(output)
    with open_connection(server) as connection:
        for piece in pieces(records, common, partition, _PIECE_RECORDS, _PIECE_BYTES):
            try:
                places = connection.kafka.produce(name, piece)
            except Exception as error:
                if written:
                    error.add_note(f"{written} records had been written before")
                raise
            written += len(places)
            if output is not Format.TABLE:
                rows = [(name, *place) for place in places]
                shown.write(("topic", "partition", "offset"), rows, (False, True, True))
    if output is Format.TABLE:
        where = f" to partition {places[0][0]} at offset {places[0][1]}" if written == 1 else f" to {name}"
        typer.echo(f"{written} record{'' if written == 1 else 's'} written{where}")


def tail(
    name: Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=topic_names)],
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            min=0,
            help="Number of records of each partition: the last ones, or the first ones from --offset or --from on;"
            " default: 10, or all from there on.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new records until Ctrl-C.")
    ] = False,
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, metavar="N", help="Only this partition; repeatable."),
    ] = None,
    offset: Annotated[
        int | None, typer.Option(min=0, help="First offset of each partition.", show_default=False)
    ] = None,
    begin_at: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Time of the first record, such as 2024-09-19T12:00:00 (UTC), or earliest.",
            show_default=False,
        ),
    ] = None,
    end_at: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="TIME", help="Stop at the first record of this time.", show_default=False
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Only records with this key.", show_default=False)
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME[=VALUE]", help="Only records with this header; repeatable."
        ),
    ] = None,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Show the last records of a topic as a Kafka client sees them, or those from an offset or time, or with a key or
    header.

    A table is shown in its Kafka view. With --key or --header, the whole topic is searched unless --offset or --from
    says where to begin. Partitions without a leader are left out, with a message.

    JSON is exact: `topics produce --input json` writes records of equal bytes. Bytes that are not text are base64 there
    and in CSV, marked by an encoding beside them. The table is for people, and shows them as `\\xff`.

    \b
      headrace topics tail default.orders -n 5
      headrace topics tail clicks --follow --format json
      headrace topics tail clicks --from 2024-09-19T12:00:00 --to 2024-09-19T13:00:00 --key ann
      headrace topics tail clicks --partition 2 --offset 1000 -n 20
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.tail import Selection, tail_topic

    wanted = Selection.of(
        count=count,
        partitions=partitions,
        offset=offset,
        begin_at=begin_at,
        end_at=end_at,
        key=key,
        headers=headers or [],
        follow=follow,
    )
    begun = False
    with open_connection(server) as connection:
        for records in tail_topic(connection, name, wanted):
            _show(records, output, header=not begun)
            begun = True
    if not begun:
        _show([], output)


def delete_records(
    name: Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=topic_names)],
    before: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="The first offset to keep, a time such as 2024-09-19T12:00:00 (UTC), or latest.",
        ),
    ],
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, metavar="N", help="Only of this partition; repeatable."),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Delete the records before an offset or a time, permanently.

    \b
      headrace topics delete-records clicks --before 2024-09-19T12:00:00 --dry-run
      headrace topics delete-records clicks --before 1000 --partition 2
      headrace topics delete-records clicks --before latest --yes
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import write_rows
    from headrace.tablelayer.cli.tail import chosen_partitions, offsets_at

    with open_connection(server) as connection:
        ranges = chosen_partitions(connection, name, partitions)
        wanted = offsets_at(connection, name, ranges, before, "--before")
        rows = [
            (number, each.first, min(max(wanted[number], each.first), each.end), each.end)
            for number, each in ranges.items()
        ]
        left = sum(new - first for _, first, new, _ in rows)
        if not dry_run and left:
            confirm(f"Delete {counted(left, 'offset')} of {name} for good?", yes=yes)
            connection.kafka.delete_records(name, {row[0]: row[2] for row in rows if row[2] > row[1]})
    names = ("partition", "first offset before", "first offset", "end offset")
    write_rows(names, rows, output, numeric=(True,) * 4)
    if output is Format.TABLE:
        typer.echo(f"{counted(left, 'offset')} {'could be' if dry_run else 'were'} deleted")


def _show(records: Sequence[KafkaRecord], output: Format, *, header: bool = True) -> None:
    from headrace.tablelayer.cli.output import Json, visible, write_rows
    from headrace.tablelayer.client.admin.record_json import (
        headers_to_json,
        record_to_json,
        text_and_encoding,
    )

    if output is Format.JSON:
        sys.stdout.writelines(f"{record_to_json(record)}\n" for record in records)
    elif output is Format.CSV:
        rows = []
        for record in records:
            (key, of_key), (value, of_value) = text_and_encoding(record.key), text_and_encoding(record.value)
            place = record.partition, record.offset, record.timestamp_ms
            rows.append((*place, key, value, Json(headers_to_json(record)), of_key, of_value))
        names = (
            "partition",
            "offset",
            "timestamp",
            "key",
            "value",
            "headers",
            "key_encoding",
            "value_encoding",
        )
        write_rows(names, rows, output, header=header)
    else:
        for record in records:
            key = "-" if record.key is None else visible(_readable(record.key))
            named = "".join(f"  {visible(name)}={_shown(value)}" for name, value in record.headers)
            typer.echo(f"{record.partition}:{record.offset}  {key}  {_shown(record.value)}{named}")
    sys.stdout.flush()


def _shown(value: bytes | None) -> str:
    from headrace.tablelayer.cli.output import visible

    return "(deleted)" if value is None else visible(_readable(value))


def _readable(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
