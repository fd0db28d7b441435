"""Python data source `headrace`: a table as a Spark batch, stream, or sink.

    spark.read.format("headrace").option("bootstrap.servers", "127.0.0.1:9092").option("table", "db.t").load()

Credentials for the server are `kafka.security.protocol`, `kafka.sasl.jaas.config` and similar, as in Spark's Kafka
source (Java's names, and librdkafka's).

Reading (`spark.read`, `spark.readStream`): `bootstrap.servers` and `table` (or `load("db.t")`) are required. The server
may also be `kafka.bootstrap.servers`, or the session's `spark.headrace.bootstrap.servers` at registration. Options of
Spark or of other sources are ignored; an unknown option that resembles one of ours is an error.
- `table`: `db.t$changelog` is `db.t` in mode `changelog`; `db.t$lake` is the lake alone as of now, and
  `db.t$lake$snapshots` its snapshots (batches only, with `columns`, `where` and `limit`; see
  `tablelayer.lake.lake_rows`). `snapshot` (its number) or `endingTimestamp` select an older state of the lake.
- `columns`: `a,b`; only these are read from the server (Spark's Python sources have no column pruning); metadata
  columns may be among them. A schema given by `.schema(...)` does the same.
- `mode`: `current` (default) returns a log table's rows, or a PK table's present rows (batches only); `changelog`
  every change (+A +I -U +U -D); `upsert` the same without -U.
- Metadata columns `_change_type`, `_log_offset`, `_commit_timestamp`, `_bucket`: all four in `changelog` and
  `upsert`, on request (`columns`) in `current`.
- `startingOffsets`: `earliest`, `latest`, `full` (a PK table's state, then its changes; streams only, and their
  default for PK tables), or JSON `{"0": 17}` by bucket; or `startingTimestamp` in ms or ISO 8601.
- `endingOffsets` (`latest` or JSON) or `endingTimestamp`. A stream that has arrived there has no more rows. The rows
  of a PK table in mode `current` are the rows at these offsets.
- `maxOffsetsPerTrigger`, `availableNow`, `failOnDataLoss`: see `tablelayer.spark.stream`.
- `minPartitions`, `maxRecordsPerPartition` (default a million): how a log is cut into tasks. A PK table's state is
  one task per bucket.
- For a partitioned table, the partitions that match `where` are read; a stream also reads new ones as they appear.
  One partition is table `db.t.name`. Offsets are by partition and bucket: `{"2024-09-19": {"0": 17}}`; if the ending
  offsets name partitions, the others are not read.
- `limit`: rows per task; `where`: the predicate that `tablelayer.spark.table` builds.

Offsets are pinned at the frame's first action; call `load()` again to see later rows. Spark's filters are not pushed
down: in Spark 4.1 to 4.3 that gives wrong rows when a frame is used twice. `tablelayer.spark.table` pushes predicates
by options.

Writing (`df.write`, `df.writeStream`, mode append): `tablelayer.spark.sink`. It is imported only for a write: with the
client's writing half, the import takes a planning worker longer than all the imports for reading.
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
    """Register the source, so that your own session reads and writes `format("headrace")`.

    Sessions of `session` are already registered. Options that name no server use the session's
    `spark.headrace.bootstrap.servers` as of this call.
    """
    from headrace.tablelayer.spark.builder import conf_options
    from headrace.tablelayer.spark.pythons import register_source

    spark.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "true")  # see `stream`
    HeadraceDataSource.defaults = conf_options(spark)
    register_source(spark, HeadraceDataSource)


@contextmanager
def _package() -> Iterator[None]:
    """Explain a failed import: Spark's workers may run another Python, which lacks headrace."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise RuntimeError(
            f"the Python of Spark's workers, {sys.executable}, has no module '{error.name}', which tables require:"
            f" set PYSPARK_PYTHON={_PYTHON} (or spark.pyspark.python) before the session starts, install"
            " headrace[spark] there, give executors an environment (headrace spark env), or create the session"
            " with headrace.spark.session"
        ) from None


class HeadraceDataSource(DataSource):
    """Data source `format("headrace")` of a session in which it is registered (`register`)."""

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


# Spark sends the class to its workers by value, so that a worker without this module can report that.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
