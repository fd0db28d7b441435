"""The consumers' own messages inside the classic protocol: subscriptions and assignments.

In a classic group they pass through as bytes: the coordinator reads only the topics of a subscription. They are read
and written in full where members of both protocols share a group, and where a group is described. Source:
ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0-3. Later versions only append, so an unknown
version is read as version 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from headrace.protocol.errors import DecodeError

VERSION_MAX = 3
BUILT_IN_ASSIGNORS = frozenset(("range", "roundrobin", "sticky", "cooperative-sticky"))
"""The assignors of Kafka's clients. Their consumers do not read the user data of an assignment."""

TopicPartitions = tuple[tuple[str, tuple[int, ...]], ...]


class Subscription(msgspec.Struct, frozen=True):
    """A consumer's subscription in JoinGroup. `owned` is empty in version 0, which does not have it."""

    version: int
    topics: tuple[str, ...]
    owned: TopicPartitions = ()
    rack_id: str | None = None


class Assignment(msgspec.Struct, frozen=True):
    """The partitions that a leader has assigned to a consumer."""

    partitions: TopicPartitions
    user_data: bytes = b""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self._data, self._position)
        self._position += struct.calcsize(layout)
        return int(value)

    def size(self, layout: str = ">i") -> int:
        """Read a length or count. Raises DecodeError if it is more than the bytes that are left."""
        size = self.number(layout)
        if not 0 <= size <= len(self._data) - self._position:
            raise DecodeError(f"a length of {size} where {len(self._data) - self._position} bytes are left")
        return size

    @property
    def is_at_end(self) -> bool:
        return self._position == len(self._data)

    def take(self, size: int) -> bytes:
        start, self._position = self._position, self._position + size
        return self._data[start : self._position]

    def string(self) -> str:
        return self.take(self.size(">h")).decode("utf-8")

    def nullable_bytes(self) -> bytes:
        start = self._position
        if self.number(">i") == -1:
            return b""
        self._position = start
        return self.take(self.size())

    def nullable_string(self) -> str | None:
        start = self._position
        if self.number(">h") == -1:
            return None
        self._position = start
        return self.string()

    def partitions(self) -> TopicPartitions:
        return tuple(
            (self.string(), tuple(self.number(">i") for _ in range(self.size()))) for _ in range(self.size())
        )


def _version(reader: _Reader) -> int:
    version = reader.number(">h")
    if version < 0:
        raise DecodeError(f"version {version} of the consumer protocol does not exist")
    return min(version, VERSION_MAX)


def read_subscription(metadata: bytes) -> Subscription:
    """Read a subscription in full. Raises DecodeError."""
    reader = _Reader(metadata)
    try:
        version = _version(reader)
        topics = tuple(reader.string() for _ in range(reader.size()))
        reader.nullable_bytes()  # user data of the assignor
        # Some clients write version 1 with only the fields of version 0.
        owned = reader.partitions() if version >= 1 and not reader.is_at_end else ()
        if version >= 2 and not reader.is_at_end:
            reader.number(">i")  # the generation in which these were owned
        rack_id = reader.nullable_string() if version >= 3 and not reader.is_at_end else None
    except (struct.error, UnicodeDecodeError) as error:
        raise DecodeError(f"not a consumer's subscription: {error}") from None
    return Subscription(version, topics, owned, rack_id)


def read_assignment(data: bytes) -> Assignment:
    """Read an assignment. Empty bytes assign no partition. Raises DecodeError."""
    if not data:
        return Assignment(())
    reader = _Reader(data)
    try:
        _version(reader)
        return Assignment(reader.partitions(), reader.nullable_bytes())
    except (struct.error, UnicodeDecodeError) as error:
        raise DecodeError(f"not a consumer's assignment: {error}") from None


def write_assignment(partitions: Iterable[tuple[str, Iterable[int]]], version: int) -> bytes:
    """Write an assignment without user data. All versions have the same layout."""
    parts = []
    for topic, indexes in partitions:
        name, numbers = topic.encode(), list(indexes)
        parts.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers))
    return struct.pack(">hi", min(version, VERSION_MAX), len(parts)) + b"".join(parts) + struct.pack(">i", -1)


def parse_subscription(metadata: bytes) -> list[str] | None:
    """Return the topic names of a subscription, or None if it cannot be read.

    All versions begin with the names, so the rest is not read.
    """
    reader = _Reader(metadata)
    try:
        _version(reader)
        return [reader.string() for _ in range(reader.size())]
    except (struct.error, UnicodeDecodeError, DecodeError):
        return None
