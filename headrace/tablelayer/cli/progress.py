"""Progress line on the terminal during long reads and writes: rows and speed. Nothing in a pipe."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from headrace.tablelayer.client import stopping
from headrace.tablelayer.client.progress import QUIET_SECONDS, STEP_SECONDS, progress_text

if TYPE_CHECKING:
    from headrace.tablelayer.client import Connection
    from headrace.tablelayer.sql.session import Session


@contextmanager
def showing(connection: Connection, session: Session) -> Iterator[None]:
    """Show on the terminal's stderr the number of rows written, or until then read, while the block runs.

    The line is removed afterwards.
    """
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    stop = stopping.current()
    release = None if stop is None else stop.add(ended.set)
    shower = threading.Thread(target=_show, args=(connection, session, ended), name="progress", daemon=True)
    shower.start()
    try:
        yield
    finally:
        if release is not None:
            release()
        ended.set()
        shower.join()


def _show(connection: Connection, session: Session, ended: threading.Event) -> None:
    began, before = perf_counter(), connection.metrics().rows_scanned
    if ended.wait(QUIET_SECONDS):
        return
    while not ended.wait(STEP_SECONDS):
        seconds, written = perf_counter() - began, session.written_count
        if written:
            text = progress_text(written, seconds, "written")
        else:
            text = progress_text(connection.metrics().rows_scanned - before, seconds)
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()
