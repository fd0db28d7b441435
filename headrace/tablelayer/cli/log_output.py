"""Output of the server's log: stderr, and a file that is rotated or reopened.

`TEXT` is one line per record, with a traceback below it. `JSON` is one object per line with `time` (UTC, RFC 3339),
`level`, `logger`, `message`, `thread`, and optionally `exception`. In JSON, line breaks from other sources cannot break
a line. A process among several of one server names its `broker`, since they share stderr.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Final

import msgspec

from headrace.broker.runtime.disk_errors import SECONDS_BETWEEN_LINES
from headrace.broker.runtime.limited_lines import LimitedLines
from headrace.tablelayer.cli.options import LogFormat

LOG_FILE: Final = "headrace.log"
_LOG_SIZE: Final = 10 << 20
_LOG_FILES: Final = 5
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TEXT_OF_BROKER: Final = "%(asctime)s %(levelname)s broker {broker} %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def __init__(self, broker: int | None) -> None:
        super().__init__()
        self._broker = {} if broker is None else {"broker": broker}

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(
            self._broker
            | {
                name: text.encode("utf-8", "replace").decode()
                for name, text in fields.items()
                if text is not None
            }
        ).decode()


def _formatter(form: LogFormat, broker: int | None) -> logging.Formatter:
    if form is LogFormat.JSON:
        return JsonFormatter(broker)
    return logging.Formatter(_TEXT if broker is None else _TEXT_OF_BROKER.format(broker=broker))


class LogFile(logging.handlers.RotatingFileHandler):
    """Log file. When the disk is full, lines are left out of the file, and stderr is told once a minute."""

    _told_at = -SECONDS_BETWEEN_LINES

    def reopen(self) -> None:
        """Open the file again at the next line, after it was moved away (logrotate)."""
        self.acquire()
        try:
            stream, self.stream = self.stream, None  # the next line opens it again
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        finally:
            self.release()

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


class ServerLog:
    """Log of a server's process: lines wait in memory until the data directory is its own."""

    def __init__(self, form: LogFormat, *, verbose: bool, broker: int | None = None) -> None:
        """`broker`: the id of this process among several of one server."""
        self._formatter = _formatter(form, broker)
        console = logging.StreamHandler(sys.stderr)
        console.setLevel(logging.INFO if verbose else logging.WARNING)
        console.setFormatter(self._formatter)
        self._held = logging.handlers.MemoryHandler(
            100_000, flushLevel=logging.CRITICAL + 1, flushOnClose=False
        )
        self._file: LogFile | None = None
        root = logging.getLogger()
        root.setLevel(logging.WARNING)
        logging.getLogger("headrace").setLevel(logging.INFO)
        self.lines = LimitedLines([console, self._held], monotonic)
        root.handlers[:] = [self.lines]

    def write_into(self, folder: Path) -> None:
        """Write all further lines, and the held ones, to the folder's file."""
        try:
            self._file = file = LogFile(
                folder / LOG_FILE, maxBytes=_LOG_SIZE, backupCount=_LOG_FILES, encoding="utf-8"
            )
        except OSError as error:
            logging.getLogger("headrace").warning("the log file cannot be written: %s", error)
            self.lines.targets.remove(self._held)
            return
        file.setFormatter(self._formatter)
        self._held.setTarget(file)
        self._held.flush()
        self.lines.targets.remove(self._held)
        self.lines.targets.append(file)

    def reopen(self) -> None:
        """Reopen the file, which may have been moved."""
        if self._file is not None:
            self._file.reopen()
