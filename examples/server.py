"""The real `headrace` processes that the examples start: the server, and commands run against it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from examples.stage import StepFailedError

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_PORT = 9092
READY_TIMEOUT_S = 60.0


def headrace(*words: str) -> list[str]:
    """The command line of `headrace WORDS`: the installed command beside this Python, or the module."""
    command = Path(sys.executable).parent / "headrace"
    if command.exists():
        return [str(command), *words]
    found = shutil.which("headrace")
    return [found, *words] if found else [sys.executable, "-m", "headrace.tablelayer.cli.main", *words]


def _environment(config: Path | None = None) -> dict[str, str]:
    """`config`: a file of client properties."""
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    given = {} if config is None else {"HEADRACE_CONFIG": str(config)}
    joined = os.pathsep.join(dict.fromkeys(paths))
    return {**os.environ, **given, "PYTHONPATH": joined, "PYTHONUNBUFFERED": "1"}


def run(*words: str, timeout_s: float = 120.0, config: Path | None = None) -> str:
    """Run a headrace command and return its output. Raise StepFailedError with its message if it fails."""
    done = subprocess.run(
        headrace(*words),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=_environment(config),
        cwd=ROOT,
    )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise StepFailedError(f"`headrace {' '.join(words)[:200]}` ended with {done.returncode}: {said}")
    return done.stdout


def start(*words: str, config: Path | None = None) -> subprocess.Popen[str]:
    """Start a headrace command and go on; its stdout and stderr are one pipe."""
    return subprocess.Popen(
        headrace(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(config),
        cwd=ROOT,
    )


def free_port(preferred: int = DEFAULT_PORT) -> int:
    """Return `preferred` if it is free, otherwise a port from the system. The port is reserved until this process ends:
    a socket that never listens is bound to it, and a server that sets SO_REUSEADDR may listen beside that.
    """
    for port in (preferred, 0):
        keeper = socket.socket()
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            keeper.bind(("127.0.0.1", port))
        except OSError:
            keeper.close()
            continue
        found: int = keeper.getsockname()[1]
        keeper.detach()
        return found
    raise StepFailedError("there is no free port on 127.0.0.1")


@dataclass
class Server:
    """One `headrace serve`, whose output goes to `log_path`."""

    data: Path
    log_path: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    config: Path | None = None
    """A file of configurations, including the listeners."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def words(self) -> list[str]:
        """The command's arguments."""
        sets = [word for name, value in self.settings.items() for word in ("--set", f"{name}={value}")]
        where = ["--listen", self.address] if self.config is None else ["--config", str(self.config)]
        return ["serve", *where, "--data", str(self.data), "--verbose", *sets]

    def start(self) -> str:
        """Start it and wait until it is ready. Return its ready line."""
        before = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                headrace(*self.words()), stdout=log, stderr=subprocess.STDOUT, env=_environment(), cwd=ROOT
            )
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            said = self.said(before)
            ready = re.search(r"^.*headrace is ready.*$", said, re.M)
            if ready:
                return ready.group(0).strip()
            if self.process.poll() is not None:
                raise StepFailedError(
                    f"the server ended with {self.process.returncode}: {said.strip()[-1500:]}"
                )
            time.sleep(0.02)
        said = self.said(before)[-1500:]
        raise StepFailedError(f"the server was not ready after {READY_TIMEOUT_S:.0f} s: {said}")

    def said(self, since: int = 0) -> str:
        """Return its log after byte `since`."""
        with self.log_path.open("rb") as log:
            log.seek(since)
            return log.read().decode(errors="replace")

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def stop(self) -> None:
        """Stop it with SIGTERM, and kill it after a while."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
