"""Three brokers in the place of one server, for tests of one server: `HEADRACE_BROKERS=3` chooses them.

A test's operations on its server apply to the cluster. `start` starts the brokers that do not run, and returns when all
are in sync. `kill` kills one, each time the next, so that the others take over its partitions. `stop` asks all to end,
one after the other. Topics and tables without a replication factor have `REPLICAS`.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

BROKERS = int(os.environ.get("HEADRACE_BROKERS", "1"))
"""Number of brokers of a test's server: 1 or 3."""
if BROKERS not in (1, 3):
    raise ValueError(f"HEADRACE_BROKERS is {BROKERS}, but a test's server is 1 or 3 brokers")
REPLICAS = BROKERS
NUMBERS = (1, 2, 3)
NODE_IDS = NUMBERS if BROKERS == 3 else (0,)
"""Node ids of a test's server."""
MIN_IN_SYNC = 2 if BROKERS == 3 else 1
IN_SYNC_SECONDS = 120.0
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "6",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "zookeeper.session.timeout.ms": "6000",
}


class Member(Protocol):
    """One `headrace serve` process."""

    @property
    def address(self) -> str: ...
    def start(self) -> object: ...
    def kill(self) -> None: ...
    def stop(self) -> int: ...


def settings_of(number: int, zookeeper: str) -> dict[str, str]:
    """Return the settings of the broker of this number. `zookeeper` is the ensemble's address with the cluster's
    path.
    """
    return {
        "node.id": str(number),
        "broker.rack": f"r{number}",
        "zookeeper.connect": zookeeper,
        **SETTINGS,
    }


def path_in(zookeeper: str) -> str:
    """Return a path for another cluster in the ZooKeeper at this address."""
    return f"{zookeeper}/{uuid.uuid4().hex}"


M = TypeVar("M", bound=Member)


class ThreeBrokers(Generic[M]):
    """The three brokers. `is_in_sync` is called with all addresses until it returns true."""

    def __init__(self, members: Sequence[M], is_in_sync: Callable[[str], bool]) -> None:
        self.members = tuple(members)
        self._is_in_sync = is_in_sync
        self._running: set[int] = set()
        self._turns = self._in_turn()

    @property
    def address(self) -> str:
        """The addresses of all brokers, separated by commas."""
        return ",".join(member.address for member in self.members)

    def start(self) -> None:
        """Start the brokers. Raise TimeoutError if they do not form a cluster in time."""
        missing = [index for index in range(len(self.members)) if index not in self._running]
        with ThreadPoolExecutor(len(self.members)) as pool:
            list(pool.map(lambda index: self.members[index].start(), missing))
        self._running |= set(missing)
        deadline = time.monotonic() + IN_SYNC_SECONDS
        while not self._is_in_sync(self.address):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.address} are not in sync after {IN_SYNC_SECONDS:.0f} s")
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill a running broker with SIGKILL, each time the next."""
        if self._running:
            index = next(index for index in self._turns if index in self._running)
            self.members[index].kill()
            self._running.discard(index)

    def kill_all(self) -> None:
        while self._running:
            self.kill()

    def stop_each(self) -> list[int]:
        """Send SIGTERM to one after the other; return the exit codes."""
        codes = [self.members[index].stop() for index in sorted(self._running)]
        self._running.clear()
        return codes

    def _in_turn(self) -> Iterator[int]:
        while True:
            yield from range(len(self.members))
