"""Answers in memory that wait for slow peers, over all connections: how many bytes they are, and who has to go.

Each connection bounds its own (`Limits.unsent_bytes_max`); a thousand of them that read nothing would still fill the
memory. Above the bound of all, the host that most is kept for loses the connection that has taken nothing for longest;
so one that is being read is safe from those that are not, and a host from others that have more connections.

Records in log files take no memory and do not count. Pure: connections are told of, and closed by whoever asks.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, Protocol, TypeVar

from headrace.broker.net.reply import Peer


class Slow(Protocol):
    """What is to be known of a connection."""

    peer: Peer
    last_active: float


Connection = TypeVar("Connection", bound=Slow)


class Backlog(Generic[Connection]):
    """See the module's contract."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: dict[Connection, int] = {}
        self._per_host: Counter[str] = Counter()
        self.size = 0
        """Bytes, of all."""

    def note(self, connection: Connection, size: int) -> None:
        """So many bytes wait for the connection now; 0: none, or it is gone."""
        before = self._waiting.pop(connection, 0)
        if size:
            self._waiting[connection] = size
        host = connection.peer.host
        self.size += size - before
        self._per_host[host] += size - before
        if not self._per_host[host]:
            del self._per_host[host]

    def next_to_go(self) -> Connection | None:
        """Who is to be closed because too much waits; None: nobody."""
        if self.size <= self._bytes_max:
            return None
        host = max(self._per_host, key=self._per_host.__getitem__)
        return min(
            (each for each in self._waiting if each.peer.host == host), key=lambda each: each.last_active
        )
