"""Temporary tables: the query that gives the rows of a connector of Flink.

| connector | rows |
|---|---|
| `kafka` | the records of a topic of this server, with JSON values |
| `datagen`, `faker` | generated rows; the same query gives other rows each time |

An option that would change the rows in a way that the query cannot is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from headrace.tablelayer.model.ddl import CreateTemporaryTable
from headrace.tablelayer.model.ddl.statements import TemporaryColumn
from headrace.tablelayer.model.types.column_types import DataType, TypeKind
from headrace.tablelayer.model.types.quoting import quote_text, quoted
from headrace.tablelayer.sql.errors import SqlError
from headrace.tablelayer.sql.generators import datagen_value, faker_value
from headrace.tablelayer.sql.types import duckdb_type

_INSTEAD = {
    "filesystem": "name the file in a query: SELECT ... FROM 'file.csv'",
    "print": "a SELECT prints its rows",
    "blackhole": "EXPLAIN SELECT shows how a query is answered",
    "jdbc": "DuckDB reads other databases: SELECT ... FROM postgres_scan(...)",
    "fluss": "CREATE TABLE without TEMPORARY makes a table of this server",
    "upsert-kafka": "a table with a primary key is a topic that Kafka's clients upsert into",
    "mysql-cdc": "let Debezium write to a topic: headrace tables create --from-topic",
    "postgres-cdc": "let Debezium write to a topic: headrace tables create --from-topic",
}


def query_of(statement: CreateTemporaryTable) -> tuple[str, list[str]]:
    """Return the query of a temporary table, and notices about options without an effect. Raises SqlError."""
    options = dict(statement.options)
    connector = options.pop("connector")
    read = _CONNECTORS.get(connector)
    if read is None:
        instead = f": {_INSTEAD[connector]}" if connector in _INSTEAD else ""
        raise SqlError(
            f"the connector '{connector}' is not in this release{instead}; those of temporary tables are"
            f" {', '.join(_CONNECTORS)}"
        )
    query, unused = read(statement, options)
    computed = [each for each in statement.columns if each.expression is not None]
    if computed:
        named = {each.name: each.expression or quoted(each.name) for each in statement.columns}
        chosen = ", ".join(f"{text} AS {quoted(name)}" for name, text in named.items())
        query = f"SELECT {chosen} FROM ({query})"
    notices = [f"{', '.join(unused)} has no effect: a query reads the rows that are there"] if unused else []
    if statement.primary_key:
        notices.append("the primary key of a temporary table is not checked")
    return query, notices


def _take(options: dict[str, str], *names: str) -> list[str]:
    """Remove options without an effect, by their names or beginnings; return them quoted."""
    found = [
        name for name in options if any(name == n or (n[-1] == "." and name.startswith(n)) for n in names)
    ]
    for name in found:
        del options[name]
    return [f"'{name}'" for name in found]


def _refuse_rest(options: Mapping[str, str], connector: str, known: str) -> None:
    for name in options:
        raise SqlError(
            f"connector '{connector}': the option '{name}' is not in this release; the options are {known}"
        )


# Kafka

_METADATA = {"timestamp": '"timestamp"', "partition": '"partition"', "offset": '"offset"'}
_EXACT_DIGITS = 15


def _kafka(statement: CreateTemporaryTable, options: dict[str, str]) -> tuple[str, list[str]]:
    topic = options.pop("topic", None)
    if topic is None:
        raise SqlError("connector 'kafka': the option 'topic' is missing")
    if ";" in topic or "topic-pattern" in options:
        raise SqlError("connector 'kafka': a temporary table reads one topic; use UNION ALL for several")
    form = options.pop("format", None) or options.pop("value.format", None)
    if form != "json":
        raise SqlError(
            f"connector 'kafka': the format '{form}' is not in this release, 'json' is; the topic itself has the"
            f' text of each value: SELECT value FROM "{topic}"'
        )
    begin, end = (
        options.pop("scan.startup.mode", "group-offsets"),
        options.pop("scan.bounded.mode", "latest-offset"),
    )
    if begin != "earliest-offset" or end != "latest-offset":
        raise SqlError(
            "connector 'kafka': 'scan.startup.mode' must be 'earliest-offset', and 'scan.bounded.mode' be left out: a"
            " query reads a topic from its beginning to its end; limit it by WHERE on a METADATA column 'timestamp'"
        )
    skips = options.pop("json.ignore-parse-errors", options.pop("value.json.ignore-parse-errors", "false"))
    if options.pop("json.fail-on-missing-field", "false") != "false":
        raise SqlError("connector 'kafka': 'json.fail-on-missing-field' = 'true' is not in this release")
    unused = _take(
        options,
        "properties.",
        "json.timestamp-format.standard",
        "scan.topic-partition-discovery.interval",
        "sink.",
    )
    _refuse_rest(
        options,
        "kafka",
        "topic, format, scan.startup.mode, json.ignore-parse-errors and properties.bootstrap.servers",
    )
    is_lenient = skips == "true"
    chosen = [
        f"{_of_record(each, topic, is_lenient)} AS {quoted(each.name)}"
        for each in statement.columns
        if each.expression is None
    ]
    document = "TRY_CAST(value AS JSON)" if is_lenient else "CAST(value AS JSON)"
    inner = (
        f'SELECT "partition", "offset", "timestamp", {document} AS document FROM {quoted(topic)}'
        " WHERE value IS NOT NULL"
    )
    lenient = " WHERE document IS NOT NULL" if is_lenient else ""
    return f"SELECT {', '.join(chosen)} FROM ({inner}){lenient}", unused


def _of_record(column: TemporaryColumn, topic: str, is_lenient: bool) -> str:
    if column.metadata is not None:
        if column.metadata == "topic":
            return quote_text(topic)
        if column.metadata not in _METADATA:
            raise SqlError(
                f"column '{column.name}': METADATA '{column.metadata}' is not in this release; topic,"
                f" {', '.join(_METADATA)} are"
            )
        return _METADATA[column.metadata]
    assert column.column is not None
    kind = column.column.type
    _check_exact(column.name, kind)
    path = quote_text("$." + '"' + column.name.replace('"', '\\"') + '"')
    cast = "TRY_CAST" if is_lenient else "CAST"
    if kind.is_nested:
        return f"{cast}(json_extract(document, {path}) AS {duckdb_type(kind)})"
    text = f"json_extract_string(document, {path})"
    if kind.kind in (TypeKind.BYTES, TypeKind.BINARY):
        return f"from_base64({text})"
    return f"{cast}({text} AS {duckdb_type(kind)})"


def _check_exact(name: str, kind: DataType) -> None:
    if kind.kind is TypeKind.DECIMAL and kind.precision > _EXACT_DIGITS:
        raise SqlError(
            f"column '{name}': a number in JSON is exact to {_EXACT_DIGITS} digits here, and {kind} may have more:"
            " make a table of the topic (headrace tables create --from-topic), which keeps all digits"
        )
    for field in kind.fields:
        _check_exact(name, field.type)


# Generated rows


def _generated(
    value: Callable[[TemporaryColumn, dict[str, str]], tuple[str, int | None]], connector: str
) -> Callable[[CreateTemporaryTable, dict[str, str]], tuple[str, list[str]]]:
    def read(statement: CreateTemporaryTable, options: dict[str, str]) -> tuple[str, list[str]]:
        count = options.pop("number-of-rows", None)
        if count is not None and not re.fullmatch(r"[0-9]{1,12}", count):
            raise SqlError(f"connector '{connector}': 'number-of-rows' = '{count}' is not a number")
        unused = _take(options, "rows-per-second", "scan.parallelism")
        chosen, ends = list[str](), list[int]()
        for column in statement.columns:
            if column.expression is not None:
                continue
            if column.metadata is not None:
                raise SqlError(f"connector '{connector}' has no METADATA, as column '{column.name}' asks for")
            text, end = value(column, options)
            chosen.append(f"{text} AS {quoted(column.name)}")
            ends += [] if end is None else [end]
        _refuse_rest(options, connector, "number-of-rows, rows-per-second and those of fields")
        rows = min([*ends, *([] if count is None else [int(count)])], default=None)
        if rows is None:
            never = quote_text(
                f"{statement.path} generates rows without an end: add 'number-of-rows' = '1000' to its options"
            )
            return (
                f"SELECT {', '.join(chosen)} FROM range(1) AS numbers(i) WHERE error({never}) IS NULL",
                unused,
            )
        return f"SELECT {', '.join(chosen)} FROM range({rows}) AS numbers(i)", unused

    return read


_CONNECTORS = {
    "kafka": _kafka,
    "datagen": _generated(datagen_value, "datagen"),
    "faker": _generated(faker_value, "faker"),
}
