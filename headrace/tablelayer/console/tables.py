"""Tables in the console: definitions, rows by key, their changes, writes, SQL. All methods block."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from functools import reduce
from operator import and_
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.client import Connection, Table, UnsupportedRequest
from headrace.tablelayer.console.routes import RequestError
from headrace.tablelayer.console.tails import Tail, follow_table
from headrace.tablelayer.console.values import json_of, plain, rows_of
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.ddl import create_table_sql
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json.rows import json_to_rows
from headrace.tablelayer.model.options.table_options import DECLARED, UnknownFields
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable

ROWS_MAX: Final = 1000
WRITTEN_MAX: Final = 1000
CHANGES_MAX: Final = 100
CHANGES_LOOKED_AT_MAX: Final = 100_000
"""The newest changes of each bucket that are searched for one key."""
SQL_ROWS_MAX: Final = 10_000
_EARLIEST: Final = "earliest"


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

    def listed(self) -> dict[str, Any]:
        admin = self._connection.admin
        return {
            "tables": [
                {"name": f"{database}.{table}", "database": database}
                for database in admin.list_databases()
                for table in admin.list_tables(database)
            ]
        }

    def describe(self, table: str) -> dict[str, Any]:
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

    def snapshots(self, table: str) -> dict[str, Any]:
        """Return the buckets of a primary-key table (or a partition by its own name) with their snapshots."""
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

    def rows(self, table: str, key: str | None, limit: int) -> dict[str, Any]:
        """Return some rows, or the one of a key (a JSON object, or a bare value)."""
        if not 1 <= limit <= ROWS_MAX:
            raise RequestError(f"limit is {limit}: it must be 1 to {ROWS_MAX}")
        found = self._connection.table(table)
        if key is None:
            return rows_of(found.limit(limit))
        keys = self._keys(found.definition, [key])
        there, rows = found.lookup(keys)
        return rows_of(rows.filter(pa.array(there)))

    def changes(self, table: str, key: str) -> dict[str, Any]:
        """Return the changes of a key's row, the newest first, among the newest changes of its bucket."""
        found = self._connection.table(table)
        definition = found.definition
        keys = self._keys(definition, [key])
        condition = reduce(
            and_, (pc.field(name) == keys.column(name)[0] for name in definition.schema.primary_key)
        )
        changes: list[dict[str, Any]] = []
        names = definition.schema.names
        if definition.is_partitioned:
            begin: Any = _EARLIEST
            until: Any = "latest"
        else:
            first, end = found.offsets(_EARLIEST), found.offsets("latest")
            begin = {bucket: max(first[bucket], end[bucket] - CHANGES_LOOKED_AT_MAX) for bucket in end}
            until = end
        with found.scan(start=begin, until=until, filter=condition) as scan:
            for batch in scan:
                for row, kind, offset in zip(
                    batch.batch.to_pylist(), batch.change_types.tolist(), batch.offsets.tolist(), strict=True
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
                del changes[:-CHANGES_MAX]
        columns = [{"name": each.name, "type": str(each.type)} for each in definition.schema.columns]
        return {"columns": columns, "changes": changes[::-1]}

    def tail(self, table: str, where: str | None) -> Callable[[Tail], None]:
        """Return a function that reads new changes into a tail."""
        return follow_table(self._connection, table, where)

    def write(self, table: str, body: Any) -> dict[str, Any]:
        """Upsert rows, or append them to a log table."""
        found = self._connection.table(table)
        rows = self._json_rows(body, "rows", found.definition.schema.columns)
        written = found.upsert(rows) if found.definition.is_primary_key_table else found.append(rows)
        del written
        return {"written": rows.num_rows}

    def delete(self, table: str, body: Any) -> dict[str, Any]:
        found = self._connection.table(table)
        if not found.definition.is_primary_key_table:
            raise RequestError(f"{table} is a log table: its rows cannot be deleted")
        keys = self._json_rows(body, "keys", found.definition.schema.key_columns)
        found.delete(keys)
        return {"deleted": keys.num_rows}

    def sql(self, body: Any) -> dict[str, Any]:
        """Run one statement that reads; return at most SQL_ROWS_MAX rows of its answer."""
        text, began = _statement(body), time.monotonic()
        try:
            answer = self._sql.query(self._connection, text)
            batches = answer if isinstance(answer, pa.RecordBatchReader) else answer.to_batches()
            rows, more = _first(batches, answer.schema, SQL_ROWS_MAX)
        except ValueError as error:
            raise RequestError(str(error)) from None
        return {**rows_of(rows), "more": more, "ms": round((time.monotonic() - began) * 1000, 1)}

    def plan(self, body: Any) -> dict[str, Any]:
        """Return the plan of one SELECT as a tree."""
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
        return Tables._rows(texts, columns)

    @staticmethod
    def _json_rows(body: Any, name: str, columns: Iterable[Column]) -> pa.Table:
        rows = body.get(name) if isinstance(body, dict) else None
        if not isinstance(rows, list) or not 1 <= len(rows) <= WRITTEN_MAX:
            raise RequestError(f'send {{"{name}": [{{...}}]}} with 1 to {WRITTEN_MAX} objects')
        return Tables._rows([json_of(each).decode() for each in rows], columns)

    @staticmethod
    def _rows(texts: list[str], columns: Iterable[Column]) -> pa.Table:
        try:
            batch = json_to_rows(
                pa.array([text.encode("utf-8", "surrogatepass") for text in texts], pa.binary()),
                list(columns),
                unknown_fields=UnknownFields.FAIL,
            )
        except RowError as error:
            raise RequestError(str(error).replace(", and table.kafka.unknown-fields is 'fail'", "")) from None
        return pa.Table.from_batches([batch])


def _statement(body: Any) -> str:
    text = body.get("query") if isinstance(body, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise RequestError('send {"query": "SELECT ..."}')
    return text


def _wrapped(column: Column, text: str) -> str:
    """Return a bare value as the JSON object of a key of one column."""
    name = json.dumps(column.name)
    try:
        value = json.loads(text)
        bare = text if isinstance(value, (int, float, str, bool)) else json.dumps(text)
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
