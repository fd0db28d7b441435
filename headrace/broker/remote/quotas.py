"""How fast segments are copied to remote storage, and read from there: Kafka's quotas (KIP-956), of one broker.

Who wants to go on asks how long to wait, and says afterwards how much it was. A limit of UNLIMITED costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.configs.remote_log import UNLIMITED
from headrace.broker.runtime.token_bucket import TokenBucket


class RemoteQuota:
    """`limit`: bytes a second, as they are now; `window_seconds`: of which as much may come at once."""

    def __init__(self, limit: Callable[[], int], window_seconds: float, now: Callable[[], float]) -> None:
        self._limit = limit
        self._now = now
        self._window_seconds = window_seconds
        self._bucket: TokenBucket | None = None

    def wait_seconds(self) -> float:
        """Until more may be moved."""
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
