"""Partitions of a table: the partition of a row, and the partitions that the calendar demands. All functions are
pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from headrace.protocol.loading.lazy import lazy_module
from headrace.tablelayer.model.errors import RowError, TableError, TableErrorCode
from headrace.tablelayer.model.options.table_options import TimeUnit
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.partition_keys import value_problem, values_of
from headrace.tablelayer.model.types.column_types import TypeKind
from headrace.tablelayer.model.types.values import Value, canonical

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
else:
    np = lazy_module("numpy")
    pa = lazy_module("pyarrow")


@dataclass(frozen=True, slots=True)
class Partition:
    """One existing partition. `values`: as text, in the order of the partition columns."""

    name: str
    table_id: UUID
    bucket_count: int

    @property
    def values(self) -> tuple[str, ...]:
        return values_of(self.name)


def _texts(column: pa.Array) -> pa.Array:
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def partition_names_of_rows(
    partition_keys: Sequence[str], rows: pa.RecordBatch
) -> tuple[np.ndarray, list[str]]:
    """Return (for each row the index of its partition's name, int32[n]; the names).

    `rows` has the partition columns. A name has the row's values as they are: with invalid characters it matches no
    partition. Raises RowError for the first row with a null.
    """
    import pyarrow.compute as pc  # 30 ms, which a server's start does not wait for

    texts = []
    for name in partition_keys:
        column = rows.column(name)
        if column.null_count:
            row = int(pc.index(column.is_null(), True).as_py())
            raise RowError(row, name, "the value is null, but a partition column must not be null")
        texts.append(_texts(column))
    joined = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, ".")
    coded = joined.dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    names: list[str] = coded.dictionary.to_pylist()
    return codes, names


def partitions_of_rows(partition_keys: Sequence[str], rows: pa.RecordBatch) -> tuple[np.ndarray, list[str]]:
    """Do the same as `partition_names_of_rows`, but raise RowError for a value that cannot name a partition."""
    codes, names = partition_names_of_rows(partition_keys, rows)
    for row in np.unique(codes, return_index=True)[1].tolist():
        for name in partition_keys:
            problem = value_problem(_texts(rows.column(name).slice(row, 1))[0].as_py())
            if problem is not None:
                raise RowError(row, name, problem)
    return codes, names


def check_rows_of_partition(definition: TableDefinition, rows: pa.RecordBatch) -> None:
    """Raise RowError unless all rows belong to the partition `definition`. Other tables are not checked."""
    name = definition.path.partition
    if name is None or not rows.num_rows:
        return
    import pyarrow.compute as pc

    for key, value in zip(definition.partition_keys, values_of(name), strict=True):
        wanted = typed_value(definition.schema.column(key), value)
        same = pc.fill_null(pc.equal(rows.column(key), wanted), False)
        if not pc.all(same).as_py():
            row = int(pc.index(same, False).as_py())
            given = rows.column(key)[row].as_py()
            raise RowError(
                row, key, f"{given} does not belong to partition {name} of {definition.path.whole}"
            )


def typed_value(column: Column, value: str) -> pa.Scalar:
    """Return a partition's value in the column's type."""
    return pa.scalar(value, pa.string()).cast(column.type.arrow())


def name_of_spec(definition: TableDefinition, spec: Mapping[str, Value]) -> str:
    """Return the partition's name from values of all partition columns. Raises TableError(INVALID_PARTITION)."""
    missing = [name for name in definition.partition_keys if name not in spec]
    if missing:
        raise _bad_spec(
            f"the partition needs a value of each of ({', '.join(definition.partition_keys)}); "
            f"{', '.join(missing)} is missing"
        )
    texts = spec_texts(definition, spec)
    return ".".join(texts[name] for name in definition.partition_keys)


def spec_texts(definition: TableDefinition, spec: Mapping[str, Value]) -> dict[str, str]:
    """Return the values of some partition columns as texts. Raises TableError(INVALID_PARTITION)."""
    check_partitioned(definition)
    texts = {}
    for name, value in spec.items():
        if name not in definition.partition_keys:
            raise _bad_spec(
                f"'{name}' is not a partition column of {definition.path}; they are "
                f"{', '.join(definition.partition_keys)}"
            )
        if value is None:
            raise _bad_spec(f"partition column '{name}' is never null")
        column = definition.schema.column(name)
        try:
            text = canonical(value, column.type)
            typed_value(column, text)
        except (ValueError, pa.ArrowInvalid) as error:
            raise _bad_spec(f"partition column '{name}': {error}") from None
        text = str(_texts(pa.array([typed_value(column, text).as_py()], column.type.arrow()))[0].as_py())
        problem = value_problem(text)
        if problem is not None:
            raise _bad_spec(f"partition column '{name}': {problem}")
        texts[name] = text
    return texts


def check_partitioned(definition: TableDefinition) -> None:
    """Raise TableError(NOT_PARTITIONED) for a table without partitions."""
    if not definition.is_partitioned:
        raise TableError(
            TableErrorCode.NOT_PARTITIONED,
            f"table {definition.path} is not partitioned: it was created without PARTITIONED BY",
        )


def matching(definition: TableDefinition, names: Iterable[str], texts: Mapping[str, str] | None) -> list[str]:
    """Return the names with these values, in order."""
    positions = {definition.partition_keys.index(key): value for key, value in (texts or {}).items()}
    return sorted(
        name
        for name in names
        if all(values_of(name)[position] == value for position, value in positions.items())
    )


_FORMATS = {
    TimeUnit.HOUR: re.compile(r"\d{10}"),
    TimeUnit.DAY: re.compile(r"\d{8}"),
    TimeUnit.MONTH: re.compile(r"\d{6}"),
    TimeUnit.QUARTER: re.compile(r"\d{4}[1-4]"),
    TimeUnit.YEAR: re.compile(r"\d{4}"),
}
_DATE_FORMAT = re.compile(r"\d{4}-\d{2}-\d{2}")


class PartitionPlan(msgspec.Struct, frozen=True):
    """Names to create and to drop, in order."""

    create: tuple[str, ...]
    drop: tuple[str, ...]


def plan_partitions(
    definition: TableDefinition, existing: Iterable[str], now_ms: int, most: int
) -> PartitionPlan:
    """Return the partitions to create, from the present one on, and those that are too old.

    `most`: the maximum number of partitions after the present one. At the ends of the calendar (the years 1 to 9999)
    no partition is older, or later.
    """
    settings = definition.settings
    if not settings.auto_partition:
        return PartitionPlan((), ())
    keys = definition.partition_keys
    key = settings.auto_partition_key or keys[0]
    as_date = definition.schema.column(key).type.kind is TypeKind.DATE
    unit, position = settings.auto_partition_unit, keys.index(key)
    zone = None if settings.auto_partition_zone is None else ZoneInfo(settings.auto_partition_zone)
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    present = set(existing)
    create: list[str] = []
    if len(keys) == 1:
        ahead = 2 if settings.auto_partition_precreate is None else settings.auto_partition_precreate
        names = dict.fromkeys(_time_name(now, zone, unit, step, as_date) for step in range(min(ahead, most)))
        create = [name for name in names if name is not None and name not in present]
    drop: list[str] = []
    oldest = None
    if settings.auto_partition_retention >= 0:
        oldest = _time_name(now, zone, unit, -settings.auto_partition_retention, as_date)
    if oldest is not None:
        shape = _DATE_FORMAT if as_date else _FORMATS[unit]
        drop = [
            name
            for name in sorted(present)
            if shape.fullmatch(values_of(name)[position]) and values_of(name)[position] < oldest
        ]
    return PartitionPlan(tuple(create), tuple(drop))


def _time_name(
    instant: datetime, zone: ZoneInfo | None, unit: TimeUnit, step: int, as_date: bool
) -> str | None:
    """Return the value of the partition `step` units from an instant, with a year of four digits; None outside of the
    calendar. Hours are those that pass, so that one which the clock leaves out or repeats does not count.
    """
    try:
        if unit is TimeUnit.HOUR:
            hour = (instant + timedelta(hours=step)).astimezone(zone)
            return f"{hour.date().isoformat().replace('-', '')}{hour.hour:02}"
        now = instant.astimezone(zone)
        if unit is TimeUnit.DAY:
            day = now.date() + timedelta(days=step)
            return day.isoformat() if as_date else day.isoformat().replace("-", "")
        months = {TimeUnit.MONTH: 1, TimeUnit.QUARTER: 3, TimeUnit.YEAR: 12}[unit]
        count = now.year * 12 + now.month - 1 + step * months
        first = date(count // 12, count % 12 + 1, 1)
    except (OverflowError, ValueError):
        return None
    if unit is TimeUnit.MONTH:
        return f"{first.year:04}{first.month:02}"
    return f"{first.year:04}" if unit is TimeUnit.YEAR else f"{first.year:04}{(first.month - 1) // 3 + 1}"


def _bad_spec(message: str) -> TableError:
    return TableError(TableErrorCode.INVALID_PARTITION, message)
