"""Limit the rates of copying segments to remote storage and of reading them: Kafka's quotas (KIP-956), per broker.

A caller asks for the wait before its work, and reports the bytes afterwards. A limit of UNLIMITED costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.configs.remote_log import UNLIMITED
from headrace.broker.runtime.token_bucket import TokenBucket


class RemoteQuota:
    """`limit`: the present limit in bytes per second; `window_seconds`: the bytes of this time may come at once."""

    def __init__(self, limit: Callable[[], int], window_seconds: float, now: Callable[[], float]) -> None:
        self._limit = limit
        self._now = now
        self._window_seconds = window_seconds
        self._bucket: TokenBucket | None = None

    def wait_seconds(self) -> float:
        """Return the seconds until more may be moved."""
        limit = self._limit()
        if limit == UNLIMITED or self._bucket is None:
            self._bucket = None
            return 0.0
        return self._bucket.wait_seconds(limit, self._now())

    def used(self, size: int) -> None:
        limit = self._limit()
        if limit != UNLIMITED:
            if self._bucket is None:
                self._bucket = TokenBucket(limit, self._window_seconds, self._now())
            self._bucket.take(size, limit, self._now())
