"""Rows of one produced batch for a bucket that this broker leads, prepared for the broker that the batch was sent to.

The bucket is held from there on, as by any write, until the rows are logged or let go of; who does neither in time (it
died, or is cut off) has lost them, and the bucket goes on. Nobody waits here for a bucket that others hold for longer
than a moment: it is asked for again, so that requests of one connection do not wait for one another.
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
    """See the module's contract. On the event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._held: dict[UUID, _Held] = {}

    async def prepare(
        self, bucket: TableBucket, source: OperationSource, writer: Writer, size: int
    ) -> UUID | AppendInfo | None:
        """A ticket for what is prepared; or where it is, if it was logged before; or None: others write to the bucket.

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
        self._services.context.background.start(self.release(ticket), "rows that nobody has logged")

    def _take(self, ticket: UUID) -> _Held | None:
        held = self._held.pop(ticket, None)
        if held is not None and held.ends is not None:
            held.ends.cancel()
        return held

    async def log(self, ticket: UUID) -> AppendInfo:
        """Raises KafkaError: REQUEST_TIMED_OUT for a ticket that is over."""
        held = self._take(ticket)
        if held is None:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"rows are held for {HELD_SECONDS:g} s, and it took longer"
            )
        bucket, charged = held.bucket, True
        try:
            bucket.check_open()
            info = bucket.repeated(held.writer)  # where appends do not wait for one another
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
