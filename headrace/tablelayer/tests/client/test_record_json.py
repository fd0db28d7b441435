"""A record of a topic as JSON and back: equal bytes, whatever they are."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.tablelayer.cli.records import from_lines
from headrace.tablelayer.client import KafkaRecord
from headrace.tablelayer.client.admin.record_json import record_from_json, record_to_json

PIECES = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(lambda text: text.encode())
NAMES = st.text(max_size=8).filter(
    lambda text: text.isascii() or text.encode("utf-8", "replace").decode() == text
)
RECORDS = st.builds(
    KafkaRecord,
    st.integers(0, 9),
    st.integers(0, 2**62),
    st.integers(-1, 2**53),
    PIECES,
    PIECES,
    st.lists(st.tuples(NAMES, PIECES), max_size=4).map(tuple),
)


@given(st.lists(RECORDS, max_size=5))
@example([KafkaRecord(0, 0, 0, None, None, ())])
@example([KafkaRecord(0, 0, 0, b"", b"", (("", b""), ("", None)))])
@example(
    [KafkaRecord(0, 0, 0, b"\\xff", b"\0\0\0\0\x01\x06\xff", (("a", b"\xff"), ("b", b"1"), ("a", b"2")))]
)
@example([KafkaRecord(0, 0, 0, b"null", b'"a"\r\n', (("base64", b"AA=="),))])
def test_a_record_that_is_written_and_read_again_is_equal(tmp_path_factory, records):
    file = Path(tmp_path_factory.getbasetemp()) / "records.jsonl"
    file.write_text("".join(f"{record_to_json(each)}\n" for each in records), encoding="utf-8")
    read = list(from_lines(file, key_separator=None, is_json=True))
    assert [(each.key, each.value, tuple(each.headers), each.timestamp_ms) for each in read] == [
        (each.key, each.value, each.headers, each.timestamp_ms) for each in records
    ]


def test_only_bytes_that_are_not_text_are_base64():
    text = KafkaRecord(1, 2, 3, "ö".encode(), b"v", (("h", b"w"),))
    assert json.loads(record_to_json(text)) == {
        "partition": 1, "offset": 2, "timestamp": 3, "key": "ö", "value": "v", "headers": [["h", "w"]],
    }  # fmt: skip
    binary = KafkaRecord(1, 2, 3, b"\xff", b"\xfe", (("h", b"\xfd"),))
    assert json.loads(record_to_json(binary)) == {
        "partition": 1, "offset": 2, "timestamp": 3, "key": "/w==", "value": "/g==",
        "key_encoding": "base64", "value_encoding": "base64", "headers": [["h", "/Q==", "base64"]],
    }  # fmt: skip


def test_a_value_that_is_not_a_string_keeps_its_json_bytes():
    line = (
        b'{"value": {"price":  12345678901234.5678, "n": 1.0}, "key": 7, "headers": {"h": [1 ,2], "n": null}}'
    )
    read = record_from_json(line)
    assert read.value == b'{"price":  12345678901234.5678, "n": 1.0}'
    assert (read.key, read.headers) == (b"7", [("h", b"[1 ,2]"), ("n", None)])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "is not JSON"),
        (b'{"value": "\xff"}', "is not JSON"),
        (b"[1]", "is not an object with a key or a value"),
        (b'{"headers": []}', "is not an object with a key or a value"),
        (b'{"value": "x", "value_base64": "AA=="}', "unknown field `value_base64`"),
        (b'{"value": "x", "value_encoding": "hex"}', "hex"),
        (b'{"value": 1, "value_encoding": "base64"}', "a value that is declared base64 and is not a text"),
        (b'{"key": "A", "key_encoding": "base64"}', "a key that is not base64"),
        (b'{"key": "\\ud800 "}', "is not JSON"),
        (b'{"value": 1, "timestamp": 1.5}', "timestamp"),
        (b'{"value": 1, "headers": [["a", "b", "hex"]]}', "write headers as"),
        (b'{"value": 1, "headers": [["a"]]}', "write headers as"),
        (b'{"value": 1, "headers": [[1, "b"]]}', "write headers as"),
        (b'{"value": 1, "headers": {"a": "1", "a": "2"}}', "names a header twice"),
    ],
)
def test_malformed_record_json_is_refused(line, said):
    with pytest.raises(ValueError, match=said):
        record_from_json(line)
