"""`connection.execute`: statements that define databases and tables, and nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace.tablelayer.model.ddl import (
    AddPartition,
    AlterDatabase,
    AlterTable,
    CreateDatabase,
    CreateTable,
    DropDatabase,
    DropPartition,
    DropTable,
    Names,
    Statement,
    parse_each,
)
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.table.definition import StoredTable, TableDefinition
from headrace.tablelayer.model.table.evolution import Change
from headrace.tablelayer.model.table.partitions import Partition
from headrace.tablelayer.model.table.path import DEFAULT_DATABASE, TablePath
from headrace.tablelayer.model.types.values import Value


class Definer(Protocol):
    """The methods that statements call: those of the blocking `Admin`."""

    def create_database(
        self,
        name: str,
        *,
        if_not_exists: bool = False,
        comment: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None: ...
    def alter_database(
        self,
        name: str,
        *,
        set_properties: Mapping[str, str] | None = None,
        reset_properties: Sequence[str] = (),
        comment: str | None = None,
    ) -> None: ...
    def drop_database(self, name: str, *, if_exists: bool = False, cascade: bool = False) -> None: ...
    def create_table(self, definition: TableDefinition, *, if_not_exists: bool = False) -> StoredTable: ...
    def describe_table(self, path: TablePath | str) -> StoredTable: ...
    def alter_table(
        self, path: TablePath | str, changes: Sequence[Change], *, expected_schema_id: int | None = None
    ) -> TableDefinition: ...
    def drop_table(self, path: TablePath | str, *, if_exists: bool = False) -> None: ...
    def add_partition(
        self, path: TablePath | str, spec: Mapping[str, Value], *, if_not_exists: bool = False
    ) -> Partition: ...
    def drop_partition(
        self, path: TablePath | str, spec: Mapping[str, Value], *, if_exists: bool = False
    ) -> None: ...


_DEFINING = (
    CreateDatabase,
    AlterDatabase,
    DropDatabase,
    CreateTable,
    AlterTable,
    DropTable,
    AddPartition,
    DropPartition,
)


def execute(admin: Definer, sql: str) -> None:
    """Run all statements of a text. None is run if one of them cannot be understood or is not DDL.

    Words that have no effect here are warned of.
    """
    found = list(parse_each(sql, Names(DEFAULT_DATABASE)))
    statements = [statement for statement, _ in found]
    for statement in statements:
        if not isinstance(statement, _DEFINING):
            raise TableError(
                TableErrorCode.INVALID_STATEMENT,
                f"execute runs CREATE, ALTER and DROP of databases, tables and partitions, "
                f"not {type(statement).__name__}: "
                "use the methods of a table, or `headrace sql`",
            )
    for statement, notices in found:
        for notice in notices:
            warnings.warn(notice, stacklevel=2)
        define(admin, statement)


def define(admin: Definer, statement: Statement) -> str | None:
    """Carry out one DDL statement and return a message; None if it is not a DDL statement."""
    if isinstance(statement, CreateDatabase):
        admin.create_database(
            statement.name,
            if_not_exists=statement.if_not_exists,
            comment=statement.comment,
            properties=statement.properties,
        )
        return created(f"database {statement.name}", statement.if_not_exists)
    if isinstance(statement, AlterDatabase):
        admin.alter_database(
            statement.name,
            set_properties=statement.set_properties,
            reset_properties=statement.reset_properties,
            comment=statement.comment,
        )
        return f"altered database {statement.name}"
    if isinstance(statement, AlterTable):
        return _alter(admin, statement)
    if isinstance(statement, DropDatabase):
        admin.drop_database(statement.name, if_exists=statement.if_exists, cascade=statement.cascade)
        return dropped(f"database {statement.name}", statement.if_exists)
    if isinstance(statement, CreateTable):
        admin.create_table(statement.definition, if_not_exists=statement.if_not_exists)
        return created(f"table {statement.definition.path}", statement.if_not_exists)
    if isinstance(statement, DropTable):
        admin.drop_table(statement.path, if_exists=statement.if_exists)
        return dropped(f"table {statement.path}", statement.if_exists)
    if isinstance(statement, AddPartition):
        admin.add_partition(statement.path, statement.spec, if_not_exists=statement.if_not_exists)
        return created(f"the partition of table {statement.path}", statement.if_not_exists)
    if isinstance(statement, DropPartition):
        admin.drop_partition(statement.path, statement.spec, if_exists=statement.if_exists)
        return dropped(f"the partition of table {statement.path}", statement.if_exists)
    return None


def created(name: str, if_not_exists: bool) -> str:
    """Return the message of a CREATE. With IF NOT EXISTS it is not known whether the statement made it."""
    return f"{name} exists" if if_not_exists else f"created {name}"


def dropped(name: str, if_exists: bool) -> str:
    """Return the message of a DROP. With IF EXISTS it is not known whether the statement removed it."""
    return f"{name} does not exist" if if_exists else f"dropped {name}"


def _alter(admin: Definer, statement: AlterTable) -> str:
    """Check the changes before the server does, because here an error can point at the word in the statement."""
    try:
        before = admin.describe_table(statement.path)
    except TableError as error:
        if statement.if_exists and error.code is TableErrorCode.TABLE_NOT_FOUND:
            return f"table {statement.path} does not exist"
        raise
    statement.check(before)
    after = admin.alter_table(statement.path, statement.changes)
    if after.schema.schema_id == before.schema.schema_id:
        return f"altered table {statement.path}"
    return f"altered table {statement.path}: its schema id is now {after.schema.schema_id}"
