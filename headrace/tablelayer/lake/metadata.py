"""Metadata tables of the lake, `db.t$lake$files` and others: their names, and types that every reader has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from headrace.tablelayer.lake.adapter import LakeError
from headrace.tablelayer.lake.names import METADATA_PREFIX

OPTIONS_SCHEMA = pa.schema([("key", pa.string()), ("value", pa.string())])

Tables = Mapping[str, Callable[[Any], pa.Table]]
"""Functions from a format's reader to a metadata table, by name. The table of the lake exists."""


def metadata_of(tables: Tables, name: str, reader: Any) -> pa.Table:
    """Return the metadata table `name` of a format that has `tables`. Raises LakeError if it does not exist."""
    path, known = reader.definition.path, sorted({*tables, "snapshots"})
    if name not in known:
        raise LakeError(
            f"the lake of {path} has no table '{name}': it has {', '.join(METADATA_PREFIX + each for each in known)}"
        )
    if name == "snapshots":
        return reader.snapshots()
    if not reader.exists():
        raise LakeError(f"{path} is not in the lake yet: run `headrace tier --once` first")
    return _plain(tables[name](reader))


def options_table(options: Mapping[str, str]) -> pa.Table:
    rows = [{"key": key, "value": value} for key, value in sorted(options.items())]
    return pa.Table.from_pylist(rows, schema=OPTIONS_SCHEMA)


def _plain(table: pa.Table) -> pa.Table:
    """Return a table with types that Spark and DuckDB have: no large types, no empty structs, times in microseconds."""
    kept = [
        each for each in table.schema if not (pa.types.is_struct(each.type) and each.type.num_fields == 0)
    ]
    schema = pa.schema([pa.field(each.name, _plain_type(each.type)) for each in kept])
    return table.select(schema.names).cast(schema)


def _plain_type(given: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(given):
        return pa.struct([pa.field(each.name, _plain_type(each.type)) for each in given])
    if pa.types.is_map(given):
        return pa.map_(_plain_type(given.key_type), _plain_type(given.item_type))
    if pa.types.is_list(given) or pa.types.is_large_list(given):
        return pa.list_(_plain_type(given.value_type))
    if pa.types.is_dictionary(given):
        return _plain_type(given.value_type)
    if pa.types.is_timestamp(given):
        return pa.timestamp("us", given.tz)
    plain = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary(), pa.null(): pa.string()}
    unsigned = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
    return plain.get(given) or unsigned.get(given) or given
