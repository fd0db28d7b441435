"""Logs on a simulated disk, under a clock that moves only when told to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.broker.log.config import LogConfig
from headrace.broker.log.partition_log import AppendInfo, AppendOrigin, PartitionLog
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import MAGIC_POSITION, iter_headers
from simulator.disk import SimulatedDisk


class StillClock:
    """A clock whose two kinds of time stand still until they are set."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms
        self.seconds = 1000.0

    def time_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.seconds


class LogWorld:
    """A disk, a clock, and the operations of a partition on its log."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.disk = SimulatedDisk()
        self.directory = Path("/data/orders-0")
        self.disk.make_directory(self.directory.parent)
        self.disk.sync_directory(self.directory.parent.parent)

    def open(
        self,
        disk: SimulatedDisk | None = None,
        *,
        background: Callable[[Callable[[], None]], object] | None = None,
        discard: Callable[[Path, int], object] | None = None,
        **config: Any,
    ) -> PartitionLog:
        """Open the log on this or another disk; `config` has fields of LogConfig."""
        return PartitionLog.open(
            self.directory,
            LogConfig(**config),
            clock=self.clock,
            disk=disk or self.disk,
            background=background,
            discard=discard,
        )

    def batch(
        self, count: int = 1, *, value: bytes = b"value", at: int | None = None, **options: Any
    ) -> bytes:
        """Return a batch of `count` records of one value, stamped `at` or now; `options` are those of
        `encode_batch`.
        """
        timestamp = self.clock.now_ms if at is None else at
        return build_batch([Record(b"key", value, (), timestamp) for _ in range(count)], **options)

    def append(
        self,
        log: PartitionLog,
        count: int = 1,
        *,
        epoch: int = 0,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        **batch: Any,
    ) -> AppendInfo:
        """Append as a partition does: commit if the log must."""
        info = log.append(self.batch(count, **batch), leader_epoch=epoch, origin=origin)
        if log.must_commit:
            log.commit()
        return info


def batches_of(log: PartitionLog) -> list[tuple[int, bytes]]:
    """Return all batches from the log's start: (base offset, the batch without the prefix that the log stamps)."""
    result = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, up_to=log.log_end_offset).read()
        if not data:
            raise AssertionError(f"nothing at {offset} of {log}")
        for position, header in iter_headers(data):
            result.append((header.base_offset, data[position + MAGIC_POSITION : position + header.size]))
            offset = header.next_offset
    return result


def records_of(log: PartitionLog) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Return every record from the log's start, also of a compacted log: (offset, timestamp, key, value)."""
    from headrace.protocol.records.decode import decode_records

    result = []
    offset = log.log_start_offset
    while data := log.read(offset, 1 << 20, up_to=log.log_end_offset).read():
        for position, header in iter_headers(data):
            if header.next_offset <= offset:
                raise AssertionError(f"the batch at {header.base_offset} of {log} was read before")
            offset = header.next_offset
            columns = decode_records(data[position : position + header.size])
            rows = zip(
                columns.offsets.tolist(),
                columns.timestamps.tolist(),
                columns.keys(),
                columns.values(),
                strict=True,
            )
            result += [row for row in rows if row[0] >= log.log_start_offset]
    return result


def clean_log(log: PartitionLog, clock: StillClock, first_dirty_offset: int = 0, **options: Any) -> int:
    """Compact a log as far as possible; return the offset where the next cleaning begins."""
    from headrace.broker.log.compaction_plan import cleanable
    from headrace.broker.log.compaction_run import Cleaning, run

    bound = options.pop("bound", log.log_end_offset)
    if options.pop("flush", True):
        log.flush()
    part = cleanable(log, first_dirty_offset, bound, clock.now_ms)
    options = {"memory_bytes": 1 << 20, "secret": bytes(range(16)), **options}
    cleaning = Cleaning(log, part, now_ms=clock.now_ms, **options)
    run(cleaning)
    return cleaning.end_offset
