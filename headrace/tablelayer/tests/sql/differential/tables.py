"""Random tables: every type with its edges, odd names, keys and partitions of every kind."""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.tablelayer.model.ddl.clauses import parse_columns
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.types.column_types import (
    FLOAT_KINDS,
    INTEGER_KINDS,
    TEXT_KINDS,
    DataType,
    TypeKind,
)
from headrace.tablelayer.tests.model.random_rows import array_of

KEY = "k"
"""The column of every table that tells its rows apart: it has their numbers from 0 on."""
NAMES = (
    "a", "b", "Mixed", "order", "select", "offset", "from", "two words", 'qu"ote', "größe", "timestamp", "1st", "x.y",
    "k'", "group", "count", "value", "_x", "a-b", "$x", "end", "?", "%s", "t", "x", "date", "not", "null", "{b}",
)  # fmt: skip
PLAIN = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(4, 1)", "DECIMAL(18, 3)",
    "DECIMAL(38, 10)", "STRING", "STRING", "CHAR(5)", "DATE", "TIME(0)", "TIME(3)", "TIME(6)", "TIME(9)",
    "TIMESTAMP(0)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP(9)", "TIMESTAMP_LTZ(0)", "TIMESTAMP_LTZ(3)",
    "TIMESTAMP_LTZ(6)", "TIMESTAMP_LTZ(9)", "BINARY(2)", "BYTES",
)  # fmt: skip
NESTED = (
    "ARRAY<INT>", "ARRAY<STRING>", "ARRAY<ROW<a INT, b STRING>>", "MAP<STRING, INT>", "MAP<INT, ROW<x STRING>>",
    "ROW<a INT, b STRING, c ARRAY<DOUBLE>>", "ARRAY<ARRAY<DATE>>", "ROW<r ROW<d DECIMAL(5, 2)>>",
)  # fmt: skip
SPARK_TYPES = tuple(
    each for each in (*PLAIN, *NESTED) if not each.startswith("TIME(") and not each.endswith("(9)")
)
"""Types that Spark has: no time of day, and at most microseconds."""
KEYS = ("STRING", "BIGINT", "DATE", "TIMESTAMP(3)", "DECIMAL(10, 2)", "BOOLEAN", "BYTES", "TIMESTAMP_LTZ(6)")
PARTITIONS = ("STRING", "INT", "DATE", "BOOLEAN", "BIGINT")

YEARS = (1, 1500, 1582, 1677, 1678, 1899, 1969, 1970, 2000, 2024, 2261, 2262, 2263, 9999)
NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
NS_MIN, NS_MAX = -(2**63) + 2, 2**63 - 2
"""Nanoseconds of a TIMESTAMP(9); for DuckDB the lowest and the highest number of all mean infinity."""
_EPOCH = datetime.datetime(1970, 1, 1)
TEXTS = (
    "", "a", "A", "apple", "apples", "Apple", "avocado", "banana", "100%", "100", "1_0", "a\\b", "'", '"', "it's", "ü",
    "äpfel", "日本", "é\U0001f600", "NULL", "null", " a ", "a\nb", "-1", "2024-01-01", "z" * 40, "\t",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """A column's name, its type as a statement has it, and its type."""

    name: str
    words: str
    type: DataType


@dataclass(frozen=True, slots=True)
class RandomTable:
    """A table with its rows in Arrow, in which row i has i in the column `k`. `path`: database and name."""

    path: str
    statement: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    partition: str | None
    rows: pa.Table
    schema: Schema

    @property
    def name(self) -> str:
        return self.path.split(".")[1]

    @property
    def plain(self) -> tuple[Column, ...]:
        """The columns that are not nested."""
        return tuple(column for column in self.columns if not column.type.is_nested)

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def random_table(
    rng: random.Random,
    path: str,
    *,
    row_count: int,
    types: tuple[str, ...] = (*PLAIN, *NESTED),
    keyed: bool | None = None,
) -> RandomTable:
    """Draw a table of 3 to 8 columns beside `k`, not created yet."""
    names = rng.sample(NAMES, rng.randint(3, 8))
    words = {KEY: "INT", **{name: rng.choice(types) for name in names}}
    keyed = rng.random() < 0.6 if keyed is None else keyed
    primary_key: list[str] = []
    partition = None
    options = {"bucket.num": str(rng.choice((1, 1, 2, 3)))}
    if rng.random() < 0.3:
        partition = names[0]
        words[partition] = rng.choice(PARTITIONS)
    if keyed:
        primary_key = [KEY]
        if rng.random() < 0.4:
            words[names[1]] = rng.choice([each for each in KEYS if each in types or each in PARTITIONS])
            primary_key = [names[1], KEY] if rng.random() < 0.7 else [KEY, names[1]]
            if rng.random() < 0.6:
                options["bucket.key"] = primary_key[0]
        if partition is not None:
            primary_key = [*primary_key, partition]
    order = list(words)
    if rng.random() < 0.5:
        rng.shuffle(order)
    listed = ", ".join(f"{quoted(name)} {words[name]}" for name in order)
    key = f", PRIMARY KEY ({', '.join(map(quoted, primary_key))}) NOT ENFORCED" if keyed else ""
    parts = "" if partition is None else f" PARTITIONED BY ({quoted(partition)})"
    chosen = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    statement = f"CREATE TABLE {path} ({listed}{key}){parts} WITH ({chosen})"
    schema = parse_columns(listed + key)
    columns = tuple(Column(column.name, words[column.name], column.type) for column in schema.columns)
    whole = {*primary_key, *([partition] if partition else [])}
    arrays = []
    for column in columns:
        if column.name == KEY:
            values: list[Any] = list(range(row_count))
        elif column.name == partition:
            values = [rng.choice(partition_values(column.type)) for _ in range(row_count)]
        else:
            values = [
                random_value(rng, column.type, nullable=column.name not in whole) for _ in range(row_count)
            ]
        arrays.append(array_of(column.type, values))
    rows = pa.table(arrays, names=[column.name for column in columns])
    return RandomTable(path, statement, columns, tuple(primary_key), partition, rows, schema)


def partition_values(data_type: DataType) -> list[Any]:
    kind = data_type.kind
    if kind is TypeKind.BOOLEAN:
        return [True, False]
    if kind is TypeKind.DATE:
        return [days_of(2024, 9, 19), days_of(1969, 12, 31)]
    return ["20240919", "a-b", "X"] if kind in TEXT_KINDS else [0, 7, -3]


def days_of(year: int, month: int, day: int) -> int:
    return (datetime.datetime(year, month, day) - _EPOCH).days


def random_moment(rng: random.Random) -> int:
    """Nanoseconds since 1970, from the year 1 to 9999."""
    day = rng.choice([(1, 1), (12, 31), (9, 21), (4, 11)])
    time = rng.choice([(0, 0, 0), (23, 59, 59), (12, 0, 0), (0, 12, 43)])
    fraction = rng.choice([0, 0, 500_000_000, 999_000_000, 123_456_000, 999_999_999, 1])
    moment = datetime.datetime(rng.choice(YEARS), *day, *time) - _EPOCH
    return (moment.days * 86_400 + moment.seconds) * 1_000_000_000 + fraction


def moment_text(nanos: int, digits: int | None = None) -> str:
    """Return a moment as SQL writes it, with that many digits of a second (None: as many as it needs)."""
    seconds, fraction = divmod(nanos, 1_000_000_000)
    text = (_EPOCH + datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S").rjust(19, "0")
    parts = f"{fraction:09}"[:digits] if digits is not None else f"{fraction:09}".rstrip("0")
    return text + (f".{parts}" if parts else "")


def random_value(rng: random.Random, data_type: DataType, *, nullable: bool = True) -> Any:
    """A value as `array_of` takes it: days, ticks, Decimal, bytes, lists and tuples; often one of the type's edges."""
    if nullable and rng.random() < 0.15:
        return None
    kind = data_type.kind
    if kind is TypeKind.BOOLEAN:
        return rng.random() < 0.5
    if kind in INTEGER_KINDS:
        bits = {TypeKind.TINYINT: 8, TypeKind.SMALLINT: 16, TypeKind.INT: 32, TypeKind.BIGINT: 64}[kind]
        edges = [-(1 << (bits - 1)), (1 << (bits - 1)) - 1, 0, -1, 1]
        return rng.choice([rng.choice(edges), rng.randint(-5, 10), rng.randint(-100, 100)])
    if kind in FLOAT_KINDS:
        largest = 3.4028234663852886e38 if kind is TypeKind.FLOAT else 1.7976931348623157e308
        edges = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, largest, -largest]
        return rng.choice([rng.choice(edges), rng.randint(-20, 20) / 4, float(rng.randint(-3, 3))])
    if kind is TypeKind.DECIMAL:
        most = 10**data_type.precision - 1
        units = rng.choice([most, -most, 0, 1, -1, rng.randint(-50, 50), 10**data_type.scale])
        return Decimal(f"{max(-most, min(most, units))}E-{data_type.scale}")
    if kind in TEXT_KINDS:
        text = rng.choice(TEXTS)
        return text[: data_type.length] if kind is TypeKind.CHAR else text
    if kind is TypeKind.BYTES:
        return rng.choice([b"", b"\0", b"ab", b"\xff\xfe", b"'", b"a" * 20])
    if kind is TypeKind.BINARY:
        return rng.choice([b"\0\0", b"ab", b"\xff\xff"])[: data_type.length]
    if kind is TypeKind.DATE:
        return days_of(rng.choice(YEARS), *rng.choice([(1, 1), (12, 31), (2, 28)]))
    step = NANOS[data_type.unit]
    if kind is TypeKind.TIME:
        nanos = rng.choice(
            [0, 1, 43_200_000_000_000, 43_200_123_456_789, 86_399_999_999_999, 3_600_000_000_000]
        )
        return nanos // step
    if kind in (TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_LTZ):
        nanos = random_moment(rng)
        return max(NS_MIN, min(NS_MAX, nanos)) if step == 1 else nanos // step
    parts = [field.type for field in data_type.fields]
    nulls = [field.nullable for field in data_type.fields]
    if kind is TypeKind.ROW:
        return tuple(random_value(rng, part, nullable=null) for part, null in zip(parts, nulls, strict=True))
    count = rng.randint(0, 3)
    if kind is TypeKind.ARRAY:
        return [random_value(rng, parts[0], nullable=nulls[0]) for _ in range(count)]
    keys: dict[Any, Any] = {}
    for _ in range(count):
        keys[random_value(rng, parts[0], nullable=False)] = random_value(rng, parts[1], nullable=nulls[1])
    return list(keys.items())
