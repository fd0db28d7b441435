"""The two servers under comparison, each with a folder of its own: start, restart, requests."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.kafka_peer import start_kafka
from bench.processes import Server, start
from bench.tls import write_certificates
from simulator.ports import free_port

KAFKA, HEADRACE = "Apache Kafka", "Headrace"


def start_headrace(
    folder: Path, tls: Mapping[str, str] | None = None, *, name: str = HEADRACE, tree: Path | None = None
) -> Server:
    """Start `headrace serve` in its own process, with the same command that a user types.

    `tls` as for Kafka. `tree`: run that working tree's modules, by this one's interpreter and libraries.
    """
    port, tls_port = free_port(), free_port()
    package = "headrace.tablelayer"
    if tree is not None and not (tree / "headrace" / "tablelayer").is_dir():
        package = "tablelayer"  # a tree from before there was one import name
    command = [sys.executable, "-m", f"{package}.cli.main", "serve", "--data", str(folder / "data")]
    command += ["--set", "group.initial.rebalance.delay.ms=0"]
    if tls is None:
        command += ["--listen", f"127.0.0.1:{port}"]
    else:
        command += ["--set", f"listeners=PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:{tls_port}"]
        for name, value in tls.items():
            command += ["--set", f"{name}={value}"]
    # `-m` looks for modules first in the folder where it is started.
    server = start(name, command, port, folder / "headrace.out", folder=tree)
    server.tls_port = 0 if tls is None else tls_port
    return server


class Peer:
    """One of the two servers. `server` is the running one; RuntimeError if there is none."""

    def __init__(
        self, name: str, starter: Callable[[Path, Mapping[str, str] | None], Server], work: Path
    ) -> None:
        self.name = name
        self._starter = starter
        self._folder = (work / name.split()[-1].lower()).absolute()
        self._tls: Mapping[str, str] | None = None
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        if self._server is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._server

    @property
    def is_running(self) -> bool:
        return self._server is not None

    def start_fresh(self, *, with_tls: bool = False) -> Server:
        """Stop the running server and start on an empty folder; `with_tls`: with a second listener."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._tls = write_certificates(self._folder) if with_tls else None
        self._server = self._starter(self._folder, self._tls)
        self._server.tls_authority = str(self._folder / "ca.pem") if with_tls else ""
        return self._server

    def restart(self, *, kill: bool) -> tuple[float, Server]:
        """End it by SIGTERM or SIGKILL and start it on its data: return (seconds to stop, the new one)."""
        seconds = self.stop(kill=kill)
        self._server = self._starter(self._folder, self._tls)
        return seconds, self._server

    def stop(self, *, kill: bool = False) -> float:
        server, self._server = self._server, None
        return 0.0 if server is None else server.stop(kill)


def both(work: Path) -> list[Peer]:
    """Return both, Kafka first."""
    return [Peer(KAFKA, start_kafka, work), Peer(HEADRACE, start_headrace, work)]
