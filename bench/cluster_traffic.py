"""A producer and a consumer of one partition that measure the effects of ended brokers on clients.

Both are confluent-kafka's, with acks=all and linger 0, and ask for the leader each 100 ms. By default librdkafka asks
once when a connection is lost, gets the old leader, and asks again a second later: that would be measured.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Final

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from bench.cluster_peers import Cluster, wait_until

INTERVAL_SECONDS: Final = 0.005
STEADY_SECONDS: Final = 1.0
"""Time for which records sent after the fault must arrive before the fault counts as over."""
_CLIENT: Final[dict[str, str | int]] = {
    "topic.metadata.refresh.interval.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
}


@dataclass(slots=True)
class _Arrivals:
    """The arrival times, each with the latest sending time so far. Monotonic seconds."""

    times: list[float] = field(default_factory=list)
    sent: float = 0.0

    def add(self, sent: float) -> None:
        self.times.append(time.monotonic())
        self.sent = max(self.sent, sent)

    def longest_gap(self, since: float) -> float:
        before = [at for at in self.times if at <= since]
        times = before[-1:] + [at for at in self.times if at > since]
        return max(later - earlier for earlier, later in pairwise(times))


class Traffic:
    """Clients that run in threads of their own while the context is open. `failed` counts abandoned records."""

    def __init__(self, cluster: Cluster, topic: str, socket_timeout_ms: int = 60_000) -> None:
        """Create clients with a timeout of a second. They notice a silent broker after that, otherwise after a
        minute.
        """
        self._topic = topic
        settings = {
            "bootstrap.servers": cluster.address,
            "socket.timeout.ms": socket_timeout_ms,
            **_CLIENT,
        }
        self._producer = Producer(
            {**settings, "enable.idempotence": True, "linger.ms": 0, "message.timeout.ms": 120_000}
        )
        self._consumer = Consumer(
            {**settings, "group.id": "bench-traffic", "enable.auto.commit": False, "fetch.wait.max.ms": 200}
        )
        self.acknowledged, self.consumed = _Arrivals(), _Arrivals()
        self.failed = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]

    def __enter__(self) -> Traffic:
        self._producer.list_topics(self._topic, 30)
        self._consumer.assign([TopicPartition(self._topic, 0, 0)])
        for thread in self._threads:
            thread.start()
        self.wait_steady(time.monotonic(), "it begins")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._consumer.close()

    def wait_steady(self, since: float, what: str) -> None:
        """Wait until records that were sent a second after this time are acknowledged and consumed."""
        until = since + STEADY_SECONDS
        wait_until(
            lambda: min(self.acknowledged.sent, self.consumed.sent) > until, f"records go on when {what}"
        )

    def _produce(self) -> None:
        sent = 0
        started = time.monotonic()
        while not self._over.is_set():
            while (left := started + sent * INTERVAL_SECONDS - time.monotonic()) > 0:
                self._producer.poll(left)
            value = int(time.monotonic() * 1e9).to_bytes(8, "big")
            self._producer.produce(self._topic, value, partition=0, on_delivery=self._delivered)
            sent += 1
        self._producer.flush(30)

    def _delivered(self, error: object, message: Message) -> None:
        if error is None:
            self.acknowledged.add(_sent(message))
        else:
            self.failed += 1

    def _consume(self) -> None:
        while not self._over.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.consumed.add(_sent(message))


def _sent(message: Message) -> float:
    value = message.value()
    return int.from_bytes(value[:8], "big") / 1e9 if isinstance(value, bytes) else 0.0
