"""Debezium's envelopes in JSON: a change as an object with `before`, `after` and `op`.

In: with or without the schema around it (`{"schema": ..., "payload": {...}}`). `c` (created), `u` (updated) and `r`
(read by a snapshot) stand for the row in `after`, `d` (deleted) for the key in `before`. The other fields are not
looked at. `t` (truncated) and `m` (message) are refused: connectors do not send them unless they are told to.

Values are those of `json_rows`, and what the connectors write: numbers for DATE (days), TIME and TIMESTAMP, in the
unit that their `time.precision.mode` says, and base64 of the unscaled value for DECIMAL where their
`decimal.handling.mode` is `precise`.

Out: `before`, `after`, `op` and `ts_ms`, the time of the append.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tablelayer.model.arrays import unscaled
from tablelayer.model.arrays.arrays import Bytes, Offsets, ends_to_offsets, sealed
from tablelayer.model.errors import RowError
from tablelayer.model.json import scan as json_scan
from tablelayer.model.json import values as json_values
from tablelayer.model.json.rows import Field, JsonTexts, find_fields
from tablelayer.model.options.kafka_formats import DebeziumDecimals, DebeziumTime
from tablelayer.model.options.table_options import TableOptions
from tablelayer.model.schema.schema import Column
from tablelayer.model.types.column_types import STRING, TIMESTAMP_KINDS, TypeKind

Indices = npt.NDArray[np.int64]

CREATED, UPDATED, DELETED = b"cud"

_ENVELOPE = tuple(
    Column(index, name, STRING) for index, name in enumerate(("op", "before", "after", "payload"))
)
_OP, _BEFORE, _AFTER, _PAYLOAD = range(4)
_OPS = np.zeros(256, np.uint8)
_OPS[list(b"curd")] = list(b"cccd")  # what a row does to the table: it is put, or deleted
_KEY_ENVELOPE = tuple(Column(index, name, STRING) for index, name in enumerate(("schema", "payload")))


class Envelopes(msgspec.Struct, frozen=True):
    """What n envelopes stand for. upserts, deletes: which of them, with the rows' texts; keyed: deletes without a
    `before`, whose key must come from elsewhere. `error` is that of the first bad one; what comes after it is left out.
    """

    upserts: Indices
    upserted: JsonTexts
    deletes: Indices
    deleted: JsonTexts
    keyed: Indices
    error: RowError | None


def read_envelopes(texts: JsonTexts) -> Envelopes:
    """Take the envelopes apart."""
    data = texts.data
    outer = find_fields(texts, _ENVELOPE)
    starts, lengths = outer.starts.astype(np.int64), outer.lengths.astype(np.int64)
    kinds, error = outer.kinds, outer.error
    good = kinds.shape[1]
    wrapped = np.flatnonzero((kinds[_OP] == json_scan.MISSING) & (kinds[_PAYLOAD] == json_scan.CONTAINER))
    if len(wrapped):
        inner = find_fields(outer.texts(_PAYLOAD, data, wrapped), _ENVELOPE)
        if inner.error is not None:
            good = int(wrapped[inner.error.index])
            error = RowError(good, None, inner.error.reason)
            wrapped = wrapped[: inner.error.index]
        for each in (_OP, _BEFORE, _AFTER):
            starts[each, wrapped] = inner.starts[each]
            lengths[each, wrapped] = inner.lengths[each]
            kinds[each, wrapped] = inner.kinds[each]
    starts, lengths, kinds = starts[:, :good], lengths[:, :good], kinds[:, :good]
    plain = (kinds[_OP] == json_scan.STRING) & (lengths[_OP] == 1)
    ops = np.where(plain, _OPS[data[np.where(plain, starts[_OP], 0)]], 0)
    deletes = ops == DELETED
    image = np.where(deletes, kinds[_BEFORE], kinds[_AFTER])
    keyed = deletes & (image <= json_scan.NULL)
    bad = (ops == 0) | ((image != json_scan.CONTAINER) & ~keyed)
    if bad.any():
        good = int(np.argmax(bad))
        found = [
            tuple(int(each[i, good]) for each in (kinds, starts, lengths)) for i in range(len(_ENVELOPE))
        ]
        error = RowError(good, None, _complaint(data, found, int(ops[good])))
    at = np.arange(good)
    upserts, deleted = at[~deletes[:good]], at[(deletes & ~keyed)[:good]]
    return Envelopes(
        upserts,
        _texts(data, starts[_AFTER], lengths[_AFTER], upserts),
        deleted,
        _texts(data, starts[_BEFORE], lengths[_BEFORE], deleted),
        at[keyed[:good]],
        error,
    )


def _texts(data: np.ndarray, starts: Indices, lengths: Indices, at: Indices) -> JsonTexts:
    return JsonTexts(data, starts[at], starts[at] + lengths[at])


def _complaint(data: np.ndarray, found: list[tuple[int, ...]], op: int) -> str:
    kind, start, length = found[_OP]
    if kind == json_scan.MISSING:
        return (
            "it is no Debezium envelope: there is no field 'op', neither in the value nor in its 'payload' (a table "
            "with 'table.kafka.value-format' = 'json' takes rows without an envelope)"
        )
    text = data[start : start + min(length, 20)].tobytes().decode(errors="replace")
    if text == "t":
        return (
            "its op is 't' (truncate), which is not carried out; have the connector leave it out "
            "('skipped.operations' = 't') and delete the rows"
        )
    if not op:
        return f"its op is '{text}'; it must be 'c', 'u', 'r' or 'd'"
    side = _BEFORE if op == DELETED else _AFTER
    missing = found[side][0] <= json_scan.NULL
    return f"its op is '{text}', but '{_ENVELOPE[side].name}' is " + (
        "missing or null" if missing else "no object"
    )


def key_payloads(keys: pa.Array) -> pa.Array:
    """Keys without the schema that Connect may have put around them. keys: n binary values, UTF-8.

    Raises RowError for invalid UTF-8; what is no object of `schema` and `payload` is given back as it is.
    """
    texts = JsonTexts.of(keys)
    values = keys.to_pylist()
    found_until = 0
    while found_until < len(values):
        rest = texts.select(np.arange(found_until, len(values)))
        found = find_fields(rest, _KEY_ENVELOPE)
        count = found.kinds.shape[1]
        for index in np.flatnonzero((found.kinds != json_scan.MISSING).all(axis=0)).tolist():
            start = int(found.starts[1, index])
            payload = texts.data[start : start + int(found.lengths[1, index])].tobytes()
            if found.kinds[1, index] == json_scan.STRING:
                payload = json.dumps(payload.decode(), ensure_ascii=False).encode()
            values[found_until + index] = payload
        found_until += count + 1  # a key that is no object stands for itself
    return pa.array(values, keys.type)


# -- values ------------------------------------------------------------------------------------------------


class Conventions(msgspec.Struct, frozen=True):
    """How a connector writes times and decimals."""

    time: DebeziumTime = DebeziumTime.ADAPTIVE
    decimals: DebeziumDecimals = DebeziumDecimals.STRING

    def field(self, *arguments: Any) -> DebeziumField:
        """A column's values, to be read with these conventions; for `json_to_rows`."""
        field = DebeziumField(*arguments)
        field.conventions = self
        return field


_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_TEMPORAL_KINDS = TIMESTAMP_KINDS | {TypeKind.DATE, TypeKind.TIME}


class DebeziumField(Field):
    """`json_rows.Field`, and the forms of values that connectors have besides."""

    conventions = Conventions()

    def convert(self) -> pa.Array:
        kind = self.column.type.kind
        if kind is TypeKind.DECIMAL and self.conventions.decimals is DebeziumDecimals.PRECISE:
            return self._merged(self.kinds == json_scan.STRING, DebeziumField._unscaled)
        if kind in _TEMPORAL_KINDS and self.conventions.time is not DebeziumTime.ISOSTRING:
            return self._merged(self.kinds == json_scan.NUMBER, DebeziumField._counted)
        if kind is TypeKind.DECIMAL:
            try:
                return super().convert()
            except RowError as error:
                hint = f"; '{TableOptions.debezium_decimals.name}' = 'precise' reads what a connector writes by default"
                raise RowError(error.index, error.column, error.reason + hint) from None
        if kind in _TEMPORAL_KINDS:
            try:
                return super().convert()
            except RowError as error:
                hint = f" ('{TableOptions.debezium_time.name}' is 'isostring')"
                raise RowError(error.index, error.column, error.reason + hint) from None
        return super().convert()

    def _merged(self, special: np.ndarray, convert: Any) -> pa.Array:
        """The values of both forms. Raises RowError for the first one that does not fit."""
        if not special.any():
            return Field.convert(self)
        arrays: list[pa.Array] = []
        failures: list[RowError] = []
        for mask, how in ((~special, Field.convert), (special, convert)):
            part = self.conventions.field(
                self.column,
                self.data,
                self.starts,
                self.lengths,
                np.where(mask, self.kinds, 0).astype(np.uint8),
            )
            try:
                arrays.append(how(part))
            except RowError as error:
                failures.append(error)
        if failures:
            raise min(failures, key=lambda error: error.index)
        return pc.if_else(pa.array(special), arrays[1], arrays[0])

    def _counted(self) -> pa.Array:
        """Numbers that count days, or parts of a second since 1970 or midnight."""
        data_type = self.column.type
        numbers = np.zeros(len(self.starts), np.int64)
        self.check(
            json_values.integers(self.data, self.starts, self.lengths, self.kinds, 64, numbers, self.failure)
        )
        given = self.kinds != json_scan.MISSING
        if data_type.kind is TypeKind.DATE:
            low, high = -(1 << 31), (1 << 31) - 1
            self._fit(given & ((numbers < low) | (numbers > high)), json_values.OUT_OF_RANGE)
            return self.array(numbers.astype(np.int32))
        source = _TICKS[self._unit()]
        finest = 10**data_type.precision
        if source > finest:
            self._fit(given & (numbers % (source // finest) != 0), json_values.TOO_PRECISE)
        target = _TICKS[data_type.unit]
        if target >= source:
            factor = target // source
            bound = ((1 << 63) - 1) // factor
            self._fit(given & ((numbers > bound) | (numbers < -bound)), json_values.OUT_OF_RANGE)
            ticks = numbers * factor
        else:
            ticks = numbers // (source // target)
        if data_type.kind is TypeKind.TIME:
            self._fit(given & ((ticks < 0) | (ticks >= 86_400 * target)), json_values.OUT_OF_RANGE)
            return self.array(ticks.astype(np.int32) if data_type.precision <= 3 else ticks)
        return self.array(ticks)

    def _unit(self) -> str:
        """The unit of a connector's numbers for a column like this one."""
        mode, data_type = self.conventions.time, self.column.type
        if mode is DebeziumTime.CONNECT:
            return "ms"
        if mode is DebeziumTime.ADAPTIVE_TIME_MICROSECONDS and data_type.kind is TypeKind.TIME:
            return "us"
        return "ms" if data_type.precision <= 3 else "us" if data_type.precision <= 6 else "ns"

    def _unscaled(self) -> pa.Array:
        """Base64 of the unscaled value."""
        count = len(self.starts)
        offsets = np.zeros(count + 1, np.int64)
        out = np.zeros(
            int(self.lengths[self.kinds != json_scan.MISSING].sum(dtype=np.int64)) // 4 * 3, np.uint8
        )
        self.check(
            json_values.decode_base64(
                self.data, self.starts, self.lengths, self.kinds, -1, offsets, out, self.failure
            )
        )
        words = np.zeros((count, 2), np.int64)
        given = self.kinds != json_scan.MISSING
        precision = self.column.type.precision
        row = int(unscaled.from_bytes(out, offsets[:-1], np.diff(offsets), given, precision, words))
        self.fail_at(row, json_values.OUT_OF_RANGE)
        return self.array(words)

    def _fit(self, bad: np.ndarray, code: int) -> None:
        self.fail_at(int(np.argmax(bad)) if bad.any() else -1, code)


# -- out ---------------------------------------------------------------------------------------------------

_FRONT = np.frombuffer(b'{"before":', np.uint8)
_MIDDLE = np.frombuffer(b',"after":', np.uint8)
_NULL = np.frombuffer(b"null", np.uint8)


def write_envelopes(
    texts: tuple[Offsets, Bytes],
    before: Indices,
    after: Indices,
    ops: npt.NDArray[np.uint8],
    timestamp_ms: int,
) -> tuple[Offsets, Bytes]:
    """n envelopes as (int32[n+1] offsets, data). texts: rows in JSON; before, after: which of them, -1 for null; ops:
    CREATED, UPDATED or DELETED."""
    offsets, data = texts
    tail = np.frombuffer(f',"op":"?","ts_ms":{timestamp_ms}}}'.encode(), np.uint8)
    sizes = np.append(np.diff(offsets.astype(np.int64)), len(_NULL))  # the last one is for -1
    lengths = sizes[before] + sizes[after] + (len(_FRONT) + len(_MIDDLE) + len(tail))
    ends = ends_to_offsets(lengths)
    out = np.empty(int(ends[-1]), np.uint8)
    _write(sealed(offsets), sealed(data), before, after, ops, sealed(tail), ends, out)
    return ends, out


@njit(cache=True, nogil=True)
def _put(out: Any, position: Any, data: Any, start: Any, end: Any) -> Any:
    for index in range(start, end):
        out[position] = data[index]
        position += 1
    return position


@njit(cache=True, nogil=True)
def _write(
    offsets: Any, data: Any, before: Any, after: Any, ops: Any, tail: Any, ends: Any, out: Any
) -> None:
    for row in range(len(before)):
        position = np.int64(ends[row])
        position = _put(out, position, _FRONT, 0, len(_FRONT))
        source = before[row]
        if source < 0:
            position = _put(out, position, _NULL, 0, len(_NULL))
        else:
            position = _put(out, position, data, np.int64(offsets[source]), np.int64(offsets[source + 1]))
        position = _put(out, position, _MIDDLE, 0, len(_MIDDLE))
        source = after[row]
        if source < 0:
            position = _put(out, position, _NULL, 0, len(_NULL))
        else:
            position = _put(out, position, data, np.int64(offsets[source]), np.int64(offsets[source + 1]))
        begin = position
        position = _put(out, position, tail, 0, len(tail))
        out[begin + 7] = ops[row]  # where the question mark stands


def warm() -> None:
    """Compile (or load from the cache) all kernels of this module."""
    field = Conventions(decimals=DebeziumDecimals.PRECISE).field
    from tablelayer.model.json.rows import json_to_rows
    from tablelayer.model.types.column_types import decimal

    texts = JsonTexts.of(pa.array([b'{"after":{"a":"AQ=="},"op":"c"}'], pa.binary()))
    json_to_rows(read_envelopes(texts).upserted, [Column(0, "a", decimal(3, 1))], make_field=field)
    rows = np.array([0, 2], np.int32), np.frombuffer(b"{}", np.uint8)
    one = np.zeros(1, np.int64)
    write_envelopes(rows, one - 1, one, np.full(1, CREATED, np.uint8), 0)
