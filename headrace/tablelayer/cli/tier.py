"""`headrace tier`: the tiering job, with its reports on standard output."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

import typer


def run(
    server: str,
    tables: Sequence[str],
    topics: Sequence[str],
    *,
    once: bool,
    interval_s: float,
    warehouse: str | None,
) -> None:
    """Run the job; a non-zero result becomes the exit code."""
    from headrace.tablelayer.cli.errors import CommandError

    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise CommandError("tiering needs PySpark: pip install 'headrace[spark]'") from None
    from headrace.tablelayer.cli.connect import settings_of
    from headrace.tablelayer.lake.tiering_job import run_tiering

    gc.enable()  # it goes on for days
    # Ended by a signal, the job gives its round back: nobody has to wait for its lease to run out.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = run_tiering(
            settings_of(server),
            tables=tables,
            topics=topics,
            once=once,
            interval_s=interval_s,
            warehouse=warehouse,
            report=lambda line: typer.echo(line),
        )
    except BaseException as error:
        if not _asked_to_end.is_set():
            raise
        # What a call into a JVM that is being ended raises has nothing to tell.
        typer.echo("ended by a signal", err=not isinstance(error, KeyboardInterrupt))
        _leave()
    if code:
        raise typer.Exit(code)


_GRACE_SECONDS = 10.0
"""To give a round back, which is one request. Whoever waits for the job waits no longer than this."""
_ENDED_BY_SIGTERM = 128 + signal.SIGTERM
_asked_to_end = threading.Event()


def _interrupt(_number: int, _frame: object) -> None:
    """The job ends where it is; a second signal, or a job that does not end, ends the process."""
    if _asked_to_end.is_set():
        _leave()
    _asked_to_end.set()
    # A call into the JVM that is cut off is logged by py4j with its traceback, which has nothing to tell.
    logging.disable(logging.CRITICAL)
    last = threading.Timer(_GRACE_SECONDS, _leave)
    last.daemon = True
    last.start()
    raise KeyboardInterrupt


def _leave() -> NoReturn:
    """End this process and its JVM, which would go on with its tasks first, and its clients with asking it."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    virtual_machine = getattr(gateway, "proc", None)
    if virtual_machine is not None:
        virtual_machine.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_ENDED_BY_SIGTERM)
