"""The supervisor of several processes: what it does when one ends, fails to start, or all are stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.configs.config_key import ConfigError
from headrace.tablelayer.cli import supervisor
from headrace.tablelayer.cli.options import LogFormat
from headrace.tablelayer.cli.process_plan import ProcessOptions
from headrace.tablelayer.cli.supervisor import Process


class Scripted(Process):
    """A process that ends with one code after the other, and then runs until it is stopped."""

    def __init__(
        self, broker_id: int, *codes: int, is_ready: bool = True, stopped: list[int] | None = None
    ) -> None:
        options = ProcessOptions(
            broker_id, "data", f"127.0.0.1:{9092 + broker_id}", {}, None, None, LogFormat.TEXT, False
        )
        super().__init__(options, coordinator=None)  # type: ignore[arg-type]
        self.codes = list(codes)
        self.runs = 0
        self._is_ready = is_ready
        self._stopped = [] if stopped is None else stopped

    async def _run(self) -> int:
        self.runs += 1
        if self._is_ready:
            self.ready.set()
        if self.codes:
            return self.codes.pop(0)
        await self._stopping.wait()
        return 0

    async def stop(self) -> None:
        if not self._stopping.is_set():
            self._stopped.append(self.options.broker_id)
        await super().stop()


async def supervise(processes: list[Scripted], stop: asyncio.Event) -> None:
    async def nothing() -> None:
        pass

    log: Any = SimpleNamespace(lines=SimpleNamespace(run=nothing, sum_up=lambda whole: None))
    await supervisor._supervise(processes, Path("data"), stop, log, 0.0)


async def until(process: Scripted, runs: int) -> None:
    async with asyncio.timeout(60):
        while process.runs < runs:  # noqa: ASYNC110 - what is waited for is another task's
            await asyncio.sleep(0.001)


async def test_a_process_that_ends_is_started_again_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "DELAYS", (0.0, 0.01, 0.02))
    stop, ended, steady = asyncio.Event(), Scripted(0, -9, 1, 1, 1), Scripted(1)
    running = asyncio.create_task(supervise([ended, steady], stop))
    await until(ended, 5)
    stop.set()
    await running
    assert (ended.runs, steady.runs) == (5, 1)
    assert "broker 0 ended: killed by SIGKILL; it is started again in 0 s" in caplog.text
    assert capsys.readouterr().out.startswith("headrace is ready on 127.0.0.1:9092 (data data, 2 processes")


async def test_a_stop_takes_the_first_process_last() -> None:
    stop, stopped = asyncio.Event(), list[int]()
    processes = [Scripted(number, stopped=stopped) for number in range(3)]
    running = asyncio.create_task(supervise(processes, stop))
    await until(processes[2], 1)
    stop.set()
    await running
    assert stopped == [2, 1, 0]


async def test_a_process_that_is_not_ready_once_ends_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    stopped = list[int]()
    processes = [Scripted(0, stopped=stopped), Scripted(1, 1, is_ready=False, stopped=stopped)]
    with pytest.raises(ConfigError, match="broker 1 did not start: exit code 1"):
        async with asyncio.timeout(20):
            await supervise(processes, asyncio.Event())
    assert stopped == [1, 0]
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(sys.platform != "linux", reason="the system does this on Linux only")
def test_a_process_ends_with_the_one_that_started_it() -> None:
    child = (
        "import os, time; from headrace.tablelayer.cli.process import end_with;"
        " end_with(os.getppid()); print(os.getpid(), flush=True); time.sleep(600)"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    number = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    with contextlib.suppress(ProcessLookupError):
        while not is_waited_for(number):
            os.kill(number, 0)
            assert time.monotonic() < deadline
            time.sleep(0.01)


def is_waited_for(process: int) -> bool:
    """Return whether the process has ended, and its parent has not asked yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
