"""Read and run sqllogictest files: statements with what they answer, as SQLite's and DuckDB's own tests have them.

    statement ok
    CREATE TABLE t (k INT, s STRING)

    statement count 2
    INSERT INTO t VALUES (1, 'a'), (2, NULL)

    statement error no column 'x'
    SELECT x FROM t

    query IT rowsort
    SELECT k, s FROM t
    ----
    1<tab>a
    2<tab>NULL

A record ends with an empty line, a line that begins with # is a comment. `error` is followed by a regular expression,
`count` by the number of rows that the statement writes. A query has a letter for each column (I integer, R number, T
anything else; only their number is checked) and an order: none, `rowsort`, or `valuesort`. Its rows follow ----, their
values divided by tabs: NULL, (empty) for an empty text, true and false, x'00ff' for bytes, [1, NULL], {'a': 1} and
{k=v} for nested values. `foreach name a b` ... `endloop` repeats records with ${name} replaced. {TEST_DIR} is a folder
that is empty when the file begins, {DB} the database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Record:
    """A statement with its expected answer and its line."""

    place: str
    expected: str
    """ok, count, error or query."""
    detail: str
    """The count, the error's expression, or a letter for each column of a query."""
    order: str
    sql: str
    rows: tuple[str, ...]


class FileError(ValueError):
    """A file that cannot be read; the message names the line."""


def read(path: Path) -> list[Record]:
    """The records of a file in order. Raises FileError."""
    lines = [line.rstrip() if not line.strip() else line for line in path.read_text().split("\n")]
    numbered = [(number, line) for number, line in enumerate(lines, 1) if not line.startswith("#")]
    return list(_records(path.name, numbered, {}))


def _records(name: str, lines: list[tuple[int, str]], names: Mapping[str, str]) -> Iterator[Record]:
    at = 0
    while at < len(lines):
        number, line = lines[at]
        words = line.split()
        at += 1
        if not words:
            continue
        if words[0] == "foreach":
            depth, end = 1, at
            while end < len(lines):
                first = lines[end][1].split()[:1]
                depth += (first == ["foreach"]) - (first == ["endloop"])
                if not depth:
                    break
                end += 1
            else:
                raise FileError(f"{name}:{number}: foreach without endloop")
            for value in words[2:]:
                yield from _records(name, lines[at:end], {**names, words[1]: value})
            at = end + 1
            continue
        block = []
        while at < len(lines) and lines[at][1]:
            block.append(lines[at][1])
            at += 1
        cut = block.index("----") if "----" in block else len(block)
        sql, rows = "\n".join(block[:cut]), tuple(block[cut + 1 :])
        for each, value in names.items():
            sql = sql.replace(f"${{{each}}}", value)
            rows = tuple(row.replace(f"${{{each}}}", value) for row in rows)
        place = f"{name}:{number}" + "".join(f" {each}={value}" for each, value in names.items())
        match words:
            case ["statement", "ok"]:
                record = Record(place, "ok", "", "", sql, rows)
            case ["statement", "count", count] if count.isdigit():
                record = Record(place, "count", count, "", sql, rows)
            case ["statement", "error", *_]:
                record = Record(
                    place, "error", line.split(None, 2)[2] if len(words) > 2 else "", "", sql, rows
                )
            case ["query", types, *order] if set(types) <= set("IRT") and len(order) < 2:
                record = Record(place, "query", types, order[0] if order else "nosort", sql, rows)
            case _:
                raise FileError(f"{name}:{number}: {line!r} does not begin a record")
        if not sql or (record.expected != "query" and rows) or record.order not in _ORDERS:
            raise FileError(f"{name}:{number}: the record is not complete")
        yield record


_ORDERS = ("", "nosort", "rowsort", "valuesort")


def run(records: list[Record], carry_out: Callable[[str], Any], places: Mapping[str, str]) -> list[str]:
    """Run all records; return the differences.

    `carry_out` returns the last answer of a statement (`Answer`), or raises. `places` has the values of {TEST_DIR} and
    {DB}.
    """
    complaints = []
    for record in records:
        sql = record.sql
        for name, value in places.items():
            sql = sql.replace(f"{{{name}}}", value)
        found = _complaint(record, sql, carry_out)
        if found is not None:
            complaints.append(f"{record.place}\n{sql}\n{found}")
    return complaints


def _complaint(record: Record, sql: str, carry_out: Callable[[str], Any]) -> str | None:
    try:
        answer = carry_out(sql)
        rows = None if answer.schema is None else answer.rows
    except Exception as error:  # noqa: BLE001 - which one it may be is what the file says
        told = f"{type(error).__name__}: {error}"
        if record.expected == "error":
            return None if re.search(record.detail, told) else f"expected /{record.detail}/, but {told}"
        return told
    if record.expected == "error":
        return f"expected an error, but it answered {answer.text or rows_of(rows, 'nosort')}"
    if record.expected == "count":
        return None if answer.row_count == int(record.detail) else f"{answer.row_count} rows were written"
    if record.expected == "query":
        if rows is None:
            return f"expected rows, but it answered {answer.text}"
        if rows.num_columns != len(record.detail):
            return f"{rows.num_columns} columns: {', '.join(rows.column_names)}"
        found, wanted = rows_of(rows, record.order), list(record.rows)
        if record.order == "valuesort" or record.order == "rowsort":
            wanted = sorted(wanted)
        if found != wanted:
            return "\n".join(["expected", *wanted, "found", *found])
    return None


def rows_of(rows: pa.Table, order: str) -> list[str]:
    """Return the rows in the form of the files."""
    columns = [values_of(column.combine_chunks()) for column in rows.columns]
    lines = ["\t".join(row) for row in zip(*columns, strict=True)]
    if order == "valuesort":
        return sorted(value for column in columns for value in column)
    return sorted(lines) if order == "rowsort" else lines


def values_of(array: Any) -> list[str]:
    """Return each value of an array in the form of the files."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    kind = array.type
    if pa.types.is_dictionary(kind):
        return values_of(array.dictionary_decode())
    if pa.types.is_nested(kind):
        return [_nested(scalar) for scalar in array]
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_date(kind):
        texts = pc.cast(array, pa.string()).to_pylist()
        zone = "+00" if getattr(kind, "tz", None) else ""
        return ["NULL" if text is None else _moment(text) + zone for text in texts]
    return [_plain(value) for value in array.to_pylist()]


def _moment(text: str) -> str:
    """Return a moment without zeros at the end of the fraction."""
    text = text.removesuffix("Z")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _plain(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str):
        return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t") or "(empty)"
    return str(value)


def _nested(scalar: Any) -> str:
    """A nested value; texts inside of it are quoted."""
    if not scalar.is_valid:
        return "NULL"
    kind = scalar.type
    if pa.types.is_map(kind):
        keys, items = scalar.values.field(0), scalar.values.field(1)
        return "{" + ", ".join(f"{_nested(k)}={_nested(v)}" for k, v in zip(keys, items, strict=True)) + "}"
    if pa.types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        return (
            "{" + ", ".join(f"'{name}': {_nested(scalar[index])}" for index, name in enumerate(names)) + "}"
        )
    if pa.types.is_nested(kind):
        return "[" + ", ".join(map(_nested, scalar.values)) + "]"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "'" + _plain(scalar.as_py()).replace("(empty)", "") + "'"
    return values_of(pa.array([scalar], kind))[0]
