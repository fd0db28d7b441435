"""A ZooKeeper server for tests, from the jars that pyspark contains: it needs only Java."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.broker.stores.zookeeper_server import answers, server_command, server_settings
from simulator.ports import free_port

TICK_MS = 200  # a session's timeout is between 2 and 20 ticks: tests need short ones
LONG_SESSIONS = "maxSessionTimeout=60000\n"
"""For tests in which no session should end: on a busy machine the server or its client stands still for seconds."""
READY_SECONDS = 60.0


class ZooKeeperServer:
    """One server process on a free port of 127.0.0.1, with its data in `folder`.

    `settings` are more lines of its file; `options` are more options of Java.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tick_ms: int = TICK_MS,
        settings: str = "",
        options: Sequence[str] = (),
        is_of_ensemble: bool = False,
    ) -> None:
        self._is_of_ensemble = is_of_ensemble
        self._settings = settings
        self._options = options
        self._folder = folder
        self._tick_ms = tick_ms
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server; return when it answers. Raise RuntimeError if it does not."""
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = self._folder / "zoo.cfg"
        own = server_settings(self._folder / "data", "127.0.0.1", self.port, self._tick_ms)
        settings.write_text(own + self._settings)
        command = server_command(settings, *self._options, is_of_ensemble=self._is_of_ensemble)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + READY_SECONDS
        while not answers("127.0.0.1", self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"ZooKeeper did not start: see {self._folder / 'log'}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it as by `kill -9`; `start` brings it back with its data."""
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


class ZooKeeperEnsemble:
    """Several servers that are one ZooKeeper as long as most of them run: operations on all, and `servers`."""

    def __init__(self, folder: Path, count: int = 3, *, tick_ms: int = TICK_MS) -> None:
        numbers = range(1, count + 1)
        settings = "initLimit=40\nsyncLimit=10\n" + "".join(
            f"server.{number}=127.0.0.1:{free_port()}:{free_port()}\n" for number in numbers
        )
        self.servers = []
        for number in numbers:
            data = folder / str(number) / "data"
            data.mkdir(parents=True)
            (data / "myid").write_text(str(number))
            self.servers.append(
                ZooKeeperServer(folder / str(number), tick_ms=tick_ms, settings=settings, is_of_ensemble=True)
            )

    @property
    def address(self) -> str:
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Start all; return when each answers. They may not have agreed on a leader yet."""
        for server in self.servers:
            server.start()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()


@contextlib.contextmanager
def running_zookeeper(
    folder: Path, *, settings: str = "", options: Sequence[str] = ()
) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(folder, settings=settings, options=options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
