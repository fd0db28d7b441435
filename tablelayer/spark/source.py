"""The Python data source `headrace`: a table as a Spark batch, stream, or sink.

    spark.read.format("headrace").option("bootstrap.servers", "127.0.0.1:9092").option("table", "db.t").load()

A server that authenticates is told by `kafka.security.protocol`, `kafka.sasl.jaas.config` and their kin, as Spark's
Kafka source takes them (Java's names, and librdkafka's).

Reading (`spark.read`, `spark.readStream`); `bootstrap.servers` and `table` are required:
- `columns`: `a,b`, only these are read from the server (Spark's Python sources have no column pruning); metadata
  columns may be among them. A schema given by `.schema(...)` does the same.
- `mode`: `current` (default) gives a log table's rows, or a PK table's rows as they are (batches only);
  `changelog` every change (+A +I -U +U -D); `upsert` the same without -U.
- metadata columns `_change_type`, `_log_offset`, `_commit_timestamp`, `_bucket`: all four in `changelog` and
  `upsert`, on request (`columns`) in `current`.
- `startingOffsets`: `earliest`, `latest`, `full` (a PK table's state, then its changes; streams only, and their
  default for PK tables), or JSON `{"0": 17}` by bucket; or `startingTimestamp` in ms or ISO 8601.
- `endingOffsets` (`latest` or JSON) or `endingTimestamp`. A stream that has arrived there has no more rows.
  The rows of a PK table in mode `current` are those it had at these offsets.
- `maxOffsetsPerTrigger`, `availableNow`, `failOnDataLoss`: `tablelayer.spark.stream`.
- `minPartitions`, `maxRecordsPerPartition` (default a million): how a log is cut into tasks. A PK table's state
  is one task per bucket.
- Of a partitioned table the partitions that `where` leaves are read, by a stream new ones too as they come; one
  partition is table `db.t.name`. Offsets are by partition and bucket: `{"2024-09-19": {"0": 17}}`; where the ending
  offsets name partitions, the others are not read.
- `limit`: rows per task; `where`: the predicate that `tablelayer.spark.table` makes.

Offsets are pinned at the frame's first action; `load()` again to see later rows. Filters of Spark are not pushed
down: that is wrong in Spark 4.1 to 4.3 when a frame is used twice. `tablelayer.spark.table` does it by options.

Writing (`df.write`, `df.writeStream`, mode append): `tablelayer.spark.sink`, loaded when something is written: with the
client's half of it, that takes a planning worker longer than all that reading needs.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

from tablelayer.spark.batch import HeadraceReader
from tablelayer.spark.options import ReadOptions
from tablelayer.spark.planning import plan_read
from tablelayer.spark.stream import HeadraceStreamReader, stream_reader
from tablelayer.spark.types import METADATA_FIELDS, spark_schema
from tablelayer.spark.worker import connection


def register(spark: Any) -> None:
    """Let a session of your own read and write `format("headrace")`; those of `session` do so already."""
    spark.dataSource.register(HeadraceDataSource)


class HeadraceDataSource(DataSource):
    """What `format("headrace")` is in a session that it is registered in (`register`)."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> Any:
        options = ReadOptions.parse(dict(self.options))
        definition = connection(options.bootstrap).admin.describe_table(options.table)
        if options.columns is not None:
            names = list(options.columns)
        else:
            names = [*definition.schema.names, *(METADATA_FIELDS if options.mode != "current" else ())]
        read = plan_read(options, definition, names)
        schema = spark_schema(read.columns, read.metadata)
        return type(schema)([schema[name] for name in names])

    def reader(self, schema: Any) -> HeadraceReader:
        return HeadraceReader(ReadOptions.parse(dict(self.options)), schema.fieldNames())

    def streamReader(self, schema: Any) -> HeadraceStreamReader:  # noqa: N802 - Spark's name
        return stream_reader(ReadOptions.parse(dict(self.options)), schema.fieldNames())

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from tablelayer.spark.sink import batch_writer

        return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        from tablelayer.spark.sink import stream_writer

        return stream_writer(dict(self.options), schema, overwrite)
