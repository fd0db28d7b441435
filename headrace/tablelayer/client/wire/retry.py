"""Deadlines, pauses between attempts, and the rule for retries.

Every call of the client has one deadline for all of its attempts. Pauses between attempts double and are spread at
random. A request whose outcome is unknown is retried only if a second execution is harmless.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from time import monotonic
from typing import Any, TypeVar

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.client.config import ClientConfig
from headrace.tablelayer.client.errors import ConnectionFailed, ConnectionLost, OutcomeUnknown, RequestTimeout
from headrace.tablelayer.client.metrics import Counters
from headrace.tablelayer.model.errors import NO_TABLE_WITH_ID, TableError, TableErrorCode

T = TypeVar("T")

_STALE_ROUTE_CODES = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_NOT_AUTHORIZED = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)
#: A topic that was just created may be unknown to a broker for a moment. One that does not exist stays
#: unknown.
UNKNOWN_TOPIC_PATIENCE_MS = 5_000


class Deadline:
    """A point in the event loop's time, or in the system's without a loop."""

    __slots__ = ("_at", "_now", "_started")

    def __init__(self, timeout_ms: float) -> None:
        try:
            self._now = asyncio.get_running_loop().time
        except RuntimeError:
            self._now = monotonic
        self._started = self._now()
        self._at = self._started + timeout_ms / 1000

    @property
    def remaining_ms(self) -> int:
        """The whole milliseconds that are left, at least 0."""
        return max(0, int((self._at - self._now()) * 1000))

    @property
    def elapsed_ms(self) -> int:
        return int((self._now() - self._started) * 1000)

    @property
    def passed(self) -> bool:
        return self._now() >= self._at


class Backoff:
    """The pauses between the attempts of one call."""

    __slots__ = ("_next_ms", "_top_ms")

    def __init__(self, config: ClientConfig) -> None:
        self._next_ms = float(config.retry_backoff_ms)
        self._top_ms = float(config.retry_backoff_max_ms)

    async def pause(self, deadline: Deadline) -> None:
        """Sleep until the next attempt, or until the deadline has passed: no attempt gets its last millisecond."""
        pause_ms = min(self._next_ms * random.uniform(0.5, 1.5), deadline.remaining_ms + 1.0)
        self._next_ms = min(self._next_ms * 2, self._top_ms)
        await asyncio.sleep(pause_ms / 1000)


def error_of(code: int, message: str | None, *, doing: str) -> TableError | KafkaError | None:
    """Return the exception for an error code: TableError, or KafkaError for Kafka's codes. None for 0."""
    if code == ErrorCode.NONE:
        return None
    if code >= TableErrorCode.DATABASE_NOT_FOUND:
        if message is not None and message.startswith(NO_TABLE_WITH_ID):
            message = f"{doing}: {message}"  # the server does not know the name any more
        try:
            return TableError(
                TableErrorCode(code), message or f"could not {doing}: {TableErrorCode(code).name}"
            )
        except ValueError:
            return KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"{doing}: unknown error {code}: {message or ''}"
            )
    try:
        known = ErrorCode(code)
    except ValueError:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{doing}: unknown error {code}: {message or ''}")
    if known in _NOT_AUTHORIZED:
        reason = message or ""
        if reason.lower().startswith("not authorized"):
            _, _, reason = reason.partition(": ")  # the message says it already
        more = f": {reason}" if reason and not reason.endswith("authorization failed") else ""
        return KafkaError(known, f"not authorized to {doing}{more}")
    return KafkaError(known, f"{doing}: {message}" if message else f"could not {doing}")


def raise_for(code: int, message: str | None, *, doing: str) -> None:
    """Raise TableError or KafkaError unless the code is 0."""
    error = error_of(code, message, doing=doing)
    if error is not None:
        raise error


def is_stale_route(error: BaseException) -> bool:
    """Return whether the error means that the route is stale: a wrong broker, or one that was lost."""
    if isinstance(error, KafkaError):
        return error.code in _STALE_ROUTE_CODES
    return isinstance(error, (ConnectionFailed, OutcomeUnknown))


def may_retry(error: BaseException, *, repeatable: bool, elapsed_ms: int) -> bool:
    """Return whether another attempt is both useful and harmless."""
    if isinstance(error, (ConnectionLost, RequestTimeout)):
        return repeatable
    if isinstance(error, ConnectionFailed):
        return True
    if isinstance(error, KafkaError):
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return elapsed_ms < UNKNOWN_TOPIC_PATIENCE_MS
        if error.code == ErrorCode.REQUEST_TIMED_OUT:
            return repeatable
        return error.code.retriable
    return isinstance(error, TableError) and error.retriable


def leaves_unknown(error: BaseException) -> bool:
    """Return whether a request that failed with this error may have been carried out."""
    if isinstance(error, KafkaError):
        return error.code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    return isinstance(error, OutcomeUnknown)


def at_last(error: Exception, unknown: Exception | None) -> Exception:
    """Return the error of a call that gives up with `error`.

    `unknown` is the error of an earlier attempt that may have been carried out: then the call's outcome is unknown.
    """
    if unknown is None or isinstance(error, OutcomeUnknown):
        return error
    return OutcomeUnknown(
        f"{error}; an earlier attempt's outcome is unknown, so the request may or may not have been carried"
        f" out: {unknown}"
    )


async def retrying(
    attempt: Callable[[Deadline], Awaitable[T]],
    *,
    config: ClientConfig,
    deadline: Deadline | None = None,
    repeatable: bool,
    changes: bool = False,
    on_stale_route: Callable[[], None] | None = None,
    counters: Counters | None = None,
) -> T:
    """Run `attempt` until it succeeds, fails permanently, or the deadline passes. Raises its last error.

    The deadline is by default that of the delivery timeout.

    With `repeatable=False` a lost connection or a missing answer ends the call: its outcome is unknown. `changes` says
    that an attempt has an effect: an earlier attempt with an unknown outcome then makes the call's outcome unknown.
    """
    backoff = Backoff(config)
    deadline = Deadline(config.delivery_timeout_ms) if deadline is None else deadline
    unknown: Exception | None = None
    while True:
        try:
            return await attempt(deadline)
        except Exception as error:
            if on_stale_route is not None and is_stale_route(error):
                on_stale_route()
            if not may_retry(error, repeatable=repeatable, elapsed_ms=deadline.elapsed_ms):
                raise
            if changes and leaves_unknown(error):
                unknown = error
            await backoff.pause(deadline)
            if deadline.passed:
                told = at_last(error, unknown)
                if told is error:
                    raise
                raise told from unknown
            if counters is not None:
                counters.retries += 1


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at the same time and return the results. If one fails, cancel the others, wait for them and raise its
    error. So no task is left running after a failure or a cancellation.
    """
    tasks = [asyncio.create_task(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            if not task.cancelling():  # a second cancellation would interrupt its clean-up
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
