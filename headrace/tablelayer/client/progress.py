"""Progress of long calls: its text, and a bar below the cell of a notebook.

The bar needs no widgets. It is shown when a call has taken `QUIET_SECONDS`, and removed when the call ends.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from html import escape
from time import perf_counter
from typing import Any, Final

QUIET_SECONDS: Final = 0.8
"""Shorter calls show nothing."""
STEP_SECONDS: Final = 0.2

Counts = Callable[[], tuple[int, int]]
"""Returns the numbers of rows that a connection has written and read."""
_is_watched: ContextVar[bool] = ContextVar("a bar shows the work that runs", default=False)


def progress_text(rows: int, seconds: float, verb: str = "read") -> str:
    """Return the text of the line."""
    speed = f", {rows / seconds:,.0f}/s" if rows and seconds > 0 else ""
    return f"{rows:,} rows {verb}{speed}, {seconds:.0f} s"


def is_notebook() -> bool:
    """Return whether this thread runs a cell of a notebook."""
    python = sys.modules.get("IPython")
    if python is None or threading.current_thread() is not threading.main_thread():
        return False
    return hasattr(python.get_ipython(), "kernel")


class Bar:
    """The bar of one call. `total`: number of rows that the call writes, if it is known."""

    def __init__(self, counts: Counts, total: int | None = None) -> None:
        self._counts = counts
        self._total = total
        self._began = perf_counter()
        self._before = counts()
        self._handle: Any = None

    def show(self) -> None:
        """Show the present numbers."""
        written, read = (now - before for now, before in zip(self._counts(), self._before, strict=True))
        seconds = perf_counter() - self._began
        rows, verb = (written, "written") if written or self._total is not None else (read, "read")
        text = progress_text(rows, seconds, verb)
        known = f' max="{self._total}" value="{min(rows, self._total)}"' if self._total else ""
        self._draw(text, f"<progress{known}></progress> {escape(text)}")

    def remove(self) -> None:
        if self._handle is not None:
            self._draw("", "")

    def _draw(self, text: str, html: str) -> None:
        from IPython.display import display

        bundle = {"text/plain": text, "text/html": html}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def bar_of_call(counts: Counts | None, total: int | None) -> Bar | None:
    """Return the bar of a call; None outside of notebooks, and for a part of work that has one."""
    return None if counts is None or _is_watched.get() or not is_notebook() else Bar(counts, total)


@contextmanager
def watched(counts: Counts) -> Iterator[None]:
    """Show one bar in a notebook while the block runs, which may be many calls in several threads."""
    bar = bar_of_call(counts, None)
    if bar is None:
        yield
        return
    ended = threading.Event()
    context = copy_context()  # a kernel finds the cell there
    shower = threading.Thread(target=context.run, args=(_show, bar, ended), name="progress", daemon=True)
    shower.start()
    token = _is_watched.set(True)
    try:
        yield
    finally:
        _is_watched.reset(token)
        ended.set()
        shower.join()


def _show(bar: Bar, ended: threading.Event) -> None:
    if ended.wait(QUIET_SECONDS):
        return
    bar.show()
    while not ended.wait(STEP_SECONDS):
        bar.show()
    bar.remove()
