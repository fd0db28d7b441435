"""Projection of Iceberg's files to the schema of a scan that keeps the NULLs that pyiceberg loses.

pyiceberg 0.12 rebuilds lists and maps of rows from their offsets alone, so a NULL list becomes an empty one
(apache/iceberg-python issue 3833).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.types import ListType, MapType, NestedField

from headrace.tablelayer.model.arrays.arrays import validity
from headrace.tablelayer.model.rows import nested


class _Projection(pyiceberg_arrow.ArrowProjectionVisitor):
    """pyiceberg's projection, but `nested.make_entries` builds each level and carries the NULLs over."""

    def list(self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None) -> Any:
        if list_array is None or value_array is None:
            return None
        element = self._projected(list_type.element_field, value_array)
        return _entries(pa.list_(element[0]), list_array, [element])

    def map(
        self,
        map_type: MapType,
        map_array: pa.Array | None,
        key_result: pa.Array | None,
        value_result: pa.Array | None,
    ) -> Any:
        if map_array is None or key_result is None or value_result is None:
            return None
        key = self._projected(map_type.key_field, key_result)
        value = self._projected(map_type.value_field, value_result)
        return _entries(pa.map_(key[0].with_nullable(False), value[0]), map_array, [key, value])

    def _projected(self, field: NestedField, values: pa.Array) -> tuple[pa.Field, pa.Array]:
        array = self._cast_if_needed(field, values)
        return self._construct_field(field, array.type), array


class _Accessor(pyiceberg_arrow.ArrowAccessor):
    """pyiceberg's accessor, but it returns only the entries inside the slice and of values that are not NULL."""

    def list_element_partner(self, partner_list: pa.Array | None) -> pa.Array | None:
        return None if partner_list is None else nested.entries(partner_list)[1][0]

    def map_key_partner(self, partner_map: pa.Array | None) -> pa.Array | None:
        return None if partner_map is None else nested.entries(partner_map)[1][0]

    def map_value_partner(self, partner_map: pa.Array | None) -> pa.Array | None:
        return None if partner_map is None else nested.entries(partner_map)[1][1]


def _entries(target: pa.DataType, source: pa.Array, parts: list[tuple[pa.Field, pa.Array]]) -> pa.Array:
    counts, _ = nested.entries(source)
    return nested.make_entries(target, counts, [array for _, array in parts], validity(source))


def keep_nulls() -> None:
    """Make every pyiceberg scan in this process project with the classes above."""
    pyiceberg_arrow.ArrowProjectionVisitor = _Projection  # type: ignore[misc]
    pyiceberg_arrow.ArrowAccessor = _Accessor  # type: ignore[misc]
