"""COPY: import files into tables and export answers to files, by DuckDB's readers and writers.

The types are the table's: a value of a CSV or JSON file is read as a text and converted by `tablelayer.sql.assign`, so
that it is exact. Dates and times are written as texts in ISO 8601. The file names its columns. A CSV file whose first
line does not name the table's columns has them in the table's order. An unknown name is refused. A file gets its name
when all rows are written, so that it is never incomplete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.client import Connection, DataError
from headrace.tablelayer.model.ddl import CopyFrom, CopyTo
from headrace.tablelayer.model.json.python_values import python_values
from headrace.tablelayer.model.rows.nested import cast
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import BINARY_KINDS, TEXT_KINDS, is_list
from headrace.tablelayer.model.types.quoting import quote_text, quoted
from headrace.tablelayer.sql.answer import Answer
from headrace.tablelayer.sql.assign import Assignment, without_blanks
from headrace.tablelayer.sql.duck import Arriving, check_names, connect
from headrace.tablelayer.sql.errors import SqlError, near
from headrace.tablelayer.sql.writes import Writes

_FORMATS = {
    "csv": "csv", "tsv": "csv", "txt": "csv", "json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet",
}  # fmt: skip
_PACKED = ("gz", "zst", "gzip", "zstd")
_OF_CSV = ("header", "delimiter", "quote", "escape", "nullstr")
_BATCH_ROWS = 100_000


def format_of(file: str, options: Mapping[str, Any]) -> str:
    """Return the format (csv, json or parquet) from the options, or from the file's name. Raises SqlError."""
    said = options.get("format")
    if said is None:
        parts = Path(file).name.lower().split(".")[1:]
        said = parts[-1] if parts and parts[-1] not in _PACKED else parts[-2] if len(parts) > 1 else ""
    found = _FORMATS.get(str(said).lower())
    if found is None:
        raise SqlError(
            f"{file}: the name has no known format: give it one of {', '.join(f'.{each}' for each in _FORMATS)} at its"
            " end, also before .gz or .zst; COPY also takes (FORMAT csv), (FORMAT json) or (FORMAT parquet)"
        )
    others = [name for name in options if name in _OF_CSV] if found != "csv" else []
    if others:
        raise SqlError(f"{file}: {others[0].upper()} is an option of CSV, not of {found}")
    return found


def copy_to(answer: Answer, statement: CopyTo, *, files: bool = True) -> int:
    """Write an answer's rows to a file as they arrive, and return their number. Raises SqlError."""
    import duckdb

    _must_be_allowed(files)
    kind = format_of(statement.file, statement.options)
    options = [f"FORMAT {kind}", *_said(statement.options)]
    if kind == "csv" and "header" not in statement.options:
        options.append("HEADER true")
    if kind == "csv" and "delimiter" not in statement.options and ".tsv" in statement.file.lower():
        options.append("DELIMITER '\t'")
    if (
        kind == "csv"
        and "nullstr" in statement.options
        and answer.schema is not None
        and len(answer.schema) == 1
    ):
        options.append("FORCE_QUOTE *")  # readers skip an empty line
    if kind == "parquet" and "compression" not in statement.options:
        options.append("COMPRESSION zstd")
    assert answer.schema is not None
    part = f"{statement.file}.part"
    # Without an option DuckDB would go by the name, which is that of the .part file.
    if kind != "parquet" and "compression" not in statement.options:
        packed = {"gz": "gzip", "gzip": "gzip", "zst": "zstd", "zstd": "zstd"}.get(
            statement.file.rsplit(".", 1)[-1]
        )
        options.append(f"COMPRESSION {packed or 'none'}")
    check_names(statement.file, dict.fromkeys(answer.schema.names), None)
    schema, batches = answer.schema, answer.batches(_BATCH_ROWS)
    if kind != "parquet":
        schema, batches = _with_moments_as_texts(schema, batches)
    arriving = Arriving(schema, batches)
    with connect() as database:
        database.register("arriving", arriving.reader)
        try:
            chosen = _written(schema, kind)
            ((rows,),) = database.execute(
                f"COPY (SELECT {chosen} FROM arriving) TO {quote_text(part)} ({', '.join(options)})"
            ).fetchall()
            os.replace(part, statement.file)
        except (duckdb.Error, OSError) as error:
            Path(part).unlink(missing_ok=True)
            if arriving.error is not None:
                raise arriving.error from None
            raise SqlError(f"cannot write {statement.file}: {_reason(error)}") from None
    return int(rows)


def copy_from(connection: Connection, writes: Writes, statement: CopyFrom, *, files: bool = True) -> int:
    """Write a file's rows to a table and return their number. Raises SqlError."""
    import duckdb

    _must_be_allowed(files)
    kind = format_of(statement.file, statement.options)
    table = connection.table(statement.path)
    schema = table.definition.schema
    columns = schema.select(list(statement.columns) if statement.columns is not None else schema.names)
    read = {"csv": _of_csv, "json": _of_json, "parquet": _of_parquet}[kind]
    with connect() as database:
        try:
            found = read(database, statement, columns)
            if found is None:
                return 0
            chosen, sql, convert = found
            reader = database.sql(sql).to_arrow_reader(_BATCH_ROWS)
            with Assignment(chosen, str(statement.path)) as assignment:
                answer = Answer(rows=_converted(reader, chosen, assignment, convert))
                return writes.answered(table, answer, [column.name for column in chosen])
        except (duckdb.Error, pa.ArrowException, OSError, DataError) as error:
            reason = _reason(error).removeprefix(f"{statement.path}: ")
            told = SqlError(f"cannot read {statement.file} into {statement.path}: {reason}")
            for note in getattr(error, "__notes__", ()):
                told.add_note(note)
            raise told from None


def _with_moments_as_texts(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Convert dates and times to texts, because DuckDB cannot write all of their years and digits."""
    wanted = pa.schema([pa.field(field.name, _as_texts(field.type)) for field in schema])

    def written() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [
                cast(column, field.type, _moment_texts)
                for column, field in zip(batch.columns, wanted, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)

    return wanted, written()


def _as_texts(kind: pa.DataType) -> pa.DataType:
    """Return a type with texts in place of its dates and times."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _as_texts(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_as_texts(kind.key_type), _as_texts(kind.item_type))
    if is_list(kind):
        return pa.list_(_as_texts(kind.value_type))
    return pa.string() if pa.types.is_temporal(kind) and not pa.types.is_interval(kind) else kind


def _moment_texts(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Write moments as 2024-09-19 12:00:00.5, with +00 for LTZ. Years without four digits get a sign."""
    given = array.type
    if given == target:
        return array
    zone = "+00" if pa.types.is_timestamp(given) and given.tz is not None else ""
    whole = pa.int32() if given.bit_width == 32 else pa.int64()
    if not pa.types.is_time(given):
        first, last = (pa.scalar(day, pa.date32()).cast(pa.timestamp("s")) for day in (-719_162, 2_932_897))
        unit = given if pa.types.is_date(given) else pa.timestamp(given.unit)
        if unit != pa.timestamp("ns"):
            bounds = (first.cast(unit).cast(whole), last.cast(unit).cast(whole))
            ticks = array.view(whole)
            usual = pc.and_(pc.greater_equal(ticks, bounds[0]), pc.less(ticks, bounds[1]))
            far = pc.fill_null(pc.invert(usual), False)
            if pc.any(far).as_py():
                texts = _moment_texts(pc.if_else(far, None, array), target)
                others = [str(value) for value in python_values(array.filter(far))]
                return pc.replace_with_mask(texts, far, pa.array(others, pa.string()))
        array = array.view(whole).view(unit)
    texts = array.cast(pa.string())
    if not pa.types.is_date(given) and given.unit != "s":
        texts = pc.replace_substring_regex(texts, r"\.?0+$", "")
    return pc.binary_join_element_wise(texts, zone, "") if zone else texts


def _converted(
    reader: pa.RecordBatchReader, columns: Sequence[Column], assignment: Assignment, convert: Convert
) -> pa.RecordBatchReader:
    schema = pa.schema([pa.field(column.name, column.type.arrow()) for column in columns])

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            yield from convert(assignment, batch).cast(schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


def _written(schema: pa.Schema, kind: str) -> str:
    """Return the columns to write. Nested values are JSON in CSV, because DuckDB cannot read its own texts of them."""
    if kind != "csv":
        return "*"
    return ", ".join(
        f"to_json({quoted(field.name)}) AS {quoted(field.name)}"
        if pa.types.is_nested(field.type)
        else quoted(field.name)
        for field in schema
    )


Convert = Callable[[Assignment, pa.RecordBatch], pa.Table]
Chosen = tuple[Sequence[Column], str, Convert] | None
"""The columns of a file, the query that reads them, and the conversion to rows; None without rows."""


def _of_csv(database: Any, statement: CopyFrom, columns: Sequence[Column]) -> Chosen:
    """Read a file in COPY's own dialect if its first line and its beginning fit it. DuckDB guesses other dialects."""
    import duckdb

    said = {_PARAMETERS[name]: _value(value) for name, value in statement.options.items()
            if name not in ("format", "header")}  # fmt: skip
    if "delim" not in said and ".tsv" in statement.file.lower():
        said["delim"] = "'\t'"
    said |= {"max_line_size": str(_LINE_BYTES_MAX), "buffer_size": str(_LINE_BYTES_MAX)}
    for ends in _LINE_ENDS:
        with suppress(duckdb.Error):
            found = _of_dialect(database, statement, columns, {**_OWN, **said, **ends}, guessed=False)
            if found is not None:
                database.execute(
                    f"SELECT count(COLUMNS(*)) FROM ({found[1]} LIMIT {_SAMPLE_ROWS})"
                ).fetchall()
                return found
    for ends in _LINE_ENDS:
        with suppress(duckdb.Error):
            return _of_dialect(database, statement, columns, {**said, **ends}, guessed=True)
    return _of_dialect(database, statement, columns, said, guessed=True)


_OWN = {"delim": "','", "quote": "'\"'", "escape": "'\"'", "comment": "''"}
_LINE_ENDS: Sequence[Mapping[str, str]] = (
    {},
    *({"new_line": f"'{ends}'"} for ends in ("\\n", "\\r\\n", "\\r")),
)
"""DuckDB takes the first end of a line for that of all, even if it is inside quotes; then it is told."""
_LINE_BYTES_MAX = 128 << 20
"""Maximum size of a line of CSV. A row has at most 99 MiB."""


def _of_dialect(
    database: Any,
    statement: CopyFrom,
    columns: Sequence[Column],
    dialect: Mapping[str, str],
    *,
    guessed: bool,
) -> Chosen:
    """Return the columns and the query of a CSV file in a dialect. `guessed`: DuckDB guesses the rest of it; if not,
    None also for a file that may be in another one.
    """
    file = ", ".join([quote_text(statement.file), *(f"{name} = {value}" for name, value in dialect.items())])
    header, chosen = statement.options.get("header"), columns
    if guessed or header is not False:
        listed = database.execute(
            f"SELECT * FROM read_csv({file}, auto_detect = true, header = false, all_varchar = true) LIMIT 1"
        ).fetchall()
        if not listed:
            return None
        first = listed[0]
        by_name = {column.name: column for column in columns}
        names = [str(value).strip() for value in first]
        if not set(names) <= set(by_name):
            by_name = {column.name.lower(): column for column in columns}
            names = [name.lower() for name in names]
        names_columns = len(set(names)) == len(names) and set(names) <= set(by_name)
        if not guessed and not names_columns:
            return None
        if header is None and not names_columns and len(set(names) & set(by_name)) * 2 >= len(names):
            _must_be_known([str(value) for value in first], by_name, statement)
        header = names_columns if header is None else bool(header)
        if header and names_columns:
            chosen = [by_name[name] for name in names]
        elif len(first) != len(columns):
            raise SqlError(
                f"{statement.file} has {len(first)} columns, but {statement.path} has {len(columns)}: name them"
                f" in its first line, or after the table: COPY {statement.path} ({columns[0].name}, ...) FROM ..."
            )
    types = ", ".join(f"'{place}': 'VARCHAR'" for place in range(len(chosen)))
    more = ["allow_quoted_nulls = false", *([] if header else ["null_padding = false"])]
    more += [f"auto_detect = {str(guessed).lower()}", f"header = {str(header).lower()}"]
    sql = ", ".join([file, *more, f"columns = {{{types}}}"])

    def convert(assignment: Assignment, batch: pa.RecordBatch) -> pa.Table:
        """Convert texts. An empty one is null, except in types of texts and bytes."""
        texts = [
            each if column.type.kind in TEXT_KINDS | BINARY_KINDS else without_blanks(each)
            for each, column in zip(batch.columns, chosen, strict=True)
        ]
        return assignment.rows(pa.table(texts, names=[column.name for column in chosen]))

    return chosen, f"SELECT * FROM read_csv({sql})", convert


def _of_json(database: Any, statement: CopyFrom, columns: Sequence[Column]) -> Chosen:
    source = f"{quote_text(statement.file)}{_packed(statement)}"
    objects = f"read_json_objects({source})"
    wanted = {column.name.lower() for column in columns}
    names = _json_names(database, f"(SELECT json FROM {objects} LIMIT {_SAMPLE_ROWS})")
    complete = names is not None and wanted <= {name.lower() for name in names}
    if not complete:
        names = _json_names(database, objects)
    if names is None:
        return None
    chosen = _named(names, statement, columns)
    spelled = {name.lower(): name for name in names}
    called = [spelled[column.name.lower()] for column in chosen]
    every = complete and statement.columns is None

    def convert(assignment: Assignment, batch: pa.RecordBatch) -> pa.Table:
        return assignment.objects(batch.column(0), called, every=every)

    return chosen, f"SELECT json FROM {objects}", convert


_SAMPLE_ROWS = 10_000
"""Rows of a JSON file that are looked at first. The whole file is read for its names only if one is missing there."""


def _json_names(database: Any, objects: str) -> list[str] | None:
    """Return the names of the fields of JSON objects; None if there are no objects."""
    found = database.execute(f"SELECT DISTINCT json_keys(json) FROM {objects}").fetchall()
    return list(dict.fromkeys(name for (keys,) in found for name in keys or ())) if found else None


def _of_parquet(database: Any, statement: CopyFrom, columns: Sequence[Column]) -> Chosen:
    source = f"read_parquet({quote_text(statement.file)})"
    chosen = _named(database.sql(f"SELECT * FROM {source}").columns, statement, columns)
    sql = f"SELECT {', '.join(quoted(column.name) for column in chosen)} FROM {source}"
    return chosen, sql, lambda assignment, batch: assignment.rows(pa.Table.from_batches([batch]))


def _named(names: Sequence[str], statement: CopyFrom, columns: Sequence[Column]) -> list[Column]:
    """Return the table's columns that a file names, in its order."""
    by_name = {column.name.lower(): column for column in columns}
    folded = [name.lower() for name in names]
    twice = next((name for name in names if folded.count(name.lower()) > 1), None)
    if twice is not None:
        raise SqlError(f"{statement.file} has the column '{twice}' twice; upper and lower case are the same")
    if statement.columns is None:
        _must_be_known(names, by_name, statement)
        return [by_name[name.lower()] for name in names]
    missing = [column.name for column in columns if column.name.lower() not in map(str.lower, names)]
    if missing:
        raise SqlError(f"{statement.file} has no column '{missing[0]}'; it has {', '.join(names)}")
    return list(columns)


def _must_be_known(names: Sequence[str], known: Mapping[str, Column], statement: CopyFrom) -> None:
    for name in names:
        if name.strip().lower() not in known:
            columns = [column.name for column in known.values()]
            raise SqlError(
                f"{statement.file} has a column '{name}', which {statement.path} does not have{near(name, columns)}"
                f"\nit has {', '.join(columns)}"
            )


_PARAMETERS = {
    "delimiter": "delim", "quote": "quote", "escape": "escape", "nullstr": "nullstr", "compression": "compression",
}  # fmt: skip


def _packed(statement: CopyFrom) -> str:
    found = statement.options.get("compression")
    return "" if found is None else f", compression = {_value(found)}"


def _said(options: Mapping[str, Any]) -> list[str]:
    return [f"{name.upper()} {_value(value)}" for name, value in options.items() if name != "format"]


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else quote_text(str(value))


def _must_be_allowed(files: bool) -> None:
    if not files:
        raise SqlError("COPY is not allowed here, because it reads and writes files")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    text = str(error).strip()
    return text.split("\n\n")[0]
