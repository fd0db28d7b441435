"""The two servers under comparison, each with a folder of its own, to be started, restarted and asked."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from bench.kafka_peer import start_kafka
from bench.processes import Server, free_port, start

KAFKA, HEADRACE = "Apache Kafka", "Headrace"


def start_headrace(folder: Path) -> Server:
    """`headrace serve` in its own process; the same command that a user types."""
    port = free_port()
    command = [sys.executable, "-m", "tablelayer.cli.main", "serve"]
    command += ["--listen", f"127.0.0.1:{port}", "--data", str(folder / "data")]
    command += ["--set", "group.initial.rebalance.delay.ms=0"]
    return start(HEADRACE, command, port, folder / "headrace.out")


class Peer:
    """One of the two. `server` is the running one; RuntimeError when there is none."""

    def __init__(self, name: str, starter: Callable[[Path], Server], work: Path) -> None:
        self.name = name
        self._starter = starter
        self._folder = (work / name.split()[-1].lower()).absolute()
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        if self._server is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._server

    @property
    def is_running(self) -> bool:
        return self._server is not None

    def start_fresh(self) -> Server:
        """Stop what runs and start on an empty folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._server = self._starter(self._folder)
        return self._server

    def restart(self, *, kill: bool) -> tuple[float, Server]:
        """End it by SIGTERM or SIGKILL and start it on what it left: (seconds to stop, the new one)."""
        seconds = self.stop(kill=kill)
        self._server = self._starter(self._folder)
        return seconds, self._server

    def stop(self, *, kill: bool = False) -> float:
        server, self._server = self._server, None
        return 0.0 if server is None else server.stop(kill)


def both(work: Path) -> list[Peer]:
    """Kafka first."""
    return [Peer(KAFKA, start_kafka, work), Peer(HEADRACE, start_headrace, work)]
