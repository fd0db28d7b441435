"""COPY: rows of files into tables and answers into files, by DuckDB's readers and writers.

The types are the table's: no value of a CSV or JSON file is guessed at. The columns are those that the file names; a
CSV file whose first line is not names of the table's has them in the table's order. A name that the table does not have
is refused. A file takes its name when all is written, so that it is never half of an answer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tablelayer.client import Connection
from tablelayer.model.ddl import CopyFrom, CopyTo
from tablelayer.model.schema.schema import Column
from tablelayer.model.types.column_types import BINARY_KINDS
from tablelayer.sql.answer import Answer
from tablelayer.sql.duck import Arriving, connect
from tablelayer.sql.errors import SqlError, near
from tablelayer.sql.types import duckdb_type, quoted, text_literal
from tablelayer.sql.writes import Writes

_FORMATS = {
    "csv": "csv", "tsv": "csv", "txt": "csv", "json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet",
}  # fmt: skip
_PACKED = ("gz", "zst", "gzip", "zstd")
_OF_CSV = ("header", "delimiter", "quote", "escape", "nullstr")
_BATCH_ROWS = 100_000


def format_of(file: str, options: Mapping[str, Any]) -> str:
    """csv, json or parquet: what is said, or what the name says. Raises SqlError."""
    said = options.get("format")
    if said is None:
        parts = Path(file).name.lower().split(".")[1:]
        said = parts[-1] if parts and parts[-1] not in _PACKED else parts[-2] if len(parts) > 1 else ""
    found = _FORMATS.get(str(said).lower())
    if found is None:
        raise SqlError(f"{file}: say which format it has: (FORMAT csv), (FORMAT json) or (FORMAT parquet)")
    others = [name for name in options if name in _OF_CSV] if found != "csv" else []
    if others:
        raise SqlError(f"{file}: {others[0].upper()} is an option of CSV, not of {found}")
    return found


def copy_to(answer: Answer, statement: CopyTo, *, files: bool = True) -> int:
    """Write an answer's rows to a file as they come; how many there were. Raises SqlError."""
    import duckdb

    _must_be_allowed(files)
    kind = format_of(statement.file, statement.options)
    options = [f"FORMAT {kind}", *_said(statement.options)]
    if kind == "csv" and "header" not in statement.options:
        options.append("HEADER true")
    if kind == "csv" and "delimiter" not in statement.options and ".tsv" in statement.file.lower():
        options.append("DELIMITER '\t'")
    if kind == "parquet" and "compression" not in statement.options:
        options.append("COMPRESSION zstd")
    assert answer.schema is not None
    part = f"{statement.file}.part"
    if kind != "parquet" and "compression" not in statement.options:  # which DuckDB would go by the name for
        packed = {"gz": "gzip", "gzip": "gzip", "zst": "zstd", "zstd": "zstd"}.get(
            statement.file.rsplit(".", 1)[-1]
        )
        options.append(f"COMPRESSION {packed or 'none'}")
    arriving = Arriving(answer.schema, answer.batches(_BATCH_ROWS))
    with connect() as database:
        database.register("arriving", arriving.reader)
        try:
            chosen = _written(answer.schema, kind)
            ((rows,),) = database.execute(
                f"COPY (SELECT {chosen} FROM arriving) TO {text_literal(part)} ({', '.join(options)})"
            ).fetchall()
            os.replace(part, statement.file)
        except (duckdb.Error, OSError) as error:
            Path(part).unlink(missing_ok=True)
            if arriving.error is not None:
                raise arriving.error from error
            raise SqlError(f"{statement.file} cannot be written: {_reason(error)}") from error
    return int(rows)


def copy_from(connection: Connection, writes: Writes, statement: CopyFrom, *, files: bool = True) -> int:
    """Write a file's rows to a table; how many there were. Raises SqlError, and DataError for rows that do not fit."""
    import duckdb

    _must_be_allowed(files)
    kind = format_of(statement.file, statement.options)
    table = connection.table(statement.path)
    schema = table.definition.schema
    columns = schema.select(list(statement.columns) if statement.columns is not None else schema.names)
    read = {"csv": _of_csv, "json": _of_json, "parquet": _of_parquet}[kind]
    with connect() as database:
        try:
            chosen, sql = read(database, statement, columns)
            reader = database.sql(sql).to_arrow_reader(_BATCH_ROWS)
            return writes.answered(table, Answer(rows=reader), [column.name for column in chosen])
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            told = SqlError(f"{statement.file} cannot be read into {statement.path}: {_reason(error)}")
            for note in getattr(error, "__notes__", ()):
                told.add_note(note)
            raise told from error


def _written(schema: pa.Schema, kind: str) -> str:
    """Nested values are JSON in CSV, where DuckDB would write texts that it does not read again."""
    if kind != "csv":
        return "*"
    return ", ".join(
        f"to_json({quoted(field.name)}) AS {quoted(field.name)}"
        if pa.types.is_nested(field.type)
        else quoted(field.name)
        for field in schema
    )


Chosen = tuple[Sequence[Column], str]


def _of_csv(database: Any, statement: CopyFrom, columns: Sequence[Column]) -> Chosen:
    file = text_literal(statement.file)
    said = [f"{_PARAMETERS[name]} = {_value(value)}" for name, value in statement.options.items()
            if name not in ("format", "header")]  # fmt: skip
    if "delimiter" not in statement.options and ".tsv" in statement.file.lower():
        said.append("delim = '\t'")
    plain = ", ".join([file, *said, "auto_detect = true"])
    listed = database.execute(
        f"SELECT * FROM read_csv({plain}, header = false, all_varchar = true) LIMIT 1"
    ).fetchall()
    if not listed:
        return columns, f"SELECT {', '.join(f'NULL AS {quoted(c.name)}' for c in columns)} WHERE false"
    first = listed[0]
    by_name = {column.name.lower(): column for column in columns}
    names = [str(value).strip().lower() for value in first]
    header = statement.options.get("header")
    names_columns = len(set(names)) == len(names) and set(names) <= set(by_name)
    if header is None and not names_columns and len(set(names) & set(by_name)) * 2 >= len(names):
        _must_be_known([str(value) for value in first], by_name, statement)
    header = names_columns if header is None else bool(header)
    chosen: Sequence[Column]
    if header and names_columns:
        chosen = [by_name[name] for name in names]
    elif len(first) == len(columns):
        chosen = columns
    else:
        raise SqlError(
            f"{statement.file} has {len(first)} columns, and {statement.path} {len(columns)}: name them in its first"
            f" line, or after the table: COPY {statement.path} ({columns[0].name}, ...) FROM ..."
        )
    types = ", ".join(f"{text_literal(column.name)}: '{_read_as(column, 'VARCHAR')}'" for column in chosen)
    more = [] if header else ["null_padding = false"]
    sql = ", ".join([file, *said, f"header = {str(header).lower()}", f"columns = {{{types}}}", *more])
    return chosen, f"SELECT {_selected(chosen)} FROM read_csv({sql})"


def _of_json(database: Any, statement: CopyFrom, columns: Sequence[Column]) -> Chosen:
    file = text_literal(statement.file)
    chosen = _named(database, f"read_json({file}{_packed(statement)})", statement, columns)
    types = ", ".join(f"{text_literal(column.name)}: '{_read_as(column, 'JSON')}'" for column in chosen)
    sql = f"read_json({file}{_packed(statement)}, columns = {{{types}}})"
    return chosen, f"SELECT {_selected(chosen)} FROM {sql}"


def _of_parquet(database: Any, statement: CopyFrom, columns: Sequence[Column]) -> Chosen:
    source = f"read_parquet({text_literal(statement.file)})"
    chosen = _named(database, source, statement, columns)
    return chosen, f"SELECT {', '.join(quoted(column.name) for column in chosen)} FROM {source}"


def _named(database: Any, source: str, statement: CopyFrom, columns: Sequence[Column]) -> list[Column]:
    """The table's columns that a file names, in its order."""
    by_name = {column.name.lower(): column for column in columns}
    names = database.sql(f"SELECT * FROM {source}").columns
    if statement.columns is None:
        _must_be_known(names, by_name, statement)
        return [by_name[name.lower()] for name in names]
    missing = [column.name for column in columns if column.name.lower() not in map(str.lower, names)]
    if missing:
        raise SqlError(f"{statement.file} has no '{missing[0]}'; it has {', '.join(names)}")
    return list(columns)


def _must_be_known(names: Sequence[str], known: Mapping[str, Column], statement: CopyFrom) -> None:
    for name in names:
        if name.strip().lower() not in known:
            columns = [column.name for column in known.values()]
            raise SqlError(
                f"{statement.file} has a column '{name}', which {statement.path} does not have{near(name, columns)}"
                f"\nit has {', '.join(columns)}"
            )


def _selected(columns: Sequence[Column]) -> str:
    """What is read as text and is more than that, as what it is."""
    chosen = []
    for column in columns:
        name, wanted = quoted(column.name), duckdb_type(column.type)
        if column.type.is_nested:
            chosen.append(f"CAST(CAST({name} AS JSON) AS {wanted}) AS {name}")
        else:
            chosen.append(f"CAST({name} AS {wanted}) AS {name}" if column.type.kind in BINARY_KINDS else name)
    return ", ".join(chosen)


def _read_as(column: Column, nested: str) -> str:
    if column.type.is_nested:
        return nested
    return "VARCHAR" if column.type.kind in BINARY_KINDS else duckdb_type(column.type)


_PARAMETERS = {
    "delimiter": "delim", "quote": "quote", "escape": "escape", "nullstr": "nullstr", "compression": "compression",
}  # fmt: skip


def _packed(statement: CopyFrom) -> str:
    found = statement.options.get("compression")
    return "" if found is None else f", compression = {_value(found)}"


def _said(options: Mapping[str, Any]) -> list[str]:
    return [f"{name.upper()} {_value(value)}" for name, value in options.items() if name != "format"]


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else text_literal(str(value))


def _must_be_allowed(files: bool) -> None:
    if not files:
        raise SqlError("COPY reads and writes files, which is not allowed here")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    text = str(error).strip()
    return text.split("\n\n")[0]
