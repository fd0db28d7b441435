"""`headrace serve` as a process, and the other commands in this one."""

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headrace.tablelayer.tests.serve import ROOT, Serve


class Served:
    """A `headrace serve` process; `ready` is its first line.

    Its errors go to a file, because a pipe that is read only at the end would fill up.
    """

    def __init__(self, *words: str) -> None:
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `stop` closes it
        self._complained = ""
        self.process = Serve(
            words,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONWARNINGS": "default"},
        )
        self.ready = self.process.stdout.readline()
        found = re.search(r"ready on (\S+:\d+)", self.ready)
        self.address = found.group(1) if found else ""

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Return (exit code, rest of stdout, stderr)."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=60)
        if not self._complaints.closed:
            self._complaints.seek(0)
            self._complained = self._complaints.read()
            self._complaints.close()
        return self.process.returncode, out, self._complained


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    served: list[Served] = []

    def start(*words: str) -> Served:
        served.append(Served(*words))
        return served[-1]

    yield start
    for each in served:
        each.stop(signal.SIGKILL)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    served = Served("--listen", "127.0.0.1:0", "--data", str(tmp_path_factory.mktemp("cli") / "data"))
    assert served.address, served.stop()[2]
    yield served.address
    code, _, err = served.stop()
    assert code == 0, err
    assert "Traceback" not in err, err


@pytest.fixture
def headrace(server: str) -> Callable[..., Result]:
    """`headrace("sql", "-e", "...")` against the server; `.exit_code`, `.stdout`, `.stderr`."""

    def run(*words: str, **options: Any) -> Result:
        from headrace.tablelayer.cli.main import app

        return CliRunner(env={"HEADRACE_SERVER": server}).invoke(app, list(words), **options)

    return run


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any]], Any]:
    def wait(condition: Callable[[], Any], seconds: float = 60) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.02)
        return found

    return wait
