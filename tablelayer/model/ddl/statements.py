"""What statements mean, once parsed. All are frozen; paths are complete, whatever database was current."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tablelayer.model.ddl.select import Select
from tablelayer.model.ddl.tokens import DdlError
from tablelayer.model.errors import TableError
from tablelayer.model.evolution import Change, evolve
from tablelayer.model.table import TableDefinition, TablePath
from tablelayer.model.values import Value


@dataclass(frozen=True, slots=True)
class CreateDatabase:
    name: str
    if_not_exists: bool = False
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlterDatabase:
    """``comment`` None: as it is; '' takes it away."""

    name: str
    set_properties: Mapping[str, str] = field(default_factory=dict)
    reset_properties: tuple[str, ...] = ()
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class DescribeDatabase:
    name: str


@dataclass(frozen=True, slots=True)
class ShowCreateDatabase:
    name: str


@dataclass(frozen=True, slots=True)
class DropDatabase:
    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class ShowDatabases:
    """``like``: a pattern with % and _, None for all."""

    like: str | None = None


@dataclass(frozen=True, slots=True)
class UseDatabase:
    name: str


@dataclass(frozen=True, slots=True)
class CreateTable:
    definition: TableDefinition
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterTable:
    """``places``: where in ``sql`` the word stands that each change is about (start, length)."""

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


@dataclass(frozen=True, slots=True)
class AddPartition:
    """``spec``: a value of each partition column; whether they are the table's is not known here."""

    path: TablePath
    spec: Mapping[str, Value]
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropPartition:
    path: TablePath
    spec: Mapping[str, Value]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ShowPartitions:
    """``spec``: values that the partitions shown have; empty for all."""

    path: TablePath
    spec: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DropTable:
    path: TablePath
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ShowTables:
    """``like``: a pattern with % and _, None for all."""

    database: str
    like: str | None = None


@dataclass(frozen=True, slots=True)
class DescribeTable:
    path: TablePath


@dataclass(frozen=True, slots=True)
class ShowCreateTable:
    path: TablePath


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """The options that there are; with ``path`` as a table has them."""

    path: TablePath | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """``columns`` None: all columns of the table, in order. Every row has as many values as there are
    columns.
    """

    path: TablePath
    columns: tuple[str, ...] | None
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class Update:
    """Set ``assignments`` in the row whose key columns equal ``key``; whether that is the whole key is not
    known here.
    """

    path: TablePath
    assignments: Mapping[str, Value]
    key: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the row whose key columns equal ``key``; whether that is the whole key is not known here."""

    path: TablePath
    key: Mapping[str, Value]


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
    | DescribeTable
    | ShowCreateTable
    | Insert
    | Update
    | Delete
    | Select
)
