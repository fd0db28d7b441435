"""Input records of `headrace topics produce`: from words, lines, or JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.client import OutgoingRecord

Header = tuple[str, bytes | None]


def of_words(key: str | None, value: str | None, *, tombstone: bool) -> OutgoingRecord:
    """Return the single record of a command line. Raises CommandError."""
    if tombstone and (key is None or value is not None):
        raise CommandError("--tombstone deletes the record of --key: give a key and no value")
    if value is None and not tombstone:
        raise CommandError("a record needs --value; for a delete use --tombstone")
    return OutgoingRecord(None if value is None else value.encode(), None if key is None else key.encode())


def from_lines(file: Path | None, *, key_separator: str | None, is_json: bool) -> Iterator[OutgoingRecord]:
    """Yield a record for each line of a file (None or `-`: standard input).

    Values are the lines' bytes, without their end. Raises CommandError that names the line.
    """
    separator = None if key_separator is None else key_separator.encode()
    if separator == b"":
        raise CommandError("--key-separator is empty")
    if is_json and separator is not None:
        raise CommandError("--key-separator applies to lines that are values; a JSON line contains its key")
    with _opened(file) as opened:
        for number, line in enumerate(opened, 1):
            text = line.removesuffix(b"\n").removesuffix(b"\r")
            if is_json:
                if text.strip():
                    yield _of_object(text, number)
                continue
            key, value = None, text
            if separator is not None:
                key, found, value = text.partition(separator)
                if not found:
                    raise CommandError(f"line {number} has no {key_separator!r} between key and value")
            yield OutgoingRecord(value, key)


def pieces(
    records: Iterator[OutgoingRecord],
    headers: Sequence[Header],
    partition: int | None,
    count_max: int,
    bytes_max: int,
) -> Iterator[list[OutgoingRecord]]:
    """Yield pieces of the records, with the headers and partition of all."""
    piece: list[OutgoingRecord] = []
    size = 0
    for each in records:
        if headers or partition is not None:
            each = replace(
                each,
                headers=(*each.headers, *headers),
                partition=each.partition if partition is None else partition,
            )
        piece.append(each)
        size += each.size
        if len(piece) >= count_max or size >= bytes_max:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _opened(file: Path | None) -> BinaryIO:
    if file is None or str(file) == "-":
        stdin = sys.stdin
        return stdin.buffer if isinstance(stdin, TextIOWrapper) else stdin  # type: ignore[return-value]
    try:
        return file.open("rb")
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror or error}") from error


def _of_object(text: bytes, number: int) -> OutgoingRecord:
    from headrace.tablelayer.client.admin.record_json import record_from_json

    try:
        # A copy may have other partitions: the key decides, as for any record.
        return replace(record_from_json(text), partition=None)
    except ValueError as error:
        raise CommandError(f"line {number} {error}") from None
