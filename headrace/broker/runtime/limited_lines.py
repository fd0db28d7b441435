"""The log as far as others can have it written: so many lines of a kind a minute, the rest is counted.

Whoever can cause a line by a packet could fill a disk, and hide among thousands what somebody has to see. So of each
kind LINES_MAX lines pass in a window; those beyond it are left out, and a line says how many when it is over. Of which
kind a line is, says its record (`extra={"kind": ...}`), or the place that it was written at: nobody has to think of it.
Lines below WARNING pass unless they name a kind, and those below INFO always: who asks for them wants to see them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

LINES_MAX: Final = 20
"""Of a kind in a window: enough to see who it is. A dozen kinds at once are four lines a second."""
WINDOW_SECONDS: Final = 60.0
TEXT_LENGTH_MAX: Final = 4000
"""Of a line: names that clients give are in it."""


class _Window:
    __slots__ = ("ends", "left_out", "level", "lines", "logger")

    def __init__(self, ends: float) -> None:
        self.ends = ends
        self.lines = 0
        self.left_out = 0
        self.level = logging.NOTSET
        self.logger = ""


class LimitedLines(logging.Handler):
    """Hands on to `targets` what may pass. From any thread."""

    def __init__(
        self,
        targets: Sequence[logging.Handler],
        now: Callable[[], float],
        *,
        lines_max: int = LINES_MAX,
        window_seconds: float = WINDOW_SECONDS,
    ) -> None:
        """`now` in seconds."""
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
        """Tell what was left out in windows that are over; `whole`: in all, which are over then."""
        self.acquire()
        try:
            now = self._now()
            for kind, window in list(self._windows.items()):
                if whole or now >= window.ends:
                    self._end(kind, window)
        finally:
            self.release()

    async def run(self) -> None:
        """Do that again and again, until cancelled."""
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
