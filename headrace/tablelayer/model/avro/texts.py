"""Values of Avro as texts, and texts as values, by the rules for JSON in `json/rows.py`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.arrays.arrays import Mask, variable_values
from headrace.tablelayer.model.avro.meanings import nearest_type
from headrace.tablelayer.model.avro.nested import MisfitError, Reader
from headrace.tablelayer.model.avro.schema import AvroSchemaError, Node
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json import scan as json_scan
from headrace.tablelayer.model.json.rows import Field
from headrace.tablelayer.model.json.write import plain_texts
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import DataType, TypeKind

_Z = ord("Z")


def values_of(texts: pa.Array, data_type: DataType) -> pa.Array:
    """Return UTF-8 texts as values of a type that is not nested. Raises MisfitError."""
    offsets, found = variable_values(texts)
    data = np.zeros(len(found) + json_scan.PADDING, np.uint8)
    data[: len(found)] = found
    given = np.asarray(pc.is_valid(texts))
    kinds = np.where(given, json_scan.STRING, json_scan.NULL).astype(np.uint8)
    lengths = np.where(given, np.diff(offsets), 0).astype(np.int32)
    if data_type.kind in (
        TypeKind.DATE,
        TypeKind.TIME,
    ):  # a connector's zone Z means that the value is in UTC
        lengths -= (lengths > 1) & (data[np.maximum(offsets[:-1] + lengths - 1, 0)] == _Z)
    field = Field(Column(0, "value", data_type), data, offsets[:-1].astype(np.int32), lengths, kinds)
    try:
        return field.convert()
    except RowError as error:
        raise MisfitError(error.index, error.reason) from None


def texts_of(reader: Reader, node: Node, positions: np.ndarray, given: Mask, data_type: DataType) -> pa.Array:
    """Return values of a type as their texts in JSON, without the quotes of a date or time.

    Raises MisfitError, and AvroSchemaError if values of this type have no text.
    """
    nearest = nearest_type(node)
    if nearest is None:
        raise AvroSchemaError(f"the writer's schema has {node}, which cannot be read as {data_type}")
    values = reader.read(node, positions, given, nearest)
    if nearest.kind is TypeKind.STRING:
        return values
    return plain_texts(values)
