"""Flushing logs beside the requests: what `flush.ms` asks for, and now and then everything, to bound what a crash
makes us scan.

A log that cannot be flushed takes its partition offline (`Partition.flush`), and the others are flushed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from broker.disk_errors import is_disk_full
from protocol.errors import KafkaError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from broker.background import BackgroundTasks
    from broker.cluster.metadata import TopicManager
    from broker.config import BrokerConfig

logger = logging.getLogger("headrace.server")


async def flush_logs(
    config: BrokerConfig, metadata: TopicManager, executor: Executor, background: BackgroundTasks
) -> None:
    """Flush what is due for as long as the broker runs; fsyncs are done in the executor, one after the other."""
    loop = asyncio.get_running_loop()
    interval_s = config["log.flush.offset.checkpoint.interval.ms"] / 1000
    all_due = loop.time() + interval_s
    while True:
        await asyncio.sleep(min(1.0, interval_s))
        flush_all = loop.time() >= all_due
        if flush_all:
            all_due = loop.time() + interval_s
        for partition in metadata.all_partitions():
            if not partition.is_open or not (flush_all or partition.log.flush_is_due):
                continue
            try:
                await partition.flush(executor)
            except KafkaError as error:
                if not partition.closed and not is_disk_full(error):  # which was told
                    logger.error("%r: %s", partition, error)
            except Exception as error:  # noqa: BLE001 - of one partition: told
                background.failed(f"flush of {partition!r}", error)
