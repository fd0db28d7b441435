"""Rows of a produced batch for a bucket of this broker, prepared for the broker that received the batch.

The bucket is locked, as by any write, until the rows are logged or released. Rows that are neither logged nor released
in time (their broker died or is cut off) are dropped, and the bucket is unlocked. A request waits only a moment for a
locked bucket; the caller asks again. So requests of one connection do not wait for one another.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from headrace.broker.log.partition_log import AppendInfo
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.server.merge.writes import OperationSource, Writer

if TYPE_CHECKING:
    from headrace.tablelayer.server.bucket.bucket import TableBucket
    from headrace.tablelayer.server.services import Services

HELD_SECONDS: Final = 5.0
_PATIENCE_SECONDS: Final = 0.02


class _Held(msgspec.Struct):
    bucket: TableBucket
    writer: Writer
    prepared: Any
    size: int
    stack: AsyncExitStack
    ends: asyncio.TimerHandle | None = None


class HeldRows:
    """The prepared rows of one broker (see the module). Runs on the event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._held: dict[UUID, _Held] = {}

    async def prepare(
        self, bucket: TableBucket, source: OperationSource, writer: Writer, size: int
    ) -> UUID | AppendInfo | None:
        """Return a ticket for the prepared rows; their offsets, if they were logged before; or None if the bucket is
        locked.

        Raises KafkaError, TableError.
        """
        services, stack = self._services, AsyncExitStack()
        bucket.check_open()
        repeat = bucket.repeated(writer)
        if repeat is not None:
            return repeat
        services.budget.reserve(size)
        try:
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await stack.enter_async_context(bucket.writing)
            except TimeoutError:
                services.budget.release(size)
                return None
            bucket.check_open()
            repeat = bucket.repeated(writer)
            if repeat is None:
                prepared = await bucket.prepare_rows(source, writer)
        except BaseException:
            services.budget.release(size)
            await stack.aclose()
            raise
        if repeat is not None:
            services.budget.release(size)
            await stack.aclose()
            return repeat
        ticket = services.context.entropy.uuid()
        held = self._held[ticket] = _Held(bucket, writer, prepared, size, stack)
        held.ends = asyncio.get_running_loop().call_later(HELD_SECONDS, self._lost, ticket)
        return ticket

    def _lost(self, ticket: UUID) -> None:
        self._services.context.background.start(self.release(ticket), "rows that were not logged in time")

    def _take(self, ticket: UUID) -> _Held | None:
        held = self._held.pop(ticket, None)
        if held is not None and held.ends is not None:
            held.ends.cancel()
        return held

    async def log(self, ticket: UUID) -> AppendInfo:
        """Log the rows of a ticket. Raises KafkaError: REQUEST_TIMED_OUT for an unknown or expired ticket."""
        held = self._take(ticket)
        if held is None:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"prepared rows are kept for {HELD_SECONDS:g} s, which is over; send them again",
            )
        bucket, charged = held.bucket, True
        try:
            bucket.check_open()
            info = bucket.repeated(held.writer)  # log tables do not serialize their appends
            if info is None:
                info = bucket.log_prepared(held.prepared, held.size)
                charged = False
            return info
        finally:
            if charged:
                self._services.budget.release(held.size)
            await held.stack.aclose()

    async def release(self, ticket: UUID) -> None:
        held = self._take(ticket)
        if held is not None:
            self._services.budget.release(held.size)
            await held.stack.aclose()
