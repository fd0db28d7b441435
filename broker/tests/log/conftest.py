"""Logs on a simulated disk under a clock that only moves when told to."""

from pathlib import Path

import pytest

from broker.log.config import LogConfig
from broker.log.partition_log import AppendOrigin, PartitionLog
from broker.testing.disk import SimulatedDisk
from protocol.records.encode import Record, build_batch
from protocol.records.header import iter_headers

DIRECTORY = Path("/data/orders-0")


class Clock:
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms
        self.seconds = 1000.0

    def time_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.seconds


class World:
    """A disk, a clock, and what one does with a log on them."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.disk = SimulatedDisk()
        self.disk.make_directory(DIRECTORY.parent)

    def open(self, disk: SimulatedDisk | None = None, *, clean: bool = False, background=None, **config):
        return PartitionLog.open(
            DIRECTORY,
            LogConfig(**config),
            clock=self.clock,
            disk=disk or self.disk,
            clean=clean,
            background=background,
        )

    def batch(self, count: int = 1, *, value: bytes = b"value", at: int | None = None, **options) -> bytes:
        timestamp = self.clock.now_ms if at is None else at
        return build_batch([Record(b"key", value, (), timestamp) for _ in range(count)], **options)

    def append(
        self, log: PartitionLog, count: int = 1, *, epoch: int = 0, origin=AppendOrigin.CLIENT, **batch
    ):
        return log.append(self.batch(count, **batch), leader_epoch=epoch, origin=origin)


def batches_of(log: PartitionLog) -> list[tuple[int, bytes]]:
    """Everything in the log from its start on: (base offset, the batch without what the log stamps)."""
    result = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, up_to=log.log_end_offset).read()
        assert data, f"nothing at {offset} of {log}"
        for position, header in iter_headers(data):
            result.append((header.base_offset, data[position + 16 : position + header.size]))
            offset = header.next_offset
    return result


@pytest.fixture
def world() -> World:
    return World()
