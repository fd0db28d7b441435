"""Paimon's buckets: equal to what the library itself says, and to a plain reference of its row format.

`paimon_buckets.json` was made by Paimon 1.4.2: for each list of types a table with them as its bucket key and 1,000,003
buckets, each row put into a `BinaryRow`, and `table.createRowKeyExtractor()` asked for its bucket. Dates are days,
times milliseconds, timestamps (TIMESTAMP(6)) microseconds, bytes in hexadecimal.
"""

from __future__ import annotations

import json
import re
import struct
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.buckets import bucket_of
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.paimon_buckets import paimon_buckets
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types import column_types as t
from headrace.tablelayer.tests.model.test_buckets import MASK, shortest

relaxed = settings(max_examples=120, deadline=None)
GOLDEN = json.loads(Path(__file__).with_name("paimon_buckets.json").read_text())
ARROW = {
    "BOOLEAN": pa.bool_(), "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64(),
    "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "STRING": pa.string(), "BYTES": pa.binary(), "DATE": pa.int32(),
    "TIME": pa.int32(), "TIMESTAMP": pa.int64(),
}  # fmt: skip
SEEN_AS = {"DATE": pa.date32(), "TIME": pa.time32("ms"), "TIMESTAMP": pa.timestamp("us")}


def column(name, values):
    decimal = re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", name)
    if decimal:
        kind = pa.decimal128(int(decimal[1]), int(decimal[2]))
        return pa.array([None if value is None else Decimal(value) for value in values], kind)
    if name == "BYTES":
        values = [None if value is None else bytes.fromhex(value) for value in values]
    array = pa.array(values, ARROW[name])
    return array.cast(SEEN_AS[name]) if name in SEEN_AS else array


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE"])
def test_r2_4_one_key_is_in_one_bucket(kind):
    nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    zero, minus_zero, first, second = paimon_buckets(
        [column(kind, [0.0, -0.0, float("nan"), nan])], 1_000_003
    )
    assert zero == minus_zero
    assert first == second


@pytest.mark.parametrize("golden", GOLDEN["columns"], ids=lambda each: each["types"][0])
def test_buckets_equal_paimons(golden):
    # Except -0.0, which Paimon puts into another bucket than 0.0, and which is the same key here (R2.4).
    told = [each for each in golden["rows"] if not any(str(value) == "-0.0" for value in each[0])]
    rows, expected = zip(*told, strict=True)
    for start in (0, 1):
        columns = [
            column(name, [row[index] for row in rows]).slice(start)
            for index, name in enumerate(golden["types"])
        ]
        assert paimon_buckets(columns, GOLDEN["bucket_count"]).tolist() == list(expected[start:])


def murmur_by_words(data):
    state = 42
    for (word,) in struct.iter_unpack("<I", data):
        word = word * 0xCC9E2D51 & MASK
        word = ((word << 15) | (word >> 17)) * 0x1B873593 & MASK
        state ^= word
        state = (((state << 13) | (state >> 19)) * 5 + 0xE6546B64) & MASK
    state ^= len(data)
    state = (state ^ (state >> 16)) * 0x85EBCA6B & MASK
    state = (state ^ (state >> 13)) * 0xC2B2AE35 & MASK
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


def row_of(long, text, number, micros):
    """(BIGINT, STRING, DECIMAL(30, 0), TIMESTAMP(6)) as a BinaryRow."""
    nulls, slots, rest = 0, b"", b""
    for index, value in enumerate((long, text, number, micros)):
        nulls |= (value is None) << (8 + index)
        end = 40 + len(rest)
        if index == 0:
            slots += struct.pack("<q", value or 0)
        elif index == 1:
            data = (value or "").encode()
            if value is None:
                slots += bytes(8)
            elif len(data) < 8:
                slots += data.ljust(7, b"\0") + bytes([128 | len(data)])
            else:
                slots += struct.pack("<q", end << 32 | len(data))
                rest += data + bytes(-len(data) % 8)
        elif index == 2:
            data = b"" if value is None else shortest(value)
            slots += struct.pack("<q", end << 32 | len(data))
            rest += data.ljust(16, b"\0")
        else:
            millis, left = divmod(value or 0, 1000)
            slots += struct.pack("<q", end << 32 | left * 1000)
            rest += struct.pack("<q", millis)
    return struct.pack("<q", nulls) + slots + rest


@relaxed
@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.text(max_size=12),
            st.none() | st.integers(1 - 10**30, 10**30 - 1) | st.integers(-300, 300),
            st.none() | st.integers(-(2**55), 2**55),
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 1000),
)
def test_rows_of_every_shape(rows, count):
    longs, texts, numbers, micros = zip(*rows, strict=True)
    columns = [
        pa.array(longs, pa.int64()),
        pa.array(texts, pa.string()),
        pa.array([None if each is None else Decimal(each) for each in numbers], pa.decimal128(30, 0)),
        pa.array(micros, pa.int64()).cast(pa.timestamp("us")),
    ]
    # Java's remainder has the sign of the hash; then the sign is dropped.
    expected = [abs(murmur_by_words(row_of(*row))) % count for row in rows]
    assert paimon_buckets(columns, count).tolist() == expected


def test_every_precision_of_a_time_is_the_lakes():
    moments = pa.array([1726742096123456, -1, None], pa.int64())
    expected = paimon_buckets([moments.cast(pa.timestamp("us"))], 9973).tolist()
    finer = pa.array([1726742096123456789, -1, None], pa.int64()).cast(pa.timestamp("ns"))
    assert paimon_buckets([finer], 9973).tolist() == expected
    whole = pa.array([1726742096], pa.int64()).cast(pa.timestamp("s"))
    assert paimon_buckets([whole], 9973) == paimon_buckets([whole.cast(pa.timestamp("us"))], 9973)
    times = pa.array([1, 86_399_000], pa.int32()).cast(pa.time32("ms"))
    assert (paimon_buckets([times], 97) == paimon_buckets([times.cast(pa.time64("ns"))], 97)).all()
    assert (paimon_buckets([times], 97) == paimon_buckets([times.cast(pa.time64("us"))], 97)).all()


def test_tables_for_paimon_use_its_buckets():
    schema = Schema.of([("a", t.INT), ("b", t.STRING)], ("a", "b"))
    options = {"table.datalake.format": "paimon"}
    table = TableDefinition(TablePath("shop", "t"), schema, bucket_count=7, options=options)
    batch = pa.RecordBatch.from_pydict({"b": ["x", "longer than seven"], "a": pa.array([1, 2], pa.int32())})
    expected = paimon_buckets([batch.column("a"), batch.column("b")], 7)
    assert np.array_equal(bucket_of(table, batch), expected)


def test_types_without_paimon_hash_are_refused():
    with pytest.raises(ValueError, match="Paimon has no buckets for the Arrow type uint8"):
        paimon_buckets([pa.array([1], pa.uint8())], 3)
