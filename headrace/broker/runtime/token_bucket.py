"""How fast something is used, and how long its user has to wait: a token bucket, as Kafka has for changes of topics
(KIP-599), here for all quotas.

Kafka's sampled rate of bytes and time lets the whole window pass at once, and again whenever the sample of that burst
leaves the window: half a minute has 13 % more than the limit, in waves. A bucket that holds less is within a few
percent over any half minute, and even. Times are seconds of any clock that does not go back.
"""

from __future__ import annotations


class TokenBucket:
    """Tokens that come at `rate` a second, up to those of `burst_seconds`; full at first. What is used may be more than
    there is: then its user waits until nothing is owed.
    """

    __slots__ = ("_burst_seconds", "_rate", "_tokens", "_updated_at")

    def __init__(self, rate: float, burst_seconds: float, now: float) -> None:
        self._rate = rate
        self._burst_seconds = burst_seconds
        self._tokens = rate * burst_seconds
        self._updated_at = now

    def take(self, amount: float, rate: float, now: float) -> None:
        """`rate`: what the limit is now."""
        self._refill(rate, now)
        self._tokens -= amount

    def wait_seconds(self, rate: float, now: float) -> float:
        """Until nothing is owed any more."""
        self._refill(rate, now)
        return max(0.0, -self._tokens / rate)

    def is_full(self, now: float) -> bool:
        self._refill(self._rate, now)
        return self._tokens >= self._rate * self._burst_seconds

    def _refill(self, rate: float, now: float) -> None:
        self._tokens = min(rate * self._burst_seconds, self._tokens + self._rate * (now - self._updated_at))
        self._rate = rate
        self._updated_at = now
