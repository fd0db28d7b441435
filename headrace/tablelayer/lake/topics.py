"""Plain topics as sources of tiering rounds: read through Spark's Kafka source, decoded in the executors.

A topic's round is a round like any other (`tiering_round.py`): its lake table carries the offsets, committed with the
rows. Only committed records are read. Offsets that are missing because of compaction or aborted transactions are not an
error.

Inferred columns are those of the records up to the round's end, which is pinned first. Fields that are new since
earlier rounds become new columns of the lake table, under names that all engines accept (`field_names.py`). The lake
table keeps its definition in a property.

Records that do not fit go to a lake table of their own, which has its own offsets in its snapshots. It is committed
before the rows, so that no record is lost. A repeated round reads its progress from there, so that no record is written
twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from headrace.tablelayer.client.security.java import for_java
from headrace.tablelayer.client.security.settings import Bootstrap, ConnectionSettings
from headrace.tablelayer.lake.adapter import LakeError, LakeState, LakeTable
from headrace.tablelayer.lake.field_names import columns_of_fields, field_of
from headrace.tablelayer.lake.topic_rows import RecordDecoder
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.lake.offsets import Offsets
from headrace.tablelayer.model.lake.topic_options import TopicFormat
from headrace.tablelayer.model.lake.topics import TopicLake, successor
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.types.column_types import BIGINT, BOOLEAN, DOUBLE, STRING, DataType, decimal
from headrace.tablelayer.spark.splits import DELETED_COLUMN, last_changes
from headrace.tablelayer.spark.types import conform, spark_arrow_schema, spark_schema

EARLIEST, LATEST = -2, -1
_PLACE = ("_topic_timestamp", "_topic_partition", "_topic_offset")
_UPSERT, _DELETE = 3, 4
_KAFKA_POLL_RECORDS = "100000"
"""Records per poll. The source asks for offsets after every poll; Kafka's default of 500 would mean many polls."""
_INFERRED = {"BIGINT": BIGINT, "BOOLEAN": BOOLEAN, "DOUBLE": DOUBLE, "FLOAT": DOUBLE}


@dataclass(frozen=True, slots=True)
class Topic:
    """A tiered topic as the tiering job sees it."""

    name: str
    topic_id: UUID
    partitions: int
    lake: TopicLake


class TopicSource:
    """`ChangeSource` over a topic. Its end is pinned at construction, because inferred columns depend on it."""

    def __init__(self, connection: Any, bootstrap: Bootstrap, topic: Topic) -> None:
        self.topic = topic
        self._connection = connection
        self._settings = ConnectionSettings.make(bootstrap)
        self._end = dict(connection.kafka.offsets(topic.name, LATEST, committed=True))
        self.definition: StoredTable | None = None
        self.renamed: list[str] = []
        """Sentences about fields found in this round whose columns have other names."""
        self._bad: Any = None

    def earliest(self) -> dict[Any, int]:
        return dict(self._connection.kafka.offsets(self.topic.name, EARLIEST))

    def latest(self) -> dict[Any, int]:
        return dict(self._end)

    def state(self, spark: Any, end: Offsets) -> None:
        return None

    # ---- the lake table's columns

    def define(self, spark: Any, stored: StoredTable | None, base: LakeState) -> StoredTable | None:
        """Return the lake table's definition for this round; None if there are no records to infer columns from.

        `stored` is the present definition. Raises LakeError when it cannot be changed to the declared one.
        """
        topic, lake = self.topic, self.topic.lake
        declared = lake.declared(topic.topic_id, topic.partitions)
        try:
            if declared is not None:
                columns = declared.schema.columns
                self.definition = declared if stored is None else successor(stored, columns, keep=False)
            else:
                known = () if stored is None else stored.schema.columns
                found = columns_of_fields(self._inferred(spark, base), known, lake.primary_key)
                names = {column.name for column in known}
                self.renamed = [
                    f"field {json.dumps(field_of(column))} is column {column.name}"
                    for column in found
                    if column.name not in names and field_of(column) != column.name
                ]
                if stored is not None:
                    self.definition = successor(stored, found, keep=True)
                elif found:
                    schema = Schema.of(found).to_json()
                    self.definition = lake.definition(schema, topic.partitions).with_id(topic.topic_id)
        except TableError as error:
            raise LakeError(
                f"topic {topic.name} cannot become lake table {lake.path}: {error.message}"
            ) from error
        if self.definition is not None:
            self.definition = replace(self.definition, options=lake.options)
        return self.definition

    def _inferred(self, spark: Any, base: LakeState) -> list[Column]:
        from pyspark.sql import functions

        earliest = self.earliest()
        start = {place: base.offsets.get(place, earliest.get(place, 0)) for place in self._end}
        text = functions.col("value").cast("string")
        if self.topic.lake.value_format is TopicFormat.DEBEZIUM_JSON:
            paths = ("$.payload.after", "$.after", "$.payload.before", "$.before")
            text = functions.coalesce(*(functions.get_json_object(text, path) for path in paths))
        frame = self._records(spark, start, self._end)
        if frame is None:
            return []
        # A value that is not an object is bad; merged with the objects, it would hide their fields.
        objects = functions.when(text.rlike(r"^\s*\{"), text)
        shape = functions.schema_of_variant_agg(functions.try_parse_json(objects))
        found = frame.select(shape.alias("shape")).collect()[0].shape
        return inferred_columns(found or "VOID")

    # ---- a round

    def changes(self, spark: Any, start: Offsets, end: Offsets) -> Any:
        assert self.definition is not None
        frame = self._records(spark, start, end)
        definition, lake = self.definition, self.topic.lake
        raw = lake.value_format is TopicFormat.RAW
        columns = definition.schema.columns
        schema = spark_schema(columns)
        if definition.is_primary_key_table:
            schema = schema.add(DELETED_COLUMN, "boolean", False)
        if frame is None:
            return spark.createDataFrame([], schema)
        if raw:
            return frame.select(*[f"`{column.name}`" for column in columns])
        self._bad = spark.sparkContext.accumulator(0)
        reader = _RowReader(self._decoder(), columns, definition.schema.primary_key, self._bad)
        if not definition.is_primary_key_table:
            return frame.mapInArrow(reader, schema)
        placed = spark_schema(columns).add(DELETED_COLUMN, "boolean", False)
        for name, kind in zip(_PLACE, ("timestamp", "integer", "long"), strict=True):
            placed = placed.add(name, kind, False)
        return _newest(frame.mapInArrow(reader, placed), definition)

    def before_commit(
        self, spark: Any, dead: Callable[[], LakeTable], start: Offsets, end: Offsets, epoch: int
    ) -> None:
        """Write the bad records of the written round from `start` to `end` to the dead letters' table."""
        if self._bad is None or not self._bad.value:
            return
        table = dead()
        base = table.find_committed()
        first = {place: max(offset, base.offsets.get(place, 0)) for place, offset in start.items()}
        last = {place: max(offset, first[place]) for place, offset in end.items()}
        frame = self._records(spark, first, last)
        if frame is None:
            return
        columns = self.topic.lake.dead_letters(self.topic.topic_id).schema.columns
        found = frame.mapInArrow(_BadReader(self._decoder(), columns), spark_schema(columns))
        try:
            snapshot = table.write(base, found, {**base.offsets, **last}, epoch)
            table.commit(base, snapshot, epoch)
        finally:
            table.discard(epoch)

    @property
    def dead_letters(self) -> int:
        """Minimum number of records that the round's newest piece set aside; tasks that ran twice count twice."""
        return int(self._bad.value) if self._bad is not None else 0

    def _decoder(self) -> RecordDecoder:
        assert self.definition is not None
        lake = self.topic.lake
        return RecordDecoder(lake.value_format, self.definition.schema, lake.unknown_fields)

    def _records(self, spark: Any, start: Offsets, end: Offsets) -> Any | None:
        """Return committed records with these offsets, in the columns of raw records; None if there are none."""
        ranges = {str(place): (start[place], stop) for place, stop in end.items() if stop > start[place]}
        if not ranges:
            return None
        name = self.topic.name
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", self._settings.bootstrap)
        reader = reader.options(
            **{f"kafka.{name}": value for name, value in for_java(self._settings).items()}
        )
        reader = reader.option("assign", json.dumps({name: [int(each) for each in ranges]}))
        for option, side in (("startingOffsets", 0), ("endingOffsets", 1)):
            offsets = {partition: both[side] for partition, both in ranges.items()}
            reader = reader.option(option, json.dumps({name: offsets}))
        reader = reader.option("includeHeaders", "true").option("kafka.isolation.level", "read_committed")
        frame = reader.option("kafka.max.poll.records", _KAFKA_POLL_RECORDS).load()
        headers = "to_json(transform(headers, h -> named_struct('key', h.key, 'value', base64(h.value)))) AS headers"
        return frame.selectExpr("key", "value", headers, "timestamp", "`partition`", "`offset`")


def _newest(frame: Any, definition: StoredTable) -> Any:
    """Return the last change of each key. Across partitions, the record's timestamp decides."""
    from pyspark.sql import functions

    keys = list(definition.schema.primary_key)
    names = [column.name for column in definition.schema.columns if column.name not in keys]
    row = functions.struct(*[f"`{name}`" for name in names], DELETED_COLUMN).alias("_row")
    place = functions.struct(*_PLACE)
    newest = frame.groupBy(*[f"`{key}`" for key in keys]).agg(functions.max_by(row, place).alias("_row"))
    ordered = [
        functions.col(f"`{column.name}`" if column.name in keys else f"_row.`{column.name}`").alias(
            column.name
        )
        for column in definition.schema.columns
    ]
    gone = functions.coalesce(functions.col(f"_row.{DELETED_COLUMN}"), functions.lit(True)).alias(
        DELETED_COLUMN
    )
    return newest.select(*ordered, gone)


class _RowReader:
    """Worker's side: records in, rows out; for an upsert table the last row of each key in a run of batches."""

    def __init__(
        self, decoder: RecordDecoder, columns: tuple[Column, ...], primary_key: tuple[str, ...], bad: Any
    ) -> None:
        self.decoder = decoder
        self.columns = columns
        self.primary_key = primary_key
        self.bad = bad

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = spark_arrow_schema(self.columns)
        if not self.primary_key:
            for batch in batches:
                found = self._decode(batch)[0]
                yield conform(found.rows, schema)
            return
        schema = schema.append(pa.field(DELETED_COLUMN, pa.bool_(), nullable=False))
        for name, kind in zip(_PLACE, (pa.timestamp("us", "UTC"), pa.int32(), pa.int64()), strict=True):
            schema = schema.append(pa.field(name, kind, nullable=False))
        for batch in last_changes(self._changes(batches), self.primary_key):
            yield conform(batch, schema)

    def _changes(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Any]]:
        for batch in batches:
            found, placed = self._decode(batch)
            rows = found.rows
            for name, source in zip(_PLACE, ("timestamp", "partition", "offset"), strict=True):
                rows = rows.append_column(name, placed.column(source))
            yield rows, np.where(found.deleted, _DELETE, _UPSERT).astype(np.uint8)

    def _decode(self, batch: pa.RecordBatch) -> Any:
        found = self.decoder.decode(_binary(batch, "key"), _binary(batch, "value"))
        if found.bad:
            self.bad.add(len(found.bad))
        return found, batch.take(pa.array(found.places))


class _BadReader:
    """Worker's side of dead letters: records in, records that do not fit out."""

    def __init__(self, decoder: RecordDecoder, columns: tuple[Column, ...]) -> None:
        self.decoder = decoder
        self.columns = columns

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = spark_arrow_schema(self.columns)
        for batch in batches:
            bad = self.decoder.decode(_binary(batch, "key"), _binary(batch, "value")).bad
            if bad:
                kept = batch.take(pa.array([place for place, _ in bad], pa.int64()))
                reasons = pa.array([reason for _, reason in bad], pa.string())
                yield conform(kept.append_column("error", reasons), schema)


def _binary(batch: pa.RecordBatch, name: str) -> pa.Array:
    return batch.column(name).cast(pa.binary())


# ---- inference


def inferred_columns(shape: str) -> list[Column]:
    """Return the fields that Spark found in JSON values, as columns: `OBJECT<a: BIGINT, b: ARRAY<STRING>>`.

    The result is empty if the values are not objects. A field that was always null is left to a later round.
    """
    match = re.fullmatch(r"OBJECT<(.*)>", shape.strip(), re.DOTALL)
    if match is None:
        return []
    found: list[Column] = []
    for field in _split(match.group(1)):
        name, kind = _named(field)
        data_type = _column_type(kind)
        if data_type is not None:
            found.append(Column(len(found), name, data_type))
    return found


def _split(text: str) -> list[str]:
    """Split at the commas that are outside brackets and backquotes."""
    parts: list[str] = []
    depth, quoted, begin = 0, False, 0
    for at, character in enumerate(text):
        if character == "`":
            quoted = not quoted
        elif quoted:
            continue
        elif character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and not depth:
            parts.append(text[begin:at].strip())
            begin = at + 1
    parts.append(text[begin:].strip())
    return [part for part in parts if part]


def _named(field: str) -> tuple[str, str]:
    if field.startswith("`"):
        match = re.match(r"`((?:[^`]|``)*)`\s*:\s*", field)
        if match is not None:
            return match.group(1).replace("``", "`"), field[match.end() :]
    name, _, kind = field.partition(":")
    return name.strip(), kind.strip()


def _column_type(kind: str) -> DataType | None:
    if kind == "VOID":
        return None
    match = re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", kind)
    if match is not None:
        return DOUBLE if int(match.group(2)) else decimal(38, 0)
    return _INFERRED.get(kind, STRING)
