"""Rows of a few Kafka records in JSON, without an array: for batches of one to some records, on the event loop.

`records_to_rows` makes arrays of all columns, which takes a millisecond for one row or for a hundred. This module reads
the common forms of records, one by one (`few_values.py`), and gives the rows and their keys as they are stored
(`rows/one_row.py`). It leaves everything else to `records_to_rows`: another form of a value, a key that does not fit, a
value that is refused. Then it raises `NeedsArrays`, and nothing has changed. Rows and errors are those of
`records_to_rows`.

The cost is limited before it is paid: `FEW_RECORDS` records, `BYTES_MAX` bytes, and `CELLS_MAX` values.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from headrace.protocol.records.small import FEW_RECORDS
from headrace.tablelayer.model.json import connect_schema
from headrace.tablelayer.model.json.connect_schema import MONGO_ID, ConnectSchema
from headrace.tablelayer.model.json.unavailable import Placeholder
from headrace.tablelayer.model.options.kafka_formats import KafkaValueFormat
from headrace.tablelayer.model.options.table_options import (
    ChangelogImage,
    DeleteBehavior,
    KeyMismatch,
    UnknownFields,
)
from headrace.tablelayer.model.rows.one_row import RowFormat, key_part
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.one_place import Places, places_of
from headrace.tablelayer.model.types.column_types import INTEGER_BITS, TypeKind
from headrace.tablelayer.server.kafka_view.few_values import Conventions, Values
from headrace.tablelayer.server.merge.few_merge import engine_of
from headrace.tablelayer.server.merge.few_rows import FewRows, NeedsArrays

BYTES_MAX: Final = 16 << 10
"""Maximum size of a batch, and of its decompressed records."""
COMPRESSED_MAX: Final = 4 << 10
"""The same of a compressed batch: gzip takes 60 ns a byte."""
CELLS_MAX: Final = 512
"""Maximum number of values in a batch: each takes about half a microsecond."""

_OP_FIELD: Final = "__op"
_NOT_DELETED: Final = (b"", b"null", b"false", b'"false"')
_NOT_A_DELETE: Final = (b"", b"null", b'"c"', b'"u"', b'"r"')
_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
"""Characters that JSON escapes in a name. msgspec's objects cannot have such names."""
_KNOWN_MAX: Final = 256
_SCHEMAS_MAX: Final = 16
"""Maximum number of schemas around records of which a table keeps the readers."""


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
        self._conventions = Conventions(settings, forms)
        self._strict = settings.kafka_unknown_fields is not UnknownFields.IGNORE
        marks: list[str] = []
        if self._is_keyed and not self._is_debezium and settings.kafka_deleted_field:
            marks = [name for name in (settings.kafka_deleted_field, _OP_FIELD) if name not in schema]
            if marks == [_OP_FIELD]:
                marks = []
        self._has_op = len(marks) > 1
        self._key_columns = list(schema.key_columns)
        self._key_at = [schema.index(column.name) for column in self._key_columns]
        self._key_parts = [part for column in self._key_columns if (part := key_part(column.type))]
        self._format = RowFormat(schema)
        self.engine, self._knows_engine = engine_of(definition)
        self._places: Places | None = None
        self._has_parts = bool(definition.partition_keys) or (
            definition.bucket_count > 1 and bool(definition.bucket_key)
        )
        if self._has_parts:
            self._places = places_of(definition, self._key_columns if self._is_keyed else schema.columns)
        self._marks = marks
        self._plain = Values(schema.columns, self._conventions, marks, self._strict)
        self._plain_key = self._key_values(None)
        self._afters: dict[bytes, Values] = {b"": self._plain}
        self._befores: dict[bytes, Values] = {b"": self._plain_key}
        self._keys: dict[bytes, Values] = {}

    @property
    def is_able(self) -> bool:
        """Whether the types of the key columns and the merge engine are known here."""
        return (
            self._knows_engine
            and len(self._key_parts) == len(self._key_columns)
            and (self._places is not None or not self._has_parts)
        )

    def read(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> FewRows:
        """Return the rows of (key, value) pairs. Raises NeedsArrays."""
        rows: list[bytes | None] = []
        keys: list[bytes] = []
        places: list[tuple[str, int]] = []
        try:
            for key, value in records:
                values: list[Any] | None = None
                deleted: list[Any] | None = None
                if value is not None:
                    values, deleted = self._change(value) if self._is_debezium else (self._row(value), None)
                rows.append(None if values is None else self._format.row(values))
                if values is None and not self._deletes:
                    raise NeedsArrays
                identity = self._identity(key, values, deleted)
                if self._is_keyed:
                    keys.append(self._stored_key(identity))
                if self._places is not None:
                    places.append(self._place(self._places, identity))
        except (
            msgspec.MsgspecError,
            UnicodeDecodeError,
            ValueError,
            struct.error,
            OverflowError,
            RecursionError,
        ):
            raise NeedsArrays from None
        return FewRows(rows, keys, places)

    def _identity(self, key: bytes | None, values: list[Any] | None, deleted: list[Any] | None) -> list[Any]:
        """Return the values of a log table's row, or the key of a row. The key of a delete is that of the old row, or
        else the record's.
        """
        if values is not None and not self._is_keyed:
            return values
        found = deleted if values is None else [values[at] for at in self._key_at]
        if found is None:
            if key is None:
                raise NeedsArrays
            found = self._key(key)
        elif key is not None and self._checks_keys and self._key(key) != found:
            raise NeedsArrays
        return found

    def _stored_key(self, identity: Sequence[Any]) -> bytes:
        return b"".join(
            (b"\x01", *(part(each) for part, each in zip(self._key_parts, identity, strict=True)))
        )

    def _place(self, places: Places, identity: Sequence[Any]) -> tuple[str, int]:
        place = places.place(identity)
        partition = self.definition.path.partition
        if place is None or (partition is not None and place[0] != partition):
            raise NeedsArrays
        return place

    def _row(self, value: bytes) -> list[Any]:
        str(value, "utf-8")  # also where no column is
        values, marks = self._plain.read(value)
        if self._marks and bytes(marks[0]) not in _NOT_DELETED:
            raise NeedsArrays
        if self._has_op and bytes(marks[1]) not in _NOT_A_DELETE:
            raise NeedsArrays
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
            raise NeedsArrays
        if bytes(change.before) in (b"", b"null"):
            return None, None
        return None, self._known(self._befores, schema, self._before).read(change.before)[0]

    def _known(
        self, known: dict[bytes, Values], text: bytes, make: Callable[[ConnectSchema | None], Values]
    ) -> Values:
        found = known.get(text)
        if found is None:
            if len(known) >= _SCHEMAS_MAX:
                known.clear()
            found = known[text] = make(connect_schema.parse(text))
        return found

    def _after(self, schema: ConnectSchema | None) -> Values:
        rows = None if schema is None else schema.child("after")
        conventions = msgspec.structs.replace(self._conventions, schema=rows)
        return Values(self.definition.schema.columns, conventions, (), self._strict)

    def _before(self, schema: ConnectSchema | None) -> Values:
        return self._key_values(None if schema is None else schema.child("before"))

    def _key_values(self, schema: ConnectSchema | None) -> Values:
        conventions = msgspec.structs.replace(self._conventions, schema=schema, forms=())
        return Values(self._key_columns, conventions, (), False)

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
            raise NeedsArrays
        kind = self._key_columns[0].type.kind
        if kind in INTEGER_BITS:
            return _whole(key)
        if kind is not TypeKind.STRING:
            raise NeedsArrays
        return _string(key).encode() if key[:1] == b'"' else key


def _is_few(definition: TableDefinition) -> bool:
    """Return whether the table's records can be read one by one. `FewRecords.is_able` adds what its columns decide."""
    settings, schema = definition.settings, definition.schema
    return not (
        settings.kafka_value_format is KafkaValueFormat.AVRO
        or settings.kafka_value_path is not None
        or settings.auto_increment_column is not None
        or any(column.type.is_nested for column in schema.columns)
        or schema.primary_key == (MONGO_ID,)
        or {"schema", "payload"} & set(schema.primary_key)
        or any(map(_ESCAPED.search, (*schema.names, settings.kafka_deleted_field or "")))
        or len(schema.columns) + len(schema.primary_key) > CELLS_MAX
    )


_known: dict[int, tuple[TableDefinition, FewRecords | None]] = {}
"""Readers by the identity of a definition, which is kept with its reader: hashing a schema takes longer than a row."""


def reader_of(definition: TableDefinition) -> FewRecords | None:
    """Return the reader of a table's records, None if all of them need `records_to_rows`."""
    known = _known.get(id(definition))
    if known is not None:
        return known[1]
    reader = FewRecords(definition) if _is_few(definition) else None
    if reader is not None and not reader.is_able:
        reader = None
    if len(_known) >= _KNOWN_MAX:
        _known.clear()
    _known[id(definition)] = definition, reader
    return reader
