"""Server processes under measurement: start, wait for the first good answer, CPU and memory, stop.

Linux only: CPU seconds are read from the clock of a process, memory from /proc.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
CPU_CLOCK = 2
"""The number of the clock that counts user and system time of a process."""


def answers_metadata(port: int, timeout: float = 1.0, brokers: int = 1) -> bool:
    """Return whether a Metadata v1 request without topics is answered with at least that many brokers."""
    client = b"bench"
    body = struct.pack(">hhih", 3, 1, 7, len(client)) + client + struct.pack(">i", 0)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            stream = connection.makefile("rb")
            (size,) = struct.unpack(">i", stream.read(4))
            answer = stream.read(size)
            return len(answer) == size and struct.unpack_from(">ii", answer)[1] >= brokers
    except (OSError, struct.error):
        return False


def accepts(port: int) -> bool:
    """Return whether the port accepts connections."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0):
            return True
    except OSError:
        return False


@dataclass(slots=True)
class Server:
    """A running server: its process, its port and the seconds from exec to the first good answer."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    ready_s: float
    tls_port: int = 0
    """The port of the TLS listener; 0 if it has none."""
    tls_authority: str = ""
    """The file with the certificate of the authority that signed its own."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cpu_seconds(self) -> float:
        """User and system time of the process so far, which /proc shows in steps of 10 ms."""
        # The same as clock_getcpuclockid(3) returns for a process's number.
        return time.clock_gettime(~self.process.pid << 3 | CPU_CLOCK)

    def resident_mb(self) -> float:
        """Resident memory in units of 10^6 bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / 1e6
        raise RuntimeError(f"no VmRSS for {self.name}")

    def stop(self, kill: bool = False) -> float:
        """Send SIGTERM (or SIGKILL) and wait; return the seconds it took."""
        started = time.perf_counter()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        return time.perf_counter() - started


def start(
    name: str,
    command: Sequence[str],
    port: int,
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout_s: float = 300.0,
    answers: Callable[[int], bool] = answers_metadata,
) -> Server:
    """Start `command`, in `folder` if one is named, and wait until it answers on `port`, by default to Metadata.

    Its output goes to `log`. Raise RuntimeError, naming the log, if it ends early or does not answer in time.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(env) if env else None,
            cwd=folder,
        )
    while time.perf_counter() - started < timeout_s:
        if answers(port):
            return Server(name, process, port, time.perf_counter() - started)
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with {process.returncode}; its log is {log}")
        time.sleep(0.005)
    process.kill()
    process.wait()
    raise RuntimeError(f"{name} did not answer within {timeout_s:.0f} s; its log is {log}")
