"""Several `headrace serve` on this machine and ZooKeeper, as processes that can be killed, restarted and added."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from examples.access import ADMIN, Access
from examples.server import Server, free_port, headrace
from examples.stage import StepFailedError
from headrace import Connection, connect

PORT = 9092
ZOOKEEPER_PORT = 2181
READY_TIMEOUT_S = 60.0
SYNC_TIMEOUT_S = 120.0
BROKERS_VARIABLE = "HEADRACE_BROKERS"
BROKERS = (1, 2, 3)
REPLICATED = {
    "default.replication.factor": str(len(BROKERS)),
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "6",
}
"""Settings that give all topics and tables three replicas."""


def on_three_brokers() -> bool:
    """Return whether HEADRACE_BROKERS asks for three brokers instead of one server. End the process for another
    number.
    """
    said = os.environ.get(BROKERS_VARIABLE) or "1"
    if said not in ("1", "3"):
        sys.stderr.write(f"{BROKERS_VARIABLE} is '{said}', but must be 1 or 3\n")
        sys.exit(2)
    return said == "3"


@dataclass
class ZooKeeper:
    """A process of `headrace zookeeper`, whose output goes to a file in its folder."""

    folder: Path
    port: int = field(default_factory=lambda: free_port(ZOOKEEPER_PORT))
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def words(self) -> list[str]:
        """The command's arguments."""
        return ["zookeeper", "--listen", self.address, "--data", str(self.folder)]

    def start(self) -> str:
        """Start it and wait until it is ready. Return its ready line."""
        if shutil.which("java") is None:
            raise StepFailedError("ZooKeeper and Spark need Java 17 or 21, and there is no java on the PATH")
        self.folder.mkdir(parents=True, exist_ok=True)
        output = self.folder / "said.log"
        with output.open("wb") as log:
            # A group of its own: its JVM goes with it, whatever becomes of the command.
            self.process = subprocess.Popen(
                headrace(*self.words()), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + READY_TIMEOUT_S
        while "zookeeper is ready" not in (said := output.read_text(errors="replace")):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise StepFailedError(f"ZooKeeper did not start: {said.strip()[-1500:]}")
            time.sleep(0.05)
        return said.strip().splitlines()[-1]

    def stop(self) -> None:
        """End it and its JVM."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None


@dataclass
class Cluster:
    """Brokers by node id, and their ZooKeeper. `settings` hold for all brokers."""

    folder: Path
    settings: Mapping[str, str]
    access: Access = field(default_factory=Access)
    zookeeper: ZooKeeper = field(init=False)
    servers: dict[int, Server] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.zookeeper = ZooKeeper(self.folder / "zookeeper")

    @classmethod
    def of_three(
        cls, folder: Path, settings: Mapping[str, str] | None = None, access: Access | None = None
    ) -> Cluster:
        """Return three brokers that are not started. Everything has three replicas, two of which must be in sync."""
        cluster = cls(folder, {**REPLICATED, **(settings or {})}, access or Access())
        for number in BROKERS:
            cluster.add(number)
        return cluster

    @property
    def address(self) -> str:
        """Return the addresses of all brokers that should run."""
        return ",".join(server.address for server in self.servers.values())

    def add(self, number: int) -> Server:
        """Return another broker that is not started."""
        taken = {server.port for server in self.servers.values()}
        port = next(found for found in map(free_port, _ports(number)) if found not in taken)
        own = {
            "node.id": str(number),
            "broker.rack": f"r{number}",
            "zookeeper.connect": f"{self.zookeeper.address}/headrace",
        }
        server = Server(
            self.folder / f"data{number}", self.folder / f"broker{number}.log", {**own, **self.settings}, port
        )
        server.config = self.access.server_file(server.address, number)
        self.servers[number] = server
        return server

    def start(self) -> str:
        """Start ZooKeeper, then all brokers at once, and wait until they know each other. Return their ready lines."""
        first = self.zookeeper.start()
        with ThreadPoolExecutor(len(self.servers)) as pool:
            lines = [first, *pool.map(Server.start, self.servers.values())]
        with connect(self.access.settings(self.address, ADMIN)) as connection:
            self.wait_in_sync(connection)
        return "\n".join(lines)

    def stop(self) -> None:
        """Stop all brokers, then ZooKeeper. The last brokers have no other broker that could lead their partitions."""
        for server in self.servers.values():
            if server.process is not None and server.process.poll() is None:
                server.process.terminate()
        for server in self.servers.values():
            server.stop()
        self.zookeeper.stop()

    def controller(self, connection: Connection) -> int:
        """Wait for a controller and return its node id."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while (found := connection.kafka.describe_cluster().controller) not in self.servers:
            if time.monotonic() > deadline:
                raise StepFailedError("the cluster has no controller")
            time.sleep(0.1)
        return int(found)

    def wait_in_sync(self, connection: Connection) -> float:
        """Wait until all brokers are alive and all replicas in sync. Return the time in seconds."""
        begun = time.monotonic()
        while True:
            found = connection.kafka.describe_cluster()
            away = self.servers.keys() - {each.broker_id for each in found.brokers}
            if not (away or found.offline or found.under_replicated):
                return time.monotonic() - begun
            if time.monotonic() - begun > SYNC_TIMEOUT_S:
                raise StepFailedError(
                    f"after {SYNC_TIMEOUT_S:.0f} s brokers {sorted(away)} are not alive, {len(found.offline)}"
                    f" partitions have no leader and {len(found.under_replicated)} replicas that are not in sync:"
                    f" {found.under_replicated[:5]}"
                )
            time.sleep(0.1)


def _ports(number: int) -> Iterator[int]:
    yield PORT + number - 1
    while True:
        yield 0
