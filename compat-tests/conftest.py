"""A real server process for black-box tests: foreign clients connect to its port.

Nothing of the server is imported here. `server` is shared by all tests of a run, so each test takes names of its own
(`unique`); tests that kill take a server of their own (`own_server`). With HEADRACE_BROKERS=3 either is three processes
and a ZooKeeper (`simulator/three_brokers.py`).
"""

from __future__ import annotations

import itertools
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.tablelayer.tests.serve import Serve
from simulator.ports import free_port
from simulator.spark_standalone import running_spark_cluster
from simulator.three_brokers import BROKERS, NUMBERS, ThreeBrokers, path_in, settings_of
from simulator.zookeeper import LONG_SESSIONS, running_zookeeper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))  # modules that the tests share are beside this file
READY_SECONDS = 60
# Shorter times for consumer tests: the delay of the first rebalance, and the timeout of a dead member's session.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "1500",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "auto.create.topics.enable": "true",
    "log.retention.ms": "-1",  # records of the tests have timestamps that are years old
}


def pytest_configure(config):
    # Warnings inside of the foreign clients cannot be fixed here.
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")
    config.addinivalue_line("filterwarnings", "ignore:.*unclosed.*socket:ResourceWarning")
    config.addinivalue_line("filterwarnings", "ignore:.*socket:pytest.PytestUnraisableExceptionWarning")


def pytest_collection_modifyitems(items):
    for item in items:
        about = item.get_closest_marker("one_process")
        if about is not None and BROKERS != 1:
            item.add_marker(pytest.mark.skip(reason=f"about one process: {about.args[0]}"))


class ServerProcess:
    """`headrace serve` on a port that stays the same over restarts."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.settings = {**SETTINGS, **settings}
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None
        self._log = directory / "server.log"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> ServerProcess:
        sets = [
            argument for name, value in self.settings.items() for argument in ("--set", f"{name}={value}")
        ]
        words = [*self.arguments(), "--data", str(self.directory / "data"), *sets]
        with self._log.open("a") as log:
            self.process = Serve(
                words, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env=_environment()
            )
        line = self._first_line()
        if "ready on" not in line:
            self.kill()
            pytest.fail(f"the server said {line!r} instead of being ready; its log:\n{self.log()}")
        return self

    def arguments(self) -> list[str]:
        """The address that it listens on."""
        return [] if "listeners" in self.settings else ["--listen", self.address]

    def _first_line(self) -> str:
        """Return the first line that the server prints; empty if it prints nothing or ends."""
        assert self.process is not None
        assert self.process.stdout is not None
        poll = select.poll()  # `select` takes no descriptor above 1,023
        poll.register(self.process.stdout, select.POLLIN)
        return self.process.stdout.readline() if poll.poll(READY_SECONDS * 1000) else ""

    def kill(self) -> None:
        """Kill it with -9: nothing is flushed."""
        if self.process is not None:
            self.process.kill()
            self._reap()

    def kill_all(self) -> None:
        """Kill all processes: the same interface as that of several servers."""
        self.kill()

    def stop(self) -> int:
        """Send SIGTERM, as an administrator does; return the exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        assert self.process is not None
        process, self.process = self.process, None
        code = process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
        return code

    def restart(self) -> None:
        self.kill()
        self.start()

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


class ServerProcesses(ThreeBrokers[ServerProcess]):
    """Three servers with the interface of one. `settings` apply to each start."""

    def __init__(self, directory: Path, zookeeper: str, **settings: str) -> None:
        """Create the servers. `zookeeper` is the address and the path of the cluster."""
        self.directory = directory
        self.settings = settings
        members = []
        for number in NUMBERS:
            folder = directory / f"broker-{number}"
            folder.mkdir()
            members.append(ServerProcess(folder, **settings_of(number, zookeeper)))
        super().__init__(members, _are_in_sync)

    @property
    def port(self) -> int:
        """The port of the first broker."""
        return self.members[0].port

    def start(self) -> ServerProcesses:
        for member in self.members:
            member.settings |= self.settings
        super().start()
        return self

    def stop(self) -> int:
        """Stop all; return 0 if each ended with 0."""
        return max((abs(code) for code in self.stop_each()), default=0)

    def restart(self) -> None:
        self.kill()
        self.start()

    def log(self) -> str:
        return "".join(member.log() for member in self.members)


def _are_in_sync(addresses: str) -> bool:
    """Return whether each broker knows all, and all replicas of all partitions are in sync."""
    for address in addresses.split(","):
        try:
            found = AdminClient({"bootstrap.servers": address}).list_topics(timeout=10)
        except KafkaException:
            return False
        partitions = [each for topic in found.topics.values() for each in topic.partitions.values()]
        if len(found.brokers) < len(NUMBERS) or any(
            len(each.isrs) < len(each.replicas) for each in partitions
        ):
            return False
    return True


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="session")
def server_process_class():
    return ServerProcess


@pytest.fixture(scope="session")
def server_processes_class():
    return ServerProcesses


@pytest.fixture(scope="session", name="free_port")
def _free_port():
    return free_port


@pytest.fixture(scope="session")
def make_server(tmp_path_factory):
    """`make_server(directory, **settings)`: one server that is not started yet, or three brokers in its place."""
    if BROKERS == 1:
        yield ServerProcess
        return
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper"), settings=LONG_SESSIONS) as zookeeper:
        yield lambda directory, **settings: ServerProcesses(directory, path_in(zookeeper.address), **settings)


@pytest.fixture(scope="session")
def server(tmp_path_factory, make_server):
    process = make_server(tmp_path_factory.mktemp("server")).start()
    yield process
    code = process.stop()
    assert "Traceback" not in process.log(), process.log()
    assert code == 0, f"the server ended with {code}:\n{process.log()}"


@pytest.fixture
def own_server(tmp_path, make_server):
    process = make_server(tmp_path).start()
    yield process
    process.kill_all()
    assert "Traceback" not in process.log(), process.log()


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory):
    """Spark's standalone master with two workers; applications are submitted to it (`spark_cluster.submit`)."""
    with running_spark_cluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


_numbers = itertools.count(1)


@pytest.fixture
def unique():
    """Return a name that no other test uses: `unique("topic")`."""
    return lambda prefix: f"{prefix}-{os.getpid()}-{next(_numbers)}"


def wait_until(condition, what: str, seconds: float = 60, interval: float = 0.05):
    """Return the first true value of `condition()`; fail with `what` after the deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(interval)
    return pytest.fail(f"waited {seconds} s in vain for {what}")


@pytest.fixture(name="wait_until")
def _wait_until():
    return wait_until
