"""The records of `__consumer_offsets`, in Kafka's own format: committed positions and the metadata of groups.

Key and value each begin with an int16, the version of what follows. The version of a key says what kind of
record it is: 0 and 1 a committed position, 2 the metadata of a group. A null value is a tombstone: the
position or group is gone.

`encode_versioned` and `decode_versioned` write and read a message behind its version; `decode_key` tells
the kinds apart.
"""

from __future__ import annotations

from struct import Struct as Packer
from typing import TypeVar

from headrace.protocol.budget import DecodeBudget
from headrace.protocol.errors import DecodeError
from headrace.protocol.schema import Message, Struct, array, binary, int32, int64, string
from headrace.protocol.varint import Buffer

_VERSION = Packer(">h")

M = TypeVar("M", bound=Message)


class OffsetCommitKey(Message, versions="0-1"):
    """The key of a position: a group and a partition."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
    """A committed position. Version 3 is what Kafka writes, or 1 when there is an explicit `expire_timestamp`."""

    offset: int = int64()
    leader_epoch: int = int32(versions="3+", default=-1, ignorable=True)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(versions="1", default=-1, ignorable=True)


class GroupMetadataKey(Message, versions="2"):
    """The name of a group."""

    group: str = string()


class MemberMetadata(Struct):
    """A member of a group with its subscription and assignment, which are opaque here. Timeouts in milliseconds."""

    member_id: str = string()
    group_instance_id: str | None = string(versions="3+", nullable="3+", default=None, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(versions="1+", default=-1, ignorable=True)
    session_timeout: int = int32()
    subscription: bytes = binary()
    assignment: bytes = binary()


class GroupMetadataValue(Message, versions="0-4", flexible="4+"):
    """A generation of a group. Version 3 is what Kafka writes."""

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable="0+")
    leader: str | None = string(nullable="0+")
    current_state_timestamp: int = int64(versions="2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = array(MemberMetadata)


def encode_versioned(message: Message, version: int) -> bytes:
    """The bytes of a key or value: its version, then the message in that version."""
    return _VERSION.pack(version) + message.encode(version)


def decode_versioned(kind: type[M], buffer: Buffer, budget: DecodeBudget | None = None) -> tuple[M, int]:
    """A value, or a key of a known kind, and the version it was written in. Raises DecodeError."""
    version = peek_version(buffer)
    return kind.decode(buffer, version, budget, _VERSION.size), version


def decode_key(buffer: Buffer, budget: DecodeBudget | None = None) -> OffsetCommitKey | GroupMetadataKey:
    """The key of a record, of whichever kind its version says. Raises DecodeError for versions that are not known."""
    if peek_version(buffer) >= GroupMetadataKey.MIN_VERSION:
        return decode_versioned(GroupMetadataKey, buffer, budget)[0]
    return decode_versioned(OffsetCommitKey, buffer, budget)[0]


def peek_version(buffer: Buffer) -> int:
    """The version that a key or value begins with."""
    if len(buffer) < _VERSION.size:
        raise DecodeError(
            f"a key or value of {len(buffer)} bytes is too short for its version; it takes at least 2"
        )
    version: int = _VERSION.unpack_from(buffer)[0]
    return version
