"""`headrace serve`: the broker with tables in this process, until a signal.

Signals: SIGTERM and SIGINT stop it. SIGHUP never does: it reopens the log file and reloads the certificates.

Logging: warnings and errors go to stderr (`-v`: also informational messages). Everything from INFO up also goes to
DIR/headrace.log, which is rotated at 10 MB, with five files kept (`log_output.py`). Lines that clients can cause are
limited per minute and kind (`broker/runtime/limited_lines.py`). Lines are held in memory until the data directory is
this process's own, so that no line is written into a directory that another process uses.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import typer

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.listeners import parse_listener
from headrace.broker.metrics.health import Health, Stage
from headrace.broker.net.poller import run_server
from headrace.broker.partitions.data_dir import read_properties
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.malloc import keep_freed_memory
from headrace.broker.runtime.ports import SystemClock
from headrace.broker.server import Broker
from headrace.broker.stores.configured import configured_store
from headrace.broker.stores.coordinated import CoordinatedStore
from headrace.protocol.loading.kernel_cache import FOLDER, keep_kernels
from headrace.tablelayer.cli.log_output import ServerLog
from headrace.tablelayer.cli.notify import Supervisor
from headrace.tablelayer.cli.options import DEFAULT_SERVER, LogFormat
from headrace.tablelayer.cli.process import leave_numbas_extras_out, leave_pandas_out
from headrace.tablelayer.cli.streams import silence
from headrace.tablelayer.model.table.definition import SCHEMA_CONFIG
from headrace.tablelayer.server.extension import TableExtension

if TYPE_CHECKING:
    from headrace.broker.metrics.endpoint import MetricsEndpoint

_WARM_DELAY_SECONDS = 0.3
"""Delay after the first table's creation, or after the start of a server with tables, so that it is answered first."""


def parse_sets(texts: Sequence[str]) -> dict[str, str]:
    """Return `name=value` texts as a mapping. Raises ConfigError for a text of another form."""
    values = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"--set {text!r} is not of the form name=value")
        values[name.strip()] = value.strip()
    return values


def address_of(listen: str | None, config: BrokerConfig) -> tuple[str, int]:
    """Return the address to listen on. Raises ConfigError if both `listen` and the configuration name one."""
    if listen is not None and config["listeners"] is not None:
        raise ConfigError("--listen and the configuration listeners both set the address: leave one out")
    return parse_listener(listen or DEFAULT_SERVER)


def tell_unused(config: BrokerConfig, file: Path | None) -> None:
    """Tell the user about configurations of the file that have no effect."""
    if config.unused:
        listed = "".join(f"\n  {each}" for each in config.unused)
        typer.echo(f"{file}: {len(config.unused)} configurations are not used:{listed}", err=True)


async def coordinated_store(coordinator: socket.socket, clock: SystemClock) -> CoordinatedStore:
    """Return the open store of one of several processes, which ends when their supervisor has ended."""
    store = CoordinatedStore(coordinator, clock=clock, on_lost=lambda: os._exit(1))
    await store.open()
    return store


def raise_open_files_limit() -> None:
    """Raise the limit of open files to the hard limit: each bucket and each log keeps some files open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        # macOS reports its limit as unlimited and refuses it; the present limit then stays.
        logging.getLogger("headrace").info("the limit on open files is unchanged")


def serve(
    listen: str | None,
    data: Path,
    sets: Mapping[str, str],
    config_file: Path | None,
    *,
    zookeeper: str | None = None,
    metrics: str | None,
    log_format: LogFormat = LogFormat.TEXT,
    verbose: bool,
    started: float,
    coordinator: socket.socket | None = None,
) -> None:
    """Run the server until SIGTERM or SIGINT. Raises ConfigError if it cannot start.

    `zookeeper`: the configuration zookeeper.connect. `metrics`: address of `GET /metrics`, `/healthz` and `/readyz`,
    host:port. `started`: `perf_counter()` when the process began, for the ready line. `coordinator`: this process's end
    of the pair, if it is one of several (`supervisor.py`).
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    keep_kernels((data if coordinator is None else data.parent).absolute() / FOLDER)
    leave_pandas_out()
    leave_numbas_extras_out()
    raise_open_files_limit()
    keep_freed_memory()
    metrics_at = None if metrics is None else parse_listener(metrics)
    extension = TableExtension()
    if zookeeper is not None:
        if sets.get("zookeeper.connect", zookeeper) != zookeeper:
            raise ConfigError("--zookeeper and --set zookeeper.connect have different values: leave one out")
        sets = {**sets, "zookeeper.connect": zookeeper}
    config = BrokerConfig.load(sets, config_file, extension.broker_configs())
    if coordinator is None:  # the supervisor of several processes has told it
        tell_unused(config, config_file)
    host, port = address_of(listen, config)
    log = ServerLog(log_format, verbose=verbose, broker=None if coordinator is None else config["node.id"])
    broker_made = False

    async def run() -> None:
        nonlocal broker_made
        clock = SystemClock()
        known = read_properties(SystemDisk(), data)
        broker = Broker(
            config,
            data_dir=data,
            host=host,
            port=port,
            extensions=[extension],
            clock=clock,
            store=await (
                # a member's cluster already exists, or is at another address
                configured_store(config, clock, makes_path=known is None)
                if coordinator is None
                else coordinated_store(coordinator, clock)
            ),
            measured=metrics is not None,
        )
        broker_made = True
        await _run(broker, extension, data, metrics_at, log, started)

    try:
        run_server(run())
    except ConfigError:
        raise
    except BaseException:
        if broker_made:
            logging.getLogger("headrace").critical("the server stops after an error", exc_info=True)
        raise
    finally:
        logging.shutdown()
        signal.signal(signal.SIGHUP, before)


async def _run(
    broker: Broker,
    extension: TableExtension,
    data: Path,
    metrics_at: tuple[str, int] | None,
    log: ServerLog,
    started: float,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    supervisor = Supervisor()
    health, endpoint = _serve_metrics(broker, metrics_at)
    try:
        await broker.start()
    except BaseException:
        if endpoint is not None:
            endpoint.close()
        raise
    log.write_into(data)
    health.stage = Stage.READY
    told = [
        f"{name} {host}:{port}"
        for name, each in broker.listeners.items()
        for host, port in [broker.context.identity.advertised(name)]
        if (host, port) != (each.host, each.port)
    ]
    advertised = f", advertised {', '.join(told)}" if told else ""
    seconds = perf_counter() - started
    broker_id = broker.context.identity.broker_id
    measured = (
        ""
        if endpoint is None
        else f", metrics on {endpoint.scheme}://{endpoint.host}:{endpoint.port}/metrics"
    )
    ready = (
        f"headrace is ready on {broker.host}:{broker.port} "
        f"(data {data}, broker id {broker_id}{advertised}{measured}) in {seconds:.1f} s\n"
    )
    say(ready)
    supervisor.ready(ready.strip())
    loop.add_signal_handler(signal.SIGHUP, _reload, broker, log, supervisor, ready.strip())
    if any(SCHEMA_CONFIG in topic.config for topic in broker.context.metadata.topics()):
        loop.call_later(_WARM_DELAY_SECONDS, _start_warming)
    else:  # a broker without tables does not need the compiler's memory
        extension.on_first_table = lambda: loop.call_later(_WARM_DELAY_SECONDS, _start_warming)
        threading.Thread(target=import_module, args=("numpy",), name="numpy", daemon=True).start()
    beside = [asyncio.ensure_future(log.lines.run()), asyncio.ensure_future(supervisor.keep_alive())]
    running = asyncio.ensure_future(broker.run_forever())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    supervisor.stopping()
    health.stage = Stage.STOPPING
    await broker.stop()
    await running
    if endpoint is not None:
        await loop.run_in_executor(None, endpoint.close)
    for each in beside:
        each.cancel()
    log.lines.sum_up(whole=True)


_reloads: set[asyncio.Task[None]] = set()


def _reload(broker: Broker, log: ServerLog, supervisor: Supervisor, status: str) -> None:
    """Handle SIGHUP: reopen the log file and reload certificates."""

    async def reload() -> None:
        supervisor.reloading()
        log.reopen()
        logging.getLogger("headrace.server").info("SIGHUP: reopened the log file")
        try:
            await broker.reload_certificates()
        except Exception:
            logging.getLogger("headrace.server").exception("the certificates are not read again")
        supervisor.ready(status)

    task = asyncio.get_running_loop().create_task(reload())
    _reloads.add(task)
    task.add_done_callback(_reloads.discard)


def say(line: str) -> None:
    """Write a line to standard output; a server whose output is closed or full serves all the same."""
    try:
        sys.stdout.write(line)
        sys.stdout.flush()
    except OSError as error:
        logging.getLogger("headrace").warning("standard output cannot be written: %s", error.strerror)
        silence()


def _serve_metrics(broker: Broker, at: tuple[str, int] | None) -> tuple[Health, MetricsEndpoint | None]:
    """Listen before the broker starts, so that probes learn that it is starting. Raises ConfigError."""
    health = Health(asyncio.get_running_loop())
    if at is None:
        return health, None
    from headrace.broker.metrics.access import Access
    from headrace.broker.metrics.endpoint import (
        MetricsEndpoint,
    )  # prometheus_client is imported only if metrics are on

    return health, MetricsEndpoint(broker.metrics, *at, Access.configured(broker.config), health)


def _start_warming() -> None:
    threading.Thread(target=_warm, name="warm-up", daemon=True).start()


def _warm() -> None:
    """Load the compiled kernels in the background, so that the first table write does not wait for them."""
    from headrace.tablelayer.cli.warm import warm_up

    try:
        for _ in warm_up():
            pass
    except Exception:
        logging.getLogger("headrace").exception(
            "warming up failed; the kernels will be compiled when first used"
        )
