"""`connection.execute`: statements that define databases and tables, and nothing else."""

from __future__ import annotations

from typing import Protocol

from tablelayer.model.ddl import CreateDatabase, CreateTable, DropDatabase, DropTable, Statement, parse
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.table import TableDefinition, TablePath


class Definer(Protocol):
    """What carries the statements out: the blocking `Admin`."""

    def create_database(self, name: str, *, if_not_exists: bool = False) -> None: ...
    def drop_database(self, name: str, *, if_exists: bool = False, cascade: bool = False) -> None: ...
    def create_table(
        self, definition: TableDefinition, *, if_not_exists: bool = False
    ) -> TableDefinition: ...
    def drop_table(self, path: TablePath | str, *, if_exists: bool = False) -> None: ...


def execute(admin: Definer, sql: str) -> None:
    """Run all statements of a text. Nothing has been done if one of them cannot be understood or is no
    DDL.
    """
    statements = parse(sql)
    for statement in statements:
        if not isinstance(statement, (CreateDatabase, DropDatabase, CreateTable, DropTable)):
            raise TableError(
                TableErrorCode.INVALID_STATEMENT,
                f"execute runs CREATE and DROP of databases and tables, not {type(statement).__name__}: "
                "use the methods of a table, or `headrace sql`",
            )
    for statement in statements:
        define(admin, statement)


def define(admin: Definer, statement: Statement) -> str | None:
    """Carry out one DDL statement and say what was done; None if it is not one."""
    if isinstance(statement, CreateDatabase):
        admin.create_database(statement.name, if_not_exists=statement.if_not_exists)
        return f"database {statement.name} is there"
    if isinstance(statement, DropDatabase):
        admin.drop_database(statement.name, if_exists=statement.if_exists, cascade=statement.cascade)
        return f"database {statement.name} is gone"
    if isinstance(statement, CreateTable):
        admin.create_table(statement.definition, if_not_exists=statement.if_not_exists)
        return f"table {statement.definition.path} is there"
    if isinstance(statement, DropTable):
        admin.drop_table(statement.path, if_exists=statement.if_exists)
        return f"table {statement.path} is gone"
    return None
