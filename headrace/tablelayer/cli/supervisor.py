"""`headrace serve --processes N`: broker processes on one machine, with their coordinator in this process.

- This process owns the data directory, serves the coordination store (`broker.stores.coordinator`), and serves no
  client. Each broker process is a member of the cluster in that store.
- A process that ends is started again: at once, then after a delay that doubles, up to a minute. The others go on.
- SIGTERM and SIGINT stop the processes one after the other, the first process last. SIGHUP is passed on.
- If this process ends in any way, the system kills the others: they could not reach the store any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, perf_counter
from typing import Final

import msgspec

from headrace.broker.cluster.processes import ProcessesRoot
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import SystemEntropy
from headrace.broker.stores.coordinator import Coordinator
from headrace.tablelayer.cli.log_output import ServerLog
from headrace.tablelayer.cli.notify import Supervisor as ServiceManager
from headrace.tablelayer.cli.options import LogFormat
from headrace.tablelayer.cli.process_plan import ProcessOptions, plan_processes
from headrace.tablelayer.cli.serve import address_of, say, tell_unused
from headrace.tablelayer.server.extension import TableExtension

logger = logging.getLogger("headrace.supervisor")

STEADY_SECONDS: Final = 60.0
"""Time after which an end counts as the first one again."""
DELAYS: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Seconds before a process is started again, by the number of its ends in a row."""
STOP_SECONDS: Final = 120.0
"""Time that a process has for a clean stop; then it is killed."""
_OF_SERVICE: Final = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")


class Process:
    """One broker process. `keep` runs it until `stop`."""

    def __init__(self, options: ProcessOptions, coordinator: Coordinator) -> None:
        self.options = options
        self.ready = asyncio.Event()
        self._coordinator = coordinator
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    async def keep(self) -> None:
        """Start the process again whenever it ends, until it is stopped. Raises ConfigError if it ends before it was
        ready for the first time.
        """
        ends = 0
        while not self._stopping.is_set():
            began = monotonic()
            code = await self._run()
            if self._stopping.is_set():
                return
            if not self.ready.is_set():
                raise ConfigError(f"broker {self.options.broker_id} did not start: {_end_text(code)}")
            ends = 0 if monotonic() - began > STEADY_SECONDS else ends + 1
            delay = DELAYS[min(max(ends - 1, 0), len(DELAYS) - 1)]
            logger.error(
                "broker %d ended: %s; it is started again in %.0f s",
                self.options.broker_id,
                _end_text(code),
                delay,
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()

    async def _run(self) -> int:
        """Run the process once, with a session of the coordinator. Return its exit code."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "headrace.tablelayer.cli.broker_process", "serve"),
                *(str(theirs.fileno()), str(os.getpid()), msgspec.json.encode(self.options).decode()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env={name: text for name, text in os.environ.items() if name not in _OF_SERVICE},
                start_new_session=True,  # Ctrl-C reaches this process only, which stops the others in order
            )
        if self._stopping.is_set():  # while it was started
            process.terminate()
        serving = asyncio.create_task(self._coordinator.serve(ours))
        assert process.stdout is not None
        async for _ in process.stdout:  # its only line says that it is ready
            logger.info("broker %d is ready (process %d)", self.options.broker_id, process.pid)
            self.ready.set()
        code = await process.wait()
        self._process = None
        await serving
        return code

    async def stop(self) -> None:
        """Stop the process cleanly; kill it if that takes too long."""
        self._stopping.set()
        self.tell(signal.SIGTERM)
        if self._process is None:
            return
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            logger.error("broker %d has not stopped in time: it is killed", self.options.broker_id)
            self.tell(signal.SIGKILL)

    def tell(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                self._process.send_signal(number)


def serve_processes(
    count: int,
    listen: str | None,
    data: Path,
    sets: Mapping[str, str],
    config_file: Path | None,
    *,
    zookeeper: str | None,
    metrics: str | None,
    log_format: LogFormat,
    verbose: bool,
    started: float,
) -> None:
    """Run the processes until SIGTERM or SIGINT. Raises ConfigError if they cannot start. For the options see
    `serve`.
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if zookeeper is not None:
        sets = {**sets, "zookeeper.connect": zookeeper}
    config = BrokerConfig.load(sets, config_file, TableExtension().broker_configs())
    tell_unused(config, config_file)
    options = plan_processes(
        count,
        address_of(listen, config),
        data,
        sets,
        config_file,
        config,
        metrics=metrics,
        log_format=log_format,
        verbose=verbose,
    )
    log = ServerLog(log_format, verbose=verbose)
    try:
        asyncio.run(_serve(options, data, log, started))
    finally:
        logging.shutdown()
        signal.signal(signal.SIGHUP, before)


async def _serve(options: Sequence[ProcessOptions], data: Path, log: ServerLog, started: float) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    root = await ProcessesRoot.open(data, options[0].broker_id, len(options), SystemDisk(), SystemEntropy())
    try:
        log.write_into(data)
        coordinator = Coordinator(root.store)
        processes = [Process(each, coordinator) for each in options]
        await _supervise(processes, data, stop, log, started)
    finally:
        await root.close()


async def _supervise(
    processes: Sequence[Process], data: Path, stop: asyncio.Event, log: ServerLog, started: float
) -> None:
    """Run the processes until `stop`, then stop them in order. Raises ConfigError if one does not start."""
    loop, manager = asyncio.get_running_loop(), ServiceManager()
    kept = [loop.create_task(each.keep()) for each in processes]
    stopping = loop.create_task(stop.wait())
    all_ready = loop.create_task(_all_ready(processes))
    beside = [loop.create_task(log.lines.run()), loop.create_task(manager.keep_alive())]
    try:
        await asyncio.wait([*kept, stopping, all_ready], return_when=asyncio.FIRST_COMPLETED)
        if all_ready.done():
            line = _ready_line([each.options for each in processes], data, perf_counter() - started)
            say(line)
            manager.ready(line.strip())
            loop.add_signal_handler(signal.SIGHUP, _reload, processes, log, manager, line.strip())
            await asyncio.wait([*kept, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        manager.stopping()
        for process in reversed(processes):
            await process.stop()
        for each in (all_ready, stopping, *beside):
            each.cancel()
        ended = await asyncio.gather(*kept, return_exceptions=True)
        await asyncio.gather(all_ready, stopping, *beside, return_exceptions=True)
        log.lines.sum_up(whole=True)
    for error in ended:
        if isinstance(error, BaseException):
            raise error


async def _all_ready(processes: Sequence[Process]) -> None:
    for each in processes:
        await each.ready.wait()


def _reload(processes: Sequence[Process], log: ServerLog, manager: ServiceManager, status: str) -> None:
    """Handle SIGHUP: reopen the log file, and let every process do the same and reload its certificates."""
    manager.reloading()
    log.reopen()
    for process in processes:
        process.tell(signal.SIGHUP)
    manager.ready(status)


def _ready_line(options: Sequence[ProcessOptions], data: Path, seconds: float) -> str:
    first, last = options[0], options[-1]
    place = first.listen or first.sets["listeners"]
    measured = "" if first.metrics is None else f", metrics on {first.metrics} and the following ports"
    return (
        f"headrace is ready on {place} (data {data}, {len(options)} processes, broker ids {first.broker_id} to"
        f" {last.broker_id}{measured}) in {seconds:.1f} s\n"
    )


def _end_text(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
