"""Limit the log lines that clients can cause: at most N lines of a kind a minute; further lines are counted.

A client that causes one line with each packet could fill a disk and hide important lines among thousands of others. So
at most LINES_MAX lines of each kind pass in a window. Further lines are left out, and a line gives their number when
the window is over. The kind of a line is named by its record (`extra={"kind": ...}`); without one it is the place in
the code that wrote it. Lines below WARNING pass unless they name a kind. Lines below INFO always pass: they appear only
if they were asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

LINES_MAX: Final = 20
"""Number of lines of a kind in a window. It is enough to see the cause; a dozen kinds at once are four lines a
second.
"""
WINDOW_SECONDS: Final = 60.0
TEXT_LENGTH_MAX: Final = 4000
"""Maximum number of characters of a line, which may contain names that clients choose."""


class _Window:
    __slots__ = ("ends", "left_out", "level", "lines", "logger")

    def __init__(self, ends: float) -> None:
        self.ends = ends
        self.lines = 0
        self.left_out = 0
        self.level = logging.NOTSET
        self.logger = ""


class LimitedLines(logging.Handler):
    """A handler that passes lines on to `targets` within the limits. Any thread may use it."""

    def __init__(
        self,
        targets: Sequence[logging.Handler],
        now: Callable[[], float],
        *,
        lines_max: int = LINES_MAX,
        window_seconds: float = WINDOW_SECONDS,
    ) -> None:
        """`now` returns seconds."""
        super().__init__()
        self.targets = list(targets)
        self._now = now
        self._lines_max = lines_max
        self._window_seconds = window_seconds
        self._windows: dict[str, _Window] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if self._passes(record):
            self._hand_on(record)

    def sum_up(self, *, whole: bool = False) -> None:
        """Log how many lines were left out in the windows that are over; with `whole`, end all windows and log those of
        each.
        """
        self.acquire()
        try:
            now = self._now()
            for kind, window in list(self._windows.items()):
                if whole or now >= window.ends:
                    self._end(kind, window)
        finally:
            self.release()

    async def run(self) -> None:
        """Call `sum_up` repeatedly until cancelled."""
        while True:
            await asyncio.sleep(self._window_seconds / 4)
            self.sum_up()

    def close(self) -> None:
        self.sum_up(whole=True)
        super().close()

    def _passes(self, record: logging.LogRecord) -> bool:
        kind: str | None = getattr(record, "kind", None)
        if record.levelno < logging.INFO or (kind is None and record.levelno < logging.WARNING):
            return True
        kind = f"{record.filename}:{record.lineno}" if kind is None else str(kind)
        now = self._now()
        window = self._windows.get(kind)
        if window is not None and now >= window.ends:
            self._end(kind, window)
            window = None
        if window is None:
            window = self._windows[kind] = _Window(now + self._window_seconds)
        if window.lines < self._lines_max:
            window.lines += 1
            return True
        window.left_out += 1
        window.level = max(window.level, record.levelno)
        window.logger = record.name
        return False

    def _end(self, kind: str, window: _Window) -> None:
        del self._windows[kind]
        if window.left_out:
            text = "%d more lines of this kind (%s) were left out: there were %d in %g s"
            arguments = (window.left_out, kind, window.lines + window.left_out, self._window_seconds)
            self._hand_on(logging.LogRecord(window.logger, window.level, __file__, 0, text, arguments, None))

    def _hand_on(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if len(text) > TEXT_LENGTH_MAX:
            record.msg, record.args = text[:TEXT_LENGTH_MAX] + "...", None
        for target in self.targets:
            if record.levelno >= target.level:
                target.handle(record)
