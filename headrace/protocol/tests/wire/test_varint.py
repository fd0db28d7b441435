"""Variable length integers: round trips, sizes, and refusal of integers that are too long or cut off."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.protocol.errors import DecodeError
from headrace.protocol.varint import (
    encode_unsigned_varint,
    encode_varint,
    encode_varlong,
    read_unsigned_varint,
    read_varint,
    read_varlong,
)

CODECS = [
    (encode_unsigned_varint, read_unsigned_varint, 0, 2**32 - 1, 5),
    (encode_varint, read_varint, -(2**31), 2**31 - 1, 5),
    (encode_varlong, read_varlong, -(2**63), 2**63 - 1, 10),
]


@pytest.mark.parametrize(("encode", "read", "low", "high", "size"), CODECS)
def test_numbers_come_back(encode, read, low, high, size):
    @given(st.integers(low, high), st.binary(max_size=3))
    @example(low, b"")
    @example(high, b"\x80")
    @example(127, b"")
    @example(128, b"")
    def check(value, rest):
        encoded = encode(value)
        assert len(encoded) <= size
        assert read(b"?" + encoded + rest, 1) == (value, 1 + len(encoded))
        for end in range(len(encoded)):
            with pytest.raises(DecodeError, match="cut off"):
                read(encoded[:end], 0)

    check()
    assert max(len(encode(low)), len(encode(high))) == size


@pytest.mark.parametrize(("encode", "read", "low", "high", "size"), CODECS)
def test_too_long_ones_are_refused(encode, read, low, high, size):
    with pytest.raises(DecodeError, match=f"longer than the {size} bytes"):
        read(b"\x80" * size + b"\x01", 0)
    with pytest.raises(DecodeError, match="bits"):
        read(b"\xff" * (size - 1) + b"\x7f", 0)


def test_known_encodings():
    """Examples of the Protocol Buffers documentation, which uses this encoding."""
    assert encode_unsigned_varint(300) == b"\xac\x02"
    assert [encode_varint(value) for value in (0, -1, 1, -2, 2147483647, -2147483648)] == [
        b"\x00", b"\x01", b"\x02", b"\x03", b"\xfe\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x0f"
    ]  # fmt: skip
