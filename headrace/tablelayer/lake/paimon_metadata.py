"""Metadata tables of a Paimon table, with the names and columns of Paimon's own system tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.lake.metadata import Tables, options_table

_UTC_MS = pa.timestamp("ms", "UTC")
_FILES = pa.schema(
    [
        ("partition", pa.string()),
        ("bucket", pa.int32()),
        ("file_path", pa.string()),
        ("file_format", pa.string()),
        ("schema_id", pa.int64()),
        ("level", pa.int32()),
        ("record_count", pa.int64()),
        ("file_size_in_bytes", pa.int64()),
        ("min_sequence_number", pa.int64()),
        ("max_sequence_number", pa.int64()),
        ("creation_time", _UTC_MS),
    ]
)
_MANIFESTS = pa.schema(
    [
        ("file_name", pa.string()),
        ("file_size", pa.int64()),
        ("num_added_files", pa.int64()),
        ("num_deleted_files", pa.int64()),
        ("schema_id", pa.int64()),
    ]
)
_SCHEMAS = pa.schema(
    [
        ("schema_id", pa.int64()),
        ("fields", pa.string()),
        ("partition_keys", pa.list_(pa.string())),
        ("primary_keys", pa.list_(pa.string())),
        ("options", pa.map_(pa.string(), pa.string())),
        ("comment", pa.string()),
        ("update_time", _UTC_MS),
    ]
)
_TAGS = pa.schema(
    [
        ("tag_name", pa.string()),
        ("snapshot_id", pa.int64()),
        ("schema_id", pa.int64()),
        ("commit_time", _UTC_MS),
        ("record_count", pa.int64()),
    ]
)
_BRANCHES = pa.schema([("branch_name", pa.string()), ("create_time", _UTC_MS)])
_ROW_KIND = "rowkind"


def _files(reader: Any) -> pa.Table:
    rows = []
    for entry in reader.living_entries(reader.head):
        file, name = entry["_FILE"], entry["_FILE"]["_FILE_NAME"]
        created = file.get("_CREATION_TIME")
        rows.append(
            {
                "partition": entry["_FOLDER"] or None,
                "bucket": entry["_BUCKET"],
                "file_path": reader.path_of(entry),
                "file_format": name.rpartition(".")[2],
                "schema_id": file["_SCHEMA_ID"],
                "level": file["_LEVEL"],
                "record_count": file["_ROW_COUNT"],
                "file_size_in_bytes": file["_FILE_SIZE"],
                "min_sequence_number": file["_MIN_SEQUENCE_NUMBER"],
                "max_sequence_number": file["_MAX_SEQUENCE_NUMBER"],
                "creation_time": created,
            }
        )
    return pa.Table.from_pylist(rows, schema=_FILES)


def _partitions(reader: Any) -> pa.Table:
    found = _files(reader).group_by("partition").aggregate(
        [
            ("record_count", "sum"),
            ("file_size_in_bytes", "sum"),
            ("file_path", "count"),
            ("creation_time", "max"),
        ]
    )  # fmt: skip
    names = ["partition", "record_count", "file_size_in_bytes", "file_count", "last_update_time"]
    return found.rename_columns(names)


def _manifests(reader: Any) -> pa.Table:
    rows = [
        {
            "file_name": each["_FILE_NAME"],
            "file_size": each["_FILE_SIZE"],
            "num_added_files": each["_NUM_ADDED_FILES"],
            "num_deleted_files": each["_NUM_DELETED_FILES"],
            "schema_id": each["_SCHEMA_ID"],
        }
        for each in reader.manifests(reader.head)
    ]
    return pa.Table.from_pylist(rows, schema=_MANIFESTS)


def _schemas(reader: Any) -> pa.Table:
    rows = [
        {
            "schema_id": number,
            "fields": json.dumps(schema["fields"]),
            "partition_keys": schema["partitionKeys"],
            "primary_keys": schema["primaryKeys"],
            "options": list(schema["options"].items()),
            "comment": schema.get("comment"),
            "update_time": schema["timeMillis"],
        }
        for number, schema in reader.schemas()
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMAS)


def _tags(reader: Any) -> pa.Table:
    rows = [
        {
            "tag_name": name,
            "snapshot_id": tag["id"],
            "schema_id": tag["schemaId"],
            "commit_time": tag["timeMillis"],
            "record_count": tag.get("totalRecordCount"),
        }
        for name, tag in reader.tags()
    ]
    return pa.Table.from_pylist(rows, schema=_TAGS)


def _branches(reader: Any) -> pa.Table:
    rows = [{"branch_name": name, "create_time": at} for name, at in reader.branches()]
    return pa.Table.from_pylist(rows, schema=_BRANCHES)


def _audit_log(reader: Any) -> pa.Table:
    """Return the rows with `rowkind`: `+I`, or `-D` for a key whose deletion is not compacted away yet."""
    columns = reader.definition.schema.columns
    schema = pa.schema([pa.field(_ROW_KIND, pa.string()), *(column.field() for column in columns)])

    def batches() -> Iterable[pa.RecordBatch]:
        for batch, deleted in reader.rows_and_deletions(reader.head, columns):
            kinds = pc.if_else(deleted, "-D", "+I")
            yield pa.RecordBatch.from_arrays([kinds, *batch.columns], schema=schema)

    return pa.Table.from_batches(batches() if reader.head is not None else [], schema=schema)


TABLES: Tables = {
    "audit_log": _audit_log,
    "branches": _branches,
    "files": _files,
    "manifests": _manifests,
    "options": lambda reader: options_table(reader.options),
    "partitions": _partitions,
    "schemas": _schemas,
    "tags": _tags,
}
