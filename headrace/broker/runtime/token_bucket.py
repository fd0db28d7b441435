"""Token bucket: measures how fast something is used and how long its user has to wait. Kafka uses one for changes of
topics (KIP-599); here it serves all quotas.

Kafka's sampled rate of bytes and time lets the whole window pass at once, and again whenever the sample of that burst
leaves the window. Half a minute then has 13 % more than the limit, in waves. A bucket with a smaller burst is even, and
within a few percent over any half minute. Times are seconds of any clock that does not go back.
"""

from __future__ import annotations


class TokenBucket:
    """Tokens that come at `rate` a second, up to those of `burst_seconds`; full at first. A user may take more than
    there are, and then waits until nothing is owed.
    """

    __slots__ = ("_burst_seconds", "_rate", "_tokens", "_updated_at")

    def __init__(self, rate: float, burst_seconds: float, now: float) -> None:
        self._rate = rate
        self._burst_seconds = burst_seconds
        self._tokens = rate * burst_seconds
        self._updated_at = now

    def take(self, amount: float, rate: float, now: float) -> None:
        """Take `amount` tokens; `rate` is the present limit."""
        self._refill(rate, now)
        self._tokens -= amount

    def wait_seconds(self, rate: float, now: float) -> float:
        """Return the seconds until nothing is owed any more."""
        self._refill(rate, now)
        return max(0.0, -self._tokens / rate)

    def is_full(self, now: float) -> bool:
        self._refill(self._rate, now)
        return self._tokens >= self._rate * self._burst_seconds

    def _refill(self, rate: float, now: float) -> None:
        self._tokens = min(rate * self._burst_seconds, self._tokens + self._rate * (now - self._updated_at))
        self._rate = rate
        self._updated_at = now
