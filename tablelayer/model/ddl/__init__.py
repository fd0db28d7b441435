"""Statements of `headrace sql` and of the client: parsing, and the way back to text.

The words are those of the Fluss documentation (Flink SQL): ``parse`` gives one frozen value per
statement, and a ``DdlError`` that points at the word it cannot make sense of. What is not in this release
is refused by name. Queries (``SELECT``) are DuckDB's SQL, with backticks allowed; ``Select`` tells which
tables and columns they need, and whether a lookup, a count or a limit scan answers them.

``parse(create_table_sql(definition))`` gives the definition back, as it would be if it were new.
"""

from tablelayer.model.ddl.clauses import parse_columns
from tablelayer.model.ddl.parser import parse
from tablelayer.model.ddl.query import Select
from tablelayer.model.ddl.render import create_database_sql, create_table_sql
from tablelayer.model.ddl.statements import (
    AddPartition,
    AlterDatabase,
    AlterTable,
    AlterUser,
    CreateDatabase,
    CreateTable,
    CreateUser,
    Delete,
    DescribeDatabase,
    DescribeTable,
    DropDatabase,
    DropPartition,
    DropTable,
    DropUser,
    Grant,
    Insert,
    InsertSelect,
    Password,
    Privilege,
    Revoke,
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
)
from tablelayer.model.ddl.tokens import DdlError
from tablelayer.model.types.values import Value

__all__ = [
    "AddPartition",
    "AlterDatabase",
    "AlterTable",
    "AlterUser",
    "CreateDatabase",
    "CreateTable",
    "CreateUser",
    "DdlError",
    "Delete",
    "DescribeDatabase",
    "DescribeTable",
    "DropDatabase",
    "DropPartition",
    "DropTable",
    "DropUser",
    "Grant",
    "Insert",
    "InsertSelect",
    "Password",
    "Privilege",
    "Revoke",
    "Select",
    "ShowCreateDatabase",
    "ShowCreateTable",
    "ShowDatabases",
    "ShowGrants",
    "ShowOptions",
    "ShowPartitions",
    "ShowTables",
    "ShowUsers",
    "Statement",
    "Update",
    "UseDatabase",
    "Value",
    "create_database_sql",
    "create_table_sql",
    "parse",
    "parse_columns",
]
