"""Debezium's envelopes in JSON: a change as an object with `before`, `after` and `op`.

Reading: with or without the schema around it (`{"schema": ..., "payload": {...}}`). `c` (created), `u` (updated) and
`r` (read by a snapshot) stand for the row in `after`, `d` (deleted) for the key in `before`. The other fields are
ignored. `{"schema": ..., "payload": null}` is a tombstone: it deletes the record's key. `t` (truncated) and `m`
(message) are refused: connectors send them only if they are configured to. The values are those of `debezium_values`.
MongoDB's connector writes `before`, `after` and the `id` of a key as texts of extended JSON, which are read too.
Writing: `before`, `after`, `op` and `ts_ms`, the time of the append.
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

from headrace.protocol.records.gather import gather
from headrace.tablelayer.model.arrays.arrays import Bytes, Offsets, binary_array, ends_to_offsets, sealed
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json import connect_schema
from headrace.tablelayer.model.json import scan as json_scan
from headrace.tablelayer.model.json.connect_schema import MONGO_ID, ConnectSchema
from headrace.tablelayer.model.json.texts import JsonTexts, find_fields
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import STRING

Indices = npt.NDArray[np.int64]

CREATED, UPDATED, DELETED = b"cud"

_ENVELOPE = tuple(
    Column(index, name, STRING) for index, name in enumerate(("op", "before", "after", "payload", "schema"))
)
_OP, _BEFORE, _AFTER, _PAYLOAD, _SCHEMA = range(5)
_OPS = np.zeros(256, np.uint8)
_OPS[list(b"curd")] = list(b"cccd")  # the change in the table: the row is put, or deleted
_KEY_ENVELOPE = tuple(Column(index, name, STRING) for index, name in enumerate(("schema", "payload")))


class EnvelopeGroup(msgspec.Struct, frozen=True):
    """Envelopes with the same schema around them, if any.

    upserts, deletes: their indices among all envelopes, with the texts of the rows; keyed: deletes without a
    `before`, whose key must come from the record's key. extended: whether rows are texts of MongoDB's extended JSON.
    """

    schema: ConnectSchema | None
    upserts: Indices
    upserted: JsonTexts
    deletes: Indices
    deleted: JsonTexts
    keyed: Indices
    extended: bool

    def rows_schema(self, *, deleted: bool = False) -> ConnectSchema | None:
        """Return the schema of the rows in `after` (of those in `before`, if deleted)."""
        name = _ENVELOPE[_BEFORE if deleted else _AFTER].name
        found = None if self.schema is None else self.schema.child(name)
        # MongoDB's connector writes a row as a text, whose fields are not in the schema.
        return None if self.extended else found


class Envelopes(msgspec.Struct, frozen=True):
    """The changes in n envelopes. `error` is the first bad envelope's; envelopes behind it are left out."""

    groups: list[EnvelopeGroup]
    error: RowError | None


def read_envelopes(texts: JsonTexts) -> Envelopes:
    """Split the envelopes into groups of upserts and deletes."""
    data = texts.data
    outer = find_fields(texts, _ENVELOPE)
    starts, lengths = outer.starts.astype(np.int64), outer.lengths.astype(np.int64)
    kinds, error = outer.kinds, outer.error
    good = kinds.shape[1]
    bare = kinds[_OP] == json_scan.MISSING
    tombstones = bare & (kinds[_PAYLOAD] == json_scan.NULL)
    wrapped = np.flatnonzero(bare & (kinds[_PAYLOAD] == json_scan.CONTAINER))
    if len(wrapped):
        inner = find_fields(outer.texts(_PAYLOAD, data, wrapped), _ENVELOPE[:_SCHEMA])
        if inner.error is not None:
            good = int(wrapped[inner.error.index])
            error = RowError(good, None, inner.error.reason)
            wrapped = wrapped[: inner.error.index]
        for each in (_OP, _BEFORE, _AFTER):
            starts[each, wrapped] = inner.starts[each]
            lengths[each, wrapped] = inner.lengths[each]
            kinds[each, wrapped] = inner.kinds[each]
    starts, lengths, kinds, tombstones = (
        starts[:, :good],
        lengths[:, :good],
        kinds[:, :good],
        tombstones[:good],
    )
    plain = (kinds[_OP] == json_scan.STRING) & (lengths[_OP] == 1)
    ops = np.where(plain, _OPS[data[np.where(plain, starts[_OP], 0)]], 0)
    deletes = (ops == DELETED) | tombstones
    as_texts = _take_texts(data, starts, lengths, kinds)
    image = np.where(deletes, kinds[_BEFORE], kinds[_AFTER])
    keyed = deletes & (image <= json_scan.NULL)
    bad = ((ops == 0) & ~tombstones) | ((image != json_scan.CONTAINER) & ~keyed)
    if bad.any():
        good = int(np.argmax(bad))
        found = [
            tuple(int(each[i, good]) for each in (kinds, starts, lengths)) for i in range(len(_ENVELOPE))
        ]
        error = RowError(good, None, _complaint(data, found, int(ops[good])))
    groups = []
    beside = (starts[_SCHEMA, :good], lengths[_SCHEMA, :good], kinds[_SCHEMA, :good])
    for schema, at in connect_schema.groups(data, *beside):
        upserts, deleted = at[~deletes[at]], at[(deletes & ~keyed)[at]]
        groups.append(
            EnvelopeGroup(
                schema,
                upserts,
                _texts(data, starts[_AFTER], lengths[_AFTER], upserts),
                deleted,
                _texts(data, starts[_BEFORE], lengths[_BEFORE], deleted),
                at[keyed[at]],
                bool(as_texts[at].any()),
            )
        )
    return Envelopes(groups, error)


def _take_texts(data: np.ndarray, starts: Indices, lengths: Indices, kinds: np.ndarray) -> np.ndarray:
    """Turn rows that are JSON texts in a string into objects, as MongoDB's connector writes them.

    The scan has resolved the escapes of the string already. Returns which envelopes have such a row.
    """
    found = np.zeros(kinds.shape[1], np.bool_)
    for side in (_BEFORE, _AFTER):
        objects = (kinds[side] == json_scan.STRING) & (lengths[side] > 1)
        objects &= data[np.where(objects, starts[side], 0)] == ord("{")
        kinds[side] = np.where(objects, json_scan.CONTAINER, kinds[side])
        found |= objects
    return found


def _texts(data: np.ndarray, starts: Indices, lengths: Indices, at: Indices) -> JsonTexts:
    return JsonTexts(data, starts[at], starts[at] + lengths[at])


def _complaint(data: np.ndarray, found: list[tuple[int, ...]], op: int) -> str:
    kind, start, length = found[_OP]
    if kind == json_scan.MISSING:
        return (
            "it is not a Debezium envelope: neither the value nor its 'payload' has a field 'op' (a table "
            "with 'table.kafka.value-format' = 'json' takes rows without an envelope)"
        )
    text = data[start : start + min(length, 20)].tobytes().decode(errors="replace")
    if text == "t":
        return (
            "its op is 't' (truncate), which is not supported; have the connector leave it out "
            "('skipped.operations' = 't') and delete the rows"
        )
    if not op:
        return f"its op is '{text}'; it must be 'c', 'u', 'r' or 'd'"
    side = _BEFORE if op == DELETED else _AFTER
    missing = found[side][0] <= json_scan.NULL
    hint = ""
    if missing and text == "u":
        hint = " (MongoDB's connector gives whole rows with 'capture.mode' = 'change_streams_update_full')"
    return f"its op is '{text}', but '{_ENVELOPE[side].name}' is " + (
        f"missing or null{hint}" if missing else "not an object"
    )


def mongo_keys(keys: pa.Array, column: str) -> pa.Array | None:
    """Return keys of MongoDB's connector, `{"id": "{\\"$oid\\": ...}"}`, as JSON objects with the key column.

    keys: n binary values; column: the table's only key column, which is `_id` for MongoDB. None for other keys.
    """
    if column != MONGO_ID or not len(keys):
        return None
    try:
        texts = JsonTexts.of(keys)
    except RowError:
        return None
    found = find_fields(texts, (Column(0, "id", STRING), Column(1, MONGO_ID, STRING)))
    texts_of_ids = (found.kinds[0] == json_scan.STRING) & (found.kinds[1] == json_scan.MISSING)
    if found.error is not None or not texts_of_ids.all():
        return None
    offsets, data = gather(texts.data, found.starts[0].astype(np.int64), found.lengths[0].astype(np.int64))
    front, back = pa.scalar(b'{"_id":'), pa.scalar(b"}")
    return pc.binary_join_element_wise(front, binary_array(offsets, data), back, pa.scalar(b""))


class KeyGroup(msgspec.Struct, frozen=True):
    """Keys with the same schema around them, if any: their indices among all keys, and the keys without the schema."""

    schema: ConnectSchema | None
    at: Indices
    keys: pa.Array


def key_groups(keys: pa.Array) -> list[KeyGroup]:
    """Return keys without the schema that Connect may have put around them. keys: n binary values, UTF-8.

    Raises RowError for invalid UTF-8. A key that is not an object of `schema` and `payload` stays as it is.
    """
    objects = np.flatnonzero(np.asarray(pc.match_substring_regex(keys, pattern=rb"^\s*\{")))
    payloads: dict[int, bytes] = {}
    schemas: list[ConnectSchema | None] = [None] * len(keys)
    if len(objects):
        texts = _objects(keys, objects)
        found = find_fields(texts, _KEY_ENVELOPE)  # a wrong key and those behind it stay as they are
        wrapped = np.flatnonzero((found.kinds != json_scan.MISSING).all(axis=0))
        beside = tuple(each[0][wrapped] for each in (found.starts, found.lengths, found.kinds))
        for schema, chosen in connect_schema.groups(texts.data, *beside):
            for index in wrapped[chosen].tolist():
                start = int(found.starts[1, index])
                payload = texts.data[start : start + int(found.lengths[1, index])].tobytes()
                if found.kinds[1, index] == json_scan.STRING:
                    payload = json.dumps(payload.decode(), ensure_ascii=False).encode()
                payloads[int(objects[index])] = payload
                schemas[int(objects[index])] = schema
    if not payloads:
        return [KeyGroup(None, np.arange(len(keys)), keys)]
    values = [payloads.get(index, key) for index, key in enumerate(keys.to_pylist())]
    distinct = list(dict.fromkeys(id(schema) for schema in schemas))
    groups = []
    for each in distinct:
        at = np.array([index for index, schema in enumerate(schemas) if id(schema) == each], np.int64)
        groups.append(KeyGroup(schemas[int(at[0])], at, pa.array([values[index] for index in at], keys.type)))
    return groups


def _objects(keys: pa.Array, at: Indices) -> JsonTexts:
    try:
        return JsonTexts.of(keys.take(pa.array(at)))
    except RowError as error:
        raise RowError(int(at[error.index]), error.column, error.reason) from None


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
    """Return n envelopes as (int32[n+1] offsets, data).

    texts: rows in JSON; before, after: indices of rows, -1 for null; ops: CREATED, UPDATED or DELETED.
    """
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
        out[begin + 7] = ops[row]  # replaces the question mark


def warm() -> None:
    """Compile (or load from the cache) all kernels of this module."""
    read_envelopes(JsonTexts.of(pa.array([b'{"after":{"a":"AQ=="},"op":"c"}'], pa.binary())))
    rows = np.array([0, 2], np.int32), np.frombuffer(b"{}", np.uint8)
    one = np.zeros(1, np.int64)
    write_envelopes(rows, one - 1, one, np.full(1, CREATED, np.uint8), 0)
