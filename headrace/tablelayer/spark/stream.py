"""A table as a Spark stream: micro-batches of its changes, optionally after its state.

    spark.readStream.format("headrace").option("table", "db.t").option("mode", "upsert")...

- **Start**: a PK table begins with its state at the moment of the first micro-batch and continues with every later
  change, without gap or overlap (`startingOffsets=full`, its default). A log table begins at its earliest offset. If
  its log lacks rows that are in the lake, the first micro-batch has all rows of lake and log, as `full` has them, and
  the stream goes on in the log. `scan.mode=log` reads the log alone.
- **Checkpoint**: Spark keeps the offsets; a restart reads the same ranges again. It also keeps the table's id: a
  table that was dropped and created again under the same name is an error, not a continuation.
- **Admission**: `maxOffsetsPerTrigger` bounds a micro-batch. The state that opens a "full" stream is one micro-batch
  of any size; its tasks hold a few Arrow batches at a time.
- **Trigger.AvailableNow** reads in one run the rows that existed when the query started, also when a batch was left
  over from an interrupted run. `register` and `session` enable Spark's wrapper for that
  (`spark.sql.streaming.triggerAvailableNowWrapper.enabled`). Without it Spark 4.1 makes one micro-batch, which may be
  the left-over one.
  Spark 4.1 asks a source once for the end, before the source knows the query's position, and the source cannot learn
  that the trigger is AvailableNow. (4.1's `PythonMicroBatchStream` implements neither SupportsAdmissionControl nor
  SupportsTriggerAvailableNow, and no call to a Python source carries the trigger.) With `maxOffsetsPerTrigger` there
  are therefore two ways. `availableNow=true` makes one micro-batch of all present rows. `availableNow=capped`
  together with `tablelayer.spark.run_available_now(writer)`, instead of the trigger, makes capped micro-batches up to
  the table's end when the run began. With neither, the query ends after one capped micro-batch. A warning is logged,
  unless `availableNow=false` says that the trigger is another one, and a second run is refused.
  A catalog's stream (`readStream.table("headrace.db.t")`, `tablelayer.spark.catalog.streams`) implements both
  interfaces: there the trigger alone is enough.
- **Partitioned tables** are read as a whole. Partitions that are added are read from their beginning; dropped ones
  end, R18.3. Rows of an expired partition that were not read yet come from the lake, even if late rows have made a
  new partition of its name, or if the partition was made after the last micro-batch. `maxOffsetsPerTrigger` does not
  bound them. A partition that is new to the stream, and whose log does not reach back to offset 0, begins with its
  state (a PK table whose stream began "full"); otherwise its rows count as lost.
- **Lost rows**: if retention deletes rows that the stream has not read yet, they are read from the lake, each once
  (`lake.missed_rows`). Where they are not in the lake (no tiering, a primary-key table), `failOnDataLoss` (default
  true) stops the query; with false it continues where the log begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.tablelayer.spark.options import ReadOptions
from headrace.tablelayer.spark.partitioned_stream import PartitionedStreamReader
from headrace.tablelayer.spark.table_stream import HeadraceStreamReader
from headrace.tablelayer.spark.worker import connection


def stream_reader(options: ReadOptions, names: list[str]) -> HeadraceStreamReader:
    """Return the reader for the kind of table."""
    if options.view:
        raise ValueError(
            f"a stream reads the log of {options.table}, not its lake: to read the lake and then the later changes, use"
            " tablelayer.lake.union_read.lake_then_stream"
        )
    definition = connection(options.bootstrap).admin.describe_table(options.table)
    kind = PartitionedStreamReader if definition.is_partitioned else HeadraceStreamReader
    return kind(options, names)


def reader_or_refusal(given: Callable[[], ReadOptions], names: list[str]) -> DataSourceStreamReader:
    """Return the reader, or one that fails with the error.

    Spark 4.1 hides an error raised before it has a reader behind an `UnboundLocalError`, because it has no reader to
    stop.
    """
    try:
        return stream_reader(given(), names)
    except Exception as error:  # noqa: BLE001 - any error must end the query
        return RefusedStreamReader(error)


class RefusedStreamReader(DataSourceStreamReader):
    """Reader that cannot read: every call raises the reason."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        raise self.error

    def latestOffset(self, *_: Any) -> dict[str, Any]:  # noqa: N802 - Spark's name
        raise self.error

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        raise self.error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self.error

    def stop(self) -> None:
        """Do nothing: no resource is open."""


def run_available_now(writer: Any) -> Any:
    """Run a stream up to the present end of its tables, in micro-batches of `maxOffsetsPerTrigger`.

    Return the query, which has stopped. `writer` is a `DataStreamWriter` without a trigger whose sources were loaded
    with `availableNow=capped`. Raises the query's error. Call it again with the same checkpoint to read later changes.
    """
    query = writer.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return query
