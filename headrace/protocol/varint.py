"""Variable length integers of Kafka's flexible versions and records: base 128, low group first.

Unsigned ones carry lengths and tags. Signed ones (records) are zigzag coded. At most 5 bytes for 32 bits
and 10 bytes for 64 bits; more, or bits beyond the width, is a DecodeError. Positions are byte indexes into
the buffer; reading past its end is a DecodeError too.
"""

from __future__ import annotations

from typing import Final

from headrace.protocol.errors import DecodeError

Buffer = bytes | bytearray | memoryview

ONE_BYTE: Final = tuple(bytes([value]) for value in range(128))
"""The encodings of 0 to 127, which are nearly all values in practice."""


def encode_unsigned_varint(value: int) -> bytes:
    """Encode 0 <= value < 2**64."""
    if value < 128:
        return ONE_BYTE[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_varint(value: int) -> bytes:
    """Encode a signed 32 bit integer (zigzag)."""
    return encode_unsigned_varint((value << 1) ^ (value >> 31))


def encode_varlong(value: int) -> bytes:
    """Encode a signed 64 bit integer (zigzag)."""
    return encode_unsigned_varint((value << 1) ^ (value >> 63))


def read_unsigned_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned 32 bit integer; returns (value, position after it)."""
    return _read(buffer, position, 32)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a signed 32 bit integer; returns (value, position after it)."""
    left = len(buffer) - position
    if left > 0:  # one or two bytes, as nearly always, in the cheapest way
        value = buffer[position]
        if value < 128:
            return (value >> 1) ^ -(value & 1), position + 1
        if left > 1 and (second := buffer[position + 1]) < 128:
            return (value & 127 | second << 7) >> 1 ^ -(value & 1), position + 2
    value, position = _read(buffer, position, 32)
    return (value >> 1) ^ -(value & 1), position


def read_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a signed 64 bit integer; returns (value, position after it)."""
    if len(buffer) > position:  # as above
        value = buffer[position]
        if value < 128:
            return (value >> 1) ^ -(value & 1), position + 1
    value, position = _read(buffer, position, 64)
    return (value >> 1) ^ -(value & 1), position


def _read(buffer: Buffer, position: int, bits: int) -> tuple[int, int]:
    value = shift = 0
    for index in range(position, min(len(buffer), position + (bits + 6) // 7)):
        byte = buffer[index]
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> bits:
                raise DecodeError(
                    f"the varint at byte {position} has the value {value}, which needs more than {bits} bits"
                )
            return value, index + 1
        shift += 7
    if len(buffer) - position >= (bits + 6) // 7:
        raise DecodeError(
            f"the varint at byte {position} is longer than the {(bits + 6) // 7} bytes that {bits} bits take"
        )
    raise DecodeError(
        f"the varint at byte {position} is cut off at the end of the buffer, byte {len(buffer)}"
    )
