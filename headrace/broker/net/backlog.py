"""Unsent answers in memory over all connections: their total size, and the connection to close beyond the limit.

Each connection limits its own (`Limits.unsent_bytes_max`), but a thousand idle readers would still fill the memory.
Above the total limit, the host with the most unsent bytes loses its least recently active connection. So idle readers
do not harm active ones, and a host with many connections does not harm others.

Records in log files take no memory and do not count. Pure: the caller closes connections.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, Protocol, TypeVar

from headrace.broker.net.reply import Peer


class Slow(Protocol):
    """The fields of a connection that are needed here."""

    peer: Peer
    last_active: float


Connection = TypeVar("Connection", bound=Slow)


class Backlog(Generic[Connection]):
    """The unsent bytes of each connection."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: dict[Connection, int] = {}
        self._per_host: Counter[str] = Counter()
        self.size = 0
        """Total number of bytes."""

    def note(self, connection: Connection, size: int) -> None:
        """Set the number of bytes that wait for the connection; 0 also when it has closed."""
        before = self._waiting.pop(connection, 0)
        if size:
            self._waiting[connection] = size
        host = connection.peer.host
        self.size += size - before
        self._per_host[host] += size - before
        if not self._per_host[host]:
            del self._per_host[host]

    def next_to_go(self) -> Connection | None:
        """Return the connection to close because too many bytes wait; None: the total is within its limit."""
        if self.size <= self._bytes_max:
            return None
        host = max(self._per_host, key=self._per_host.__getitem__)
        return min(
            (each for each in self._waiting if each.peer.host == host), key=lambda each: each.last_active
        )
