"""What a client has done since it was made: requests, retries, rows in and out.

Plain integers, counted where things happen and read when somebody asks; nothing is sent anywhere. All of one
connection's tables count together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """One kind of request. `seconds` is the sum of the times from sending to the answer, or to giving up."""

    count: int
    failed: int
    """How many had no answer, or one that made no sense. An error code in an answer is an answer."""
    seconds: float
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class ClientMetrics:
    """`connection.metrics()`: a moment's picture; counts are since the connection was made."""

    connections: int
    """Open to servers now."""
    connections_made: int
    requests: Mapping[str, RequestMetrics]
    """By kind: `requests["Lookup"].count`."""
    retries: int
    """Attempts after the first one, of anything but writes."""
    rows_written: int
    """Acknowledged."""
    batches_written: int
    bytes_written: int
    """Of acknowledged batches, encoded and compressed."""
    batches_repeated: int
    """Batches that were sent again; the server applies each once all the same."""
    bytes_buffered: int
    """Encoded, and not acknowledged yet."""
    rows_scanned: int
    """Rows and changes that scans and snapshots have handed out or read ahead."""
    keys_looked_up: int
    batches_unreadable: int
    """Batches of a log that scans could not read and passed over; each was reported in the log."""


@dataclass(slots=True)
class _Request:
    count: int = 0
    failed: int = 0
    seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(slots=True)
class Counters:
    """What is counted; one object per `Cluster`."""

    connections_made: int = 0
    retries: int = 0
    rows_written: int = 0
    batches_written: int = 0
    bytes_written: int = 0
    batches_repeated: int = 0
    bytes_buffered: int = 0
    rows_scanned: int = 0
    keys_looked_up: int = 0
    batches_unreadable: int = 0
    requests: dict[str, _Request] = field(default_factory=dict)

    def answered(self, kind: str, seconds: float, sent: int, received: int | None) -> None:
        """A request of this kind ended; `received` None: without a usable answer."""
        found = self.requests.get(kind)
        if found is None:  # two threads may see that
            found = self.requests.setdefault(kind, _Request())
        found.count += 1
        found.seconds += seconds
        found.bytes_sent += sent
        if received is None:
            found.failed += 1
        else:
            found.bytes_received += received

    def picture(self, connections: int) -> ClientMetrics:
        """As it is now, with that many connections open."""
        return ClientMetrics(
            connections=connections,
            connections_made=self.connections_made,
            requests={
                kind.removesuffix("Request"): RequestMetrics(
                    each.count, each.failed, each.seconds, each.bytes_sent, each.bytes_received
                )
                for kind, each in sorted(self.requests.items())
            },
            retries=self.retries,
            rows_written=self.rows_written,
            batches_written=self.batches_written,
            bytes_written=self.bytes_written,
            batches_repeated=self.batches_repeated,
            bytes_buffered=self.bytes_buffered,
            rows_scanned=self.rows_scanned,
            keys_looked_up=self.keys_looked_up,
            batches_unreadable=self.batches_unreadable,
        )
