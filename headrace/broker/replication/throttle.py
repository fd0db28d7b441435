"""Limit the rate of copying to replicas that are not in sync (KIP-73): brokers configure a rate, topics the replicas.

A broker's rate applies to all records that it sends to followers, or fetches as one, for the replicas in the topics'
lists. In-sync replicas are never throttled or counted: a throttle slows down a move, and removes no replica from the
ISR.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from headrace.broker.runtime.token_bucket import TokenBucket

if TYPE_CHECKING:
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.partitions.topic import TopicImage

UNLIMITED: Final = 2**63 - 1
BURST_SECONDS: Final = 1.0
_TEXTS_KEPT: Final = 256


class Throttle:
    """The throttle of one broker, as a `leader` or as a `follower`. `clock` returns monotonic seconds."""

    def __init__(self, role: str, broker_id: int, config: BrokerConfig, clock: Callable[[], float]) -> None:
        self._rate_name = f"{role}.replication.throttled.rate"
        self._replicas_name = f"{role}.replication.throttled.replicas"
        self._broker_id = broker_id
        self._config = config
        self._clock = clock
        self._bucket: TokenBucket | None = None

    def holds_for(self, topic: TopicImage, index: int) -> bool:
        """Return whether this broker's replica of a partition is throttled while it is not in sync."""
        text = topic.config.get(self._replicas_name)
        if not text or self._rate() == UNLIMITED:
            return False
        named = _replicas(text)
        return named is None or (index, self._broker_id) in named

    def wait_seconds(self) -> float:
        """Return the seconds until more may be copied; 0 for now."""
        rate = self._rate()
        if rate == UNLIMITED:
            self._bucket = None
            return 0.0
        now = self._clock()
        if self._bucket is None:
            self._bucket = TokenBucket(rate, BURST_SECONDS, now)
        return self._bucket.wait_seconds(rate, now)

    def copied(self, count: int) -> None:
        """Count copied bytes."""
        if self._bucket is not None:
            self._bucket.take(count, self._rate(), self._clock())

    def _rate(self) -> int:
        rate: int = self._config[self._rate_name]
        return rate


@lru_cache(_TEXTS_KEPT)
def _replicas(text: str) -> frozenset[tuple[int, int]] | None:
    """Return pairs (partition, broker); None for all."""
    if text.strip() == "*":
        return None
    pairs = (item.strip().split(":") for item in text.split(",") if item.strip())
    return frozenset((int(index), int(broker)) for index, broker in pairs)
