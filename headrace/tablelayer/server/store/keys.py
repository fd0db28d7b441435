"""Keys that a client sends: rows with columns of the primary key."""

from __future__ import annotations

import pyarrow as pa

from headrace.protocol.errors import DecodeError
from headrace.tablelayer.model.batches.ipc import decode_ipc
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.server.merge.engines import row_keys
from headrace.tablelayer.server.store.kv import KeyValueStore


def key_rows(
    schema: Schema, names: tuple[str, ...], keys: memoryview, keys_max: int, bytes_max: int | None = None
) -> pa.RecordBatch:
    """Return the keys; their columns are the first of the primary key. Raises TableError(INVALID_KEY)."""
    try:
        rows = decode_ipc(
            keys, schema.key_arrow(len(names)), untrusted=True, rows_max=keys_max, bytes_max=bytes_max
        )
    except DecodeError as error:
        raise TableError(
            TableErrorCode.INVALID_KEY, f"keys must be rows of ({', '.join(names)}): {error}"
        ) from None
    return rows


def absent_keys(store: KeyValueStore, schema: Schema, keys: memoryview, keys_max: int) -> pa.RecordBatch:
    """Return the keys that are absent, in the primary key's columns. Raises TableError(INVALID_KEY)."""
    rows = key_rows(schema, schema.primary_key, keys, keys_max)
    return rows.filter(pa.array(store.absent(row_keys(schema, rows).to_pylist()), pa.bool_()))
