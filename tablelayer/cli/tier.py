"""`headrace tier`: the tiering job, with its reports on standard output."""

from __future__ import annotations

import gc
import signal
from collections.abc import Sequence

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
    from tablelayer.cli.errors import CommandError

    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise CommandError("tiering needs PySpark: pip install 'headrace[spark]'") from None
    from tablelayer.cli.connect import settings_of
    from tablelayer.lake.tiering_job import run_tiering

    gc.enable()  # it goes on for days
    # Ended by a signal, the job gives its round back: nobody has to wait for its lease to run out.
    signal.signal(signal.SIGTERM, _interrupt)
    code = run_tiering(
        settings_of(server),
        tables=tables,
        topics=topics,
        once=once,
        interval_s=interval_s,
        warehouse=warehouse,
        report=lambda line: typer.echo(line),
    )
    if code:
        raise typer.Exit(code)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
