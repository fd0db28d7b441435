"""Rows of a few Kafka records in JSON, without an array: for batches of one to some records, on the event loop.

`transcode` makes arrays of all columns, which takes a millisecond for one row or for a hundred. This module reads the
common forms of records, one by one, and gives the rows as they are stored (`rows/stored.py`) and their keys as they are
stored (`rows/keys.py`). Everything that it does not know for sure is left to `transcode`: another form of a value, a
key that does not fit, a value that is refused. Then it raises `Later`, and nothing has changed. So each row that it
returns is the row that `transcode` would return, and each error is that of `transcode`.

The cost is limited before it is paid: `FEW_RECORDS` records, `BYTES_MAX` bytes, and `CELLS_MAX` values.
"""

from __future__ import annotations

import binascii
import re
import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from headrace.protocol.records.small import FEW_RECORDS
from headrace.tablelayer.model.json import connect_schema
from headrace.tablelayer.model.json.connect_schema import (
    DECIMAL,
    MONGO_ID,
    TIME_UNITS,
    VARIABLE_DECIMAL,
    ConnectSchema,
)
from headrace.tablelayer.model.json.debezium_values import NEAR_EPOCH_SECONDS, NO_NUMBERS, PLAUSIBLE_DAYS
from headrace.tablelayer.model.json.unavailable import Placeholder
from headrace.tablelayer.model.options.kafka_formats import DebeziumTime, KafkaValueFormat
from headrace.tablelayer.model.options.table_options import (
    ChangelogImage,
    DeleteBehavior,
    KeyMismatch,
    TableOptions,
    UnknownFields,
)
from headrace.tablelayer.model.rows.stored import layout_of
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.types.column_types import INTEGER_BITS, TIMESTAMP_KINDS, DataType, TypeKind
from headrace.tablelayer.server.merge.few_rows import FewRows

BYTES_MAX: Final = 16 << 10
"""Maximum size of a batch, and of its decompressed records."""
COMPRESSED_MAX: Final = 4 << 10
"""The same of a compressed batch: gzip takes 60 ns a byte."""
CELLS_MAX: Final = 512
"""Maximum number of values in a batch: each takes about half a microsecond."""

_TEXT_KINDS: Final = frozenset({TypeKind.STRING, TypeKind.CHAR})
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.(\d{1,6}))?(Z)?", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_NUMBER: Final = re.compile(rb"(-?(?:0|[1-9]\d*))(?:\.(\d+))?")
_NEGATIVE_ZERO: Final = re.compile(rb"-0(?![0-9.eE])")
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = 1 - _EPOCH_DAY, date.max.toordinal() - _EPOCH_DAY
_DAY_SECONDS: Final = 86_400
_TICKS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_UNIT_OF: Final = {
    DebeziumTime.CONNECT: "ms",
    DebeziumTime.MICROSECONDS: "us",
    DebeziumTime.NANOSECONDS: "ns",
}
_OP_FIELD: Final = "__op"
_NOT_DELETED: Final = (b"", b"null", b"false", b'"false"')
_NOT_A_DELETE: Final = (b"", b"null", b'"c"', b'"u"', b'"r"')
_KNOWN_MAX: Final = 256
_SCHEMAS_MAX: Final = 16
"""Maximum number of schemas around records of which a table keeps the readers."""
_FIXED: Final = {1: "b", 2: "h", 4: "i", 8: "q"}
_FLOAT_LEAST: Final = 2.0**-126
_DOUBLE: Final = struct.Struct("<d")
_HALF_A_FLOAT, _BELOW_A_FLOAT = 1 << 28, (1 << 29) - 1


class Later(Exception):  # noqa: N818 - nothing is wrong
    """The records need `transcode`."""


class _Reader(msgspec.Struct, frozen=True):
    """The way to read a column's values.

    accepted: the Python types that the value has in JSON. read: its value in the row's slot; None: as it is.
    """

    accepted: Any
    read: Callable[[Any], Any] | None = None


_SLOT_OF: Final = {TypeKind.BOOLEAN: "?", TypeKind.FLOAT: "f", TypeKind.DOUBLE: "d"}
_RAW: Final = object()
"""The accepted type of a value that is read from its text."""


def _later(value: Any) -> Any:
    raise Later


def _unknown(value: Raw) -> Any:
    """Read a value whose form is not known here, which may be null."""
    if bytes(value) != b"null":
        raise Later
    return None


def _float(value: float) -> float:
    """Return a number as FLOAT, if rounding it twice is the same as rounding its text once."""
    bits = int.from_bytes(_DOUBLE.pack(value), "little")
    if bits & _BELOW_A_FLOAT == _HALF_A_FLOAT or (value and abs(value) < _FLOAT_LEAST):
        raise Later
    return value


def _text(length_max: int | None, forms: Sequence[bytes]) -> Callable[[str], bytes]:
    def read(value: str) -> bytes:
        data = value.encode()
        if (length_max is not None and len(value) > length_max) or data in forms:
            raise Later
        return data

    return read


def _moment(data_type: DataType) -> Callable[[str], int]:
    per_second, precision = _TICKS[data_type.unit], data_type.precision
    zoned = data_type.kind is TypeKind.TIMESTAMP_LTZ

    def read(value: str) -> int:
        found = _MOMENT.fullmatch(value)
        if found is None or (found[2] is None) is zoned or len(found[1] or "") > precision:
            raise Later
        since = datetime.fromisoformat(value[:19]) - _EPOCH
        fraction = int((found[1] or "0").ljust(9, "0")[:9]) * per_second // _TICKS["ns"]
        return (since.days * _DAY_SECONDS + since.seconds) * per_second + fraction

    return read


def _counted(data_type: DataType, unit: str | None, *, is_certain: bool) -> Callable[[int], int]:
    """Return the reader of a number of `unit` since 1970; a number must be plausible unless the unit is certain."""
    near, first, last = 0, _FIRST_DAY, _LAST_DAY
    if data_type.kind is TypeKind.DATE:
        if unit != "d":
            return _later
        per_day, step, factor = 1, 1, 1
    else:
        if unit is None or unit == "d" or _TICKS[unit] > _TICKS[data_type.unit]:
            return _later
        per_day = _DAY_SECONDS * _TICKS[data_type.unit]
        step = max(1, _TICKS[unit] // 10**data_type.precision)
        factor = _TICKS[data_type.unit] // _TICKS[unit]
        if not is_certain:
            near, (first, last) = NEAR_EPOCH_SECONDS * _TICKS[unit], PLAUSIBLE_DAYS

    def read(value: int) -> int:
        ticks = value * factor
        if value % step or abs(value) < near or not first <= ticks // per_day <= last:
            raise Later
        return ticks

    return read


def _day(value: str) -> int:
    if _DAY.fullmatch(value) is None:
        raise Later
    return date.fromisoformat(value).toordinal() - _EPOCH_DAY


def _decimal(data_type: DataType, forms: Sequence[bytes], coded: bool) -> Callable[[Raw], bytes | None]:
    """Return the reader of exact numbers, and of base64 of unscaled values if `coded`."""
    scale, limit = data_type.scale, 10**data_type.precision

    def read(value: Raw) -> bytes | None:
        text = bytes(value)
        if text == b"null":
            return None
        if coded and text[:1] == b'"':
            inner = text[1:-1]
            if inner in forms or not inner:
                raise Later
            unscaled = int.from_bytes(binascii.a2b_base64(inner, strict_mode=True), "big", signed=True)
        else:
            found = _NUMBER.fullmatch(text)
            if found is None:
                raise Later
            digits = found[2] or b""
            if len(digits) > scale or len(text) > 2 * data_type.precision:
                raise Later
            unscaled = int(found[1] + digits) * 10 ** (scale - len(digits))
        if abs(unscaled) >= limit:
            raise Later
        return unscaled.to_bytes(16, "little", signed=True)

    return read


class _Conventions(msgspec.Struct, frozen=True):
    """The rules for values that a table and the schema around a record give."""

    settings: TableOptions
    forms: tuple[bytes, ...]
    schema: ConnectSchema | None = None

    def reader(self, column: Column) -> _Reader:
        """Return the reader of a column."""
        data_type = column.type
        kind = data_type.kind
        said = None if self.schema is None else self.schema.child(column.name)
        name = None if said is None else said.name
        if kind is TypeKind.DECIMAL:
            if name is None or name == DECIMAL:
                coded = said is not None and name == DECIMAL and said.scale == data_type.scale
                return _Reader(_RAW, _decimal(data_type, self.forms, coded))
            return _Reader(_RAW, _unknown)
        if kind is TypeKind.DATE or kind in TIMESTAMP_KINDS:
            return _Reader(int | str, self._temporal(column, TIME_UNITS.get(name or "")))
        if name in (DECIMAL, VARIABLE_DECIMAL) or name in TIME_UNITS:
            return _Reader(_RAW, _unknown)
        if kind in INTEGER_BITS:
            return _Reader(int)
        if kind in _TEXT_KINDS:
            return _Reader(str, _text(data_type.length if kind is TypeKind.CHAR else None, self.forms))
        if kind is TypeKind.BOOLEAN:
            return _Reader(bool)
        if kind is TypeKind.DOUBLE:
            return _Reader(float)
        if kind is TypeKind.FLOAT:
            return _Reader(float, _float)
        return _Reader(_RAW, _unknown)

    def _temporal(self, column: Column, unit: str | None) -> Callable[[Any], int]:
        """Return the reader of a date or a timestamp: its text, or a number of the schema's `unit`."""
        data_type, time = column.type, self.settings.debezium_time
        unit = unit or self.settings.debezium_units.get(column.name)
        is_certain = True
        if unit is None and time not in NO_NUMBERS:
            unit = _UNIT_OF.get(time)
            if data_type.kind is TypeKind.DATE:
                unit = "d"
            elif unit is None:
                unit, is_certain = data_type.unit if data_type.precision else "ms", False
        number = _counted(data_type, unit, is_certain=is_certain)
        text = _day if data_type.kind is TypeKind.DATE else _moment(data_type)
        return lambda value: number(value) if type(value) is int else text(value)


def _struct_of(
    readers: Sequence[_Reader], columns: Sequence[Column], extra: Sequence[str], strict: bool
) -> Any:
    """Return the decoder of an object with these columns' values, and the texts of `extra` fields behind them."""
    fields: list[Any] = []
    for index, reader in enumerate(readers):
        if reader.accepted is _RAW:
            fields.append((f"f{index}", Raw, Raw(b"")))
        else:
            fields.append((f"f{index}", reader.accepted | None | UnsetType, UNSET))
    names = {f"f{index}": column.name for index, column in enumerate(columns)}
    for index, name in enumerate(extra, len(columns)):
        fields.append((f"f{index}", Raw, Raw(b"")))
        names[f"f{index}"] = name
    made = msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=strict)
    return msgspec.json.Decoder(made)


class _Values:
    """Reads the values of some columns of an object."""

    def __init__(
        self, columns: Sequence[Column], conventions: _Conventions, extra: Sequence[str], strict: bool
    ) -> None:
        self._columns = columns
        self._readers = [conventions.reader(column) for column in columns]
        self._decode = _struct_of(self._readers, columns, extra, strict).decode
        self._count = len(columns)
        self._has_floats = any(reader.accepted is float for reader in self._readers)

    def read(self, text: bytes | Raw) -> tuple[list[Any], tuple[Any, ...]]:
        """Return the values for the slots, None for null, and the texts of the extra fields."""
        given = msgspec.structs.astuple(self._decode(text))
        values: list[Any] = []
        for value, reader, column in zip(given, self._readers, self._columns, strict=False):
            if reader.accepted is _RAW:
                text_of = bytes(value)
                if not text_of:
                    value = UNSET
            if value is UNSET:
                if column.default is not None:
                    raise Later
                value = None
            elif value is not None and reader.read is not None:
                value = reader.read(value)
            if value is None and not column.nullable:
                raise Later
            values.append(value)
        if self._has_floats and 0.0 in values and _NEGATIVE_ZERO.search(bytes(text)) is not None:
            raise Later
        return values, given[self._count :]


class _RowFormat:
    """Writes stored rows of a schema."""

    def __init__(self, schema: Schema) -> None:
        layout = layout_of(schema.arrow())
        self._id = schema.schema_id
        self._null_bytes = layout.positions[0] - layout.id_size
        codes = []
        self._empty: list[Any] = []
        for column, dtype, variable in zip(schema.columns, layout.dtypes, layout.variable, strict=True):
            code = _SLOT_OF.get(column.type.kind)
            if variable:
                code = "I"
            elif code is None:
                code = _FIXED.get(dtype.itemsize, f"{dtype.itemsize}s")
            codes.append(code)
            self._empty.append(None if variable else b"" if code.endswith("s") else 0)
        self._fixed = struct.Struct(f"<H{self._null_bytes}s{''.join(codes)}")
        if self._fixed.size != layout.size:
            raise AssertionError("the layout of stored rows has changed")

    def row(self, values: Sequence[Any]) -> bytes:
        nulls = end = 0
        slots: list[Any] = []
        texts: list[bytes] = []
        for index, (value, empty) in enumerate(zip(values, self._empty, strict=True)):
            if value is None:
                nulls |= 1 << index
                slots.append(end if empty is None else empty)
            elif empty is None:
                end += len(value)
                texts.append(value)
                slots.append(end)
            else:
                slots.append(value)
        fixed = self._fixed.pack(self._id, nulls.to_bytes(self._null_bytes, "little"), *slots)
        return fixed + b"".join(texts) if texts else fixed


def _key_part(data_type: DataType) -> Callable[[Any], bytes] | None:
    """Return the encoding of a key column's value; None if it is not known here."""
    if data_type.kind in _TEXT_KINDS:
        return lambda value: value.replace(b"\x00", b"\x00\xff") + b"\x00\x00"
    if data_type.kind is TypeKind.DATE:
        bits = 32
    elif data_type.kind in TIMESTAMP_KINDS:
        bits = 64
    elif data_type.kind in INTEGER_BITS:
        bits = INTEGER_BITS[data_type.kind]
    else:
        return None
    sign, size = 1 << (bits - 1), bits // 8
    return lambda value: (value + sign).to_bytes(size, "big")


class _Envelope(msgspec.Struct):
    op: str | UnsetType = UNSET
    before: Raw = Raw(b"")
    after: Raw = Raw(b"")
    payload: Raw = Raw(b"")
    schema: Raw = Raw(b"")


class _Payload(msgspec.Struct):
    op: str
    before: Raw = Raw(b"")
    after: Raw = Raw(b"")


class _Key(msgspec.Struct):
    payload: Raw = Raw(b"")
    schema: Raw = Raw(b"")


_envelope = msgspec.json.Decoder(_Envelope).decode
_payload = msgspec.json.Decoder(_Payload).decode
_key = msgspec.json.Decoder(_Key).decode
_whole = msgspec.json.Decoder(int).decode
_string = msgspec.json.Decoder(str).decode


class FewRecords:
    """Reads records of a table; see the module. `reader_of` returns it."""

    def __init__(self, definition: TableDefinition) -> None:
        settings, schema = definition.settings, definition.schema
        self.definition = definition
        self.records_max = min(FEW_RECORDS, CELLS_MAX // (len(schema.columns) + len(schema.primary_key)))
        self.full_image = settings.changelog_image is ChangelogImage.FULL
        self._is_debezium = settings.kafka_value_format is KafkaValueFormat.DEBEZIUM_JSON
        self._is_keyed = definition.is_primary_key_table
        self._checks_keys = self._is_keyed and settings.kafka_key_mismatch is KeyMismatch.FAIL
        self._deletes = self._is_keyed and settings.delete_behavior is DeleteBehavior.ALLOW
        forms: tuple[bytes, ...] = ()
        if settings.kafka_unavailable and self._is_keyed:
            forms = Placeholder.of(settings.kafka_unavailable).forms
        self._conventions = _Conventions(settings, forms)
        self._strict = settings.kafka_unknown_fields is not UnknownFields.IGNORE
        marks: list[str] = []
        if self._is_keyed and not self._is_debezium and settings.kafka_deleted_field:
            marks = [name for name in (settings.kafka_deleted_field, _OP_FIELD) if name not in schema]
            if marks == [_OP_FIELD]:
                marks = []
        self._has_op = len(marks) > 1
        self._key_columns = list(schema.key_columns)
        self._key_at = [schema.index(column.name) for column in self._key_columns]
        self._key_parts = [part for column in self._key_columns if (part := _key_part(column.type))]
        self._format = _RowFormat(schema)
        self._marks = marks
        self._plain = _Values(schema.columns, self._conventions, marks, self._strict)
        self._plain_key = self._key_values(None)
        self._afters: dict[bytes, _Values] = {b"": self._plain}
        self._befores: dict[bytes, _Values] = {b"": self._plain_key}
        self._keys: dict[bytes, _Values] = {}

    @property
    def can_encode_keys(self) -> bool:
        return len(self._key_parts) == len(self._key_columns)

    def read(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> FewRows:
        """Return the rows of (key, value) pairs. Raises Later."""
        rows: list[bytes | None] = []
        keys: list[bytes] = []
        try:
            for key, value in records:
                values: list[Any] | None = None
                deleted: list[Any] | None = None
                if value is not None:
                    values, deleted = self._change(value) if self._is_debezium else (self._row(value), None)
                rows.append(None if values is None else self._format.row(values))
                if values is None and not self._deletes:
                    raise Later
                if self._is_keyed:
                    keys.append(self._stored_key(key, values, deleted))
        except (
            msgspec.MsgspecError,
            UnicodeDecodeError,
            ValueError,
            struct.error,
            OverflowError,
            RecursionError,
        ):
            raise Later from None
        return FewRows(rows, keys)

    def _stored_key(self, key: bytes | None, values: list[Any] | None, deleted: list[Any] | None) -> bytes:
        """Return the store key of a row, or of a delete: that of the old row, or else of the record's key."""
        found = deleted if values is None else [values[at] for at in self._key_at]
        if found is None:
            if key is None:
                raise Later
            found = self._key(key)
        elif key is not None and self._checks_keys and self._key(key) != found:
            raise Later
        return b"".join((b"\x01", *(part(each) for part, each in zip(self._key_parts, found, strict=True))))

    def _row(self, value: bytes) -> list[Any]:
        str(value, "utf-8")  # also where no column is
        values, marks = self._plain.read(value)
        if self._marks and bytes(marks[0]) not in _NOT_DELETED:
            raise Later
        if self._has_op and bytes(marks[1]) not in _NOT_A_DELETE:
            raise Later
        return values

    def _change(self, value: bytes) -> tuple[list[Any] | None, list[Any] | None]:
        """Return the row of an envelope, or the key in the old row of a delete, if there is an old row."""
        str(value, "utf-8")
        outer = _envelope(value)
        change: Any = _payload(outer.payload) if outer.op is UNSET else outer
        schema = bytes(outer.schema)
        if change.op in ("c", "u", "r"):
            return self._known(self._afters, schema, self._after).read(change.after)[0], None
        if change.op != "d":
            raise Later
        if bytes(change.before) in (b"", b"null"):
            return None, None
        return None, self._known(self._befores, schema, self._before).read(change.before)[0]

    def _known(
        self, known: dict[bytes, _Values], text: bytes, make: Callable[[ConnectSchema | None], _Values]
    ) -> _Values:
        found = known.get(text)
        if found is None:
            if len(known) >= _SCHEMAS_MAX:
                known.clear()
            found = known[text] = make(connect_schema.parse(text))
        return found

    def _after(self, schema: ConnectSchema | None) -> _Values:
        rows = None if schema is None else schema.child("after")
        conventions = msgspec.structs.replace(self._conventions, schema=rows)
        return _Values(self.definition.schema.columns, conventions, (), self._strict)

    def _before(self, schema: ConnectSchema | None) -> _Values:
        return self._key_values(None if schema is None else schema.child("before"))

    def _key_values(self, schema: ConnectSchema | None) -> _Values:
        conventions = msgspec.structs.replace(self._conventions, schema=schema, forms=())
        return _Values(self._key_columns, conventions, (), False)

    def _key(self, key: bytes) -> list[Any]:
        """Return the values of a record's key."""
        str(key, "utf-8")
        if key[:1] != b"{":
            return [self._bare(key)]
        outer = _key(key)
        payload, schema = bytes(outer.payload), bytes(outer.schema)
        if not payload or not schema:
            return self._plain_key.read(key)[0]
        if payload[:1] != b"{":
            return [self._bare(payload)]
        return self._known(self._keys, schema, self._key_values).read(payload)[0]

    def _bare(self, key: bytes) -> Any:
        if len(self._key_columns) > 1 or not key or key[:1].isspace() or key[-1:].isspace():
            raise Later
        kind = self._key_columns[0].type.kind
        if kind in INTEGER_BITS:
            return _whole(key)
        if kind is not TypeKind.STRING:
            raise Later
        return _string(key).encode() if key[:1] == b'"' else key


def _is_few(definition: TableDefinition) -> bool:
    """Return whether the table's writes are simple enough: rows are put or appended as they are."""
    settings, schema = definition.settings, definition.schema
    return not (
        settings.kafka_value_format is KafkaValueFormat.AVRO
        or settings.kafka_value_path is not None
        or settings.merge_engine is not None
        or settings.auto_increment_column is not None
        or settings.kv_ttl_ms is not None
        or definition.is_partitioned
        or definition.path.partition is not None
        or definition.bucket_count > 1
        or any(column.type.is_nested for column in schema.columns)
        or schema.primary_key == (MONGO_ID,)
        or {"schema", "payload"} & set(schema.primary_key)
        or len(schema.columns) + len(schema.primary_key) > CELLS_MAX
    )


_known: dict[int, tuple[TableDefinition, FewRecords | None]] = {}
"""Readers by the identity of a definition, which is kept with its reader: hashing a schema takes longer than a row."""


def reader_of(definition: TableDefinition) -> FewRecords | None:
    """Return the reader of a table's records, None if all of them need `transcode`."""
    known = _known.get(id(definition))
    if known is not None:
        return known[1]
    reader = FewRecords(definition) if _is_few(definition) else None
    if reader is not None and not reader.can_encode_keys:
        reader = None
    if len(_known) >= _KNOWN_MAX:
        _known.clear()
    _known[id(definition)] = definition, reader
    return reader
