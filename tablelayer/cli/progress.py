"""A line on the terminal while something long is read: how many rows have come, and how fast. Nothing in a pipe."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tablelayer.client import Connection

_QUIET_SECONDS = 0.8
"""Shorter waits need no words."""
_STEP_SECONDS = 0.2


def progress_text(rows: int, seconds: float) -> str:
    """What is shown."""
    speed = f", {rows / seconds:,.0f}/s" if rows and seconds > 0 else ""
    return f"{rows:,} rows read{speed}, {seconds:.0f} s"


@contextmanager
def reading(connection: Connection) -> Iterator[None]:
    """Show progress on the terminal's stderr while the block runs; the line is gone afterwards."""
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    shower = threading.Thread(target=_show, args=(connection, ended), name="progress", daemon=True)
    shower.start()
    try:
        yield
    finally:
        ended.set()
        shower.join()


def _show(connection: Connection, ended: threading.Event) -> None:
    began, before = perf_counter(), connection.metrics().rows_scanned
    if ended.wait(_QUIET_SECONDS):
        return
    while not ended.wait(_STEP_SECONDS):
        text = progress_text(connection.metrics().rows_scanned - before, perf_counter() - began)
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()
