"""A ZooKeeper server for tests, from the jars that pyspark carries: Java is all that is needed."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

JARS = (
    "zookeeper-*",
    "slf4j-api-*",
    "netty-*",
    "metrics-core-*",
    "snappy-java-*",
    "commons-cli-*",
    "commons-io-*",
)
TICK_MS = 200  # a session's timeout is between 2 and 20 ticks: tests want short ones
READY_SECONDS = 30.0


class ZooKeeperServer:
    """One server process on a free port of 127.0.0.1, its data in `folder`."""

    def __init__(self, folder: Path, *, tick_ms: int = TICK_MS) -> None:
        self._folder = folder
        self._tick_ms = tick_ms
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it answers. Raises RuntimeError if it does not."""
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = self._folder / "zoo.cfg"
        settings.write_text(
            f"dataDir={self._folder / 'data'}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            f"tickTime={self._tick_ms}\nadmin.enableServer=false\n4lw.commands.whitelist=ruok,srvr\n"
        )
        command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", _class_path()]
        command += ["org.apache.zookeeper.server.ZooKeeperServerMain", str(settings)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"ZooKeeper did not start: see {self._folder / 'log'}")
            time.sleep(0.05)

    def kill(self) -> None:
        """As `kill -9`; `start` brings it back with its data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 1) as connection,
        ):
            connection.sendall(b"ruok")
            return connection.recv(4) == b"imok"
        return False


@contextlib.contextmanager
def running_zookeeper(folder: Path) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _class_path() -> str:
    found = find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("ZooKeeper's jars come with pyspark, which is not installed")
    folder = Path(found.submodule_search_locations[0]) / "jars"
    jars = [str(jar) for pattern in JARS for jar in sorted(folder.glob(f"{pattern}.jar"))]
    return ":".join(jars)
