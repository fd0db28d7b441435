"""Table types as Spark types, and the exact Arrow types that Spark 4.1 accepts from Python.

Spark reads Arrow from Python by the position of bytes, not by meaning: an int32 where it expects a bigint kills the JVM
task. So every outgoing batch is cast to the schema built here, once. A cast that would lose something (a nanosecond, a
too long decimal) is an error that names the column.

| table | Spark | Arrow |
|---|---|---|
| TIMESTAMP(p) | timestamp_ntz | timestamp[us] |
| TIMESTAMP_LTZ(p) | timestamp | timestamp[us, UTC] |
| TIME(p), p <= 6 | time(p) | time64[ns] |
| CHAR(n), STRING | string | string |
| BINARY(n), BYTES | binary | binary |
| ARRAY, MAP, ROW | array, map, struct; elements may be null | list, map, struct |

The other types have the same name on both sides. TIME(7) to TIME(9) are refused: Spark has no nanoseconds of the day.
NOT NULL inside a nested column is checked where rows are written. It is not passed to Spark, which could not use it (no
cast in Spark makes an element NOT NULL).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.tablelayer.client.names import several
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.rows.nested import cast
from headrace.tablelayer.model.schema.schema import SYSTEM_COLUMNS, Column, Schema
from headrace.tablelayer.model.types.column_types import ELEMENT, DataType, TypeKind

SPARK_TIME_PRECISION_MAX = 6

CHANGE_TYPE_COLUMN = "_change_type"
LOG_OFFSET_COLUMN = "_log_offset"
COMMIT_TIMESTAMP_COLUMN = "_commit_timestamp"
BUCKET_COLUMN = "_bucket"

METADATA_FIELDS: dict[str, pa.Field] = {
    field.name: field
    for field in (
        pa.field(CHANGE_TYPE_COLUMN, pa.string(), nullable=False),
        pa.field(LOG_OFFSET_COLUMN, pa.int64(), nullable=False),
        pa.field(COMMIT_TIMESTAMP_COLUMN, pa.timestamp("us", tz="UTC")),
        pa.field(BUCKET_COLUMN, pa.int32(), nullable=False),
    )
}
"""Metadata columns of a row, from its place in the log. Rows of a state have no place: `+I`, offset -1, no time."""
SYSTEM_FIELDS = {column.name: column.field() for column in SYSTEM_COLUMNS}
"""The same as columns of a lake table. Rows of a state have the bucket only."""
SYSTEM_BUCKET, SYSTEM_OFFSET, SYSTEM_TIMESTAMP = SYSTEM_FIELDS
PLACE_FIELDS = {**METADATA_FIELDS, **SYSTEM_FIELDS}


def spark_type(data_type: DataType, column: str) -> Any:
    """Return the `pyspark.sql.types.DataType` of a column. Raises TableError when Spark has none."""
    from pyspark.sql import types as spark

    if data_type.is_nested:
        parts = [spark_type(field.type, f"{column}.{field.name}") for field in data_type.fields]
        if data_type.kind is TypeKind.ARRAY:
            return spark.ArrayType(parts[0])
        if data_type.kind is TypeKind.MAP:
            return spark.MapType(parts[0], parts[1])
        return spark.StructType(
            [
                spark.StructField(field.name, part, metadata=_comment(field.comment))
                for field, part in zip(data_type.fields, parts, strict=True)
            ]
        )
    simple = {
        TypeKind.BOOLEAN: spark.BooleanType,
        TypeKind.TINYINT: spark.ByteType,
        TypeKind.SMALLINT: spark.ShortType,
        TypeKind.INT: spark.IntegerType,
        TypeKind.BIGINT: spark.LongType,
        TypeKind.FLOAT: spark.FloatType,
        TypeKind.DOUBLE: spark.DoubleType,
        TypeKind.CHAR: spark.StringType,
        TypeKind.STRING: spark.StringType,
        TypeKind.DATE: spark.DateType,
        TypeKind.TIMESTAMP: spark.TimestampNTZType,
        TypeKind.TIMESTAMP_LTZ: spark.TimestampType,
        TypeKind.BINARY: spark.BinaryType,
        TypeKind.BYTES: spark.BinaryType,
    }
    if data_type.kind is TypeKind.DECIMAL:
        return spark.DecimalType(data_type.precision, data_type.scale)
    if data_type.kind is TypeKind.TIME:
        if data_type.precision > SPARK_TIME_PRECISION_MAX:
            raise TableError(
                TableErrorCode.INVALID_PROJECTION,
                f"column '{column}' is {data_type}, but Spark's TIME ends at microseconds:"
                " read the other columns",
            )
        return spark.TimeType(data_type.precision)
    return simple[data_type.kind]()


def _comment(text: str | None) -> dict[str, str] | None:
    return None if text is None else {"comment": text}


def spark_schema(columns: Sequence[Column], metadata: Sequence[str] = ()) -> Any:
    """Return the `StructType` of rows with these columns, followed by these fields of `PLACE_FIELDS`."""
    from pyspark.sql import types as spark

    kinds = {
        CHANGE_TYPE_COLUMN: spark.StringType(),
        LOG_OFFSET_COLUMN: spark.LongType(),
        COMMIT_TIMESTAMP_COLUMN: spark.TimestampType(),
        BUCKET_COLUMN: spark.IntegerType(),
        **{column.name: spark_type(column.type, column.name) for column in SYSTEM_COLUMNS},
    }
    fields = [spark.StructField(c.name, spark_type(c.type, c.name), c.nullable) for c in columns]
    fields += [spark.StructField(name, kinds[name], PLACE_FIELDS[name].nullable) for name in metadata]
    return spark.StructType(fields)


def spark_arrow_type(data_type: DataType) -> pa.DataType:
    """Return the Arrow type in which Spark accepts a column of this type from Python."""
    match data_type.kind:
        case TypeKind.TIMESTAMP:
            return pa.timestamp("us")
        case TypeKind.TIMESTAMP_LTZ:
            return pa.timestamp("us", tz="UTC")
        case TypeKind.TIME:
            return pa.time64("ns")
        case TypeKind.BINARY:
            return pa.binary()
        case TypeKind.ARRAY:
            return pa.list_(pa.field(ELEMENT, spark_arrow_type(data_type.fields[0].type)))
        case TypeKind.MAP:
            return pa.map_(*(spark_arrow_type(field.type) for field in data_type.fields))
        case TypeKind.ROW:
            return pa.struct(
                [pa.field(field.name, spark_arrow_type(field.type)) for field in data_type.fields]
            )
        case _:
            return data_type.arrow()


def spark_arrow_schema(columns: Sequence[Column], metadata: Sequence[str] = ()) -> pa.Schema:
    """Return the Arrow counterpart of `spark_schema`, to which `conform` casts."""
    fields = [pa.field(c.name, spark_arrow_type(c.type), nullable=c.nullable) for c in columns]
    return pa.schema([*fields, *(PLACE_FIELDS[name] for name in metadata)])


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast the batch to exactly this schema, columns by name. Raises TableError naming a column that does not fit."""
    arrays = []
    for field in schema:
        array = batch.column(field.name)
        if array.type != field.type:
            try:
                array = cast(array, field.type)
            except pa.ArrowInvalid as error:
                raise TableError(
                    TableErrorCode.INVALID_ROW,
                    f"column '{field.name}' holds a value that Spark cannot represent as {field.type}: {error}",
                ) from error
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def choose_columns(schema: Schema, names: Sequence[str] | None) -> list[Column]:
    """Return the named columns in the given order (None: all). Raises TableError for an unknown or repeated name."""
    if names is None:
        return list(schema.columns)
    names = several("columns", names)
    for position, name in enumerate(names):
        if name in names[:position]:
            raise TableError(TableErrorCode.INVALID_PROJECTION, f"column '{name}' is selected twice")
    return schema.select(names)


def arrow_of_spark(data_type: Any) -> pa.DataType | None:
    """Return the Arrow type in which Spark passes a column of this type to Python; None for types no table has."""
    from pyspark.sql import types as spark

    if isinstance(data_type, spark.DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if isinstance(data_type, spark.TimeType):
        return pa.time64("ns")
    if isinstance(data_type, spark.ArrayType):
        element = arrow_of_spark(data_type.elementType)
        return None if element is None else pa.list_(element)
    if isinstance(data_type, spark.MapType):
        key, value = arrow_of_spark(data_type.keyType), arrow_of_spark(data_type.valueType)
        return None if key is None or value is None else pa.map_(key, value)
    if isinstance(data_type, spark.StructType):
        fields = [(field.name, arrow_of_spark(field.dataType)) for field in data_type.fields]
        return None if any(arrow is None for _, arrow in fields) else pa.struct(fields)
    simple = (
        (spark.BooleanType, pa.bool_()),
        (spark.ByteType, pa.int8()),
        (spark.ShortType, pa.int16()),
        (spark.IntegerType, pa.int32()),
        (spark.LongType, pa.int64()),
        (spark.FloatType, pa.float32()),
        (spark.DoubleType, pa.float64()),
        (spark.StringType, pa.string()),
        (spark.BinaryType, pa.binary()),
        (spark.DateType, pa.date32()),
        (spark.TimestampNTZType, pa.timestamp("us")),
        (spark.TimestampType, pa.timestamp("us", tz="UTC")),
        (spark.NullType, pa.null()),
    )
    return next((arrow for kind, arrow in simple if isinstance(data_type, kind)), None)
