"""Close the log of a leader's or follower's replica once, and report and note any failure."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Protocol

from headrace.broker.runtime import disk_errors
from headrace.broker.runtime.disk_errors import is_passing
from headrace.protocol.errors import KafkaError

if TYPE_CHECKING:
    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.partitions.hooks import PartitionHooks, ReplicaHooks


class LogHolder(Protocol):
    """The owner of a log. `failure` is the reason why its log cannot be relied on."""

    failure: str | None

    @property
    def name(self) -> str:
        """Topic and partition."""

    def fail(self, reason: str) -> None:
        """Note the failure, unless one is noted already, and report it."""


async def close_log(
    holder: LogHolder,
    log: PartitionLog,
    logger: logging.Logger,
    *,
    clean: bool,
    executor: Executor | None = None,
) -> None:
    """Flush and close a log that is not used any more, in a thread if `executor` is given. A log that failed is never
    marked clean.
    """
    if log.failure is not None:
        holder.fail(log.failure)
    clean = clean and holder.failure is None
    try:
        if executor is None:
            log.close(clean=clean)
        else:
            await asyncio.get_running_loop().run_in_executor(executor, log.close, clean)
    except Exception as error:  # noqa: BLE001 - of one replica: told
        note_failed_close(holder, error, logger)


async def delete_with(
    hooks: PartitionHooks | ReplicaHooks | None, holder: LogHolder, logger: logging.Logger
) -> None:
    """Call the hooks of a deleted topic to remove their data. Data that they fail to remove does not stop the
    deletion.
    """
    if hooks is None:
        return
    try:
        await hooks.delete()
    except Exception as error:
        logger.error("the data kept beside the log of %s is not removed", holder.name, exc_info=error)


def note_failed_close(holder: LogHolder, error: Exception, logger: logging.Logger) -> None:
    reason = f"it did not close cleanly: {disk_errors.why(error) if is_passing(error) else error}"
    if is_passing(error) and holder.failure is None:
        holder.failure = reason
        disk_errors.tell(logger, f"partition {holder.name} is not closed cleanly", error)
    elif not isinstance(error, (OSError, KafkaError)):
        logger.error("closing %s failed", holder.name, exc_info=error)
    holder.fail(reason)
