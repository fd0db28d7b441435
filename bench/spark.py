"""Tables in Spark: batch scans, the minimum time of a micro-batch, lookup joins, and memory as a table grows.

The scans are compared with a Python data source that yields ready Arrow batches (`spark_peers.py`), Spark's upper
limit, and with Spark's own Kafka source that reads the same rows as JSON from a plain topic of the same server.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer

from bench.peers import HEADRACE
from bench.report import Goal
from bench.spark_peers import ReadyBatches
from bench.spark_world import (
    BUCKETS,
    COLUMNS,
    WRITE_ROWS,
    Figure,
    Group,
    Size,
    World,
    consume,
    memory_growth,
    rows_of,
)
from bench.workloads import create_topic

CEILING, KAFKA_SOURCE = "ready batches", "Kafka source, JSON"
JSON_TOPIC = "json"
_JSON_SCHEMA = "id bigint, kind int, price double, text string, at string"
STREAM_TRIGGERS = 20


def memory(place: World, size: Size) -> Iterator[Figure]:
    """Measure memory before large reads: bounded memory must not have grown before."""
    if size.round:
        return
    rows = size.rows(10_000_000, 3_000_000)
    names = {"1": place.log_table("small", rows // 10), "10": place.log_table("events", rows)}
    frames = {key: _source(place, name, COLUMNS) for key, name in names.items()}
    consume(frames["1"])  # not counted: JVM and workers begin
    yield from memory_growth(
        place, "scan of a log table", lambda: consume(frames["1"]), lambda: consume(frames["10"])
    )
    keys = size.rows(1_000_000, 300_000)
    names = {"1": place.pk_table("few", keys // 10), "10": place.pk_table("many", keys)}
    frames = {key: _source(place, name, COLUMNS) for key, name in names.items()}
    consume(frames["1"])
    yield from memory_growth(
        place, "scan of a PK table", lambda: consume(frames["1"]), lambda: consume(frames["10"])
    )


def scan(place: World, size: Size) -> Iterator[Figure]:
    """Scan five columns and one of five, from the beginning to the end, plan included."""
    rows = size.rows(10_000_000, 5_000_000)
    table = place.log_table("events", rows)
    rows = place.tables[table]
    records = size.rows(1_000_000, 200_000)
    place.spark.dataSource.register(ReadyBatches)
    if size.round == 0:
        _fill_topic(place, records)
        for names in (COLUMNS, COLUMNS[:1]):  # not counted: compilers, workers, pages
            consume(_ready(place, rows, names))
            consume(_source(place, table, names))
        consume(_json(place))
    for names, goal in ((COLUMNS, 4e6), (COLUMNS[:1], 8e6)):
        what = "five columns" if len(names) > 1 else "one of five columns"
        for peer, frame in ((CEILING, _ready(place, rows, names)), (HEADRACE, _source(place, table, names))):
            seconds, cpu = place.timed(lambda frame=frame: consume(frame))
            yield Figure(f"batch scan, {what}, rows/s", rows / seconds, Goal(value_min=goal), peer)
            yield Figure(f"batch scan, {what}, CPU s per million rows", cpu * 1e6 / rows, None, peer)
        if len(names) > 1:
            seconds, cpu = place.timed(lambda: consume(_json(place)))
            yield Figure(f"batch scan, {what}, rows/s", records / seconds, None, KAFKA_SOURCE)
            yield Figure(
                f"batch scan, {what}, CPU s per million rows", cpu * 1e6 / records, None, KAFKA_SOURCE
            )
    keys = place.pk_table("many", size.rows(1_000_000, 300_000))
    frame = _source(place, keys, COLUMNS)
    seconds, _ = place.timed(lambda: consume(frame))
    yield Figure("batch scan of a PK table's state, rows/s", place.tables[keys] / seconds)


def _source(place: World, table: str, names: tuple[str, ...]) -> Any:
    from headrace.spark import table as open_table

    return open_table(place.spark, table, place.address).select(*names).to_df()


def _ready(place: World, rows: int, names: tuple[str, ...]) -> Any:
    tasks = max(BUCKETS, rows // 1_000_000)
    reader = place.spark.read.format("ready").option("rows", rows).option("tasks", tasks)
    return reader.option("columns", ",".join(names)).load()


def _json(place: World) -> Any:
    from pyspark.sql import functions

    reader = place.spark.read.format("kafka").option("kafka.bootstrap.servers", place.address)
    reader = reader.option("kafka.max.poll.records", "100000").option("subscribe", JSON_TOPIC)
    text = functions.col("value").cast("string")
    rows = reader.load().select(functions.from_json(text, _JSON_SCHEMA).alias("row")).select("row.*")
    return rows.withColumn("at", functions.to_timestamp_ntz("at"))


def _fill_topic(place: World, records: int) -> None:
    """Fill a plain topic with the first rows as JSON."""
    create_topic(place.server, JSON_TOPIC, BUCKETS)
    options = {
        "log_level": 3,
        "linger.ms": 5,
        "batch.size": 1_000_000,
        "queue.buffering.max.messages": 2_000_000,
    }
    producer = Producer(
        {"bootstrap.servers": place.address, "queue.buffering.max.kbytes": 1_000_000, **options}
    )
    for number, start in enumerate(range(0, records, WRITE_ROWS)):
        rows = rows_of(np.arange(start, min(records, start + WRITE_ROWS), dtype=np.int64)).to_pylist()
        values = [{"value": json.dumps(row, default=str).encode()} for row in rows]
        producer.produce_batch(JSON_TOPIC, values, number % BUCKETS)
    if producer.flush(120):
        raise RuntimeError("the JSON topic could not be filled")


def stream(place: World, size: Size) -> Iterator[Figure]:
    """Measure micro-batches of 100 rows: Spark's own time of each, from asking for offsets to its commit."""
    place.spark.dataSource.register(ReadyBatches)
    ready = place.spark.readStream.format("ready").option("columns", ",".join(COLUMNS)).load()
    seconds, _ = _triggers(place, ready)
    yield Figure("micro-batch of 100 rows, s", seconds, None, CEILING)
    table = place.log_table("ticks", 0)
    reader = place.spark.readStream.format("headrace").option("bootstrap.servers", place.address)
    frame = reader.option("table", table).option("startingOffsets", "latest").load()
    stop = threading.Event()

    def feed() -> None:
        handle, at = place.connection.table(table), 0
        while not stop.wait(0.05):
            handle.append(pa.Table.from_batches([rows_of(np.arange(at, at + 100, dtype=np.int64))]))
            at += 100

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    try:
        seconds, parts = _triggers(place, frame)
    finally:
        stop.set()
        feeder.join()
    yield Figure("micro-batch of 100 rows, s", seconds, Goal(value_max=0.5))
    for part, value in parts.items():
        yield Figure(f"micro-batch of 100 rows: {part}, s", value)


def _triggers(place: World, frame: Any) -> tuple[float, dict[str, float]]:
    """Return medians of `STREAM_TRIGGERS` micro-batches with rows, without the first three: all, and by part."""
    with tempfile.TemporaryDirectory(dir=place.folder) as folder:
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(processingTime="0 seconds").start()
        times: dict[int, dict[str, float]] = {}
        try:
            deadline = time.monotonic() + 180
            while len(times) < STREAM_TRIGGERS + 3:
                if query.exception() is not None:
                    raise RuntimeError(f"the stream failed: {query.exception()}")
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{len(times)} micro-batches in three minutes")
                time.sleep(0.2)
                for progress in query.recentProgress:
                    taken = json.loads(progress.json)["durationMs"]
                    if "addBatch" in taken:
                        times[progress.batchId] = taken
        finally:
            query.stop()
    counted = [times[batch] for batch in sorted(times)[3:]]
    parts = {name: statistics.median(each.get(name, 0) for each in counted) / 1e3 for name in counted[0]}
    return parts.pop("triggerExecution"), parts


def lookup(place: World, size: Size) -> Iterator[Figure]:
    """Look up another key for every row of the left side, half of them in the other half of the table."""
    from headrace.tablelayer.spark.lookups import lookup_join

    count = size.rows(1_000_000, 300_000)
    table = place.pk_table("many", count)
    left = place.spark.range(0, count, 1, BUCKETS).selectExpr(f"id * 7919 % {count} AS asked")
    frame = lookup_join(left, place.address, table, on={"asked": "id"}, select=["price", "text"])
    if size.round == 0:
        consume(frame)
    seconds, cpu = place.timed(lambda: consume(frame))
    yield Figure("lookup join, rows/s", count / seconds, Goal(value_min=1e5))
    yield Figure("lookup join, CPU s per million rows", cpu * 1e6 / count)


GROUPS: dict[str, Group] = {"memory": memory, "scan": scan, "stream": stream, "lookup": lookup}
