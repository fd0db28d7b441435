"""What statements mean, once parsed. All are frozen; paths are complete, whatever database was current."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.tablelayer.model.ddl.errors import DdlError
from headrace.tablelayer.model.ddl.query import Select
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import TableDefinition, TablePath
from headrace.tablelayer.model.table.evolution import Change, evolve
from headrace.tablelayer.model.types.values import Value


class CreateDatabase(msgspec.Struct, frozen=True):
    name: str
    if_not_exists: bool = False
    comment: str | None = None
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)


class AlterDatabase(msgspec.Struct, frozen=True):
    """`comment` None: as it is; '' takes it away."""

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


@dataclass(frozen=True, slots=True)
class AlterTable:
    """`places`: where in `sql` the word stands that each change is about (start, length)."""

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
    """`spec`: a value of each partition column; whether they are the table's is not known here."""

    path: TablePath
    spec: Mapping[str, Value]
    if_not_exists: bool = False


class DropPartition(msgspec.Struct, frozen=True):
    path: TablePath
    spec: Mapping[str, Value]
    if_exists: bool = False


class ShowPartitions(msgspec.Struct, frozen=True):
    """`spec`: values that the partitions shown have; empty for all."""

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
    """The plain topics; `like` as with `ShowTables`."""

    like: str | None = None


class ShowViews(msgspec.Struct, frozen=True):
    like: str | None = None


class ShowOptions(msgspec.Struct, frozen=True):
    """The options that there are; with `path` as a table has them."""

    path: TablePath | None = None


class Expression(msgspec.Struct, frozen=True):
    """What DuckDB has to work out, as it is written."""

    sql: str


class Default(msgspec.Struct, frozen=True):
    """DEFAULT in the place of a value: what the column's definition says, NULL if it says nothing."""


class Insert(msgspec.Struct, frozen=True):
    """`columns` None: all columns of the table, in order. Every row has as many values as there are columns."""

    path: TablePath
    columns: tuple[str, ...] | None
    rows: tuple[tuple[Value | Expression | Default, ...], ...]


class InsertSelect(msgspec.Struct, frozen=True):
    """The rows of a query into `columns` (None: all of the table), in the order of both."""

    path: TablePath
    columns: tuple[str, ...] | None
    select: Select


class CreateTableAs(msgspec.Struct, frozen=True):
    """A table of a query's columns with its rows. `columns`: those whose types are written, which are then
    not the query's.
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
    """Rows of a file into `columns` (None: those that the file names). `options` by names in small letters."""

    path: TablePath
    columns: tuple[str, ...] | None
    file: str
    options: Mapping[str, Value] = msgspec.field(default_factory=dict)


class CopyTo(msgspec.Struct, frozen=True):
    """A query's rows into a file."""

    select: Select
    file: str
    options: Mapping[str, Value] = msgspec.field(default_factory=dict)


class Update(msgspec.Struct, frozen=True):
    """Set `assignments` in the rows that `condition` is true for (None: all). `key`: what the condition says
    columns are equal to, if it says nothing else; whether that is the whole key is not known here. `alias`: what the
    table is called in expressions and the condition; `others`: what stands after FROM, in DuckDB's SQL.
    """

    path: TablePath
    assignments: Mapping[str, Value | Expression | Default]
    condition: str | None = None
    key: Mapping[str, Value] | None = None
    alias: str | None = None
    others: str | None = None


class Delete(msgspec.Struct, frozen=True):
    """Delete the rows that `condition` is true for (None: all). The other parts are as with `Update`; `others` is
    what stands after USING."""

    path: TablePath
    condition: str | None = None
    key: Mapping[str, Value] | None = None
    alias: str | None = None
    others: str | None = None


class Truncate(msgspec.Struct, frozen=True):
    path: TablePath


class Explain(msgspec.Struct, frozen=True):
    """Which way a query goes."""

    select: Select


class DescribeQuery(msgspec.Struct, frozen=True):
    """The columns that a query gives."""

    select: Select


class Summarize(msgspec.Struct, frozen=True):
    """DuckDB's numbers about each column of a query."""

    select: Select


class CreateView(msgspec.Struct, frozen=True):
    """A name for a query, for the rest of a session; `sql` names its tables with their databases."""

    path: TablePath
    sql: str
    or_replace: bool = False
    if_not_exists: bool = False


class DropView(msgspec.Struct, frozen=True):
    path: TablePath
    if_exists: bool = False


class Password:
    """A text that shows in no `repr`, error or log; `reveal` gives it."""

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
    """`name` is one of `tablelayer.model.rights.OPERATIONS`; `columns` of SELECT, empty for all."""

    name: str
    columns: tuple[str, ...] = ()


class Grant(msgspec.Struct, frozen=True):
    """On a table (`path`) or a database, one of both."""

    privileges: tuple[Privilege, ...]
    path: TablePath | None
    database: str | None
    principal: str


class Revoke(msgspec.Struct, frozen=True):
    """As `Grant`."""

    privileges: tuple[Privilege, ...]
    path: TablePath | None
    database: str | None
    principal: str


class ShowGrants(msgspec.Struct, frozen=True):
    """Of one of the three; of none of them: all."""

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
    | Select
)
