"""Limit the rate at which the broker, and each of its listeners, accepts connections (KIP-612).

While a rate is exhausted, its listeners accept nothing: new connections wait in the system's queue and are not refused.
The listener between brokers has only its own rate, and its connections do not count for others, so that clients that
all reconnect at once do not block brokers.

Pure: times are given, in seconds of any one clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.broker.runtime.token_bucket import TokenBucket

_SHORTEST_SECONDS: Final = 1e-6
"""A remaining wait below this is a rounding error and counts as 0."""


class ConnectionRates:
    """The rates and their use. Nothing is counted without a limit."""

    def __init__(self, burst_seconds: float = 2.2, wait_seconds_max: float = 1.0) -> None:
        """`burst_seconds`: the connections of this time may come at once. `wait_seconds_max`: maximum wait for the next
        connection, whatever the limit is, as in Kafka.
        """
        self._burst_seconds = burst_seconds
        self._rate_min = 1.0 / wait_seconds_max
        self._limits: dict[str | None, float] = {}
        self._buckets: dict[str | None, TokenBucket] = {}
        self._exempt: str | None = None

    def set(self, of_all: float | None, of_listeners: Mapping[str, float], exempt: str | None = None) -> None:
        """Set the rates per second; None: no limit. `exempt`: the listener that has only its own rate."""
        limits: dict[str | None, float] = {} if of_all is None else {None: of_all}
        limits.update(of_listeners)
        self._limits = {whose: max(float(limit), self._rate_min) for whose, limit in limits.items()}
        self._buckets = {whose: bucket for whose, bucket in self._buckets.items() if whose in limits}
        self._exempt = exempt

    def accepted(self, listener: str, now: float) -> None:
        """Count an accepted connection."""
        for whose, limit in self._holding(listener):
            bucket = self._buckets.get(whose)
            if bucket is None:
                bucket = self._buckets[whose] = TokenBucket(limit, self._burst_seconds, now)
            bucket.take(1, limit, now)

    def wait_seconds(self, listener: str, now: float) -> float:
        """Return the seconds until the listener may accept the next connection."""
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
