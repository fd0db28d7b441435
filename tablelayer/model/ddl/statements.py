"""What statements mean, once parsed. All are frozen; paths are complete, whatever database was current."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tablelayer.model.ddl.literals import Value
from tablelayer.model.ddl.select import Select
from tablelayer.model.table import TableDefinition, TablePath


@dataclass(frozen=True, slots=True)
class CreateDatabase:
    name: str
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropDatabase:
    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class ShowDatabases:
    pass


@dataclass(frozen=True, slots=True)
class UseDatabase:
    name: str


@dataclass(frozen=True, slots=True)
class CreateTable:
    definition: TableDefinition
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropTable:
    path: TablePath
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ShowTables:
    database: str


@dataclass(frozen=True, slots=True)
class DescribeTable:
    path: TablePath


@dataclass(frozen=True, slots=True)
class ShowCreateTable:
    path: TablePath


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
    | DropDatabase
    | ShowDatabases
    | UseDatabase
    | CreateTable
    | DropTable
    | ShowTables
    | DescribeTable
    | ShowCreateTable
    | Insert
    | Update
    | Delete
    | Select
)
