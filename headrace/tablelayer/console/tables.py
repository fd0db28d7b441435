"""Tables in the console: definitions, rows by key, their changes, writes, SQL. All methods block."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from functools import reduce
from operator import and_
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.client import Connection, Table, UnsupportedRequest
from headrace.tablelayer.console.routes import Body, RequestError, Rows, delete, get, post
from headrace.tablelayer.console.tails import Tail, follow_table
from headrace.tablelayer.console.values import plain, rows_of
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.ddl import create_table_sql
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json.python_values import python_rows
from headrace.tablelayer.model.json.rows import json_to_rows
from headrace.tablelayer.model.options.table_options import DECLARED, UnknownFields
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable

ROWS_MAX: Final = 1000
CHANGES_MAX: Final = 100
CHANGES_LOOKED_AT_MAX: Final = 100_000
"""The newest changes of each bucket that are searched for one key."""
SQL_ROWS_MAX: Final = 10_000
_EARLIEST: Final = "earliest"

Key = Annotated[str, "The primary key."]


class WrittenRows(Body):
    rows: Rows


class Keys(Body):
    keys: Rows


class Statement(Body):
    query: str


class Sql(NamedTuple):
    """SQL as a caller carries it out. Both raise ValueError with the error's message."""

    query: Callable[[Connection, str], pa.Table | pa.RecordBatchReader]
    """Returns the rows of one statement that reads."""
    plan: Callable[[Connection, str], dict[str, Any]]
    """Returns the plan of one SELECT, a tree of `name`, `details` and `children`."""


class Tables:
    def __init__(self, connection: Connection, sql: Sql) -> None:
        self._connection = connection
        self._sql = sql

    @get("/api/tables")
    def listed(self) -> dict[str, Any]:
        """Tables by database."""
        admin = self._connection.admin
        return {
            "tables": [
                {"name": f"{database}.{table}", "database": database}
                for database in admin.list_databases()
                for table in admin.list_tables(database)
            ]
        }

    @get("/api/tables/{table}")
    def describe(self, table: str) -> dict[str, Any]:
        """A table: columns, keys, options, partitions, rows."""
        found = self._connection.table(table)
        definition = found.definition
        schema = definition.schema
        return {
            "name": str(definition.path),
            "id": str(definition.table_id),
            "comment": definition.comment,
            "primary_key": list(schema.primary_key),
            "bucket_key": list(definition.bucket_key),
            "buckets": definition.bucket_count,
            "partitioned_by": list(definition.partition_keys),
            "rows": found.count(),
            "sql": create_table_sql(definition),
            "columns": [
                {
                    "name": each.name,
                    "type": str(each.type),
                    "nullable": each.nullable,
                    "comment": each.comment,
                    "key": each.name in schema.primary_key,
                }
                for each in schema.columns
            ],
            "options": [
                {
                    "name": name,
                    "value": value,
                    "documentation": DECLARED[name].doc if name in DECLARED else None,
                }
                for name, value in sorted(definition.options.items())
            ],
            "partitions": self._partitions(found),
            "in_lake": definition.settings.datalake_enabled,
        }

    def _partitions(self, table: Table) -> list[dict[str, Any]]:
        if not table.definition.is_partitioned:
            return []
        return [
            {
                "name": each.name,
                "topic": table.path.of_partition(each.name).topic,
                "buckets": each.bucket_count,
            }
            for each in table.partitions()
        ]

    @get("/api/tables/{table}/snapshots")
    def snapshots(self, table: str) -> dict[str, Any]:
        """The buckets of a primary-key table, or a partition by its own name, with the snapshots of their state."""
        try:
            found = self._connection.admin.snapshots(table)
        except UnsupportedRequest:  # the server does not support it
            found = []
        return {
            "buckets": [
                {
                    "bucket": each.bucket,
                    "applied_offset": each.applied_offset,
                    "rows": each.row_count,
                    "snapshots": [
                        {
                            "id": one.id,
                            "offset": one.offset,
                            "rows": one.row_count,
                            "time_ms": one.created_at_ms,
                            "bytes": one.size_bytes,
                        }
                        for one in each.snapshots
                    ],
                }
                for each in found
            ]
        }

    @get("/api/tables/{table}/rows")
    def rows(
        self,
        table: str,
        key: Annotated[str | None, "The primary key."] = None,
        limit: Annotated[int, "Maximum number of results."] = 100,
    ) -> dict[str, Any]:
        """The row of a primary key (a JSON object, or the value of a key of one column), or some rows."""
        if not 1 <= limit <= ROWS_MAX:
            raise RequestError(f"limit is {limit}: it must be 1 to {ROWS_MAX}")
        found = self._connection.table(table)
        if key is None:
            return rows_of(found.limit(limit))
        keys = self._keys(found.definition, [key])
        there, rows = found.lookup(keys)
        return rows_of(rows.filter(pa.array(there)))

    @get("/api/tables/{table}/changes")
    def changes(self, table: str, key: Key) -> dict[str, Any]:
        """The changes of the row of a primary key, the newest first. `complete` is false if older ones are left out."""
        found = self._connection.table(table)
        definition = found.definition
        keys = self._keys(definition, [key])
        condition = reduce(
            and_, (_is_equal(name, keys.column(name)[0]) for name in definition.schema.primary_key)
        )
        changes: list[dict[str, Any]] = []
        names = definition.schema.names
        if definition.is_partitioned:
            found = found.only({name: keys.column(name)[0].as_py() for name in definition.partition_keys})
        end, first = found.partition_offsets("latest"), found.partition_offsets(_EARLIEST)
        begin = {
            part: {
                bucket: max(first[part][bucket], end[part][bucket] - CHANGES_LOOKED_AT_MAX)
                for bucket in offsets
            }
            for part, offsets in end.items()
            if part in first
        }
        until = {part: end[part] for part in begin}
        is_complete = all(begin[part] == first[part] for part in begin)
        with found.scan(start=begin, until=until, filter=condition) as scan:
            for batch in scan:
                for row, kind, offset in zip(
                    python_rows(batch.batch), batch.change_types.tolist(), batch.offsets.tolist(), strict=True
                ):
                    changes.append(
                        {
                            "change": ChangeType(kind).short,
                            "bucket": batch.bucket,
                            "offset": offset,
                            "timestamp_ms": batch.timestamp_ms,
                            "row": [plain(row[name]) for name in names],
                        }
                    )
                is_complete = is_complete and len(changes) <= CHANGES_MAX
                del changes[:-CHANGES_MAX]
        columns = [{"name": each.name, "type": str(each.type)} for each in definition.schema.columns]
        return {"columns": columns, "changes": changes[::-1], "complete": is_complete}

    @get("/api/tables/{table}/tail", streams=True)
    def tail(
        self,
        table: str,
        where: Annotated[str | None, "Only changes of rows for which this condition in SQL is true."] = None,
    ) -> Callable[[Tail], None]:
        """New changes as server-sent events, four a second: the newest of each, and how many came."""
        return follow_table(self._connection, table, where)

    @post("/api/tables/{table}/rows")
    def write(self, table: str, body: WrittenRows) -> dict[str, Any]:
        """Upsert rows by primary key; append them to a log table."""
        found = self._connection.table(table)
        rows = self._rows(body.rows, found.definition.schema.columns)
        written = found.upsert(rows) if found.definition.is_primary_key_table else found.append(rows)
        del written
        return {"written": rows.num_rows}

    @delete("/api/tables/{table}/rows")
    def remove(self, table: str, body: Keys) -> dict[str, Any]:
        """Delete rows by primary key."""
        found = self._connection.table(table)
        if not found.definition.is_primary_key_table:
            raise RequestError(f"{table} is a log table: its rows cannot be deleted")
        keys = self._rows(body.keys, found.definition.schema.key_columns)
        found.delete(keys)
        return {"deleted": keys.num_rows}

    @post("/api/sql", is_query=True)
    def sql(self, body: Statement) -> dict[str, Any]:
        """Run one SELECT, EXPLAIN, SUMMARIZE, SHOW or DESCRIBE. The answer has at most 10,000 rows. Close the
        connection to stop it.
        """
        text, began = _statement(body), time.monotonic()
        try:
            answer = self._sql.query(self._connection, text)
            batches = answer if isinstance(answer, pa.RecordBatchReader) else answer.to_batches()
            rows, more = _first(batches, answer.schema, SQL_ROWS_MAX)
        except ValueError as error:
            raise RequestError(str(error)) from None
        return {**rows_of(rows), "more": more, "ms": round((time.monotonic() - began) * 1000, 1)}

    @post("/api/sql/plan", is_query=True)
    def plan(self, body: Statement) -> dict[str, Any]:
        """The plan of one SELECT: a tree of operators with name, details and children."""
        try:
            return {"plan": self._sql.plan(self._connection, _statement(body))}
        except ValueError as error:
            raise RequestError(str(error)) from None

    @staticmethod
    def _keys(definition: StoredTable, texts: list[str]) -> pa.Table:
        if not definition.is_primary_key_table:
            raise RequestError(f"{definition.path} is a log table: it has no keys")
        columns = definition.schema.key_columns
        if len(columns) == 1:
            texts = [text if text.lstrip().startswith("{") else _wrapped(columns[0], text) for text in texts]
        return Tables._rows([text.encode("utf-8", "surrogatepass") for text in texts], columns)

    @staticmethod
    def _rows(texts: Iterable[bytes | msgspec.Raw], columns: Iterable[Column]) -> pa.Table:
        try:
            batch = json_to_rows(
                pa.array(list(map(bytes, texts)), pa.binary()),
                list(columns),
                unknown_fields=UnknownFields.FAIL,
            )
        except RowError as error:
            raise RequestError(str(error).replace(", and table.kafka.unknown-fields is 'fail'", "")) from None
        return pa.Table.from_batches([batch])


def _is_equal(name: str, value: pa.Scalar) -> pc.Expression:
    found = value.as_py() if pa.types.is_floating(value.type) else None
    return pc.field(name) == value if found == found else pc.is_nan(pc.field(name))


def _statement(body: Statement) -> str:
    if not body.query.strip():
        raise RequestError('send {"query": "SELECT ..."}')
    return body.query


def _wrapped(column: Column, text: str) -> str:
    """Return a bare value as the JSON object of a key of one column."""
    name = json.dumps(column.name)
    try:
        value = json.loads(text)
        is_json = isinstance(value, (int, str)) or (isinstance(value, float) and math.isfinite(value))
        bare = text if is_json else json.dumps(text)
    except ValueError:
        bare = json.dumps(text)
    if pa.types.is_string(column.type.arrow()) and not text.lstrip().startswith('"'):
        bare = json.dumps(text)
    return f"{{{name}: {bare}}}"


def _first(batches: Iterable[pa.RecordBatch], schema: pa.Schema, most: int) -> tuple[pa.Table, bool]:
    """Return at most `most` rows, and whether there are more."""
    taken, count, more = [], 0, False
    for batch in batches:
        if count + batch.num_rows > most:
            taken.append(batch.slice(0, most - count))
            more = True
            break
        taken.append(batch)
        count += batch.num_rows
    return pa.Table.from_batches(taken, schema=schema), more
