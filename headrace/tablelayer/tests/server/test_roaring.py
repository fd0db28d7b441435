"""Unions of serialised Roaring bitmaps against Python's sets, and the bytes that other libraries write."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tablelayer.server.merge.roaring import MalformedBitmapError, union
from headrace.tablelayer.tests.server.oracle import bitmap32, bitmap64, bits32, bits64

RANGES = st.tuples(
    st.sampled_from([0, 1, 60_000, 1 << 16, 5 << 16, (1 << 32) - 70_000]),
    st.sampled_from([1, 2, 17]), st.sampled_from([0, 1, 5, 4096, 4097]),
)  # fmt: skip
SETS = st.lists(RANGES, max_size=3).map(
    lambda parts: {
        start + step * n for start, step, size in parts for n in range(size) if start + step * n < 1 << 32
    }
)


@given(SETS, SETS, SETS)
@settings(deadline=None, max_examples=8)
def test_the_union_of_32_bit_bitmaps_is_that_of_the_sets_and_canonical(
    one: set[int], other: set[int], third: set[int]
) -> None:
    # A union is written in another way than the tests write it (runs), so it goes in again.
    first = union(bitmap32(one), bitmap32(other), wide=False)
    assert bits32(first) == one | other
    assert union(bitmap32(other), bitmap32(one), wide=False) == first
    assert union(first, first, wide=False) == first
    assert bits32(union(bitmap32(third), first, wide=False)) == one | other | third


@given(st.lists(st.tuples(st.sampled_from([0, 1, 77, (1 << 32) - 1]), SETS), max_size=3), SETS)
@settings(deadline=None, max_examples=5)
def test_the_union_of_64_bit_bitmaps_is_that_of_the_sets(
    parts: list[tuple[int, set[int]]], more: set[int]
) -> None:
    one = {high << 32 | low for high, lows in parts for low in lows}
    other = {77 << 32 | low for low in more}
    assert bits64(union(bitmap64(one), bitmap64(other), wide=True)) == one | other


def test_the_bytes_are_those_of_the_specification() -> None:
    # {1, 2, 3} as Java's RoaringBitmap writes it after runOptimize: an array, for a run would be as large.
    array = bytes.fromhex("3a300000010000000000020010000000010002000300")
    assert union(bitmap32({1, 2}), bitmap32({2, 3}), wide=False) == array
    # 0 to 99,999: two containers of one run each.
    runs = bytes.fromhex("3b300100030000ffff01009f8601000000ffff010000009f86")
    assert union(bitmap32(set(range(50_000))), bitmap32(set(range(40_000, 100_000))), wide=False) == runs


def test_the_bytes_of_64_bits_are_those_of_java() -> None:
    # Roaring64NavigableMap of RoaringBitmap 1.3.0: SERIALIZATION_MODE_PORTABLE, runOptimize, serializePortable.
    java = bytes.fromhex(
        "0500000000000000000000003a300000010000000000020010000000000001000200020000003a300000010000"
        "0000000000100000000000070000003b300100030000ffff01009f8601000000ffff010000009f86000100003a"
        "3000000100000000000000100000000500ffffffff3a30000001000000ffff000010000000ffff"
    )
    values = {0, 1, 2, 1 << 33, (1 << 40) + 5, (1 << 64) - 1, *range(7 << 32, (7 << 32) + 100_000)}
    assert bits64(java) == values
    assert union(java, java, wide=True) == java
    assert union(bitmap64(values), bitmap64({1}), wide=True) == java


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "its 0 bytes are cut short"),
        (b"\x3a\x30\x00", "its 3 bytes are cut short"),
        (b"\x00\x00\x00\x00\x00\x00\x00\x00", "malformed"),
        (bitmap32({1, 2})[:-1], "cut short"),
        (bitmap32({1, 2}) + b"x", "bytes follow"),
        (bitmap32({1, 2}) + bitmap32({3}), "bytes follow"),
        (bitmap32({1, 2})[:-4] + struct.pack("<HH", 2, 1), "strictly increasing"),
        (struct.pack("<II", 12346, 70_000), "malformed"),
        (bitmap32(set(range(5000)))[:-1] + b"\xff", "cardinality"),
    ],
)
def test_malformed_32_bit_bitmaps_are_refused(data: bytes, words: str) -> None:
    for other in (None, bitmap32({1})):
        with pytest.raises(MalformedBitmapError, match=words):
            union(data, other, wide=False)


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_a_bitmap_or_refused(data: bytes, wide: bool) -> None:
    for head in (b"", b"\x3a\x30\x00\x00", b"\x3b\x30\x00\x00", struct.pack("<Q", 1)):
        try:
            union(head + data, None, wide=wide)
        except MalformedBitmapError:
            continue
        (bits64 if wide else bits32)(head + data)


@pytest.mark.parametrize(
    "data", [b"\x01" * 7, struct.pack("<Q", 1 << 60), bitmap64({1})[:-1], bitmap64({1}) + b"x",
             struct.pack("<Q", 2) + 2 * (struct.pack("<I", 1) + bitmap32({1}))],
)  # fmt: skip
def test_malformed_64_bit_bitmaps_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedBitmapError):
        union(data, None, wide=True)
