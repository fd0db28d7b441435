"""The enrichment pipeline: Spark's own Kafka source and sink, with a lookup join in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.stage import StepFailedError
from headrace.spark import lookup_join
from headrace.tablelayer.client.security.settings import ConnectionSettings

ORDER = (
    "order_key BIGINT, cust_key INT, total_price DECIMAL(15,2), order_date DATE,"
    " order_priority STRING, clerk STRING"
)
BATCH_ROWS = 20_000
STUCK_AFTER_S = 90.0


@dataclass
class Pipeline:
    """orders -> lookup customer, lookup nation -> enriched_orders. Can be stopped and started again."""

    spark: Any
    settings: ConnectionSettings
    access: Mapping[str, str]
    """Options of Spark's Kafka source and sink."""
    checkpoint: Path
    query: Any = None

    def start(self) -> None:
        """Start where the checkpoint says."""
        from pyspark.sql import functions as f

        orders = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.settings.bootstrap)
            .options(**self.access)
            .option("subscribe", "shop.orders")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(BATCH_ROWS))
            # The connector asks for offsets after every poll: few large polls instead of many of 500 records.
            .option("kafka.max.poll.records", "100000")
            # The query goes on when the server restarts.
            .option("fetchOffset.numRetries", "60")
            .option("fetchOffset.retryIntervalMs", "500")
            .load()
            .select(f.from_json(f.col("value").cast("string"), ORDER).alias("o"))
            .select("o.*")
        )
        customer = {
            "name": "cust_name",
            "phone": "cust_phone",
            "acctbal": "cust_acctbal",
            "mktsegment": "cust_mktsegment",
            "nation_key": "nation_key",
        }
        with_customer = lookup_join(
            orders, self.settings, "shop.customer", on={"cust_key": "cust_key"}, select=customer
        )
        enriched = lookup_join(
            with_customer,
            self.settings,
            "shop.nation",
            on={"nation_key": "nation_key"},
            select={"name": "nation_name"},
        ).drop("nation_key")
        self.query = (
            enriched.select(f.to_json(f.struct("*")).alias("value"))
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self.settings.bootstrap)
            .options(**self.access)
            .option("topic", "shop.enriched_orders")
            # A batch of the producer becomes a batch of the table: a thousand rows instead of forty.
            .option("kafka.batch.size", "1000000")
            .option("kafka.linger.ms", "50")
            .option("kafka.max.request.size", "8000000")
            .option("kafka.buffer.memory", "67108864")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(processingTime="1 second")
            .start()
        )

    def wait(self, rows: Callable[[], int], target: int, show: Callable[[int], None]) -> int:
        """Wait until `rows()` is at least `target`; the last number seen. Raises StepFailedError if the query
        died or nothing moves any more.
        """
        seen, moved = -1, time.monotonic()
        while seen < target:
            now = rows()
            if now != seen:
                seen, moved = now, time.monotonic()
                show(seen)
            error = self.query.exception()
            if error is not None or not self.query.isActive:
                raise StepFailedError(f"the pipeline died: {str(error)[:1500]}")
            if time.monotonic() - moved > STUCK_AFTER_S:
                raise StepFailedError(
                    f"the pipeline stands still at {seen:,} of {target:,} rows: {self.query.status}"
                )
            time.sleep(0.2)
        return seen

    def drain(self) -> None:
        """Wait until everything that is there is through and checkpointed, then stop."""
        self.query.processAllAvailable()
        self.stop()

    def stop(self) -> None:
        """Stop as it is, perhaps in the middle of a batch."""
        if self.query is not None:
            self.query.stop()

    def batches(self) -> list[tuple[int, int, float]]:
        """(batch id, rows, seconds) of what this run of the query did."""
        return [
            (progress["batchId"], progress["numInputRows"], progress["durationMs"]["triggerExecution"] / 1000)
            for progress in self.query.recentProgress
            if progress["numInputRows"]
        ]
