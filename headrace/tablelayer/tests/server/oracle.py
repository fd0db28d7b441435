"""The rules of primary-key tables in plain Python, a row at a time, to compare the merge engines with.

They know nothing of Arrow, batches or stores. A table is a dict from key to row. `apply` takes the operations of one
batch and returns the changelog that they must emit, or raises `Refused` and changes nothing.
"""

from __future__ import annotations

import copy
import decimal
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.types.column_types import INTEGER_BITS, DataType, TypeKind

Row = dict[str, Any]
Change = tuple[str, Row]
Operation = tuple[str, Row]


class Refused(Exception):  # noqa: N818 - reads as what it is
    """The batch must fail without any effect."""


@dataclass
class Oracle:
    definition: TableDefinition
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    next_number: int = 1
    numbers: list[int] | None = None
    """The numbers that the server has given to inserted rows, where they are not known beforehand."""

    def __post_init__(self) -> None:
        schema, settings = self.definition.schema, self.definition.settings
        self.key = schema.primary_key
        self.values = [name for name in schema.names if name not in self.key]
        self.engine = settings.merge_engine
        self.numbered = settings.auto_increment_column

    def apply(
        self,
        operations: Sequence[Operation],
        columns: Sequence[str] | None = None,
        *,
        overwrite: bool = False,
    ) -> list[Change]:
        saved = copy.deepcopy(self.rows), self.next_number
        changes: list[Change] = []
        try:
            for sign, row in operations:
                changes += self._one(sign, row, columns, overwrite=overwrite)
        except Refused:
            self.rows, self.next_number = saved
            raise
        full = self.definition.settings.changelog_image == "FULL"
        return [change for change in changes if full or change[0] != "-U"]

    def _one(self, sign: str, row: Row, columns: Sequence[str] | None, *, overwrite: bool) -> list[Change]:
        at = tuple(row[name] for name in self.key)
        old = self.rows.get(at)
        if columns is not None and set(columns) == {*self.key, *self.values}:
            columns = None
        if sign == "-":
            return self._delete(at, old, columns, overwrite=overwrite)
        targets = [name for name in (self.values if columns is None else columns) if name not in self.key]
        if old is None:
            defaults = {each.name: each.default_scalar().as_py() for each in self.definition.schema.columns}
            new = {**defaults, **dict(zip(self.key, at, strict=True))}
            new.update({name: row[name] for name in targets if name != self.numbered})
            if self.numbered is not None:
                new[self.numbered] = self._number()
            self.rows[at] = new
            return [("+I", new)]
        if self.engine == "first_row" or (columns is not None and not targets):
            return []
        new = dict(old)
        if self.engine == "versioned":
            version = self.definition.settings.version_column
            assert version is not None
            held, given = old[version], row[version]
            if held is not None and (given is None or given < held):
                return []
        for name in targets:
            if name == self.numbered:
                continue
            if self.engine == "aggregation" and not overwrite:
                new[name] = self._merged(name, old[name], row[name])
            else:
                new[name] = row[name]
        self.rows[at] = new
        return [("-U", old), ("+U", new)]

    def _number(self) -> int:
        if self.numbers is not None:
            return self.numbers.pop(0) if self.numbers else -1
        self.next_number += 1
        return self.next_number - 1

    def _delete(
        self, at: tuple[Any, ...], old: Row | None, columns: Sequence[str] | None, *, overwrite: bool
    ) -> list[Change]:
        behavior = self.definition.settings.delete_behavior
        if overwrite and self.engine == "aggregation":
            behavior = "ALLOW"  # type: ignore[assignment]
        if behavior == "DISABLE":
            raise Refused("deletes are disabled")
        if behavior == "IGNORE" or old is None:
            return []
        if columns is None:
            del self.rows[at]
            return [("-D", old)]
        new = {**old, **{name: None for name in columns if name not in self.key}}
        if all(new[name] is None for name in self.values):
            del self.rows[at]
            return [("-D", old)]
        self.rows[at] = new
        return [("-U", old), ("+U", new)]

    def _merged(self, name: str, held: Any, given: Any) -> Any:
        column = self.definition.schema.column(name)
        if column.aggregate is None:
            return held if given is None else given
        function, delimiter = column.aggregate.function.value, column.aggregate.delimiter
        if function == "last_value":
            return given
        if function == "first_value":
            return held
        if held is None or given is None:
            return given if held is None else held
        match function:
            case "last_value_ignore_nulls":
                return given
            case "first_value_ignore_nulls":
                return held
            case "max" | "bool_or":
                return max(held, given, key=ordered)
            case "min" | "bool_and":
                return min(held, given, key=ordered)
            case "listagg" | "string_agg":
                return held + delimiter + given
            case "sum":
                with decimal.localcontext(decimal.Context(prec=90)):
                    return checked(column.type, held + given)
            case "product":
                with decimal.localcontext(decimal.Context(prec=90)):
                    return checked(column.type, held * given)
            case "rbm32":
                return bitmap32(bits32(held) | bits32(given))
            case "rbm64":
                return bitmap64(bits64(held) | bits64(given))
        raise AssertionError(function)


def ordered(value: Any) -> Any:
    """Floats as in Java: -0.0 below 0.0, NaN above all."""
    if not isinstance(value, float):
        return value
    return (math.isnan(value), 0.0 if math.isnan(value) else value, math.copysign(1, value))


def checked(data_type: DataType, value: Any) -> Any:
    if data_type.kind in INTEGER_BITS:
        if not -(1 << (INTEGER_BITS[data_type.kind] - 1)) <= value < 1 << (INTEGER_BITS[data_type.kind] - 1):
            raise Refused("overflow")
        return value
    if data_type.kind is TypeKind.DECIMAL:
        rounded = value.quantize(decimal.Decimal(1).scaleb(-data_type.scale), decimal.ROUND_HALF_UP)
        if abs(rounded.scaleb(data_type.scale)) >= 10**data_type.precision:
            raise Refused("overflow")
        return rounded
    if data_type.kind is TypeKind.FLOAT:
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    return value


# -- Roaring bitmaps, as the specification says and as slowly as it takes


def bitmap32(values: frozenset[int] | set[int]) -> bytes:
    """Arrays and bits only; no runs."""
    by_key: dict[int, list[int]] = {}
    for value in sorted(values):
        by_key.setdefault(value >> 16, []).append(value & 0xFFFF)
    heads, offsets, bodies = b"", b"", b""
    position = 8 + 8 * len(by_key)
    for key, low in by_key.items():
        heads += struct.pack("<HH", key, len(low) - 1)
        offsets += struct.pack("<I", position + len(bodies))
        if len(low) <= 4096:
            bodies += struct.pack(f"<{len(low)}H", *low)
        else:
            bodies += sum(1 << value for value in low).to_bytes(8192, "little")
    return struct.pack("<II", 12346, len(by_key)) + heads + offsets + bodies


def bits32(data: bytes) -> frozenset[int]:
    values, position = _bits32_at(data, 0)
    assert position == len(data)
    return values


def _bits32_at(data: bytes, start: int) -> tuple[frozenset[int], int]:
    cookie, high = struct.unpack_from("<HH", data, start)
    at, flags = start + 4, 0
    if cookie == 12347:
        count = high + 1
        flags = int.from_bytes(data[at : at + (count + 7) // 8], "little")
        at += (count + 7) // 8
    else:
        assert cookie == 12346
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
    heads = [struct.unpack_from("<HH", data, at + 4 * index) for index in range(count)]
    at += 4 * count
    if cookie == 12346 or count >= 4:
        offsets = struct.unpack_from(f"<{count}I", data, at)
        at += 4 * count
        assert not count or start + offsets[0] == at
    values: set[int] = set()
    for index, (key, less) in enumerate(heads):
        if flags >> index & 1:
            (runs,) = struct.unpack_from("<H", data, at)
            low = set()
            for run in range(runs):
                first, more = struct.unpack_from("<HH", data, at + 2 + 4 * run)
                low |= set(range(first, first + more + 1))
            at += 2 + 4 * runs
        elif less + 1 <= 4096:
            low = set(struct.unpack_from(f"<{less + 1}H", data, at))
            at += 2 * (less + 1)
        else:
            whole = int.from_bytes(data[at : at + 8192], "little")
            low = {value for value in range(65536) if whole >> value & 1}
            at += 8192
        assert len(low) == less + 1
        values |= {key << 16 | value for value in low}
    return frozenset(values), at


def bitmap64(values: frozenset[int] | set[int]) -> bytes:
    by_high: dict[int, set[int]] = {}
    for value in values:
        by_high.setdefault(value >> 32, set()).add(value & 0xFFFFFFFF)
    return struct.pack("<Q", len(by_high)) + b"".join(
        struct.pack("<I", high) + bitmap32(by_high[high]) for high in sorted(by_high)
    )


def bits64(data: bytes) -> frozenset[int]:
    (count,) = struct.unpack_from("<Q", data)
    at, values = 8, set()
    for _ in range(count):
        (high,) = struct.unpack_from("<I", data, at)
        part, at = _bits32_at(data, at + 4)
        values |= {high << 32 | value for value in part}
    assert at == len(data)
    return frozenset(values)


def comparable(definition: TableDefinition, row: Row | None) -> Row | None:
    """A row with its bitmaps as sets, because equal sets may be written differently, and floats as text (NaN, -0.0)."""
    if row is None:
        return None
    compared = {name: repr(value) if isinstance(value, float) else value for name, value in row.items()}
    for column in definition.schema.columns:
        if column.aggregate is not None and compared[column.name] is not None:
            if column.aggregate.function == "rbm32":
                compared[column.name] = bits32(compared[column.name])
            elif column.aggregate.function == "rbm64":
                compared[column.name] = bits64(compared[column.name])
    return compared
