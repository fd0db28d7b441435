"""How fast connections are accepted: by the broker, and by each of its listeners (KIP-612).

While a rate is used up nothing is accepted where it holds: who connects waits in the system's queue, and nobody is
turned away. The listener that brokers use among themselves is held to a rate of its own only, and what comes there
counts for no other: clients that all come back at once do not keep brokers from each other.

Pure: times are given, in seconds of any one clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.broker.runtime.token_bucket import TokenBucket

_SHORTEST_SECONDS: Final = 1e-6
"""What is left of a wait after it, by the arithmetic of floats, is none."""


class ConnectionRates:
    """See the module's contract. Without a limit nothing is counted."""

    def __init__(self, burst_seconds: float = 2.2, wait_seconds_max: float = 1.0) -> None:
        """`burst_seconds`: connections of so long may come at once. `wait_seconds_max`: one is accepted after that
        at the latest, whatever the limit is, as in Kafka.
        """
        self._burst_seconds = burst_seconds
        self._rate_min = 1.0 / wait_seconds_max
        self._limits: dict[str | None, float] = {}
        self._buckets: dict[str | None, TokenBucket] = {}
        self._exempt: str | None = None

    def set(self, of_all: float | None, of_listeners: Mapping[str, float], exempt: str | None = None) -> None:
        """Connections a second from now on; None: no limit. `exempt`: the listener that only its own holds for."""
        limits: dict[str | None, float] = {} if of_all is None else {None: of_all}
        limits.update(of_listeners)
        self._limits = {whose: max(float(limit), self._rate_min) for whose, limit in limits.items()}
        self._buckets = {whose: bucket for whose, bucket in self._buckets.items() if whose in limits}
        self._exempt = exempt

    def accepted(self, listener: str, now: float) -> None:
        """A connection counts."""
        for whose, limit in self._holding(listener):
            bucket = self._buckets.get(whose)
            if bucket is None:
                bucket = self._buckets[whose] = TokenBucket(limit, self._burst_seconds, now)
            bucket.take(1, limit, now)

    def wait_seconds(self, listener: str, now: float) -> float:
        """Until the next one may be accepted there."""
        if not self._limits:
            return 0.0
        wait = max(
            (
                self._buckets[whose].wait_seconds(limit, now)
                for whose, limit in self._holding(listener)
                if whose in self._buckets
            ),
            default=0.0,
        )
        return wait if wait > _SHORTEST_SECONDS else 0.0

    def _holding(self, listener: str) -> list[tuple[str | None, float]]:
        if not self._limits:
            return []
        places = (listener,) if listener == self._exempt else (listener, None)
        return [(whose, self._limits[whose]) for whose in places if whose in self._limits]
