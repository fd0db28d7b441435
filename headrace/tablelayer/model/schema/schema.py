"""Columns and schemas.

A schema never changes: a changed table has a new schema with a new `schema_id`. Columns are identified by `id`, which
is never used again, so that rows written under an older schema can be read. Primary-key columns are never null. The
JSON form is stored and sent; `Schema.from_json(s.to_json()) == s`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headrace.protocol.loading.lazy import lazy_module
from headrace.tablelayer.model.errors import TableError, TableErrorCode, invalid_table
from headrace.tablelayer.model.schema.aggregates import (
    DEFAULT_DELIMITER,
    JOINING,
    Aggregate,
    AggregateFunction,
)
from headrace.tablelayer.model.strict_json import loads, whole_number
from headrace.tablelayer.model.types.column_types import BIGINT, INT, DataType, check_name, timestamp_ltz
from headrace.tablelayer.model.types.sizes import RowCost
from headrace.tablelayer.model.types.text import parse_type
from headrace.tablelayer.model.types.values import scalar

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazy_module("pyarrow")

FIRST_SCHEMA_ID = 1
MAX_SCHEMA_ID = 2**15 - 1  # it travels as int16 in batches and in stored rows
MAX_COLUMNS = (
    1000  # keeps projections, null bitmaps and Arrow metadata small; known tables have some hundreds
)
MAX_SCHEMA_FIELDS = (
    10_000  # columns and the types inside of them; reading this many takes a third of a second
)

NO_NESTED_KEY = "an ARRAY, MAP or ROW cannot be a key"

# Names of columns that scans and lake tables add.
RESERVED_COLUMNS = frozenset(
    {"__offset", "__timestamp", "__bucket", "_change_type", "_log_offset", "_commit_timestamp"}
)


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `id` identifies it through renames and across schema versions.

    `default`: the value of a row that is written without the column. `initial`: the value of rows that were written
    before the column was added, under schemas without it. Both are canonical texts of `values.py`; None: null.
    """

    id: int
    name: str
    type: DataType
    nullable: bool = True
    comment: str | None = None
    aggregate: Aggregate | None = None
    """Its function in a table with the aggregation merge engine; None for the default function."""
    default: str | None = None
    initial: str | None = None

    def field(self) -> pa.Field:
        """Return the Arrow field of this column."""
        return pa.field(self.name, self.type.arrow(), nullable=self.nullable)

    def default_scalar(self) -> pa.Scalar:
        """Return the default in the column's Arrow type; null without one."""
        return _scalar(self.default, self.type)

    def initial_scalar(self) -> pa.Scalar:
        """Return the value of rows from before the column, in its Arrow type."""
        return _scalar(self.initial, self.type)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form as a dict, without fields that are not set."""
        entry: dict[str, Any] = {"id": self.id, "name": self.name, "type": str(self.type)}
        if not self.nullable:
            entry["nullable"] = False
        for name in ("comment", "default", "initial"):
            if getattr(self, name) is not None:
                entry[name] = getattr(self, name)
        if self.aggregate is not None:
            entry["aggregate"] = self.aggregate.function.value
            if self.aggregate.function in JOINING:
                entry["delimiter"] = self.aggregate.delimiter
        return entry

    @classmethod
    def from_dict(cls, value: Any, index: int = 0) -> Column:
        """Return the column of a JSON form; `index` is its id if it has none.

        Raises KeyError, TypeError, ValueError and TableError.
        """
        return cls(
            id=whole_number(value.get("id", index)),
            name=_string(value["name"]),
            type=parse_type(_string(value["type"])),
            nullable=bool(value.get("nullable", True)),
            comment=_optional_string(value.get("comment")),
            aggregate=_aggregate(value),
            default=_optional_string(value.get("default")),
            initial=_optional_string(value.get("initial")),
        )


SYSTEM_COLUMNS = tuple(
    Column(2**31 - 3 + place, name, data_type)
    for place, (name, data_type) in enumerate(
        (("__bucket", INT), ("__offset", BIGINT), ("__timestamp", timestamp_ltz(6)))
    )
)
"""Columns that the tiering job adds to a lake table: where a row was in the log. A table itself has none of them."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a table in order, and the names of its primary key (empty for a log table).

    Raises TableError(INVALID_TABLE) for names that clash or are reserved, and for a primary key that names an unknown
    or nullable column. `Schema.of` numbers columns and makes key columns NOT NULL by itself.
    """

    schema_id: int
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()
    _by_name: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _arrow: pa.Schema = field(init=False, repr=False, compare=False)
    _key_arrow: dict[int, pa.Schema] = field(init=False, repr=False, compare=False)
    row_cost: RowCost = field(init=False, repr=False, compare=False)
    """The size of a row in Arrow's form."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "primary_key", tuple(self.primary_key))
        _validate(self)
        object.__setattr__(self, "_by_name", {column.name: i for i, column in enumerate(self.columns)})
        object.__setattr__(self, "_arrow", _arrow_of(self.columns))
        object.__setattr__(self, "_key_arrow", {})
        object.__setattr__(self, "row_cost", RowCost.of(self.columns))

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (self.schema_id, self.columns, self.primary_key)

    @classmethod
    def of(
        cls,
        columns: Iterable[Column | tuple[str, DataType]],
        primary_key: Sequence[str] = (),
        *,
        schema_id: int = FIRST_SCHEMA_ID,
    ) -> Schema:
        """Return a new table's schema: columns numbered from 0 in their order, key columns made NOT NULL."""
        numbered, keys = [], set(primary_key)
        for index, given in enumerate(columns):
            column = given if isinstance(given, Column) else Column(index, given[0], given[1])
            nullable = column.nullable and column.name not in keys
            numbered.append(replace(column, id=index, nullable=nullable, initial=None))
        return cls(schema_id, tuple(numbered), tuple(primary_key))

    def arrow(self) -> pa.Schema:
        """Return the Arrow schema of this schema's rows, columns in order."""
        return self._arrow

    def key_arrow(self, length: int) -> pa.Schema:
        """Return the Arrow schema of the first `length` columns of the primary key.

        It is the same object each time, which makes it cheaper to check rows against it.
        """
        known = self._key_arrow.get(length)
        if known is None:
            known = self._key_arrow[length] = _arrow_of(self.select(self.primary_key[:length]))
        return known

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def index(self, name: str) -> int:
        """Return the position of a column. Raises TableError(INVALID_PROJECTION) for an unknown name."""
        index = self._by_name.get(name)
        if index is None:
            raise TableError(
                TableErrorCode.INVALID_PROJECTION,
                f"there is no column '{name}'; columns: {', '.join(self._by_name)}",
            )
        return index

    def column(self, name: str) -> Column:
        """Return the column with a name. Raises TableError(INVALID_PROJECTION) for an unknown name."""
        return self.columns[self.index(name)]

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return list(self._by_name)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The primary-key columns, in the primary key's order."""
        return tuple(self.column(name) for name in self.primary_key)

    def select(self, names: Sequence[str]) -> list[Column]:
        """Return the columns with the given names, in the given order."""
        return [self.column(name) for name in names]

    def columns_by_ids(self, ids: Sequence[int]) -> list[Column]:
        """Return the columns with the given ids, in the given order.

        Raises TableError(INVALID_PROJECTION) for an unknown id.
        """
        by_id = {column.id: column for column in self.columns}
        unknown = [str(column_id) for column_id in ids if column_id not in by_id]
        if unknown:
            raise TableError(
                TableErrorCode.INVALID_PROJECTION, f"there is no column with id {', '.join(unknown)}"
            )
        return [by_id[column_id] for column_id in ids]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form as a dict."""
        return {
            "schema_id": self.schema_id,
            "columns": [column.to_dict() for column in self.columns],
            "primary_key": list(self.primary_key),
        }

    @classmethod
    def from_dict(cls, value: Any) -> Schema:
        """Return the schema of a JSON form. Raises TableError(INVALID_TABLE) for another value."""
        try:
            primary_key = tuple(_string(name) for name in value.get("primary_key", ()))
            keys = set(primary_key)
            columns: list[Column] = []
            count = 0
            for index, entry in enumerate(value["columns"]):
                column = Column.from_dict(entry, index)
                columns.append(replace(column, nullable=column.nullable and column.name not in keys))
                count += 1 + column.type.field_count
                check_size(len(columns), count)
            schema_id = whole_number(value.get("schema_id", FIRST_SCHEMA_ID))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TableError(
                TableErrorCode.INVALID_TABLE,
                f'a schema in JSON must be {{"columns": [{{"name": ..., "type": ...}}, ...]}}: {error!r}',
            ) from error
        return cls(schema_id, tuple(columns), primary_key)

    def to_json(self) -> str:
        """Return the schema as compact JSON text."""
        return json.dumps(self.to_dict(), separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Return the schema of a JSON text. Raises TableError(INVALID_TABLE) for another text."""
        try:
            value = loads(text)
        except (ValueError, RecursionError) as error:
            raise TableError(
                TableErrorCode.INVALID_TABLE, f"the schema is not valid JSON: {error}"
            ) from error
        return cls.from_dict(value)


def _aggregate(entry: Mapping[str, Any]) -> Aggregate | None:
    if entry.get("aggregate") is None:
        return None
    function = AggregateFunction(_string(entry["aggregate"]))
    return Aggregate(function, _string(entry.get("delimiter", DEFAULT_DELIMITER)))


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} must be a text")
    return value


def _optional_string(value: Any) -> str | None:
    return None if value is None else _string(value)


def _scalar(text: str | None, data_type: DataType) -> pa.Scalar:
    return pa.scalar(None, data_type.arrow()) if text is None else scalar(text, data_type)


def _validate(schema: Schema) -> None:
    if not 0 <= schema.schema_id <= MAX_SCHEMA_ID:
        raise invalid_table(f"schema id {schema.schema_id} is not between 0 and {MAX_SCHEMA_ID}")
    if not schema.columns:
        raise invalid_table("a table needs at least one column")
    own = [column for column in schema.columns if column not in SYSTEM_COLUMNS]
    check_size(len(own), sum(1 + column.type.field_count for column in own))
    names: set[str] = set()
    ids: set[int] = set()
    for column in schema.columns:
        if column not in SYSTEM_COLUMNS:
            check_column_name(column.name)
        if column.name in names:
            raise invalid_table(f"column '{column.name}' is given twice")
        if column.id in ids or not 0 <= column.id < 2**31:
            raise invalid_table(f"column '{column.name}': id {column.id} is taken or out of range")
        for text in (column.default, column.initial):
            if text is not None:
                try:
                    scalar(text, column.type)
                except ValueError as error:
                    raise invalid_table(f"invalid default of column '{column.name}': {error}") from None
        names.add(column.name)
        ids.add(column.id)
    nullable = {column.name: column.nullable for column in schema.columns}
    nested = {column.name for column in schema.columns if column.type.is_nested}
    seen: set[str] = set()
    for name in schema.primary_key:
        if name in nested:
            raise invalid_table(f"primary key column '{name}' is nested: {NO_NESTED_KEY}")
        if name not in nullable:
            raise invalid_table(f"primary key column '{name}' is not a column of the table")
        if name in seen:
            raise invalid_table(f"column '{name}' occurs twice in the primary key")
        seen.add(name)
        if nullable[name]:
            raise invalid_table(f"primary key column '{name}' must be NOT NULL")


def check_size(column_count: int, field_count: int) -> None:
    """Raise TableError(INVALID_TABLE) for too many columns, or too many columns and types inside of them."""
    if column_count > MAX_COLUMNS:
        raise invalid_table(f"a table can have at most {MAX_COLUMNS} columns")
    if field_count > MAX_SCHEMA_FIELDS:
        raise invalid_table(f"a table can have at most {MAX_SCHEMA_FIELDS} columns and fields inside of them")


def check_column_name(name: str) -> None:
    """Raise TableError(INVALID_TABLE) unless a user's column may have this name."""
    if name in RESERVED_COLUMNS:
        raise invalid_table(f"column name '{name}' is reserved")
    check_name(name, "column")


def _arrow_of(columns: Iterable[Column]) -> pa.Schema:
    return _shared(tuple((each.name, each.type, each.nullable) for each in columns))


@lru_cache(maxsize=4096)
def _shared(fields: tuple[tuple[str, DataType, bool], ...]) -> pa.Schema:
    """Return one Arrow schema for all tables and partitions with these columns: it takes a kilobyte of the heap."""
    return pa.schema([pa.field(name, data_type.arrow(), nullable) for name, data_type, nullable in fields])
