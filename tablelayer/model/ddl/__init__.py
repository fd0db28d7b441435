"""Statements of `headrace sql` and of the client: parsing, and the way back to text.

The words are those of the Fluss documentation (Flink SQL): ``parse`` gives one frozen value per
statement, and a ``DdlError`` that points at the word it cannot make sense of. What is not in this release
is refused by name. Queries (``SELECT``) are DuckDB's SQL, with backticks allowed; ``Select`` tells which
tables and columns they need, and whether a lookup, a count or a limit scan answers them.

``parse(create_table_sql(definition))`` gives the definition back, as it would be if it were new.
"""

from typing import TYPE_CHECKING

from protocol.lazy import lazy_names
from tablelayer.model.ddl.errors import DdlError
from tablelayer.model.ddl.plain import parse
from tablelayer.model.ddl.query import Select
from tablelayer.model.ddl.render import create_database_sql, create_table_sql
from tablelayer.model.ddl.statements import (
    AddPartition,
    AlterDatabase,
    AlterTable,
    AlterUser,
    CopyFrom,
    CopyTo,
    CreateDatabase,
    CreateTable,
    CreateTableAs,
    CreateUser,
    CreateView,
    Default,
    Delete,
    DescribeDatabase,
    DescribeQuery,
    DescribeTable,
    DropDatabase,
    DropPartition,
    DropTable,
    DropUser,
    DropView,
    Explain,
    Expression,
    Grant,
    Insert,
    InsertSelect,
    Password,
    Privilege,
    Revoke,
    ShowColumns,
    ShowCreateDatabase,
    ShowCreateTable,
    ShowDatabases,
    ShowGrants,
    ShowOptions,
    ShowPartitions,
    ShowTables,
    ShowTopics,
    ShowUsers,
    ShowViews,
    Statement,
    Summarize,
    Truncate,
    Update,
    UseDatabase,
)
from tablelayer.model.types.values import Value

if TYPE_CHECKING:
    from tablelayer.model.ddl.clauses import parse_columns
else:
    __getattr__ = lazy_names(__name__, {".clauses": ("parse_columns",)})

__all__ = [
    "AddPartition",
    "AlterDatabase",
    "AlterTable",
    "AlterUser",
    "CopyFrom",
    "CopyTo",
    "CreateDatabase",
    "CreateTable",
    "CreateTableAs",
    "CreateUser",
    "CreateView",
    "DdlError",
    "Default",
    "Delete",
    "DescribeDatabase",
    "DescribeQuery",
    "DescribeTable",
    "DropDatabase",
    "DropPartition",
    "DropTable",
    "DropUser",
    "DropView",
    "Explain",
    "Expression",
    "Grant",
    "Insert",
    "InsertSelect",
    "Password",
    "Privilege",
    "Revoke",
    "Select",
    "ShowColumns",
    "ShowCreateDatabase",
    "ShowCreateTable",
    "ShowDatabases",
    "ShowGrants",
    "ShowOptions",
    "ShowPartitions",
    "ShowTables",
    "ShowTopics",
    "ShowUsers",
    "ShowViews",
    "Statement",
    "Summarize",
    "Truncate",
    "Update",
    "UseDatabase",
    "Value",
    "create_database_sql",
    "create_table_sql",
    "parse",
    "parse_columns",
]
