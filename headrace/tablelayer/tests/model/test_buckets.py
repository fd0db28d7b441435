"""Buckets: equal to a plain reference of the published algorithms, and to values seen from Iceberg itself."""

from __future__ import annotations

import struct
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tablelayer.model.rows.keys import encode_keys
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.buckets import bucket_of, iceberg_buckets
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types import column_types as t

relaxed = settings(max_examples=120, deadline=None)
MASK = 0xFFFFFFFF


def murmur3_32(data):
    """Austin Appleby's MurmurHash3_x86_32 with seed 0."""

    def rotate(value, bits):
        return ((value << bits) | (value >> (32 - bits))) & MASK

    def scramble(word):
        return rotate(word * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK

    state = 0
    for position in range(0, len(data) // 4 * 4, 4):
        word = int.from_bytes(data[position : position + 4], "little")
        state = (rotate(state ^ scramble(word), 13) * 5 + 0xE6546B64) & MASK
    tail = data[len(data) // 4 * 4 :]
    if tail:
        state ^= scramble(int.from_bytes(tail, "little"))
    state ^= len(data)
    state = (state ^ (state >> 16)) * 0x85EBCA6B & MASK
    state = (state ^ (state >> 13)) * 0xC2B2AE35 & MASK
    return state ^ (state >> 16)


def bucket(data, count):
    return (murmur3_32(data) & 0x7FFFFFFF) % count


def shortest(unscaled):
    """The shortest big-endian two's complement of an integer, as Java gives it."""
    for length in range(1, 18):
        if -(1 << (8 * length - 1)) <= unscaled < 1 << (8 * length - 1):
            return unscaled.to_bytes(length, "big", signed=True)
    raise AssertionError(unscaled)


@pytest.mark.parametrize(
    ("array", "hashed"),
    [
        # 32-bit hashes from appendix B of the Iceberg specification.
        (pa.array([34], pa.int32()), 2017239379),
        (pa.array([34], pa.int64()), 2017239379),
        (pa.array([Decimal("14.20")], pa.decimal128(9, 2)), -500754589),
        (pa.array([17486], pa.int32()).cast(pa.date32()), -653330422),
        (pa.array([81068000000], pa.int64()).cast(pa.time64("us")), -662762989),
        (pa.array([1510871468000000], pa.int64()).cast(pa.timestamp("us")), -2047944441),
        (pa.array([1510871468000], pa.int64()).cast(pa.timestamp("ms", tz="UTC")), -2047944441),
        (pa.array([1510871468000000001], pa.int64()).cast(pa.timestamp("ns")), -2047944441),
        (pa.array(["iceberg"]), 1210000089),
        (pa.array([b"\x00\x01\x02\x03"], pa.binary()), -188683207),
        (pa.array([b"\x00\x01\x02\x03"], pa.binary(4)), -188683207),
    ],
)
def test_the_specifications_own_values(array, hashed):
    for count in (2, 16, 1000, 2**31 - 1):
        assert iceberg_buckets(array, count).tolist() == [(hashed & 0x7FFFFFFF) % count]


@relaxed
@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)), st.integers(1, 4096), st.integers(0, 3))
def test_iceberg_integers(values, count, start):
    expected = [0 if value is None else bucket(struct.pack("<q", value), count) for value in values]
    assert iceberg_buckets(pa.array(values, pa.int64()).slice(start), count).tolist() == expected[start:]


@relaxed
@given(
    st.lists(st.none() | st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-300, 300)),
    st.integers(2, 4096),
)
def test_iceberg_decimals(values, count):
    context = Context(prec=60)
    array = pa.array(
        [None if value is None else Decimal(value).scaleb(-3, context=context) for value in values],
        pa.decimal128(38, 3),
    )
    expected = [0 if value is None else bucket(shortest(value), count) for value in values]
    assert iceberg_buckets(array, count).tolist() == expected


@relaxed
@given(st.lists(st.none() | st.text(max_size=12)), st.integers(2, 4096), st.integers(0, 3))
def test_iceberg_texts_of_slices(values, count, start):
    expected = [0 if value is None else bucket(value.encode(), count) for value in values]
    assert iceberg_buckets(pa.array(values, pa.string()).slice(start), count).tolist() == expected[start:]


def definition(columns, key, bucket_key=(), **options):
    schema = Schema.of(columns, key)
    given_options = {name.replace("__", "."): value for name, value in options.items()}
    return TableDefinition(TablePath("d", "t"), schema, bucket_key, 7, given_options)


@relaxed
@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.text(max_size=5))))
def test_other_tables_hash_the_encoded_key(rows):
    table = definition([("v", t.DOUBLE), ("a", t.INT), ("b", t.STRING)], ("a", "b"))
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([0.5] * len(rows)),
            pa.array([a for a, _ in rows], pa.int32()),
            pa.array([b for _, b in rows], pa.string()),
        ],
        schema=table.schema.arrow(),
    )
    keys = encode_keys([batch.column(1), batch.column(2)]).to_pylist()
    assert bucket_of(table, batch).tolist() == [bucket(key, 7) for key in keys]


def test_lake_tables_use_the_lakes_buckets():
    table = definition([("a", t.BIGINT), ("b", t.STRING)], ("a",), table__datalake__format="iceberg")
    batch = pa.RecordBatch.from_arrays(
        [pa.array(range(100)), pa.array(["x"] * 100)], schema=table.schema.arrow()
    )
    got = bucket_of(table, batch)
    assert got.dtype == np.int32
    assert got.tolist() == [bucket(struct.pack("<q", value), 7) for value in range(100)]


@pytest.mark.parametrize("options", [{}, {"table__datalake__format": "iceberg"}])
def test_nulls_of_log_tables_go_to_bucket_0(options):
    table = definition([("a", t.STRING)], (), ("a",), **options)
    values = [None, "a", "b", None, "c"]
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.string())], schema=table.schema.arrow())
    full = pa.RecordBatch.from_arrays(
        [pa.array([value or "" for value in values])], schema=table.schema.arrow()
    )
    everywhere = bucket_of(table, full).tolist()
    assert bucket_of(table, batch).tolist() == [
        0 if value is None else place for value, place in zip(values, everywhere, strict=True)
    ]


def test_no_bucket_key_and_one_bucket():
    free = definition([("a", t.INT)], ())
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int32())], schema=free.schema.arrow())
    with pytest.raises(ValueError, match="no bucket key"):
        bucket_of(free, batch)
    single = TableDefinition(TablePath("d", "t"), Schema.of([("a", t.INT)], ("a",)), bucket_count=1)
    assert bucket_of(single, batch).tolist() == [0, 0]


def test_iceberg_has_no_buckets_for_floats():
    with pytest.raises(ValueError, match="no buckets for the Arrow type double"):
        iceberg_buckets(pa.array([1.0]), 3)
