"""Parsed statements. All are frozen, and paths include the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.tablelayer.model.ddl.errors import DdlError
from headrace.tablelayer.model.ddl.query import Select
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.evolution import Change, evolve
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.values import Value

LIKE_PARTS = ("CONSTRAINTS", "GENERATED", "METADATA", "OPTIONS", "PARTITIONS")
"""The parts of a table that CREATE TABLE ... LIKE can include or exclude."""


class CreateDatabase(msgspec.Struct, frozen=True):
    name: str
    if_not_exists: bool = False
    comment: str | None = None
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)


class AlterDatabase(msgspec.Struct, frozen=True):
    """`comment`: None keeps it, '' removes it."""

    name: str
    set_properties: Mapping[str, str] = msgspec.field(default_factory=dict)
    reset_properties: tuple[str, ...] = ()
    comment: str | None = None


class DescribeDatabase(msgspec.Struct, frozen=True):
    name: str


class ShowCreateDatabase(msgspec.Struct, frozen=True):
    name: str


class DropDatabase(msgspec.Struct, frozen=True):
    name: str
    if_exists: bool = False
    cascade: bool = False


class ShowDatabases(msgspec.Struct, frozen=True):
    """`like`: a pattern with % and _, None for all."""

    like: str | None = None


class UseDatabase(msgspec.Struct, frozen=True):
    name: str


class CreateTable(msgspec.Struct, frozen=True):
    definition: TableDefinition
    if_not_exists: bool = False


class CreateTableLike(msgspec.Struct, frozen=True):
    """Create a table with the definition of another one, and more.

    `columns` and `options` are added, and `primary_key` and `partition_keys` given, to what the other table has.
    `included`: the parts that are taken from it, of LIKE_PARTS. `overwriting`: given options replace the other table's.
    """

    path: TablePath
    source: TablePath
    columns: tuple[Column, ...] = ()
    primary_key: tuple[str, ...] = ()
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    comment: str | None = None
    partition_keys: tuple[str, ...] = ()
    if_not_exists: bool = False
    included: tuple[str, ...] = LIKE_PARTS
    overwriting: bool = True


class TemporaryColumn(msgspec.Struct, frozen=True):
    """A column of a connector: stored (`column`), computed (`expression`), or about its records (`metadata`)."""

    name: str
    column: Column | None = None
    expression: str | None = None
    metadata: str | None = None


class CreateTemporaryTable(msgspec.Struct, frozen=True):
    """A name for the rows of a connector, for the rest of a session."""

    path: TablePath
    columns: tuple[TemporaryColumn, ...]
    options: Mapping[str, str]
    primary_key: tuple[str, ...] = ()
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterTable:
    """`places`: for each change the position in `sql` of its word (start, length)."""

    path: TablePath
    changes: tuple[Change, ...]
    if_exists: bool = False
    sql: str = field(default="", compare=False, repr=False)
    places: tuple[tuple[int, int], ...] = field(default=(), compare=False, repr=False)

    def check(self, definition: TableDefinition) -> None:
        """Raise a DdlError that points at the first change that this table does not allow."""
        done = definition
        for change, place in zip(self.changes, self.places, strict=True):
            try:
                done = evolve(done, [change])
            except TableError as error:
                raise DdlError(error.message, self.sql, *place) from error


class AddPartition(msgspec.Struct, frozen=True):
    """`spec`: a value for each named partition column; they are not checked against the table here."""

    path: TablePath
    spec: Mapping[str, Value]
    if_not_exists: bool = False


class DropPartition(msgspec.Struct, frozen=True):
    path: TablePath
    spec: Mapping[str, Value]
    if_exists: bool = False


class ShowPartitions(msgspec.Struct, frozen=True):
    """`spec`: values of the partitions to show; empty for all."""

    path: TablePath
    spec: Mapping[str, Value] = msgspec.field(default_factory=dict)


class DropTable(msgspec.Struct, frozen=True):
    path: TablePath
    if_exists: bool = False


class ShowTables(msgspec.Struct, frozen=True):
    """`like`: a pattern with % and _, None for all."""

    database: str
    like: str | None = None


class DescribeTable(msgspec.Struct, frozen=True):
    path: TablePath


class ShowCreateTable(msgspec.Struct, frozen=True):
    path: TablePath


class ShowColumns(msgspec.Struct, frozen=True):
    """`like`: a pattern with % and _, None for all."""

    path: TablePath
    like: str | None = None


class ShowTopics(msgspec.Struct, frozen=True):
    """List the plain topics; `like` as in `ShowTables`."""

    like: str | None = None


class ShowViews(msgspec.Struct, frozen=True):
    like: str | None = None


class ShowOptions(msgspec.Struct, frozen=True):
    """List all options, or with `path` the options of a table."""

    path: TablePath | None = None


class Expression(msgspec.Struct, frozen=True):
    """An expression for DuckDB, as text."""

    sql: str


class Default(msgspec.Struct, frozen=True):
    """DEFAULT instead of a value: the default in the column's definition, else NULL."""


class Insert(msgspec.Struct, frozen=True):
    """`columns` None: all columns of the table, in order. Each row has one value per column.

    `replaced`: the rows replace those of the partitions with these values ({}: all rows of the table). They do not have
    these columns.
    """

    path: TablePath
    columns: tuple[str, ...] | None
    rows: tuple[tuple[Value | Expression | Default, ...], ...]
    replaced: Mapping[str, Value] | None = None


class InsertSelect(msgspec.Struct, frozen=True):
    """Insert the rows of a query into `columns` (None: all of the table), matched by position.

    `replaced` as in `Insert`.
    """

    path: TablePath
    columns: tuple[str, ...] | None
    select: Select
    replaced: Mapping[str, Value] | None = None


class CreateTableAs(msgspec.Struct, frozen=True):
    """Create a table with a query's columns and rows.

    `columns`: columns with explicit types, which replace the query's.
    """

    path: TablePath
    select: Select
    columns: tuple[Column, ...] = ()
    primary_key: tuple[str, ...] = ()
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    comment: str | None = None
    partition_keys: tuple[str, ...] = ()
    if_not_exists: bool = False


class CopyFrom(msgspec.Struct, frozen=True):
    """Insert rows of a file into `columns` (None: those that the file names). `options`: by lower-case names."""

    path: TablePath
    columns: tuple[str, ...] | None
    file: str
    options: Mapping[str, Value] = msgspec.field(default_factory=dict)


class CopyTo(msgspec.Struct, frozen=True):
    """Write a query's rows to a file."""

    select: Select
    file: str
    options: Mapping[str, Value] = msgspec.field(default_factory=dict)


class Update(msgspec.Struct, frozen=True):
    """Set `assignments` in the rows that meet `condition` (None: all).

    `key`: the values of columns if the condition only compares columns with literals; whether they are the whole key
    is not known here. `alias`: the table's name in expressions and in the condition. `others`: the FROM clause, in
    DuckDB's SQL.
    """

    path: TablePath
    assignments: Mapping[str, Value | Expression | Default]
    condition: str | None = None
    key: Mapping[str, Value] | None = None
    alias: str | None = None
    others: str | None = None


class Delete(msgspec.Struct, frozen=True):
    """Delete the rows that meet `condition` (None: all).

    The other fields are as in `Update`; `others` is the USING clause.
    """

    path: TablePath
    condition: str | None = None
    key: Mapping[str, Value] | None = None
    alias: str | None = None
    others: str | None = None


class Truncate(msgspec.Struct, frozen=True):
    path: TablePath


class Explain(msgspec.Struct, frozen=True):
    """Explain how a query is answered. With `runs` (ANALYZE) it is run, for the numbers of its rows and its time."""

    select: Select
    runs: bool = False


class DescribeQuery(msgspec.Struct, frozen=True):
    """Describe the columns of a query's result."""

    select: Select


class Summarize(msgspec.Struct, frozen=True):
    """DuckDB's figures about each column of a query."""

    select: Select


class CreateView(msgspec.Struct, frozen=True):
    """A name for a query, for the rest of a session. `sql` names its tables with their databases."""

    path: TablePath
    sql: str
    or_replace: bool = False
    if_not_exists: bool = False


class DropView(msgspec.Struct, frozen=True):
    path: TablePath
    if_exists: bool = False


class Stream(msgspec.Struct, frozen=True):
    """A streaming query: a row for each change of its table, until it is stopped."""

    select: Select


class SetSetting(msgspec.Struct, frozen=True):
    """SET 'name' = 'value'; without a name, list the settings."""

    name: str | None = None
    value: str = ""


class ResetSetting(msgspec.Struct, frozen=True):
    """RESET 'name'; without a name, all settings."""

    name: str | None = None


class CreateCatalog(msgspec.Struct, frozen=True):
    """A name for this server, for the rest of a session. `database`: the one that USE CATALOG chooses, None: any."""

    name: str
    database: str | None = None
    server: str | None = None
    if_not_exists: bool = False
    others: tuple[str, ...] = ()
    """The names of options that have no effect here."""


class UseCatalog(msgspec.Struct, frozen=True):
    """`database`: the current one from here on."""

    name: str
    database: str


class ShowCatalogs(msgspec.Struct, frozen=True):
    pass


class Notice(msgspec.Struct, frozen=True):
    """A statement that changes nothing here, and what to tell the user."""

    text: str


class Password:
    """A text that no `repr`, error or log shows; `reveal` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Password(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


class Privilege(msgspec.Struct, frozen=True):
    """`name` is one of `tablelayer.model.rights.OPERATIONS`. `columns`: those of SELECT, empty for all."""

    name: str
    columns: tuple[str, ...] = ()


class Grant(msgspec.Struct, frozen=True):
    """Grant privileges on either a table (`path`) or a database."""

    privileges: tuple[Privilege, ...]
    path: TablePath | None
    database: str | None
    principal: str


class Revoke(msgspec.Struct, frozen=True):
    """Revoke privileges; the fields are as in `Grant`."""

    privileges: tuple[Privilege, ...]
    path: TablePath | None
    database: str | None
    principal: str


class ShowGrants(msgspec.Struct, frozen=True):
    """List the grants for one of the three, or all grants."""

    path: TablePath | None = None
    database: str | None = None
    principal: str | None = None


class CreateUser(msgspec.Struct, frozen=True):
    name: str
    password: Password
    if_not_exists: bool = False


class AlterUser(msgspec.Struct, frozen=True):
    name: str
    password: Password


class DropUser(msgspec.Struct, frozen=True):
    name: str
    if_exists: bool = False


class ShowUsers(msgspec.Struct, frozen=True):
    pass


Statement = (
    CreateDatabase
    | AlterDatabase
    | DescribeDatabase
    | ShowCreateDatabase
    | DropDatabase
    | ShowDatabases
    | UseDatabase
    | CreateTable
    | CreateTableLike
    | CreateTemporaryTable
    | AlterTable
    | AddPartition
    | DropPartition
    | ShowPartitions
    | DropTable
    | ShowOptions
    | ShowTables
    | ShowColumns
    | ShowTopics
    | ShowViews
    | DescribeTable
    | DescribeQuery
    | ShowCreateTable
    | Insert
    | InsertSelect
    | CreateTableAs
    | CopyFrom
    | CopyTo
    | Update
    | Delete
    | Truncate
    | Explain
    | Summarize
    | CreateView
    | DropView
    | Grant
    | Revoke
    | ShowGrants
    | CreateUser
    | AlterUser
    | DropUser
    | ShowUsers
    | SetSetting
    | ResetSetting
    | CreateCatalog
    | UseCatalog
    | ShowCatalogs
    | Notice
    | Stream
    | Select
)
