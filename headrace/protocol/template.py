"""Messages that are sent again and again with little in them changed: what changes is found without decoding or
encoding the rest.

A producer's requests are the same bytes but for the correlation id and the records; a broker's answers to them
but for a few offsets. A template is made from one message that went the whole way through its codec, and holds
for a frame only if every other byte is the same. So it can say nothing that the codec would not say.

Pure. No template is made (None) from a message that does not fit; nothing here raises.
"""

from __future__ import annotations

from struct import Struct as Packer
from typing import Final

from headrace.protocol.errors import EncodeError
from headrace.protocol.schema import ApiMessage
from headrace.protocol.varint import encode_unsigned_varint

CORRELATION_END: Final = 8
"""A request frame begins with key, version and correlation id; the latter is all of it that always changes."""


class RecordsTemplate:
    """A request with one `records` value, which alone may change.

    key     the first four bytes, API key and version
    prefix  the bytes from `CORRELATION_END` up to the length of the records
    """

    __slots__ = ("_is_flexible", "_suffix", "_suffix_size", "key", "prefix", "prefix_end")

    def __init__(self, key: bytes, prefix: bytes, suffix: bytes, is_flexible: bool) -> None:
        self.key = key
        self.prefix = prefix
        self.prefix_end = CORRELATION_END + len(prefix)
        self._suffix = suffix
        self._suffix_size = len(suffix)
        self._is_flexible = is_flexible

    @classmethod
    def of(
        cls, frame: bytes, body_position: int, message: ApiMessage, version: int
    ) -> RecordsTemplate | None:
        """From a frame and the message its body was decoded to.

        None unless the message has exactly one records value that is not empty, and the body is what the encoder
        makes of the message: unknown tagged fields or bytes behind it are left to the decoder.
        """
        try:
            parts = message.encode_parts(version)
        except EncodeError:
            return None
        if not 2 <= len(parts) <= 3 or type(parts[0]) is not bytes or type(parts[1]) is bytes:
            return None
        head, records = parts[0], parts[1]
        suffix = parts[2] if len(parts) == 3 else b""
        if frame[body_position:] != b"".join((head, records, suffix)):
            return None
        is_flexible = message.is_flexible(version)
        length_size = len(encode_unsigned_varint(len(records) + 1)) if is_flexible else 4
        end = body_position + len(head) - length_size
        return cls(frame[:4], frame[CORRELATION_END:end], suffix, is_flexible)

    def records(self, frame: bytes) -> memoryview | None:
        """The records of a frame in which `key` and `prefix` were found; None if it is not of this form."""
        position = self.prefix_end
        try:
            if self._is_flexible:
                size = frame[position] - 1
                position += 1
                if size > 126:
                    size -= 128
                    shift = 7
                    while (byte := frame[position]) > 127:
                        size += (byte & 127) << shift
                        shift += 7
                        position += 1
                    size += byte << shift
                    position += 1
            else:
                size = int.from_bytes(frame[position : position + 4], "big", signed=True)
                position += 4
        except IndexError:
            return None
        end = position + size
        if size <= 0 or end + self._suffix_size != len(frame) or not frame.endswith(self._suffix):
            return None
        return memoryview(frame)[position:end]


class NumbersTemplate:
    """A response in which only the correlation id and some int64 fields, one after another, change."""

    __slots__ = ("_pack", "_prefix", "_suffix")

    def __init__(self, prefix: bytes, suffix: bytes, count: int) -> None:
        self._pack = Packer(f">i{len(prefix)}s{count}q{len(suffix)}s").pack
        self._prefix = prefix
        self._suffix = suffix

    @classmethod
    def of(cls, message: ApiMessage, version: int, placeholders: tuple[int, ...]) -> NumbersTemplate | None:
        """From a message whose changing fields hold the `placeholders`: values that occur nowhere else.

        None if this version does not have them, or has them in another order or not next to each other.
        """
        try:
            body = message.encode(version)
        except EncodeError:
            return None
        place = Packer(f">{len(placeholders)}q").pack(*placeholders)
        prefix, found, suffix = body.partition(place)
        if not found or place in suffix:
            return None
        tags = b"\0" if message.header_version(version) == 1 else b""
        return cls(tags + prefix, suffix, len(placeholders))

    def encode(self, correlation_id: int, numbers: tuple[int, ...]) -> bytes:
        """The frame, without its length: header and body."""
        return self._pack(correlation_id, self._prefix, *numbers, self._suffix)
