"""Closing the log of a replica, whether it was led or followed: once, and what goes wrong is told and noted."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Protocol

from headrace.broker.runtime import disk_errors
from headrace.broker.runtime.disk_errors import DISK_FULL, is_disk_full
from headrace.protocol.errors import KafkaError

if TYPE_CHECKING:
    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.partitions.hooks import PartitionHooks, ReplicaHooks


class LogHolder(Protocol):
    """Of whom `failure` says why its log cannot be relied on."""

    failure: str | None

    @property
    def name(self) -> str:
        """Topic and partition."""

    def fail(self, reason: str) -> None:
        """Note it, unless something is noted already, and tell of it."""


async def close_log(
    holder: LogHolder,
    log: PartitionLog,
    logger: logging.Logger,
    *,
    clean: bool,
    executor: Executor | None = None,
) -> None:
    """Flush and close a log that nobody uses any more, in a thread if `executor` is given. Never is one marked clean
    that is not.
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
    """Have the hooks of a deleted topic remove what is theirs. What they leave behind keeps nothing else from going."""
    if hooks is None:
        return
    try:
        await hooks.delete()
    except Exception as error:
        logger.error("what was kept of %s beside its log is not removed", holder.name, exc_info=error)


def note_failed_close(holder: LogHolder, error: Exception, logger: logging.Logger) -> None:
    reason = f"it did not close cleanly: {DISK_FULL if is_disk_full(error) else error}"
    if is_disk_full(error) and holder.failure is None:
        holder.failure = reason
        disk_errors.tell(logger, f"partition {holder.name} is not closed cleanly", error)
    elif not isinstance(error, (OSError, KafkaError)):
        logger.error("closing %s failed", holder.name, exc_info=error)
    holder.fail(reason)
