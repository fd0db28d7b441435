"""Metadata tables of an Iceberg table: those of pyiceberg's `inspect`, and the parts of the metadata file."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from headrace.tablelayer.lake.metadata import Tables, options_table

_SCHEMAS = pa.schema(
    [
        ("schema_id", pa.int32()),
        ("fields", pa.string()),
        ("identifier_field_ids", pa.list_(pa.int32())),
        ("is_current", pa.bool_()),
    ]
)
_REFS = pa.schema(
    [
        ("name", pa.string()),
        ("snapshot_id", pa.int64()),
        ("max_ref_age_ms", pa.int64()),
        ("min_snapshots_to_keep", pa.int32()),
        ("max_snapshot_age_ms", pa.int64()),
    ]
)


def _refs(reader: Any, kind: str) -> pa.Table:
    rows = [
        {
            "name": name,
            "snapshot_id": ref.snapshot_id,
            "max_ref_age_ms": ref.max_ref_age_ms,
            "min_snapshots_to_keep": ref.min_snapshots_to_keep,
            "max_snapshot_age_ms": ref.max_snapshot_age_ms,
        }
        for name, ref in sorted(reader.table.refs().items())
        if ref.snapshot_ref_type.value == kind
    ]
    return pa.Table.from_pylist(rows, schema=_REFS)


def _schemas(reader: Any) -> pa.Table:
    current = reader.table.schema().schema_id
    rows = [
        {
            "schema_id": number,
            "fields": json.dumps([json.loads(field.model_dump_json()) for field in schema.fields]),
            "identifier_field_ids": schema.identifier_field_ids,
            "is_current": number == current,
        }
        for number, schema in sorted(reader.table.schemas().items())
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMAS)


TABLES: Tables = {
    "branches": lambda reader: _refs(reader, "branch"),
    "files": lambda reader: reader.table.inspect.files(),
    "history": lambda reader: reader.table.inspect.history(),
    "manifests": lambda reader: reader.table.inspect.manifests(),
    "options": lambda reader: options_table(reader.table.properties),
    "partitions": lambda reader: reader.table.inspect.partitions(),
    "schemas": _schemas,
    "tags": lambda reader: _refs(reader, "tag"),
}
