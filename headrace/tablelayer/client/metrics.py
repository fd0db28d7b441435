"""Metrics of a client: requests, retries, and rows in and out since it was made.

Plain integers, read on demand; nothing is sent anywhere. All tables of one connection count together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Metrics of one kind of request. `seconds` is the sum of the times from sending to the answer or the timeout."""

    count: int
    failed: int
    """Requests without a readable answer. An answer with an error code does not count."""
    seconds: float
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class ClientMetrics:
    """`connection.metrics()`: the state at one moment, with counts since the connection was made."""

    connections: int
    """Connections that are open to servers now."""
    connections_made: int
    requests: Mapping[str, RequestMetrics]
    """Metrics by kind of request: `requests["Lookup"].count`."""
    retries: int
    """Attempts after the first one, without writes."""
    rows_written: int
    """Rows that were acknowledged."""
    batches_written: int
    bytes_written: int
    """Bytes of acknowledged batches, encoded and compressed."""
    batches_repeated: int
    """Batches that were sent again. The server applies each once."""
    bytes_buffered: int
    """Bytes that are encoded and not yet acknowledged."""
    rows_scanned: int
    """Rows and changes that scans and snapshots have returned or read ahead."""
    keys_looked_up: int
    batches_unreadable: int
    """Log batches that scans could not read and skipped. Each is reported in the client's log."""


@dataclass(slots=True)
class _Request:
    count: int = 0
    failed: int = 0
    seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(slots=True)
class Counters:
    """The counters of one `Cluster`."""

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
        """Count a request of this kind that ended. `received` is None without a usable answer."""
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
        """Return the metrics now; `connections` is the number of open ones."""
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
