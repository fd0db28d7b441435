"""`headrace tier`: the tiering job, with its reports on standard output."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import typer

APPLICATION: Final = Path(__file__).with_name("tier_application.py")
"""The application for `spark-submit`, which takes the words of `headrace tier`."""


def run(
    server: str,
    tables: Sequence[str],
    topics: Sequence[str],
    *,
    databases: Sequence[str],
    once: bool,
    interval_s: float,
    warehouse: str | None,
    spark: Mapping[str, Any],
    parallelism: int,
    maintenance: str | None,
) -> None:
    """Run the job; a non-zero result becomes the exit code. `spark` are the fields of `SparkOptions`."""
    from headrace.tablelayer.cli.errors import CommandError

    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise CommandError("tiering needs PySpark: pip install 'headrace[spark]'") from None
    from headrace.tablelayer.cli.connect import settings_of
    from headrace.tablelayer.lake.tiering_job import run_tiering
    from headrace.tablelayer.lake.tiering_options import DailyWindow, SparkOptions

    try:
        window = None if maintenance is None else DailyWindow.parse(maintenance)
    except ValueError as error:
        raise CommandError(f"--maintenance: {error}") from None

    gc.enable()  # the job runs for days
    # When a signal ends the job, it releases its round, so that other tiering jobs need not wait for the lease to
    # expire.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _interrupt)
    try:
        code = run_tiering(
            settings_of(server),
            tables=tables,
            topics=topics,
            databases=databases,
            once=once,
            interval_s=interval_s,
            warehouse=warehouse,
            report=lambda line: typer.echo(line),
            spark=SparkOptions(**spark),
            parallelism=parallelism,
            maintenance=window,
        )
    except BaseException as error:
        if not _signals:
            raise
        # The error of a call into a terminating JVM has no information.
        typer.echo("ended by a signal", err=not isinstance(error, KeyboardInterrupt))
        _leave()
    if code:
        raise typer.Exit(code)


_GRACE_SECONDS = 10.0
"""Maximum time in seconds to release a round, which is one request, before the process ends."""
_signals: list[int] = []
"""The signals that asked this process to end."""


def _interrupt(number: int, _frame: object) -> None:
    """End the job where it is; a second signal, or a job that does not end, ends the process."""
    _signals.append(number)
    if len(_signals) > 1:
        _leave()
    # py4j would log the interrupted call into the JVM with its traceback, which has no information.
    logging.disable(logging.CRITICAL)
    last = threading.Timer(_GRACE_SECONDS, _leave)
    last.daemon = True
    last.start()
    raise KeyboardInterrupt


def _leave() -> NoReturn:
    """End this process and its JVM, which would otherwise first finish its tasks."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    virtual_machine = getattr(gateway, "proc", None)
    if virtual_machine is not None:
        virtual_machine.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(128 + _signals[0])
