"""Bytes and records into and out of a partition, in four plain integers; their reader sums them up by topic."""

from __future__ import annotations


class Traffic:
    """Bytes and records of one partition since it was opened. Bytes out are those of answers to consumers."""

    __slots__ = ("bytes_in", "bytes_out", "records_in", "records_out")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.records_in = 0
        self.bytes_out = 0
        self.records_out = 0

    def sent(self, size: int, records: int) -> None:
        """Count bytes and records that are sent to a consumer."""
        self.bytes_out += size
        self.records_out += records

    def all(self) -> tuple[int, int, int, int]:
        """Return (bytes in, records in, bytes out, records out)."""
        return self.bytes_in, self.records_in, self.bytes_out, self.records_out
