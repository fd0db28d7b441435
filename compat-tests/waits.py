"""The longest waits of clients under faults with their causes: the fault, the leaders, the retries.

A client tells `Waits` when a wait is over. A `Chronicle` records the beginning and end of faults, and asks the brokers
for the leaders a few times a second. `told` combines both.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

KEPT = 3
"""Number of the longest waits kept of each kind."""
LOOK_SECONDS = 0.3
LEAD_SECONDS = 2.0
"""Time before a wait in which a fault may be its cause."""


@dataclass(frozen=True, slots=True)
class Wait:
    kind: str
    began: float
    ended: float
    topic: str
    partition: int
    retried: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Waits:
    """The waits of all clients. `times` has the durations of each kind."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        self._longest: dict[str, list[tuple[float, int, Wait]]] = defaultdict(list)
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def over(
        self, kind: str, began: float, topic: str, partition: int, retried: Callable[[], str] = str
    ) -> None:
        """End a wait that began at `began`. `retried` is called if it is one of the longest."""
        now = time.monotonic()
        with self._lock:
            self.times[kind].append(now - began)
            kept = self._longest[kind]
            if len(kept) == KEPT and now - began <= kept[0][0]:
                return
            wait = Wait(kind, began, now, topic, partition, retried())
            (heapq.heappush if len(kept) < KEPT else heapq.heappushpop)(
                kept, (wait.seconds, next(self._numbers), wait)
            )

    def longest(self, kind: str) -> list[Wait]:
        return [wait for *_, wait in sorted(self._longest[kind], reverse=True)]


class Said:
    """The complaints of a librdkafka client: `error_cb` of its settings."""

    def __init__(self) -> None:
        self._lines: deque[tuple[float, str]] = deque(maxlen=2000)

    def __call__(self, error) -> None:
        self._lines.append((time.monotonic(), f"{error.name()}: {error.str()}"))

    def since(self, began: float) -> str:
        found = [(at, line) for at, line in list(self._lines) if at >= began]
        shown = [f"+{at - began:.1f} s {line}" for at, line in found[:4]]
        return f"{len(found)} complaints{': ' if shown else ''}{'; '.join(shown)}"


class Retries:
    """The retries of one table client since the last `mark`."""

    def __init__(self, connection) -> None:
        self._connection = connection
        self.mark()

    def mark(self) -> None:
        self._before = self._connection.metrics()

    def since(self) -> str:
        before, after = self._before, self._connection.metrics()
        counts = {
            "retries": after.retries - before.retries,
            "batches sent again": after.batches_repeated - before.batches_repeated,
            "connections made": after.connections_made - before.connections_made,
        }
        for kind, now in after.requests.items():
            then = before.requests.get(kind)
            counts[f"{kind} sent"] = now.count - (then.count if then else 0)
            counts[f"{kind} without an answer"] = now.failed - (then.failed if then else 0)
        return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


class Chronicle:
    """Record faults, and the leaders of `topics` as a broker names them, while it is entered."""

    def __init__(self, addresses: str, topics: tuple[str, ...]) -> None:
        self._began = time.monotonic()
        self._topics = topics
        self._done: list[tuple[float, str]] = []
        self._leaders: dict[tuple[str, int], list[tuple[float, str]]] = defaultdict(list)
        self._addresses = addresses.split(",")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Chronicle:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def tell(self, what: str) -> None:
        """Note that something was done now."""
        self._done.append((time.monotonic(), what))

    def _ask(self) -> None:
        """Record changes of leaders. If a broker does not answer in a second, a new client asks another one.

        An old client would go on asking the stopped broker.
        """
        known: dict[tuple[str, int], str] = {}
        others, admin = itertools.cycle(self._addresses), None
        while not self._over.wait(LOOK_SECONDS):
            if admin is None:
                admin = AdminClient({"bootstrap.servers": next(others), "log_level": 0})
            try:
                found = admin.list_topics(timeout=1).topics
            except KafkaException:
                admin = None
                said = dict.fromkeys(known, "nobody says")
            else:
                said = {
                    (name, index): f"{part.leader} of {sorted(part.isrs)}"
                    for name in self._topics
                    if name in found
                    for index, part in found[name].partitions.items()
                }
            for place, now in said.items():
                if known.get(place) != now:
                    self._leaders[place].append((time.monotonic(), now))
            known |= said

    def told(self, wait: Wait) -> str:
        """Return the events of a wait, with times from its beginning."""
        since = wait.began - LEAD_SECONDS
        before = [each for each in self._done if each[0] < since][-1:]
        done = before + [each for each in self._done if since <= each[0] <= wait.ended]
        leaders = self._leaders[wait.topic, wait.partition]
        led = [each for each in leaders if each[0] < since][-1:]
        led += [each for each in leaders if since <= each[0] <= wait.ended]

        def lines(found: list[tuple[float, str]]) -> str:
            return "; ".join(f"{at - wait.began:+.1f} s {what}" for at, what in found[:14]) or "nothing"

        return (
            f"{wait.kind} of {wait.seconds:.1f} s at {wait.topic}-{wait.partition}, {wait.began - self._began:.1f} s"
            f" into the run\n      done: {lines(done)}\n      leader of in-sync: {lines(led)}"
            f"\n      client: {wait.retried or 'nothing'}"
        )


def report(waits: Waits, chronicle: Chronicle) -> str:
    """Return the longest waits of all kinds."""
    lines = []
    for kind, times in sorted(waits.times.items()):
        times = sorted(times)
        lines.append(
            f"  {kind}: {len(times)}, p50 {times[len(times) // 2]:.3f} s, p99 {times[len(times) * 99 // 100]:.3f} s,"
            f" longest {times[-1]:.1f} s"
        )
        lines += [f"    {chronicle.told(wait)}" for wait in waits.longest(kind)]
    return "\n".join(lines)
