"""A cluster of real processes and its faults: seeded, printed, and always healed at the end.

Each broker reaches the others and ZooKeeper through relays of its own, so that each connection can be cut; clients
connect without one. A nemesis draws faults of its kinds, one after the other. By chance it waits after a fault until
the cluster is whole again.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from fault_load import CONNECTION
from relays import Relays

from headrace.protocol.records.header import CRC_POSITION
from simulator.histories import read_segment
from simulator.ports import free_port
from simulator.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

SESSION_MS = 5_000
TICK_MS = 500
NODES = (1, 2, 3)
WHOLE_SECONDS = 60
"""Rule R9 asks for 20; a machine on which much else runs gets more."""
SETTINGS = {
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,CLIENTS:PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "4000",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "auto.create.topics.enable": "false",
}


def way(number: int) -> str:
    """Return the name by which a broker identifies itself to the others."""
    return f"broker-{number}"


def store_way(number: int) -> str:
    return f"from {number} to ZooKeeper"


class Cluster:
    """Three brokers and a ZooKeeper server below `folder`, stopped cleanly at the end."""

    def __init__(
        self,
        folder: Path,
        server_process_class: type,
        *,
        zookeeper: ZooKeeperServer | ZooKeeperEnsemble | None = None,
        **settings: str,
    ) -> None:
        """Create a cluster. `zookeeper` replaces its single server; an ensemble is reached without a relay."""
        self.zookeeper = zookeeper or ZooKeeperServer(folder / "zookeeper", tick_ms=TICK_MS)
        self.relays = Relays()
        self.patience_seconds: float = WHOLE_SECONDS
        self.small: Path | None = None
        self.silent: set[int] = set()
        """Brokers that no check asks."""
        self.brokers: dict = {}
        for number in NODES:
            (folder / str(number)).mkdir(parents=True)
            self.brokers[number] = server_process_class(folder / str(number), **SETTINGS, **settings)

    def mount(self, number: int, megabytes: int) -> bool:
        """Give one broker a disk of its own, before it starts. Return False where that is not allowed."""
        data = self.brokers[number].directory / "data"
        data.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(data)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return False
        self.small = data
        return True

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Fill the small disk."""
        filler = self.small / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20) if os.statvfs(self.small).f_bavail > 512 else bytes(4096))
        try:
            yield
        finally:
            filler.unlink()

    @property
    def addresses(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def __enter__(self) -> Cluster:
        self.relays.__enter__()
        try:
            for number, broker in self.brokers.items():
                port = free_port()
                inside = self.relays.add(way(number), port)
                store = self.zookeeper.address
                if isinstance(self.zookeeper, ZooKeeperServer):
                    store = f"127.0.0.1:{self.relays.add(store_way(number), self.zookeeper.port)}"
                broker.settings |= {
                    "node.id": str(number),
                    "broker.rack": f"r{number}",
                    "listeners": f"INSIDE://127.0.0.1:{port},CLIENTS://{broker.address}",
                    "advertised.listeners": f"INSIDE://127.0.0.1:{inside},CLIENTS://{broker.address}",
                    "zookeeper.connect": f"{store}/headrace",
                }
            self.zookeeper.start()
            self.start(*NODES)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if raised[0] is None:
                self.stop()
        finally:
            self._end()
        if raised[0] is None:
            for number, broker in self.brokers.items():
                assert "Traceback" not in broker.log(), f"broker {number}:\n{broker.log()}"

    def _running(self) -> Iterator:
        return ((number, broker) for number, broker in self.brokers.items() if broker.process is not None)

    def _end(self) -> None:
        for _, broker in self._running():
            broker.kill()
        self.zookeeper.kill()
        self.relays.__exit__()
        if self.small is not None:
            subprocess.run(["umount", "-l", str(self.small)], check=True)
            self.small = None

    # -- faults --------------------------------------------------------------------------------------------

    def start(self, *numbers: int) -> None:
        """Start brokers together: a single one might wait for another."""
        failures: list[BaseException] = []

        def begin(number: int) -> None:
            try:
                self.relays.open(way(number))
                self.brokers[number].start()
            except BaseException as error:  # noqa: BLE001 - told below
                failures.append(error)

        threads = [threading.Thread(target=begin, args=(number,)) for number in numbers]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        if failures:
            raise failures[0]

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            self.brokers[number].kill()
            self.relays.close(way(number))

    def stop(self) -> None:
        """Stop the running brokers as an administrator does."""
        codes = {number: broker.stop() for number, broker in self._running()}
        assert set(codes.values()) <= {0}, codes

    def signal(self, number: int, which: signal.Signals) -> None:
        os.kill(self.brokers[number].process.pid, which)

    def part(self, one: int, other: int) -> None:
        """Cut the first broker off from the second."""
        self.relays.cut(way(other), way(one))

    def part_from_store(self, *numbers: int) -> None:
        for number in numbers:
            self.relays.cut(store_way(number))

    def heal(self, *, lose: bool = False) -> None:
        self.relays.heal(lose=lose)

    # -- its own description -------------------------------------------------------------------------------

    def described(self):
        """Return the metadata of the first broker that answers."""
        deadline = time.monotonic() + self.patience_seconds
        while time.monotonic() < deadline:
            for broker in self._asked():
                with contextlib.suppress(KafkaException):
                    return self._said_by(broker)
        raise AssertionError("no broker describes the cluster")

    def _asked(self) -> list:
        return [broker for number, broker in self.brokers.items() if number not in self.silent]

    def _said_by(self, broker):
        return AdminClient({**CONNECTION, "bootstrap.servers": broker.address}).list_topics(timeout=3)

    def wait_whole(self) -> float:
        """Wait until every broker sees all replicas in sync; return the seconds that this took."""
        return self._wait(self._missing)

    def wait_missed(self, *numbers: int) -> None:
        """Wait until the others know that these brokers are gone."""

        def left() -> list[str]:
            known = {each.port: set(self._said_by(each).brokers) for each in self._asked()}
            return [f"{port} knows {found}" for port, found in known.items() if found.intersection(numbers)]

        self._wait(left)

    def _wait(self, problems: Callable[[], list[str]]) -> float:
        seconds = self.patience_seconds
        began, left = time.monotonic(), ["no broker has answered"]
        while left and time.monotonic() < began + seconds:
            try:
                left = problems()
            except KafkaException as error:
                left = [f"a broker does not say anything: {error}"]
            if left:
                time.sleep(0.4)  # each question takes a new client
        assert not left, f"after {seconds} s: {left}"
        return time.monotonic() - began

    def _missing(self) -> list[str]:
        problems = []
        for broker in self._asked():
            found = self._said_by(broker)
            who = f"by the broker at {broker.port}"
            if len(found.brokers) < len(NODES):
                problems.append(f"{who} only {sorted(found.brokers)} are there")
            problems += [
                f"{who} {topic.topic}-{index} is led by {part.leader}, in sync are {part.isrs} of {part.replicas}"
                for topic in found.topics.values()
                for index, part in topic.partitions.items()
                if part.leader < 0 or len(part.isrs) < len(part.replicas)
            ]
        return problems


def starts_of(segment: Path) -> list[int]:
    """Return the positions of a segment's batches."""
    return [batch.position for batch in read_segment(segment)[0]]


class Nemesis:
    """Draw faults. `pause_seconds` is the time from a healed cluster to the next fault. Faults are kept in `done`
    and printed.
    """

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        places: Sequence[str],
        pause_seconds: tuple[float, float] = (1.0, 4.0),
    ) -> None:
        """Create a nemesis. `places` are the topics whose leaders and followers are its victims."""
        self.cluster = cluster
        self.random = random.Random(seed)
        self.seed = seed
        self.done: list[str] = []
        self.tell: Callable[[str], None] = lambda _: None
        """Called with each fault when it happens."""
        self._places = places
        self._pause = pause_seconds
        self._began = time.monotonic()

    def go(self, fault: Callable[[Nemesis], None]) -> None:
        """Inject a fault, heal it, and wait until the cluster is whole."""
        name = fault.__name__.replace("_", " ")
        began = time.monotonic()
        self.tell(name)
        fault(self)
        self.cluster.heal(lose=self.random.random() < 0.5)
        self.tell(f"over: {name}")
        whole = self.cluster.wait_whole()
        self.tell("whole")
        self.done.append(f"{name} ({time.monotonic() - began - whole:.1f} s, whole after {whole:.1f} s)")
        print(f"  seed {self.seed}, {began - self._began:7.1f} s: {self.done[-1]}", flush=True)
        self.rest(*self._pause)

    def rest(self, least: float, most: float) -> None:
        time.sleep(self.random.uniform(least, most))

    # -- victims -------------------------------------------------------------------------------------------

    def _partition(self):
        found = self.cluster.described().topics
        topic = found[self.random.choice(list(self._places))]
        return topic.partitions[self.random.choice(sorted(topic.partitions))]

    def leader(self) -> int:
        while (number := self._partition().leader) < 0:
            time.sleep(0.1)
        return number

    def follower(self) -> int:
        part = self._partition()
        return self.random.choice([each for each in part.replicas if each != part.leader])

    def controller(self) -> int:
        while (number := self.cluster.described().controller_id) not in NODES:
            time.sleep(0.1)
        return number

    def flip(self, number: int) -> None:
        """Flip one bit under a CRC in a log of a broker that is down.

        The batch is in the newest segment, which a start checks, and is not the last one, which would count as torn.
        """
        data = self.cluster.brokers[number].directory / "data"
        newest = {path.parent: path for name in self._places for path in sorted(data.glob(f"{name}-*/*.log"))}
        path = self.random.choice([path for path in newest.values() if len(starts_of(path)) > 1])
        batch, following = self.random.choice(list(pairwise(starts_of(path))))
        position = self.random.randrange(batch + CRC_POSITION, following)
        with path.open("r+b") as file:
            file.seek(position)
            (byte,) = file.read(1)
            file.seek(position)
            file.write(bytes([byte ^ 1 << self.random.randrange(8)]))

    @contextlib.contextmanager
    def dead(self, *numbers: int) -> Iterator[None]:
        self.tell(f"kill {numbers}")
        self.cluster.kill(*numbers)
        yield
        self.tell(f"start {numbers}")
        self.cluster.start(*numbers)
        self.tell(f"{numbers} ready")

    @contextlib.contextmanager
    def unasked(self, *numbers: int) -> Iterator[None]:
        """Exclude brokers from all checks until the block ends."""
        self.cluster.silent |= {*numbers}
        try:
            yield
        finally:
            self.cluster.silent -= {*numbers}

    @contextlib.contextmanager
    def stopped(self, *numbers: int) -> Iterator[None]:
        """Stop brokers until the block ends, and wait until the others have noticed."""
        cluster = self.cluster
        self.tell(f"stop {numbers}")
        for number in numbers:
            cluster.signal(number, signal.SIGSTOP)
        with self.unasked(*numbers):
            try:
                cluster.wait_missed(*numbers)
                yield
            finally:
                for number in numbers:
                    cluster.signal(number, signal.SIGCONT)
                self.tell(f"{numbers} go on")


def kill_a_leader(nemesis: Nemesis) -> None:
    with nemesis.dead(nemesis.leader()):
        nemesis.rest(0.5, 3.0)


def kill_a_follower(nemesis: Nemesis) -> None:
    with nemesis.dead(nemesis.follower()):
        nemesis.rest(0.5, 3.0)


def kill_the_controller(nemesis: Nemesis) -> None:
    with nemesis.dead(nemesis.controller()):
        nemesis.rest(0.5, 3.0)


def kill_two(nemesis: Nemesis) -> None:
    """Kill two brokers: no write can be acknowledged meanwhile, since two replicas are required."""
    with nemesis.dead(*nemesis.random.sample(NODES, 2)):
        nemesis.rest(0.5, 3.0)


def kill_one_after_the_other(nemesis: Nemesis) -> None:
    """Kill brokers one after the other, each before the one before is in sync again."""
    for number in nemesis.random.sample(NODES, 3):
        with nemesis.dead(number):
            nemesis.rest(0.0, 0.7)


def kill_all(nemesis: Nemesis) -> None:
    with nemesis.dead(*NODES):
        nemesis.rest(0.0, 1.0)


KILLS = (
    kill_a_leader,
    kill_a_follower,
    kill_the_controller,
    kill_two,
    kill_one_after_the_other,
    kill_all,
)


def stop_a_leader(nemesis: Nemesis) -> None:
    """Stop a leader beyond its session. It finds the requests that clients sent meanwhile first."""
    with nemesis.stopped(nemesis.leader()):
        nemesis.rest(0.0, 3.0)


def stop_the_controller(nemesis: Nemesis) -> None:
    with nemesis.stopped(nemesis.controller()):
        nemesis.rest(0.0, 3.0)


def stop_all_for_a_moment(nemesis: Nemesis) -> None:
    """Stop all brokers for more or less than a session."""
    for number in NODES:
        nemesis.cluster.signal(number, signal.SIGSTOP)
    nemesis.rest(0.5, 1.6 * SESSION_MS / 1000)
    for number in nemesis.random.sample(NODES, 3):
        nemesis.cluster.signal(number, signal.SIGCONT)
        nemesis.rest(0.0, 0.5)


STOPS = (stop_a_leader, stop_the_controller, stop_all_for_a_moment)


def part_two(nemesis: Nemesis) -> None:
    """Cut two brokers off from each other; the third reaches both."""
    one, other = nemesis.random.sample(NODES, 2)
    nemesis.tell(f"part {one} and {other}")
    nemesis.cluster.part(one, other)
    nemesis.cluster.part(other, one)
    nemesis.rest(1.0, 10.0)


def part_one_way(nemesis: Nemesis) -> None:
    one, other = nemesis.random.sample(NODES, 2)
    nemesis.tell(f"part {one} from {other}")
    nemesis.cluster.part(one, other)
    nemesis.rest(1.0, 10.0)


def part_a_leader_from_the_others(nemesis: Nemesis) -> None:
    """Cut a leader off from the others, but not from ZooKeeper: it may lead, and no follower copies its records."""
    number = nemesis.leader()
    nemesis.tell(f"part {number} from the others")
    for other in set(NODES) - {number}:
        nemesis.cluster.part(number, other)
        nemesis.cluster.part(other, number)
    nemesis.rest(1.0, 10.0)


def part_a_leader_from_the_store(nemesis: Nemesis) -> None:
    _part_from_store(nemesis, nemesis.leader())


def part_the_controller_from_the_store(nemesis: Nemesis) -> None:
    _part_from_store(nemesis, nemesis.controller())


def _part_from_store(nemesis: Nemesis, number: int) -> None:
    """Cut a broker off from ZooKeeper beyond its session; it still reaches brokers and clients."""
    nemesis.cluster.part_from_store(number)
    nemesis.tell(f"part {number} from ZooKeeper")
    nemesis.cluster.silent.add(number)
    try:
        nemesis.cluster.wait_missed(number)
        nemesis.rest(0.0, 3.0)
    finally:
        nemesis.cluster.silent.discard(number)


def part_a_leader_from_everybody(nemesis: Nemesis) -> None:
    """Cut a leader off from all but its clients."""
    number = nemesis.leader()
    nemesis.tell(f"part {number} from the others")
    for other in set(NODES) - {number}:
        nemesis.cluster.part(number, other)
        nemesis.cluster.part(other, number)
    _part_from_store(nemesis, number)


PARTITIONS = (
    part_two,
    part_one_way,
    part_a_leader_from_the_others,
    part_a_leader_from_the_store,
    part_the_controller_from_the_store,
    part_a_leader_from_everybody,
)


def part_all_from_the_store(nemesis: Nemesis) -> None:
    """Cut all brokers off from ZooKeeper for less or more than a session."""
    nemesis.cluster.part_from_store(*NODES)
    nemesis.rest(0.5, 2 * SESSION_MS / 1000)


def kill_the_store(nemesis: Nemesis) -> None:
    nemesis.cluster.zookeeper.kill()
    nemesis.rest(0.0, 2 * SESSION_MS / 1000)
    nemesis.cluster.zookeeper.start()


def stop_the_store(nemesis: Nemesis) -> None:
    nemesis.cluster.zookeeper.pause()
    nemesis.rest(0.5, 2 * SESSION_MS / 1000)
    nemesis.cluster.zookeeper.go_on()


STORE = (part_all_from_the_store, kill_the_store, stop_the_store)


def flip_a_bit_of_a_dead_follower(nemesis: Nemesis) -> None:
    """Flip a bit in a batch before others: the log cannot be opened, is set aside, and is copied again."""
    number = nemesis.follower()
    with nemesis.dead(number):
        nemesis.flip(number)


def flip_bits_of_all_that_are_dead(nemesis: Nemesis) -> None:
    """Flip bits of all dead brokers except the last one that died, which has everything and has noticed the others'
    end.

    The cluster cannot know which broker died last if they die at the same time.
    """
    *others, kept = nemesis.random.sample(NODES, 3)
    nemesis.tell(f"kill {others}, then {kept}")
    with nemesis.unasked(*others):
        nemesis.cluster.kill(*others)
        nemesis.cluster.wait_missed(*others)
        nemesis.cluster.kill(kept)
        for number in others:
            nemesis.flip(number)
        nemesis.cluster.start(*NODES)


def fill_the_disk_of_one(nemesis: Nemesis) -> None:
    """Fill the disk of one broker: until it has room again it accepts nothing, and acknowledges nothing that it
    lacks.
    """
    with nemesis.cluster.full():
        nemesis.rest(2.0, 15.0)


FULL = (fill_the_disk_of_one,)
"""Faults of a cluster with a broker on a small disk (`Cluster.mount`)."""
FLIPS = (flip_a_bit_of_a_dead_follower, flip_bits_of_all_that_are_dead)
