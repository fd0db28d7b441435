"""Rows inside of larger JSON values, by a path of field names (`table.kafka.value-path`).

Reading: each value is an object that has the first field, which is an object that has the second, and so on; the last
field is the row. Null anywhere on the way means that the row is deleted. Other fields must be valid JSON and are
ignored, except for the schema that Kafka Connect puts beside a `payload`. Writing: objects of one field each are put
around the row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json import connect_schema
from headrace.tablelayer.model.json import scan as json_scan
from headrace.tablelayer.model.json.connect_schema import ConnectSchema
from headrace.tablelayer.model.json.texts import JsonTexts, find_fields
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import STRING

Indices = npt.NDArray[np.int64]


class RowGroup(msgspec.Struct, frozen=True):
    """Rows with the same schema beside them, if any: the indices of their values, and their texts."""

    schema: ConnectSchema | None
    at: Indices
    texts: JsonTexts


class FoundTexts(msgspec.Struct, frozen=True):
    """Rows at a path. nulls: the values with null there.

    `error` is that of the first value that has neither a row nor null; values behind it are left out.
    """

    groups: list[RowGroup]
    nulls: Indices
    error: RowError | None


def descend(texts: JsonTexts, path: Sequence[str]) -> FoundTexts:
    """Return the rows at the path in each value; with an empty path, the values themselves."""
    error: RowError | None = None
    at, nulls = np.arange(len(texts)), [np.zeros(0, np.int64)]
    schemas: list[tuple[ConnectSchema | None, Indices]] | None = None
    for depth, name in enumerate(path):
        names = (name, "schema") if depth == 0 and name == "payload" else (name,)
        found = find_fields(texts, tuple(Column(index, each, STRING) for index, each in enumerate(names)))
        kinds = found.kinds[0]
        good = len(kinds)
        if found.error is not None:
            error = RowError(int(at[found.error.index]), found.error.column, found.error.reason)
        fits = (kinds == json_scan.CONTAINER) | (kinds == json_scan.NULL)
        if not fits.all():
            good = int(np.argmin(fits))
            where = ".".join(path[: depth + 1])
            what = "is missing" if kinds[good] == json_scan.MISSING else "is not an object"
            error = RowError(
                int(at[good]),
                None,
                f"field '{where}' {what}; the row is at '{'.'.join(path)}' (table.kafka.value-path)",
            )
        if len(names) == 2:
            beside = (found.starts[1][:good], found.lengths[1][:good], found.kinds[1][:good])
            schemas = list(connect_schema.groups(texts.data, *beside))
        nulls.append(at[:good][kinds[:good] == json_scan.NULL])
        kept = np.flatnonzero(kinds[:good] == json_scan.CONTAINER)
        at, texts = at[kept], found.texts(0, texts.data, kept)
    groups = [RowGroup(None, at, texts)]
    if schemas is not None:
        place = np.full(int(at[-1]) + 1 if len(at) else 0, -1, np.int64)
        place[at] = np.arange(len(at))
        groups = []
        for schema, members in schemas:
            chosen = place[members[members < len(place)]]
            chosen = chosen[chosen >= 0]
            groups.append(RowGroup(_at_path(schema, path), at[chosen], texts.select(chosen)))
    return FoundTexts(groups, np.concatenate(nulls), error)


def _at_path(schema: ConnectSchema | None, path: Sequence[str]) -> ConnectSchema | None:
    for name in path[1:]:
        schema = None if schema is None else schema.child(name)
    return schema


def wrap(values: pa.Array, path: Sequence[str]) -> pa.Array:
    """Return JSON objects inside of others, so that `descend` finds them. values: n binary values."""
    front = "".join(f"{{{json.dumps(name, ensure_ascii=False)}:" for name in path).encode()
    back = b"}" * len(path)
    kind = values.type
    return pc.binary_join_element_wise(
        pa.scalar(front, kind), values, pa.scalar(back, kind), pa.scalar(b"", kind)
    )
