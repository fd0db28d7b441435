"""The audit log: a line of JSON for each refusal, and on request for each change, for operators.

{"time": "2026-03-01T12:00:00.123Z", "principal": "User:ann", "host": "10.0.0.7", "listener": "EXTERNAL",
 "mechanism": "SCRAM-SHA-512", "client_id": "app", "api": "Produce", "operation": "WRITE",
 "resource_type": "TOPIC", "resource": "orders", "allowed": false}

There is one line for each resource of a request that was refused. Resources that are only left out of a listing, and
rights that a client only asks about, are not logged. The lines contain only the names among the data that clients send.

Refusals are cheap for a client, so the number of its lines is bounded: LINES_MAX lines a minute of a principal from one
host, and ALL_LINES_MAX in total. Further ones are counted, and a line gives their number when the minute is over:
`{"time": ..., "principal": "User:ann", "host": "10.0.0.7", "left_out": 4711}`, without a principal if the total was
exceeded. Allowed changes are always written.

The event loop hands over the fields. A thread makes lines of them and writes them to a file that is rotated by size, or
to the logger `headrace.audit`. When the thread is behind by QUEUED_MAX lines, further lines are counted and dropped,
and a line gives their number: `{"dropped": 17}`.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from logging.handlers import QueueListener, RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from headrace.broker.security.rights import Operation, ResourceType

if TYPE_CHECKING:
    from headrace.broker.security.principal import Session

LOGGER: Final = "headrace.audit"
QUEUED_MAX: Final = 10_000
"""Maximum number of lines that wait for the disk: 3 MB."""
LINES_MAX: Final = 100
"""Maximum number of refusals of a principal from one host that are written in a minute. A wrongly configured client is
refused a few times.
"""
ALL_LINES_MAX: Final = 2000
"""Maximum number of refusals that are written in a minute: 600 kB. The files of the defaults, 110 MB, hold three hours
of it.
"""
_MINUTE_MS: Final = 60_000
_LOOK_SECONDS: Final = 15.0
_TEXT_LENGTH_MAX: Final = 1000  # for names that clients choose: longer ones are cut
_ADMINISTRATIVE: Final = frozenset(
    {
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.ALTER_CONFIGS,
        Operation.CREATE_TOKENS,
    }
)


class Asked(Protocol):
    """The facts about a request (`broker.requests.declaration.RequestContext`)."""

    api_key: int
    client_id: str | None
    client_host: str
    listener: str
    session: Session


class AuditLog:
    """The audit log of a broker. `time_ms` is the wall clock. Without a file the lines go to the logger. `names` are
    those of APIs by key.
    """

    def __init__(
        self,
        time_ms: Callable[[], int],
        file: Path | None = None,
        *,
        bytes_max: int = 10 << 20,
        files: int = 10,
        with_administration: bool = False,
    ) -> None:
        """Raises OSError when the file cannot be opened."""
        self.names: Mapping[int, str] = {}
        self._time_ms = time_ms
        self._with_administration = with_administration
        self._dropped = 0
        self._minute = 0
        self._written: Counter[tuple[str, str]] = Counter()
        """Refusals in that minute, by principal and host."""
        self._written_count = 0
        self._left_out: Counter[tuple[str, str] | None] = Counter()
        self._queue: queue.Queue[Any] = queue.Queue(QUEUED_MAX)
        self._handler: logging.Handler = (
            _ToLogger()
            if file is None
            else RotatingFileHandler(file, maxBytes=bytes_max, backupCount=files, encoding="utf-8")
        )
        self._listener = _Listener(self._queue, self._handler)

    def start(self) -> None:
        self._listener.start()

    def close(self) -> None:
        """Write the waiting lines. Blocks until the thread is done."""
        self._end_minute()
        self._listener.stop()
        self._handler.close()

    async def run(self) -> None:
        """Report at the end of each minute how many lines were left out, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._time_ms() // _MINUTE_MS != self._minute:
                self._end_minute()

    def note(
        self, asked: Asked, operation: Operation, resource_type: ResourceType, name: str, *, allowed: bool
    ) -> None:
        if allowed and not (self._with_administration and operation in _ADMINISTRATIVE):
            return
        session = asked.session
        principal = str(session.principal)
        if not allowed and not self._is_written(principal, asked.client_host):
            return
        self._put(
            {
                "time": self._time_ms(),
                "principal": principal,
                "host": asked.client_host,
                "listener": asked.listener,
                "mechanism": session.mechanism,
                "client_id": asked.client_id and asked.client_id[:_TEXT_LENGTH_MAX],
                "api": self.names.get(asked.api_key, str(asked.api_key)),
                "operation": operation.name,
                "resource_type": resource_type.name,
                "resource": name[:_TEXT_LENGTH_MAX],
                "allowed": allowed,
            }
        )

    def _is_written(self, principal: str, host: str) -> bool:
        """Count a refusal, and return whether it is within the bounds."""
        minute = self._time_ms() // _MINUTE_MS
        if minute != self._minute:
            self._end_minute()
            self._minute = minute
        whose = principal, host
        if self._written[whose] >= LINES_MAX:
            self._left_out[whose] += 1
            return False
        if self._written_count >= ALL_LINES_MAX:
            self._left_out[None] += 1
            return False
        self._written[whose] += 1
        self._written_count += 1
        return True

    def _end_minute(self) -> None:
        for whose, count in self._left_out.items():
            who = {} if whose is None else {"principal": whose[0], "host": whose[1]}
            self._put({"time": self._time_ms(), **who, "left_out": count})
        self._left_out.clear()
        self._written.clear()
        self._written_count = 0

    def _put(self, fields: Mapping[str, Any]) -> None:
        """Queue a line; `time` is in milliseconds here."""
        try:
            if self._dropped:
                self._queue.put_nowait({"dropped": self._dropped})
                self._dropped = 0
            self._queue.put_nowait(fields)
        except queue.Full:
            self._dropped += 1


class _Listener(QueueListener):
    def enqueue_sentinel(self) -> None:
        """Wait for a place in the queue; the library's version gives up."""
        cast("queue.Queue[Any]", self.queue).put(None)

    def prepare(self, record: Any) -> logging.LogRecord:
        return _line(record)


class _ToLogger(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logger = logging.getLogger(LOGGER)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)


def _line(fields: Mapping[str, Any]) -> logging.LogRecord:
    if "time" in fields:
        seconds, ms = divmod(fields["time"], 1000)
        fields = {**fields, "time": f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"}
    text = msgspec.json.encode(fields).decode()
    return logging.LogRecord(LOGGER, logging.INFO, "", 0, text, None, None)
