"""A reader of protobuf messages that decodes only what is asked for.

A message is declared as a `msgspec.Struct`. Each field is `Annotated` with its number; a repeated one is a list. A
nested message is a view of the encoded bytes, and is decoded when the caller reads it. Encoding:
https://protobuf.dev/programming-guides/encoding.

`google.protobuf` does not decode chains of a thousand conditions (docs/decisions/filter-messages.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec

FIELDS_MAX: Final = 50_000
"""Maximum number of protobuf fields that one `Walk` reads: some 50 ms of the interpreter."""
VARINT, BYTES = 0, 2
"""Wire types."""
_FIXED_SIZES: Final = {1: 8, 5: 4}
EMPTY: Final = memoryview(b"")
MessageT = TypeVar("MessageT", bound=msgspec.Struct)
Field = tuple[int, "int | memoryview"]


class Walk:
    """A reader of protobuf fields that limits their number. All methods raise ValueError for malformed bytes."""

    __slots__ = ("left",)

    def __init__(self, most: int = FIELDS_MAX) -> None:
        self.left = most

    def fields(self, data: memoryview) -> Iterator[Field]:
        """Yield (number, varint or bytes) of each field of a message."""
        at = 0
        while at < len(data):
            self.left -= 1
            if self.left < 0:
                raise ValueError(f"it has more than {FIELDS_MAX} parts: put many values into one IN")
            key, at = _varint(data, at)
            number, wire = key >> 3, key & 7
            value: int | memoryview
            if wire == VARINT:
                value, at = _varint(data, at)
            else:
                size = _FIXED_SIZES.get(wire, 0)
                if wire == BYTES:
                    size, at = _varint(data, at)
                elif not size:
                    raise ValueError(f"a field of the wire type {wire}")
                if at + size > len(data):
                    raise ValueError("a field is cut off")
                value, at = data[at : at + size], at + size
            yield number, value

    def first(self, data: memoryview) -> Field:
        """Return the first field of a message; (0, 0) if it is empty."""
        return next(self.fields(data), (0, 0))

    def read(self, message: type[MessageT], data: memoryview) -> MessageT:
        """Return a message with its declared fields; of a repeated one the last value counts. Others are skipped."""
        declared = _declared(message)
        found: dict[str, Any] = {}
        for number, value in self.fields(data):
            if number not in declared:
                continue
            name, kind, is_repeated = declared[number]
            if is_repeated:
                found.setdefault(name, []).append(_value(kind, value))
            else:
                found[name] = _value(kind, value)
        return message(**found)


@cache
def _declared(message: type[msgspec.Struct]) -> dict[int, tuple[str, type, bool]]:
    """Return (name, type, whether it is repeated) by the number of the field."""
    found = dict[int, tuple[str, type, bool]]()
    for name, hint in get_type_hints(message, include_extras=True).items():
        kind, number = get_args(hint)
        is_repeated = get_origin(kind) is list
        found[number] = name, get_args(kind)[0] if is_repeated else kind, is_repeated
    return found


def _value(kind: type, value: int | memoryview) -> int | str | memoryview:
    if kind is int:
        return signed(value)
    return str(bytes(message_of(value)), "utf-8") if kind is str else message_of(value)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7


def signed(value: int | memoryview) -> int:
    """Return the value of an int field. Raises ValueError for bytes."""
    if not isinstance(value, int):
        raise ValueError("a number was expected")
    return value - (1 << 64) if value >> 63 else value


def message_of(value: int | memoryview) -> memoryview:
    """Return the value of a bytes field. Raises ValueError for a number."""
    if isinstance(value, int):
        raise ValueError("a message was expected")
    return value


def written(message: msgspec.Struct) -> memoryview:
    """Encode a message. Fields that have their default are left out."""
    data = bytearray()
    defaults = type(message)()
    for number, (name, _, is_repeated) in sorted(_declared(type(message)).items()):
        value = getattr(message, name)
        if value == getattr(defaults, name):
            continue
        for each in value if is_repeated else [value]:
            if isinstance(each, int):
                data += _number(number << 3 | VARINT) + _number(each & (1 << 64) - 1)
            else:
                content = each.encode() if isinstance(each, str) else each
                data += _number(number << 3 | BYTES) + _number(len(content)) + content
    return memoryview(data)


def _number(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
