"""Carrying out SQL statements over the table client.

Definitions go to the server as they are. INSERT upserts or appends all its rows in one write. UPDATE is a lookup (is
the row there?) and a partial update of the columns that it sets, which makes no row; DELETE is by key. A SELECT goes
the cheapest way that answers it (`tablelayer.cli.select`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tablelayer.cli.answer import Answer
from tablelayer.cli.rights import run_rights
from tablelayer.cli.select import run_select
from tablelayer.client import Connection, Table
from tablelayer.client.admin.ddl import define
from tablelayer.model.ddl import (
    AlterUser,
    CreateUser,
    Delete,
    DescribeDatabase,
    DescribeTable,
    DropUser,
    Grant,
    Insert,
    InsertSelect,
    Revoke,
    Select,
    ShowCreateDatabase,
    ShowCreateTable,
    ShowDatabases,
    ShowGrants,
    ShowOptions,
    ShowPartitions,
    ShowTables,
    ShowUsers,
    Statement,
    Update,
    UseDatabase,
    create_database_sql,
    create_table_sql,
    parse,
)
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.options.table_options import DECLARED, DeleteBehavior, MergeEngine
from tablelayer.model.table.definition import TableDefinition

_ROWS_AT_ONCE = 200_000


class Session:
    """Statements one after the other, with a current database."""

    def __init__(self, connection: Connection, database: str = "default") -> None:
        self._connection = connection
        self.database = database

    def run(self, sql: str) -> Iterator[Answer]:
        """Carry out the statements of a text, each when its answer is asked for.

        Nothing has been done if the text cannot be understood (DdlError).
        """
        for statement in parse(sql, self.database):
            yield self._run(statement)

    def _run(self, statement: Statement) -> Answer:
        done = define(self._connection.admin, statement)
        if done is not None:
            return Answer(text=done)
        if isinstance(statement, UseDatabase):
            return self._use(statement.name)
        if isinstance(statement, ShowDatabases):
            return _names("database", self._connection.admin.list_databases(), statement.like)
        if isinstance(statement, ShowTables):
            return _names("table", self._connection.admin.list_tables(statement.database), statement.like)
        if isinstance(statement, ShowPartitions):
            return self._partitions(statement)
        if isinstance(statement, ShowOptions):
            return self._options(statement)
        if isinstance(statement, DescribeDatabase):
            return self._describe_database(statement.name)
        if isinstance(statement, ShowCreateDatabase):
            known = self._connection.admin.describe_database(statement.name)
            return Answer(text=create_database_sql(known.name, known.comment, known.properties), is_code=True)
        if isinstance(statement, DescribeTable):
            return Answer(definition=self._connection.admin.describe_table(statement.path))
        if isinstance(statement, ShowCreateTable):
            definition = self._connection.admin.describe_table(statement.path)
            return Answer(text=create_table_sql(definition), is_code=True)
        if isinstance(statement, (Grant, Revoke, ShowGrants, CreateUser, AlterUser, DropUser, ShowUsers)):
            return run_rights(self._connection.security, statement)
        if isinstance(statement, Insert):
            return self._insert(statement)
        if isinstance(statement, InsertSelect):
            return self._insert_select(statement)
        if isinstance(statement, Update):
            return self._update(statement)
        if isinstance(statement, Delete):
            return self._delete(statement)
        if isinstance(statement, Select):
            return Answer(rows=run_select(self._connection, statement))
        raise AssertionError(f"a statement of no known kind: {statement!r}")

    def _partitions(self, statement: ShowPartitions) -> Answer:
        """A row for each: its values, its name (which is also the end of its topic's), its buckets."""
        admin = self._connection.admin
        definition = admin.describe_table(statement.path)
        found = admin.list_partitions(statement.path, statement.spec)
        columns: dict[str, pa.Array] = {
            key: pa.array([each.values[position] for each in found], pa.string())
            for position, key in enumerate(definition.partition_keys)
        }
        columns["topic"] = pa.array([f"{statement.path}.{each.name}" for each in found], pa.string())
        columns["buckets"] = pa.array([each.bucket_count for each in found], pa.int32())
        return Answer(rows=pa.table(list(columns.values()), names=list(columns)))

    def _options(self, statement: ShowOptions) -> Answer:
        """All options; of a table with the values that it has."""
        given: Mapping[str, str] = {}
        value = "default"
        if statement.path is not None:
            given, value = self._connection.admin.describe_table(statement.path).options, "value"
        listed = [
            (each.name, given.get(each.name, each.default_text), "yes" if each.alterable else "no", each.doc)
            for each in DECLARED.values()
        ]
        others = [(name, text, "yes", "Kafka's topic configuration.") for name, text in given.items()
                  if name not in DECLARED]  # fmt: skip
        columns = list(zip(*sorted([*listed, *others]), strict=True))
        names = ("option", value, "alterable", "what it does")
        return Answer(
            rows=pa.table({n: pa.array(c, pa.string()) for n, c in zip(names, columns, strict=True)})
        )

    def _describe_database(self, name: str) -> Answer:
        known = self._connection.admin.describe_database(name)
        pairs = [("name", known.name), ("tables", str(known.table_count))]
        if known.comment is not None:
            pairs.append(("comment", known.comment))
        pairs += [(f"'{key}'", value) for key, value in known.properties.items()]
        keys, values = zip(*pairs, strict=True)
        return Answer(
            rows=pa.table({"property": pa.array(keys, pa.string()), "value": pa.array(values, pa.string())})
        )

    def _use(self, name: str) -> Answer:
        if name not in self._connection.admin.list_databases():
            raise TableError(TableErrorCode.DATABASE_NOT_FOUND, f"there is no database '{name}'")
        self.database = name
        return Answer(text=f"using database {name}")

    def _insert(self, statement: Insert) -> Answer:
        table = self._connection.table(statement.path)
        schema = table.definition.schema
        names = list(statement.columns) if statement.columns is not None else schema.names
        schema.select(names)
        for values in statement.rows:
            if len(values) != len(names):
                raise TableError(
                    TableErrorCode.INVALID_ROW,
                    f"{table.path}: {len(values)} values for {len(names)} columns ({', '.join(names)})",
                )
        rows = [dict(zip(names, values, strict=True)) for values in statement.rows]
        if table.definition.is_primary_key_table:
            if len(names) < len(schema.names) and _takes_some_columns(table.definition):
                table.partial(rows, names)
            else:
                table.upsert(rows)
        else:
            table.append(rows)
        return Answer(text=_count(len(rows), "written"))

    def _insert_select(self, statement: InsertSelect) -> Answer:
        """As they come, a few MiB at a time; what is read of the table itself is read before the first is written."""
        table = self._connection.table(statement.path)
        schema = table.definition.schema
        names = list(statement.columns) if statement.columns is not None else schema.names
        schema.select(names)
        answer = Answer(run_select(self._connection, statement.select))
        assert answer.schema is not None
        if len(answer.schema) != len(names):
            raise TableError(
                TableErrorCode.INVALID_ROW,
                f"{table.path}: the query gives {len(answer.schema)} columns for {len(names)} ({', '.join(names)})",
            )
        if any(str(statement.path) in name for name in statement.select.tables):
            _ = answer.rows
        written = 0
        for batch in answer.batches(_ROWS_AT_ONCE):
            rows = pa.Table.from_batches([batch]).rename_columns(names)
            try:
                if not table.definition.is_primary_key_table:
                    table.append(rows)
                elif len(names) < len(schema.names) and _takes_some_columns(table.definition):
                    table.partial(rows, names)
                else:
                    table.upsert(rows)
            except Exception as error:
                if written:
                    error.add_note(f"{_count(written, 'written')} before")
                raise
            written += batch.num_rows
        return Answer(text=_count(written, "written"))

    def _update(self, statement: Update) -> Answer:
        table = self._connection.table(statement.path)
        schema = table.definition.schema
        _whole_key(table, statement.key, "UPDATE")
        schema.select(list(statement.assignments))
        changed_key = [name for name in statement.assignments if name in schema.primary_key]
        if changed_key:
            raise TableError(
                TableErrorCode.INVALID_STATEMENT,
                f"UPDATE cannot change the primary key ({', '.join(changed_key)}): "
                "DELETE the row and INSERT another",
            )
        if table.definition.settings.merge_engine is not None and not _takes_some_columns(table.definition):
            raise TableError(
                TableErrorCode.INVALID_STATEMENT,
                f"{table.path} has the merge engine '{table.definition.settings.merge_engine}': a row that is there "
                "is not changed by UPDATE; INSERT a whole row",
            )
        found, _ = table.lookup([statement.key], columns=list(schema.primary_key))
        if found[0]:
            # Only what is set is written: what somebody else writes at the same time is not undone.
            row = {**statement.key, **statement.assignments}
            table.partial([row], list(row), only_existing=True)
        return Answer(text=_count(int(found[0]), "updated"))

    def _delete(self, statement: Delete) -> Answer:
        table = self._connection.table(statement.path)
        _whole_key(table, statement.key, "DELETE")
        if table.definition.settings.delete_behavior is DeleteBehavior.IGNORE:
            raise TableError(
                TableErrorCode.INVALID_STATEMENT,
                f"{table.path} ignores deletes ('table.delete.behavior' = 'IGNORE'): nothing would happen",
            )
        found, _ = table.lookup([statement.key], columns=list(table.definition.schema.primary_key))
        if found[0]:
            table.delete([statement.key])
        return Answer(text=_count(int(found[0]), "deleted"))


def _takes_some_columns(definition: TableDefinition) -> bool:
    """Whether there are partial updates (R6.9)."""
    return definition.settings.merge_engine in (None, MergeEngine.AGGREGATION)


def _whole_key(table: Table, key: Mapping[str, Any], verb: str) -> None:
    primary_key = table.definition.schema.primary_key
    if not primary_key:
        raise TableError(
            TableErrorCode.NOT_A_PRIMARY_KEY_TABLE,
            f"{table.path} is a log table: its rows cannot be changed by {verb}",
        )
    if set(key) != set(primary_key):
        raise TableError(
            TableErrorCode.INVALID_STATEMENT,
            f"{verb} on {table.path} needs WHERE with a value for the whole primary key, and nothing else: "
            + " AND ".join(f"{name} = ..." for name in primary_key),
        )


def _names(heading: str, names: list[str], like: str | None) -> Answer:
    """Names as rows; `like` is SQL's pattern: % any characters, _ one."""
    found = pa.array(names, pa.string())
    if like is not None:
        found = found.filter(pc.match_like(found, like))
    return Answer(rows=pa.table({heading: found}))


def _count(rows: int, verb: str) -> str:
    return f"{rows} row{'' if rows == 1 else 's'} {verb}"
