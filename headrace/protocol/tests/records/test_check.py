"""Batches with false headers, with and without the kernel, and the bounds of the work that checks them."""

import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import cramjam
import numpy as np
import pytest

from headrace.protocol.errors import DecodeError
from headrace.protocol.records import check
from headrace.protocol.records.check import Effort, TakesTime, check_batch, columns_within, load
from headrace.protocol.records.compression import Compression, DecompressedTooLarge, compress, lz4_frame
from headrace.protocol.records.decode import decode_records
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import HEADER_SIZE, read_header

ROOT = Path(__file__).resolve().parents[4]

COUNT_POSITION, LAST_DELTA_POSITION = 57, 23
MIB = 1 << 20
THREE = build_batch(
    [Record(b"key", b"value", (("h", None), ("i", b"x")), 1_000 + stamp) for stamp in (5, 9, 2)]
)


@pytest.fixture(params=["plain", "kernel"])
def way(request, monkeypatch):
    """Plain Python, as used until a kernel is loaded, and the kernel."""
    monkeypatch.setattr(check, "_kernel", load() if request.param == "kernel" else None)
    return request.param


def checked(batch: bytes, **options) -> int:
    return check_batch(read_header(batch), batch, **{"bytes_max": MIB} | options)


def with_count(batch: bytes, count: int) -> bytes:
    result = bytearray(batch)
    result[COUNT_POSITION : COUNT_POSITION + 4] = count.to_bytes(4, "big")
    result[LAST_DELTA_POSITION : LAST_DELTA_POSITION + 4] = (count - 1).to_bytes(4, "big")
    return bytes(result)


def with_payload(batch: bytes, payload: bytes) -> bytes:
    result = bytearray(batch[:HEADER_SIZE] + payload)
    result[8:12] = (len(result) - 12).to_bytes(4, "big")
    return bytes(result)


@pytest.mark.parametrize("codec", Compression)
def test_honest_batches_pass_and_tell_their_largest_timestamp(way, codec):
    for count in (1, 3, 16, 17, 400):
        records = [Record(None, b"v" * (i % 70), (), 10_000 - i) for i in range(count)]
        batch = build_batch(records, compression=codec)
        assert checked(batch) == 10_000
        assert checked(bytearray(batch)) == 10_000


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (with_count(THREE, 1000), "record 3"),
        (with_count(THREE, 4), "record 3"),
        (with_count(THREE, 2), "bytes after its 2 records"),
        (with_payload(THREE, b"\xff" * 40), "record 0"),
        (with_payload(THREE, b""), "record 0"),
        (with_payload(THREE, THREE[HEADER_SIZE:-1]), "record 2"),
        (with_payload(THREE, THREE[HEADER_SIZE:] + b"\0"), "1 bytes after"),
        (with_payload(THREE, bytes([THREE[HEADER_SIZE] + 2]) + THREE[HEADER_SIZE + 1 :]), "record 0"),
        (with_payload(THREE, bytes([THREE[HEADER_SIZE] - 2]) + THREE[HEADER_SIZE + 1 :]), "record 0"),
        (build_batch([Record(b"k", b"v")] * 2, offset_deltas=np.array([0, 2], np.int32)), "record 1"),
        (build_batch([Record(b"k", b"v")] * 2, offset_deltas=np.array([1, 2], np.int32)), "record 0"),
    ],
)
def test_a_batch_with_false_counts_is_refused_with_the_record(way, batch, reason):
    with pytest.raises(DecodeError, match=reason):
        checked(batch)


def test_fuzz_accepted_batches_decode_and_both_checks_agree(monkeypatch):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    kernel = load()
    passed = 0
    for _ in range(1500):
        batch = bytearray(THREE)
        for _ in range(rng.randrange(1, 3)):
            batch[rng.randrange(HEADER_SIZE, len(batch))] ^= 1 << rng.randrange(8)
        outcomes = []
        for way in (None, kernel):
            monkeypatch.setattr(check, "_kernel", way)
            try:
                outcomes.append(checked(batch))
            except DecodeError:
                outcomes.append(None)
        assert outcomes[0] == outcomes[1], bytes(batch).hex()
        if outcomes[0] is not None:
            passed += 1
            records = decode_records(batch)
            assert int(records.timestamps.max()) == outcomes[0]
            assert records.offsets.tolist() == [0, 1, 2]
    assert passed


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_a_decompression_bomb_is_refused_before_memory_is_allocated(way, codec):
    batch = with_payload(
        build_batch([Record(None, b"v")], compression=codec), bytes(compress(codec, bytes(64 * MIB)))
    )
    for look in (check_batch, columns_within):
        tracemalloc.start()
        with pytest.raises(DecompressedTooLarge, match=str(MIB)):
            look(read_header(batch), batch, MIB) if look is columns_within else checked(batch)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 * MIB


def test_columns_count_like_decompressed_bytes():
    batch = build_batch([Record(None, None)] * 20_000, compression=Compression.ZSTD)
    assert len(columns_within(read_header(batch), batch, 4 * MIB)) == 20_000
    with pytest.raises(DecompressedTooLarge, match="20000 records"):
        columns_within(read_header(batch), batch, MIB)


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_decompression_on_the_event_loop_is_bounded_in_bytes(way, codec, monkeypatch):
    allowed = []

    def decompress(codec, data, *, max_bytes):
        allowed.append(max_bytes)
        return check_decompress(codec, data, max_bytes=max_bytes)

    check_decompress = check.decompress
    monkeypatch.setattr(check, "decompress", decompress)
    batch = with_payload(
        build_batch([Record(None, b"v")], compression=codec), bytes(compress(codec, bytes(8 * MIB)))
    )
    effort = Effort()
    for _ in range(5):
        with pytest.raises(TakesTime):
            checked(batch, bytes_max=64 * MIB, effort=effort)
    assert sum(allowed) <= 2 * MIB


def test_records_and_headers_are_what_an_uncompressed_batch_costs(way):
    fat = build_batch([Record(None, bytes(MIB))])
    checked(fat, effort=Effort(50_000))
    for batch in (
        build_batch([Record(None, None)] * 20_000),
        build_batch([Record(None, None, (("", None),) * 20_000)]),
    ):
        with pytest.raises(TakesTime):
            checked(batch, effort=Effort(100_000))
        checked(batch)


def test_without_the_kernel_many_records_are_left_to_a_thread(monkeypatch):
    monkeypatch.setattr(check, "_kernel", None)
    monkeypatch.setattr(check, "_columns_loaded", False)
    batch = build_batch([Record(None, b"v")] * 17)
    for look in (check_batch, columns_within):
        with pytest.raises(TakesTime):
            look(read_header(batch), batch, bytes_max=MIB, effort=Effort())
    checked(batch)
    assert not check.is_loaded()
    checked(build_batch([Record(None, b"v")] * 10_001))
    assert check.is_loaded()
    checked(batch, effort=Effort())


def test_the_shape_of_an_lz4_frame_is_known_without_opening_it():
    for size in (0, 1, 70_000, 700_000):
        data = bytes(range(256)) * (size // 256) + bytes(size % 256)
        ours = bytes(compress(Compression.LZ4, data))
        assert lz4_frame(ours, 64) == (-(-size // (64 << 10)), False)
        theirs = bytes(cramjam.lz4.compress(data))
        shape = lz4_frame(theirs, 64)
        assert shape is not None
        assert shape.has_checksums
        for frame in (ours, theirs):
            assert lz4_frame(frame + frame, 64) is None
            assert lz4_frame(frame + b"\0", 64) is None
            assert all(
                lz4_frame(frame[:end], 64) is None for end in range(max(0, len(frame) - 40), len(frame))
            )
    assert lz4_frame(bytes(compress(Compression.LZ4, bytes(700_000))), 10) is None
    assert lz4_frame(bytes(compress(Compression.ZSTD, bytes(700))), 10) is None


def test_a_large_batch_with_lz4_is_opened_at_once_unless_it_is_many_frames(monkeypatch):
    monkeypatch.setattr(check, "_kernel", load())
    records = [Record(None, random.Random(n).randbytes(500) + bytes(500)) for n in range(900)]
    plain = build_batch(records)
    body = bytes(plain[HEADER_SIZE:])
    lz4 = build_batch(records, compression=Compression.LZ4)
    checked(with_payload(lz4, bytes(compress(Compression.LZ4, body))), effort=Effort())
    empty = bytes(compress(Compression.LZ4, b""))
    with pytest.raises(TakesTime):
        checked(with_payload(lz4, bytes(compress(Compression.LZ4, body)) + 4_000 * empty), effort=Effort())


def test_the_first_batches_are_checked_before_numpy_is_there():
    """A server loads numpy at the first compressed batch."""
    code = """
import sys
from headrace.protocol.records.check import Effort, check_batch
from headrace.protocol.records.header import read_header

batch = bytes.fromhex(sys.argv[1])
print(check_batch(read_header(batch), batch, bytes_max=1000, effort=Effort()), "numpy" in sys.modules)
"""
    batch = build_batch([Record(None, b"value", (), 1_700_000_000_123)])
    command = [sys.executable, "-c", code, batch.hex()]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert told.split() == ["1700000000123", "False"]


def test_warming_up_loads_the_kernel(monkeypatch):
    monkeypatch.setattr(check, "_kernel", None)
    check.warm()
    assert check.is_loaded()
