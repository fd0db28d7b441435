"""The compiled scan against the plain one, and the scan's shortcuts against the long way."""

import random
from itertools import groupby

import crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.log import scan_kernels
from headrace.broker.log.index import OffsetIndex, TimeIndex
from headrace.broker.log.producer_state import AppendedBatch, ProducerState
from headrace.broker.log.scan import Batches, IndexBuilder, WalkEnd, epoch_bounds, replay_producers, walk
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import iter_headers, write_base_offset_and_epoch, write_crc
from simulator.log import LogWorld


def log_bytes(seed: int, count: int = 40, first_offset: int = 0) -> bytearray:
    rng = random.Random(seed)
    data = bytearray()
    offset = first_offset
    for _ in range(count):
        records = [
            Record(None, rng.randbytes(rng.choice([0, 5, 300, 2000])), (), rng.randrange(1000))
            for _ in range(rng.randint(1, 4))
        ]
        producer = rng.choice([-1, 1, 2, 3])
        options = (
            {
                "producer_id": producer,
                "producer_epoch": rng.randrange(2),
                "base_sequence": rng.randrange(1 << 31),
            }
            if producer > 0
            else {}
        )
        batch = bytearray(build_batch(records, **options))
        if rng.random() < 0.2:
            batch[16] = 100
            batch[61:65] = rng.randrange(50).to_bytes(4, "big")
            write_crc(batch)
        write_base_offset_and_epoch(batch, 0, offset, rng.choice([3, 3, 4]))
        data += batch
        offset += len(records)
    return data


def walked(data: bytes, first_offset: int, *, check_crc: bool, compiled: bool):
    end = WalkEnd(0, 0)
    chunks = list(walk(memoryview(data), first_offset, end, check_crc=check_crc, compiled=compiled))
    fields = Batches.__struct_fields__
    columns = {
        name: np.concatenate([getattr(chunk, name) for chunk in chunks] or [[]]).tolist() for name in fields
    }
    return columns, end.position, end.next_offset, end.problem is None


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 1000), st.booleans(), st.data())
def test_the_compiled_walk_is_the_plain_walk(seed, check_crc, data):
    content = log_bytes(seed, 12, first_offset=seed)
    for _ in range(data.draw(st.integers(0, 2))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    content = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    ours = walked(content, seed, check_crc=check_crc, compiled=True)
    assert ours == walked(content, seed, check_crc=check_crc, compiled=False)


def test_large_logs_go_through_the_kernels_in_chunks(monkeypatch):
    monkeypatch.setattr("headrace.broker.log.scan._CHUNK_ROWS", 7)
    content = log_bytes(5, 60)
    positions = [position for position, _ in iter_headers(content)]
    columns, end, _, fine = walked(content, 0, check_crc=True, compiled=True)
    assert (columns["position"], end, fine) == (positions, len(content), True)
    content[positions[33] + 70] ^= 1
    columns, end, _, fine = walked(content, 0, check_crc=True, compiled=True)
    assert (columns["position"], end, fine) == (positions[:33], positions[33], False)


def test_a_log_large_enough_for_the_kernels_recovers_the_same(monkeypatch):
    world = LogWorld()
    log = world.open(segment_bytes=10**6)
    rng = random.Random(3)
    for i in range(60):
        world.append(log, 2, value=rng.randbytes(200), producer_id=1, producer_epoch=0, base_sequence=2 * i)
    log.flush()
    for threshold in (0, 10**9):
        monkeypatch.setattr("headrace.broker.log.scan.COMPILED_FROM_BYTES", threshold)
        again = world.open(segment_bytes=10**6)
        assert again.recovered.scanned_batches == 60
        assert world.append(again, 2, value=b"", producer_id=1, producer_epoch=0, base_sequence=110).duplicate


def test_the_tables_give_crc32c():
    data = np.frombuffer(random.Random(1).randbytes(300), np.uint8)
    for start in range(9):
        for end in range(start, 300, 7):
            ours = scan_kernels.crc32c_of(data, start, end, scan_kernels.CRC_TABLES)
            assert ours == crc32c.crc32c(data[start:end].tobytes())


@pytest.mark.parametrize("interval", [0, 100, 4096])
@pytest.mark.parametrize("chunk", [3, 1000])
def test_rebuilt_indexes_are_those_that_appending_makes(interval, chunk, monkeypatch):
    monkeypatch.setattr("headrace.broker.log.scan._CHUNK_ROWS", chunk)
    world = LogWorld()
    log = world.open(index_interval_bytes=interval)
    rng = random.Random(interval)
    for _ in range(120):
        at = world.clock.now_ms + rng.randrange(10**6)
        world.append(log, rng.randint(1, 3), value=rng.randbytes(rng.choice([10, 500])), at=at)
    segment = log.segments[0]
    builder = IndexBuilder(0, interval)
    end = WalkEnd(0, 0)
    for batches in walk(segment.file.view(), 0, end, check_crc=False, compiled=True):
        builder.add(batches)
    assert bytes(builder.index.entries) == bytes(segment.index.entries)
    assert bytes(builder.time_index.entries) == bytes(segment.time_index.entries)
    assert (builder.largest_timestamp, builder.offset_of_largest) == segment.largest
    assert builder.first_timestamp == segment.first_timestamp


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(0, 60))
def test_replaying_a_chunk_is_replaying_each_batch(seed, from_offset):
    content = log_bytes(seed, 30)
    quick, slow = ProducerState(), ProducerState()
    for batches in walk(memoryview(content), 0, WalkEnd(0, 0), check_crc=False):
        replay_producers(quick, batches, memoryview(content), from_offset, 0.0)
    for _, header in iter_headers(content):
        if header.has_producer and header.base_offset >= from_offset:
            batch = AppendedBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
            )
            slow.add(header.producer_id, header.producer_epoch, batch, 0.0)
    assert {p: (s.epoch, s.batches) for p, s in quick.producers.items()} == {
        p: (s.epoch, s.batches) for p, s in slow.producers.items()
    }


def test_the_first_and_the_last_batch_of_each_run_of_an_epoch_are_found():
    content = log_bytes(11, 30)
    headers = [header for _, header in iter_headers(content)]
    runs = [list(run) for _, run in groupby(headers, lambda header: header.partition_leader_epoch)]
    assert {len(run) for run in runs} > {1}
    (batches,) = walk(memoryview(content), 0, WalkEnd(0, 0), check_crc=False)
    assert epoch_bounds(batches) == [
        (header.partition_leader_epoch, header.base_offset)
        for run in runs
        for header in (run if len(run) == 1 else (run[0], run[-1]))
    ]


@given(st.lists(st.integers(0, 1000), unique=True, max_size=40).map(sorted), st.integers(-5, 1010))
def test_index_lookups_are_linear_searches(values, target):
    index = OffsetIndex(100)
    times = TimeIndex(100)
    for i, value in enumerate(values):
        index.append(100 + value, i * 50)
        times.maybe_append(value, 100 + i)
    below = [(100 + value, i * 50) for i, value in enumerate(values) if value <= target]
    assert index.floor(100 + target) == (below[-1] if below else None)
    before = [(value, 100 + i) for i, value in enumerate(values) if value < target]
    assert times.floor(target) == (before[-1] if before else None)
    near = [(100 + value, i * 50) for i, value in enumerate(values) if i * 50 <= target]
    assert index.floor_position(target) == (near[-1] if near else None)
