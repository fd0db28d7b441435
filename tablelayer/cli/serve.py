"""`headrace serve`: the broker with tables in this process, until a signal.

Logging: warnings and errors on stderr (`-v`: information too); everything from information up also in
DIR/headrace.log, which is rotated at 10 MB, five files kept. Of what others can have written, so many lines a minute
of each kind are (`broker/limited_lines.py`). What is logged before the data directory is ours
is kept in memory until then, so that nothing is written into a directory that another process uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import logging.handlers
import resource
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from broker.cluster.stores.configured import configured_store
from broker.config import BrokerConfig
from broker.config_key import ConfigError
from broker.disk_errors import SECONDS_BETWEEN_LINES
from broker.limited_lines import LimitedLines
from broker.listeners import parse_listener
from broker.malloc import keep_freed_memory
from broker.net.poller import run_server
from broker.ports import SystemClock
from broker.server import Broker
from tablelayer.cli.options import DEFAULT_SERVER
from tablelayer.cli.process import leave_pandas_out
from tablelayer.cli.streams import silence
from tablelayer.model.table.definition import SCHEMA_CONFIG
from tablelayer.server.extension import TableExtension

if TYPE_CHECKING:
    from broker.metrics.endpoint import MetricsEndpoint

LOG_FILE = "headrace.log"
_LOG_SIZE = 10 << 20
_LOG_FILES = 5
_WARM_DELAY_SECONDS = 0.3
"""After the first table was made: whoever made it has the answer by then."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogFile(logging.handlers.RotatingFileHandler):
    """Without room for it, lines are left out of the file; stderr is told once a minute. With room it goes on."""

    _told_at = -SECONDS_BETWEEN_LINES

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif monotonic() - self._told_at >= SECONDS_BETWEEN_LINES:
            self._told_at = monotonic()
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"{LOG_FILE} cannot be written: {error.strerror}\n")

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self.handleError(logging.makeLogRecord({}))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


def parse_sets(texts: Sequence[str]) -> dict[str, str]:
    """`name=value` texts as a mapping. Raises ConfigError for one that is not of that form."""
    values = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"--set {text!r} is not of the form name=value")
        values[name.strip()] = value.strip()
    return values


def address_of(listen: str | None, config: BrokerConfig) -> tuple[str, int]:
    """Where to listen if the configuration does not say it. Raises ConfigError when it does too."""
    if listen is not None and config["listeners"] is not None:
        raise ConfigError("--listen and the configuration listeners both say where to listen: leave one out")
    return parse_listener(listen or DEFAULT_SERVER)


def raise_open_files_limit() -> None:
    """Ask for as many open files as the system lets us: each bucket and each log keeps some open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        # macOS calls its limit unlimited and refuses it; what there is has to do then.
        logging.getLogger("headrace").info("the limit on open files stays as it is")


def serve(
    listen: str | None,
    data: Path,
    sets: Mapping[str, str],
    config_file: Path | None,
    *,
    zookeeper: str | None = None,
    metrics: str | None,
    verbose: bool,
    started: float,
) -> None:
    """Run the server until SIGTERM or SIGINT. Raises ConfigError if it cannot start.

    `zookeeper`: the configuration zookeeper.connect.

    `metrics`: where `GET /metrics` is answered, host:port.

    `started`: `perf_counter()` when the process began, for the ready line.
    """
    leave_pandas_out()
    raise_open_files_limit()
    keep_freed_memory()
    metrics_at = None if metrics is None else parse_listener(metrics)
    extension = TableExtension()
    if zookeeper is not None:
        if sets.get("zookeeper.connect", zookeeper) != zookeeper:
            raise ConfigError("--zookeeper and --set zookeeper.connect say different things: leave one out")
        sets = {**sets, "zookeeper.connect": zookeeper}
    config = BrokerConfig.load(sets, config_file, extension.broker_configs())
    host, port = address_of(listen, config)
    lines, held = _set_up_logging(verbose)
    broker_made = False

    async def run() -> None:
        nonlocal broker_made
        clock = SystemClock()
        broker = Broker(
            config,
            data_dir=data,
            host=host,
            port=port,
            extensions=[extension],
            clock=clock,
            store=await configured_store(config, clock),
            measured=metrics is not None,
        )
        broker_made = True
        await _run(broker, extension, data, metrics_at, lines, held, started)

    try:
        run_server(run())
    except ConfigError:
        raise
    except BaseException:
        if broker_made:
            logging.getLogger("headrace").critical("the server stops", exc_info=True)
        raise
    finally:
        logging.shutdown()


async def _run(
    broker: Broker,
    extension: TableExtension,
    data: Path,
    metrics_at: tuple[str, int] | None,
    lines: LimitedLines,
    held: logging.handlers.MemoryHandler,
    started: float,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await broker.start()
    if broker.has_certificates:
        reloads: set[asyncio.Task[None]] = set()

        def reload() -> None:
            task = loop.create_task(broker.reload_certificates())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        loop.add_signal_handler(signal.SIGHUP, reload)
    _write_log_file(data, lines, held)
    endpoint = await _serve_metrics(broker, metrics_at)
    seconds = perf_counter() - started
    broker_id = broker.context.identity.broker_id
    measured = (
        ""
        if endpoint is None
        else f", metrics on {endpoint.scheme}://{endpoint.host}:{endpoint.port}/metrics"
    )
    _say(
        f"headrace is ready on {broker.host}:{broker.port} "
        f"(data {data}, broker id {broker_id}{measured}) in {seconds:.1f} s\n"
    )
    if any(SCHEMA_CONFIG in topic.config for topic in broker.context.metadata.topics()):
        _start_warming()
    else:  # a broker without tables does without the compiler's memory
        loop = asyncio.get_running_loop()
        extension.on_first_table = lambda: loop.call_later(_WARM_DELAY_SECONDS, _start_warming)
    summing_up = asyncio.ensure_future(lines.run())
    running = asyncio.ensure_future(broker.run_forever())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if endpoint is not None:
        await loop.run_in_executor(None, endpoint.close)
    await broker.stop()
    await running
    summing_up.cancel()
    lines.sum_up(whole=True)


def _say(line: str) -> None:
    """To standard output; a server whose output is closed or full serves all the same."""
    try:
        sys.stdout.write(line)
        sys.stdout.flush()
    except OSError as error:
        logging.getLogger("headrace").warning("standard output cannot be written: %s", error.strerror)
        silence()


async def _serve_metrics(broker: Broker, at: tuple[str, int] | None) -> MetricsEndpoint | None:
    if at is None:
        return None
    from broker.metrics.access import Access
    from broker.metrics.endpoint import MetricsEndpoint  # prometheus_client: only for those who ask

    try:
        return MetricsEndpoint(broker.context.metrics, *at, Access.configured(broker.config))
    except BaseException:
        await broker.stop()
        raise


def _set_up_logging(verbose: bool) -> tuple[LimitedLines, logging.handlers.MemoryHandler]:
    formatter = logging.Formatter(_FORMAT)
    console = logging.StreamHandler(sys.stderr)
    console.setLevel(logging.INFO if verbose else logging.WARNING)
    console.setFormatter(formatter)
    held = logging.handlers.MemoryHandler(100_000, flushLevel=logging.CRITICAL + 1, flushOnClose=False)
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    logging.getLogger("headrace").setLevel(logging.INFO)
    lines = LimitedLines([console, held], monotonic)
    root.handlers[:] = [lines]
    return lines, held


def _write_log_file(data: Path, lines: LimitedLines, held: logging.handlers.MemoryHandler) -> None:
    try:
        file = LogFile(data / LOG_FILE, maxBytes=_LOG_SIZE, backupCount=_LOG_FILES, encoding="utf-8")
    except OSError as error:
        logging.getLogger("headrace").warning("no log file can be written: %s", error)
        lines.targets.remove(held)
        return
    file.setFormatter(logging.Formatter(_FORMAT))
    held.setTarget(file)
    held.flush()
    lines.targets.remove(held)
    lines.targets.append(file)


def _start_warming() -> None:
    threading.Thread(target=_warm, name="warm-up", daemon=True).start()


def _warm() -> None:
    """Load the compiled kernels while nobody waits for them: the first table write then does not."""
    from tablelayer.cli.warm import warm_up

    try:
        for _ in warm_up():
            pass
    except Exception:
        logging.getLogger("headrace").exception(
            "warming up failed; the kernels will be compiled when first used"
        )
