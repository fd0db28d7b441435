"""Avro container files against fastavro, which writes them; `test_paimon.py` reads zstandard ones, Paimon's."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablelayer.lake.avro_file import AvroError, read_avro

INNER = {
    "type": "record",
    "name": "Inner",
    "namespace": "x",
    "fields": [{"name": "n", "type": ["null", "long"]}],
}
SCHEMA = {
    "type": "record",
    "name": "Outer",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "kind", "type": {"type": "int"}},
        {"name": "data", "type": "bytes"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "real", "type": "double"},
        {"name": "small", "type": "float"},
        {"name": "yes", "type": "boolean"},
        {"name": "four", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "one_of", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "inner", "type": INNER},
        {"name": "again", "type": {"type": "array", "items": "x.Inner"}},
        {"name": "named", "type": {"type": "map", "values": ["null", "x.Inner", "int"]}},
    ],
}
long = st.integers(-(2**63), 2**63 - 1)
inner = st.fixed_dictionaries({"n": st.none() | long})
record = st.fixed_dictionaries(
    {
        "number": long,
        "kind": st.integers(-(2**31), 2**31 - 1),
        "data": st.binary(max_size=200),
        "text": st.none() | st.text(),
        "real": st.floats(allow_nan=False),
        "small": st.floats(allow_nan=False, width=32),
        "yes": st.booleans(),
        "four": st.binary(min_size=4, max_size=4),
        "one_of": st.sampled_from("AB"),
        "inner": inner,
        "again": st.lists(inner, max_size=3),
        "named": st.dictionaries(st.text(), st.none() | inner | st.integers(0, 9), max_size=3),
    }
)


def written(records: list[Any], codec: str, block: int) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(SCHEMA), records, codec=codec, sync_interval=block)
    return out.getvalue()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(record, max_size=6),
    st.sampled_from(["null", "deflate"]),
    st.sampled_from([1, 16000]),
)
def test_what_is_written_is_read(records: list[Any], codec: str, block: int) -> None:
    assert list(read_avro(written(records, codec, block))) == records


@settings(max_examples=30, deadline=None)
@given(st.lists(record, min_size=1, max_size=3), st.data())
def test_a_file_that_is_cut_off_is_said_to_be(records: list[Any], data: Any) -> None:
    whole = written(records, "null", 1)
    kept = data.draw(st.integers(0, len(whole) - 1))
    try:
        found = list(read_avro(whole[:kept]))
    except AvroError:
        return
    assert found == records[: len(found)]  # cut between two blocks
    assert len(found) < len(records)


def test_what_is_not_read_is_said() -> None:
    with pytest.raises(AvroError, match="begins with b'PAR1'"):
        list(read_avro(b"PAR1" + bytes(50)))
    out = io.BytesIO()
    fastavro.writer(out, {"type": "record", "name": "R", "fields": []}, [{}], codec="bzip2")
    with pytest.raises(AvroError, match="compressed with bzip2"):
        list(read_avro(out.getvalue()))
