"""A log against a list: random programs of all its operations."""

import random
from bisect import bisect_right
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.log.config import LogConfig
from headrace.broker.log.partition_log import AppendOrigin, PartitionLog
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import iter_headers, read_header
from simulator.disk import Tear
from simulator.log import LogWorld

SEGMENT_BYTES = 2000


@dataclass
class Stored:
    base: int
    stamps: list[int]
    epoch: int
    body: bytes

    @property
    def end(self) -> int:
        return self.base + len(self.stamps)


class Model:
    """The expected state of the log: a list of batches, and a start."""

    def __init__(self) -> None:
        self.batches: list[Stored] = []
        self.start = 0
        self.end = 0

    def holding(self, offset: int) -> int:
        return bisect_right(self.batches, offset, key=lambda batch: batch.base) - 1

    def read(self, offset: int, max_bytes: int, up_to: int, min_one: bool) -> list[Stored]:
        result: list[Stored] = []
        room = max_bytes
        for batch in self.batches[self.holding(offset) :]:
            size = len(batch.body) + 16
            if batch.end > up_to or (size > room and (result or not min_one)):
                break
            result.append(batch)
            room -= size
        return result

    def first_at(self, timestamp: int) -> tuple[int, int, int] | None:
        for batch in self.batches:
            for i, stamp in enumerate(batch.stamps):
                if stamp >= timestamp and batch.base + i >= self.start:
                    return batch.base + i, stamp, batch.epoch
        return None

    def latest(self) -> tuple[int, int, int] | None:
        known = [
            (stamp, -batch.base - i, batch.epoch)
            for batch in self.batches
            for i, stamp in enumerate(batch.stamps)
            if batch.base + i >= self.start and stamp >= 0
        ]
        stamp, offset, epoch = max(known, default=(-1, 0, 0))
        return (-offset, stamp, epoch) if known else None

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        kept = [batch for batch in self.batches if batch.end > self.start] or self.batches[-1:]
        epochs = sorted({batch.epoch for batch in kept})
        below = [known for known in epochs if known <= epoch]
        later = [batch for batch in self.batches if batch.epoch > epoch and batch.end > self.start]
        if not epochs or epoch > epochs[-1]:
            return -1, -1
        end = later[0].base if later else self.end
        return (below[-1], end) if below else (epoch, max(end, self.start))


class Program:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = LogWorld()
        self.disk = self.world.disk
        self.model = Model()
        self.epoch = 0
        self.log = self.open()

    def open(self) -> PartitionLog:
        return self.world.open(self.disk, segment_bytes=SEGMENT_BYTES, index_interval_bytes=150)

    def offset(self) -> int:
        return self.rng.randint(self.model.start, self.model.end)

    def do_append(self) -> None:
        rng, model, now = self.rng, self.model, self.world.clock.now_ms
        stamps = [rng.choice([-1, now, now - rng.randrange(5000), now + rng.randrange(5000)])]
        stamps += [max(0, stamps[0]) + rng.randrange(-50, 50) for _ in range(rng.randrange(4))]
        stamps = [max(-1, stamp) for stamp in stamps]
        records = [Record(None, rng.randbytes(rng.choice([0, 20, 300])), (), stamp) for stamp in stamps]
        batch = build_batch(records, compression=rng.choice([0, 0, 4]))
        info = self.log.append(batch, leader_epoch=self.epoch, origin=AppendOrigin.CLIENT)
        assert (info.base_offset, info.last_offset + 1) == (model.end, model.end + len(stamps))
        model.batches.append(Stored(model.end, stamps, self.epoch, batch[16:]))
        model.end += len(stamps)

    def do_many_appends(self) -> None:
        for _ in range(self.rng.randrange(12)):
            self.do_append()

    def do_read(self) -> None:
        offset, up_to = self.offset(), self.offset()
        if self.rng.random() < 0.7:
            up_to = self.model.end
        max_bytes, min_one = self.rng.choice([0, 100, 700, 1 << 20]), self.rng.random() < 0.8
        found = self.log.read(offset, max_bytes, up_to=up_to, min_one_batch=min_one)
        data = found.read()
        got = [(header.base_offset, data[p + 16 : p + header.size]) for p, header in iter_headers(data)]
        expected = self.model.read(offset, max_bytes, up_to, min_one) if offset < up_to else []
        assert got == [(batch.base, batch.body) for batch in expected][: len(got)]
        assert bool(got) == bool(expected)
        if got and len(got) < len(expected):  # only the end of a segment may cut a read short
            following = self.log.read(expected[len(got)].base, 1, up_to=up_to)
            assert following.region is not None
            assert following.region.position == 0

    def do_read_all(self) -> None:
        """Read as a consumer does, each read where the last one ended."""
        offset = self.model.start
        expected = [batch for batch in self.model.batches if batch.end > offset]
        got = []
        while offset < self.model.end:
            data = self.log.read(offset, self.rng.choice([1, 500, 5000]), up_to=self.model.end).read()
            for position, header in iter_headers(data):
                got.append((header.base_offset, data[position + 16 : position + header.size]))
                assert header.partition_leader_epoch == expected[len(got) - 1].epoch
                offset = header.next_offset
        assert got == [(batch.base, batch.body) for batch in expected]

    def do_out_of_range(self) -> None:
        for offset in (self.model.start - 1, self.model.end + 1):
            with pytest.raises(KafkaError) as error:
                self.log.read(offset, 100, up_to=self.model.end)
            assert error.value.code == ErrorCode.OFFSET_OUT_OF_RANGE

    def do_times(self) -> None:
        now = self.world.clock.now_ms
        for timestamp in (0, now - self.rng.randrange(6000), now + self.rng.randrange(6000)):
            assert self.log.offset_for_timestamp(timestamp) == self.model.first_at(timestamp)
        assert self.log.max_timestamp() == self.model.latest()

    def do_epochs(self) -> None:
        known = self.log.epochs
        assert known or self.model.start == self.model.end, "only a log without records may know no epoch"
        if self.model.batches and known and known[-1][0] == self.model.batches[-1].epoch:
            for epoch in range(self.epoch + 2):
                assert self.log.epoch_end_offset(epoch) == self.model.epoch_end(epoch)

    def do_new_epoch(self) -> None:
        self.epoch += self.rng.randint(1, 3)
        if self.rng.random() < 0.5:
            self.log.assign_epoch(self.epoch)
            assert self.log.epoch_end_offset(self.epoch) == (self.epoch, self.model.end)

    def do_restart(self) -> None:
        self.log.close()
        self.log = self.open()
        assert self.log.recovered.was_clean or not self.model.end

    def do_kill(self) -> None:
        if self.rng.random() < 0.3:
            self.log.flush()
        self.disk = self.disk.restart(Tear.KEPT)
        self.log = self.open()
        assert not self.log.recovered.cut_bytes

    def do_flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.model.end

    def do_delete_records(self) -> None:
        offset = min(self.offset(), self.offset())
        self.log.delete_records(offset)
        self.model.start = max(offset, self.model.start)

    def do_retention(self) -> None:
        """Delete by size, below a random high watermark."""
        high_watermark = self.offset()
        before = sum(segment.size for segment in self.log.segments if segment.end_offset > self.model.start)
        self.log.reconfigure(LogConfig(segment_bytes=SEGMENT_BYTES, retention_bytes=5000, retention_ms=-1))
        self.log.delete_old_segments(self.world.clock.now_ms, high_watermark)
        assert self.log.size_bytes >= min(before, 5000)
        assert self.model.start <= self.log.log_start_offset <= max(high_watermark, self.model.start)
        self.model.start = self.log.log_start_offset
        self.log.reconfigure(LogConfig(segment_bytes=SEGMENT_BYTES, index_interval_bytes=150))

    def do_truncate(self) -> None:
        if self.rng.random() < 0.7:
            return
        offset = max(self.offset(), self.offset())
        self.log.truncate_to(offset)
        model = self.model
        while model.batches and model.batches[-1].end > offset:
            model.end = model.batches.pop().base
        model.start = min(model.start, model.end)

    def run(self, steps: int) -> None:
        actions = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        for _ in range(steps):
            self.rng.choice(actions)()
            assert (self.log.log_start_offset, self.log.log_end_offset) == (self.model.start, self.model.end)
        self.do_read_all()
        self.do_times()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 32))
def test_h1_random_programs_give_each_record_one_dense_offset_over_every_restart(seed):
    Program(seed).run(40)


def test_a_long_program():
    for seed in range(4):
        Program(seed).run(250)


def test_a_log_that_is_cut_below_its_first_record_has_no_epochs(world):
    """The cut takes the whole batch in whose middle the log begins; the batch before it was deleted."""
    log = world.open()
    world.append(log, 2, epoch=0)
    world.append(log, 4, epoch=1)
    log.delete_records(4)
    log.assign_epoch(2)
    log.truncate_to(5)
    for _ in range(2):
        assert (log.log_start_offset, log.log_end_offset, log.last_epoch) == (2, 2, -1)
        assert list(log.epochs) == []
        assert [log.epoch_end_offset(epoch) for epoch in range(3)] == [(-1, -1)] * 3
        log.close()
        log = world.open()
    world.append(log, epoch=2)
    assert list(log.epochs) == [(2, 2)]
    assert log.epoch_end_offset(2) == (2, 3)


def test_the_files_are_kafkas_and_an_empty_log_has_none(world):
    log = world.open()
    log.assign_epoch(3)
    log.close()
    assert world.disk.names(world.directory) == []
    log = world.open(segment_bytes=400)
    for _ in range(8):
        world.append(log, epoch=3)
    log.close()
    names = set(world.disk.names(world.directory))
    bases = sorted(int(name[:20]) for name in names if name.endswith(".log"))
    assert len(bases) > 1
    for base in bases:
        stem = f"{base:020d}"
        assert {f"{stem}.log", f"{stem}.index", f"{stem}.timeindex"} <= names
        assert read_header(world.disk.contents(world.directory / f"{stem}.log")).base_offset == base
    assert world.disk.contents(world.directory / "leader-epoch-checkpoint") == b"0\n1\n3 0\n"
