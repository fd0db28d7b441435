"""Frames survive any way of arriving; impossible sizes are refused before anything is stored for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.errors import DecodeError
from headrace.protocol.tests.framing import (
    FrameSplitter,
    FrameTooLarge,
    InvalidFrameSize,
    encode_frame,
    frame_size,
)


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_frames_come_back_however_they_arrive(bodies, data):
    stream = b"".join(b"".join(encode_frame([body])) for body in bodies)
    splitter = FrameSplitter()
    received = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += splitter.feed(memoryview(stream)[:size])
        stream = stream[size:]
    assert received == bodies
    assert splitter.pending_bytes == 0


def test_an_incomplete_frame_stays_pending():
    splitter = FrameSplitter()
    assert splitter.feed(b"\0\0\0\x02a") == []
    assert splitter.pending_bytes == 5
    assert splitter.feed(b"b\0") == [b"ab"]
    assert splitter.pending_bytes == 1


@pytest.mark.parametrize(
    ("prefix", "error"),
    [
        (b"\0\0\0\x0b", FrameTooLarge),
        (b"\x7f\xff\xff\xff", FrameTooLarge),
        (b"\xff\xff\xff\xff", InvalidFrameSize),
        (b"GET ", FrameTooLarge),
        (b"\x80\0\0\0", InvalidFrameSize),
    ],
)
def test_impossible_sizes_are_refused(prefix, error):
    splitter = FrameSplitter(limit=10)
    assert splitter.feed(prefix[:3]) == []
    with pytest.raises(error):
        splitter.feed(prefix[3:])
    with pytest.raises(error):
        splitter.feed(b"more")
    assert issubclass(error, DecodeError)


def test_the_limit_itself_is_allowed():
    assert FrameSplitter(limit=10).feed(b"\0\0\0\x0a" + bytes(10)) == [bytes(10)]
    assert frame_size(b"..\0\0\0\x0a", 2, limit=10) == 10
    with pytest.raises(DecodeError, match="only 3"):
        frame_size(b"...", 0)


def test_a_frame_is_put_together_by_reference():
    class Region:
        size = 1000

    region, view = Region(), memoryview(b"abc")
    parts = encode_frame([b"12", view, region, b""])
    assert parts == [(1005).to_bytes(4, "big"), b"12", view, region, b""]
    assert parts[2] is view
