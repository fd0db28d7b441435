"""The Python data source `headrace`: a table as a Spark batch, stream, or sink.

    spark.read.format("headrace").option("bootstrap.servers", "127.0.0.1:9092").option("table", "db.t").load()

A server that authenticates is told by `kafka.security.protocol`, `kafka.sasl.jaas.config` and their kin, as Spark's
Kafka source takes them (Java's names, and librdkafka's).

Reading (`spark.read`, `spark.readStream`); `bootstrap.servers` (or `kafka.bootstrap.servers`, or the session's
`spark.headrace.bootstrap.servers` when the source was registered) and `table` (or `load("db.t")`) are required. Options
that are Spark's or other sources' are left alone; one that looks like one of ours and is none is an error:
- `table` `db.t$changelog` is `db.t` in mode `changelog`; `db.t$lake` the lake alone as of now and
  `db.t$lake$snapshots` its snapshots (batches only, with `columns`, `where` and `limit`; see
  `tablelayer.lake.lake_rows`). `snapshot` (a number of one) or `endingTimestamp`: the lake as it was.
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

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource

_PYTHON = sys.executable


def register(spark: Any) -> None:
    """Let a session of your own read and write `format("headrace")`; those of `session` do so already. The server of
    options that name none is the session's `spark.headrace.bootstrap.servers` at this moment.
    """
    from headrace.tablelayer.spark.builder import conf_options

    spark.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "true")  # see `stream`
    HeadraceDataSource.defaults = conf_options(spark)
    spark.dataSource.register(HeadraceDataSource)


@contextmanager
def _package() -> Iterator[None]:
    """Explain an import that fails: Spark's workers may run another Python, which lacks headrace."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise RuntimeError(
            f"the Python of Spark's workers, {sys.executable}, has no module '{error.name}', which tables need:"
            f" set PYSPARK_PYTHON={_PYTHON} (or spark.pyspark.python) before the session starts, install"
            " headrace[spark] there, or make the session with headrace.spark.session"
        ) from None


class HeadraceDataSource(DataSource):
    """The data source `format("headrace")` of a session that it is registered in (`register`)."""

    defaults: dict[str, str] = {}  # noqa: RUF012 - replaced, never changed

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> Any:
        options = self._read_options()
        with _package():
            from headrace.tablelayer import plugins
            from headrace.tablelayer.spark.planning import plan_read
            from headrace.tablelayer.spark.types import METADATA_FIELDS, spark_schema
            from headrace.tablelayer.spark.worker import connection

            if options.view:
                return plugins.lake_schema(options)
        definition = connection(options.bootstrap).admin.describe_table(options.table)
        if options.columns is not None:
            names = list(options.columns)
        else:
            names = [*definition.schema.names, *(METADATA_FIELDS if options.mode != "current" else ())]
        read = plan_read(options, definition, names)
        schema = spark_schema(read.columns, read.metadata)
        return type(schema)([schema[name] for name in names])

    def reader(self, schema: Any) -> Any:
        options = self._read_options()
        with _package():
            from headrace.tablelayer import plugins
            from headrace.tablelayer.spark.batch import HeadraceReader

            reader = plugins.lake_reader if options.view else HeadraceReader
            return reader(options, schema.fieldNames())

    def streamReader(self, schema: Any) -> Any:  # noqa: N802 - Spark's name
        with _package():
            from headrace.tablelayer.spark.stream import reader_or_refusal
        return reader_or_refusal(self._read_options, schema.fieldNames())

    def writer(self, schema: Any, overwrite: bool) -> Any:
        with _package():
            from headrace.tablelayer.spark.sink import batch_writer
        return batch_writer(self._given(), schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        with _package():
            from headrace.tablelayer.spark.sink import stream_writer
        return stream_writer(self._given(), schema, overwrite)

    def _read_options(self) -> Any:
        with _package():
            from headrace.tablelayer.spark.options import ReadOptions
        return ReadOptions.parse(self._given())

    def _given(self) -> dict[str, str]:
        with _package():
            from headrace.tablelayer.spark.options import names_server
        options = dict(self.options)
        return options if names_server(options) else {**self.defaults, **options}


# Spark sends the class to its workers: by value, so that one that has no such module can say so.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
