"""One request whose rows belong to several buckets: all of them are logged, or none (R17.3).

All buckets are locked, and all writes prepared, before the first one is logged. So every reason to refuse rows (a
value, an overflow in a merge, a sequence, the buffer's budget, a bucket that is not served) is found while nothing has
an effect. After the first append only a disk failure or the end of the process can stop the write. Rows logged by then
stay, and the error makes Kafka's clients repeat the batch. Each part is written under the producer's own identity, so
the repetition adds the missing rows and nothing twice. A producer without idempotence has no identity; its repetition
is written again, as in Kafka.

Buckets are locked in one total order, so two requests never deadlock. A bucket of another broker is locked and prepared
there (`remote_bucket.py`); that broker may be lost after the first append, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from headrace.broker.log.partition_log import AppendInfo
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.errors import RowError, TableError
from headrace.tablelayer.server.merge.writes import OperationSource, Writer

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition
    from headrace.tablelayer.server.services import WriteBudget

logger = logging.getLogger("headrace.tables")

_APPENDS_AT_ONCE = 16
"""Number of appends in one turn of the event loop: about a millisecond."""


class JointBucket(Protocol):
    """The interface of a bucket that takes part in a joint write; see `TableBucket`."""

    @property
    def name(self) -> str: ...

    @property
    def partition(self) -> Partition: ...

    @property
    def place(self) -> tuple[bytes, int]: ...

    @property
    def writing(self) -> AbstractAsyncContextManager[object]: ...

    def check_open(self) -> None: ...

    def repeated(self, writer: Writer) -> AppendInfo | None: ...

    async def prepare_rows(self, source: OperationSource, writer: Writer) -> Any: ...

    def log_prepared(self, prepared: Any, size: int) -> AppendInfo | Awaitable[AppendInfo]: ...

    async def wait_published(self, info: AppendInfo, acks: int, timeout_ms: int) -> AppendInfo: ...


class LocalBucket(JointBucket, Protocol):
    """A bucket that this broker leads."""

    def log_prepared(self, prepared: Any, size: int) -> AppendInfo: ...


class Part(msgspec.Struct, frozen=True):
    """The rows for one bucket. `size` is their charge to the budget in bytes; `writer` identifies them for
    deduplication.
    """

    bucket: JointBucket
    source: OperationSource
    writer: Writer
    size: int


async def write_together(budget: WriteBudget, parts: Sequence[Part]) -> list[AppendInfo]:
    """Log all parts, each of another bucket, in this order; return their offsets. A part that its bucket already has is
    not logged again.

    Raises what preparing raises (TableError, KafkaError), with nothing logged; KAFKA_STORAGE_ERROR if logging stopped
    midway. The caller waits for the rows to be published.
    """
    charged = sum(part.size for part in parts)
    budget.reserve(charged)
    try:
        async with AsyncExitStack() as held:
            for part in sorted(parts, key=lambda part: part.bucket.place):
                await held.enter_async_context(part.bucket.writing)
            prepared = await _prepared(parts)
            places = [_repeat(part) for part in parts]  # final check of sequences before the first append
            infos: list[AppendInfo] = []
            logged = 0
            for part, write, repeat in zip(parts, prepared, places, strict=True):
                if repeat is not None:
                    infos.append(repeat)
                    continue
                try:
                    info = part.bucket.log_prepared(write, part.size)
                    infos.append(info if isinstance(info, AppendInfo) else await info)
                except Exception as error:
                    if not logged:
                        raise
                    raise _broken_off(error, part.bucket, logged, len(parts)) from error
                charged -= part.size
                logged += 1
                if not logged % _APPENDS_AT_ONCE:
                    await asyncio.sleep(0)
            return infos
    finally:
        budget.release(charged)


def log_at_once(
    budget: WriteBudget, parts: Sequence[tuple[LocalBucket, Any]], size: int
) -> AppendInfo | None:
    """Log prepared parts of one request on the event loop; return the offsets of the last one, which has the producer's
    sequence. Each is charged with `size` bytes.

    Return None, without any effect, if there is no room, or the first part cannot be logged. Raises
    KafkaError(KAFKA_STORAGE_ERROR) if a later one cannot be, and REQUEST_TIMED_OUT if the rows of another bucket are
    not stored at once: the sequence is not logged then, so that a repetition waits for them.
    """
    charged = size * len(parts)
    try:
        budget.reserve(charged)
    except TableError:
        return None
    try:
        for logged, (bucket, write) in enumerate(parts):
            try:
                info = bucket.log_prepared(write, size)
            except Exception as error:
                if logged:
                    raise _broken_off(error, bucket, logged, len(parts)) from error
                if isinstance(error, KafkaError):
                    return None
                raise
            charged -= size
            if bucket is not parts[-1][0] and bucket.partition.high_watermark <= info.last_offset:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{bucket.name}: logged at offset {info.base_offset}, but not stored at once; send the batch again",
                )
        return info
    finally:
        budget.release(charged)


async def _prepared(parts: Sequence[Part]) -> list[Any]:
    """Return the write that each bucket is to log, None for a repetition.

    Raises TableError, KafkaError. If several rows are bad, it raises the RowError of the one that was sent first.
    """
    results = await asyncio.gather(
        *(_prepare(part) for part in parts),
        return_exceptions=True,
    )
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        rows = [error for error in failures if isinstance(error, RowError)]
        raise min(rows, key=lambda error: error.index) if rows else failures[0]
    return results


async def _prepare(part: Part) -> Any:
    if _repeat(part) is not None:
        return None
    return await part.bucket.prepare_rows(part.source, part.writer)


def _repeat(part: Part) -> AppendInfo | None:
    part.bucket.check_open()
    return part.bucket.repeated(part.writer)


def _broken_off(error: Exception, bucket: JointBucket, logged: int, count: int) -> KafkaError:
    if not isinstance(error, KafkaError):
        logger.error("%s: rows cannot be logged", bucket.name, exc_info=error)
    reason = error.message if isinstance(error, KafkaError) else "the broker failed; its log says how"
    return KafkaError(
        ErrorCode.KAFKA_STORAGE_ERROR,
        f"the rows of {logged} of {count} buckets were written, then {bucket.name} failed: {reason}; send the "
        "same batch again: from an idempotent producer it adds the rest and nothing twice",
    )
