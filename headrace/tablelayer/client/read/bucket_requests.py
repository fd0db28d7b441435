"""Requests to the buckets of one table: to their leaders or to any replica, repeated after transient errors.

Requests go to all brokers concerned at once. Failed buckets are asked again alone, until the call's deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.client.errors import ConnectionFailed, OutcomeUnknown, RequestTimeout
from headrace.tablelayer.client.wire.cluster import Cluster, NotAtOnce
from headrace.tablelayer.client.wire.retry import (
    Backoff,
    Deadline,
    at_last,
    error_of,
    is_stale_route,
    leaves_unknown,
    may_retry,
    raise_for,
)
from headrace.tablelayer.client.wire.routes import TableRoutes

AnswerT = TypeVar("AnswerT")

_ONE_OF_SEVERAL_MS = 2_000
"""Timeout of a broker while other replicas can answer too. A lookup takes milliseconds."""


class BucketRequests:
    """Sends requests that can be repeated, and gathers the answers of the buckets."""

    def __init__(self, cluster: Cluster, topic: str, routes: TableRoutes) -> None:
        self._cluster = cluster
        self._config = cluster.config
        self._topic = topic
        self._routes = routes

    async def ask(
        self,
        buckets: Sequence[int],
        send: Callable[[int, list[int], Deadline], Coroutine[Any, Any, dict[int, AnswerT]]],
        *,
        doing: str,
        changes: bool = False,
    ) -> dict[int, AnswerT]:
        """Ask every bucket through its leader and gather the answers. `changes` as for `retrying`.

        `send(leader, buckets, deadline)` makes one request; its answers have `.error_code` and `.error_message`.
        Buckets with a transient error are asked again. The first permanent error is raised.
        """
        deadline = Deadline(self._config.delivery_timeout_ms)
        backoff = Backoff(self._config)
        answers: dict[int, AnswerT] = {}
        open_buckets = list(buckets)
        unknown: Exception | None = None
        while open_buckets:
            failure: Exception | None = None
            try:
                groups = await self._routes.by_leader(open_buckets, deadline)
            except Exception as caught:  # noqa: BLE001 - _fail_for_good raises what must not be retried
                failure, results = caught, []
            else:
                results = await _all(send(leader, group, deadline) for leader, group in groups.items())
            for result in results:
                if isinstance(result, Exception):
                    failure = result
                    if changes and leaves_unknown(result):
                        unknown = result
                elif isinstance(result, BaseException):
                    raise result
                else:
                    for bucket, answer in result.items():
                        code, message = answer.error_code, answer.error_message  # type: ignore[attr-defined]
                        error = error_of(code, message, doing=f"{doing} bucket {bucket} of {self._topic}")
                        if error is None:
                            answers[bucket] = answer
                        else:
                            failure = error
                            if changes and leaves_unknown(error):
                                unknown = error
                            self._fail_for_good(error, deadline)
            if failure is not None:
                self._fail_for_good(failure, deadline)
                open_buckets = [bucket for bucket in open_buckets if bucket not in answers]
                if open_buckets:
                    self.must_wait()
                    await backoff.pause(deadline)
                    if deadline.passed:
                        raise at_last(failure, unknown)
                    self._cluster.counters.retries += 1
                continue
            missing = [bucket for bucket in open_buckets if bucket not in answers]
            if missing:
                raise_for(ErrorCode.UNKNOWN_SERVER_ERROR, f"no answer for buckets {missing}", doing=doing)
            break
        return answers

    async def ask_any(
        self,
        buckets: Sequence[int],
        send: Callable[[int, list[int], Deadline], Coroutine[Any, Any, dict[int, AnswerT]]],
        *,
        doing: str,
    ) -> dict[int, AnswerT]:
        """Ask as `ask` does, but any replica of each bucket; if it cannot answer, the leader, then the other replicas.

        All replicas but the last one to be asked get only a part of the time.
        """
        deadline = Deadline(self._config.delivery_timeout_ms)
        backoff = Backoff(self._config)
        answers: dict[int, AnswerT] = {}
        asked: dict[int, set[int]] = {bucket: set() for bucket in buckets}
        failure: Exception | None = None
        while left := [bucket for bucket in buckets if bucket not in answers]:
            groups: dict[tuple[int, bool, bool], list[int]] = {}
            try:
                for bucket in left:
                    replicas, leader = await self._routes.replicas(bucket, deadline)
                    rest = [node for node in replicas if node not in asked[bucket]]
                    if rest:
                        key = rest[0], rest[0] == leader, len(rest) == 1
                        groups.setdefault(key, []).append(bucket)
            except Exception as caught:  # noqa: BLE001 - _fail_for_good raises what must not be retried
                failure, groups = caught, {}
                self._fail_for_good(caught, deadline)
            if not groups:
                assert failure is not None
                self.must_wait()
                self._routes.forget()
                await backoff.pause(deadline)
                if deadline.passed:
                    raise failure
                self._cluster.counters.retries += 1
                asked = {bucket: set() for bucket in left}
                continue
            if len(groups) > 1:
                self.must_wait()
            results = await _all(
                self._one_of_several(send, node, group, deadline, is_last=is_last)
                for (node, _, is_last), group in groups.items()
            )
            for ((node, is_leader, is_last), group), result in zip(groups.items(), results, strict=True):
                for bucket in group:
                    asked[bucket].add(node)
                if not isinstance(result, BaseException):
                    for bucket in group:
                        answer: Any = result.get(bucket)
                        error = (
                            KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{doing} bucket {bucket}: no answer")
                            if answer is None
                            else error_of(
                                answer.error_code,
                                answer.error_message,
                                doing=f"{doing} bucket {bucket} of {self._topic}",
                            )
                        )
                        if error is None:
                            answers[bucket] = answer
                            continue
                        failure = error
                        if is_leader or is_last:
                            self._fail_for_good(error, deadline)
                elif not isinstance(result, Exception):
                    raise result
                else:
                    failure = result
                    if isinstance(result, (ConnectionFailed, OutcomeUnknown)):
                        self._cluster.avoid(node)
                    elif is_leader or is_last:
                        self._fail_for_good(result, deadline)
            if failure is not None and any(bucket not in answers for bucket in left):
                self.must_wait()
        return answers

    async def _one_of_several(
        self,
        send: Callable[[int, list[int], Deadline], Coroutine[Any, Any, dict[int, AnswerT]]],
        node: int,
        buckets: list[int],
        deadline: Deadline,
        *,
        is_last: bool,
    ) -> dict[int, AnswerT]:
        if is_last or not self._cluster.waits:
            return await send(node, buckets, deadline)
        ms = min(_ONE_OF_SEVERAL_MS, deadline.remaining_ms)
        try:
            async with asyncio.timeout(ms / 1000):
                return await send(node, buckets, deadline)
        except TimeoutError:
            raise RequestTimeout(f"broker {node} did not answer within {ms} ms") from None

    def must_wait(self) -> None:
        """Raise NotAtOnce if the caller wants an answer at once or none."""
        if not self._cluster.waits:
            raise NotAtOnce

    def _fail_for_good(self, error: Exception, deadline: Deadline) -> None:
        if is_stale_route(error):
            self._routes.forget()
        if not may_retry(error, repeatable=True, elapsed_ms=deadline.elapsed_ms):
            raise error


async def _all(sends: Iterable[Coroutine[Any, Any, AnswerT]]) -> list[AnswerT | BaseException]:
    """Run all at the same time and return what each returns or raises. A single one gets no task."""
    listed = list(sends)
    if len(listed) != 1:
        return await asyncio.gather(*listed, return_exceptions=True)
    try:
        return [await listed[0]]
    except Exception as error:  # noqa: BLE001 - the caller decides
        return [error]
