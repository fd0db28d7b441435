"""The bytes before a message in its frame (KIP-482): request headers 1 and 2, response headers 0 and 1.

Request header 1: api_key int16, api_version int16, correlation_id int32, client_id nullable string. Header 2 adds
tagged fields; its client_id keeps the old encoding. Response header 0: correlation_id int32; header 1 adds tagged
fields. `ApiMessage.header_version` is the version that a message has. Tagged fields of headers are skipped: none is
defined for clients.
"""

from __future__ import annotations

from struct import Struct as Packer
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

from headrace.protocol.errors import DecodeError, EncodeError
from headrace.protocol.varint import Buffer, read_unsigned_varint

_REQUEST = Packer(">hhih")
_PREFIX = Packer(">hhi")
_CORRELATION = Packer(">i")
MAX_FRAME_SIZE = 100 * 1024 * 1024
"""Largest frame in bytes that a client accepts: Kafka's default of `socket.request.max.bytes`."""
TAGGED_FIELDS_MAX = 1000
"""Limit per header. None is defined, and each one that is sent must be read to skip it."""


class RequestHeader(NamedTuple):
    """The header of a request; `client_id` is the client's own name, for logs and quotas."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def peek_request(frame: Buffer) -> tuple[int, int, int]:
    """(api_key, api_version, correlation_id) of a request, whatever its header version. The first 8 bytes
    are enough.
    """
    if len(frame) < _PREFIX.size:
        raise DecodeError(f"a request of {len(frame)} bytes is too short for its header; it takes at least 8")
    return _PREFIX.unpack_from(frame)


def decode_request_header(frame: Buffer, header_version: int) -> tuple[RequestHeader, int]:
    """The header at the start of `frame`, and the position where the body begins. `header_version` is 1 or
    2.
    """
    try:
        api_key, api_version, correlation_id, size = _REQUEST.unpack_from(frame)
    except StructError:
        raise DecodeError(
            f"a request of {len(frame)} bytes is too short for its header; it takes at least 10"
        ) from None
    position = 10
    client_id = None
    if size >= 0:
        if size > len(frame) - position:
            raise DecodeError(
                f"client_id: {size} bytes are announced, but only {len(frame) - position} are left"
            )
        try:
            client_id = str(frame[position : position + size], "utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"client_id is not UTF-8: {bytes(error.object[:64])!r}") from None
        position += size
    elif size != -1:
        raise DecodeError(f"client_id: {size} is not a length")
    if header_version == 2:
        if position < len(frame) and frame[position] == 0:  # usually without tagged fields
            position += 1
        else:
            position = skip_tagged_fields(frame, position)
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def encode_request_header(header: RequestHeader, header_version: int) -> bytes:
    """The bytes of a request header; `header_version` is 1 or 2."""
    client_id = b"" if header.client_id is None else header.client_id.encode()
    size = -1 if header.client_id is None else len(client_id)
    try:
        start = _REQUEST.pack(header.api_key, header.api_version, header.correlation_id, size)
    except StructError as error:
        raise EncodeError(f"{header} does not fit into a request header: {error}") from None
    return start + client_id + (b"\0" if header_version == 2 else b"")


def decode_response_header(frame: Buffer, header_version: int) -> tuple[int, int]:
    """(correlation_id, position where the body begins). `header_version` is 0 or 1."""
    if len(frame) < _CORRELATION.size:
        raise DecodeError(
            f"a response of {len(frame)} bytes is too short for its header; it takes at least 4"
        )
    (correlation_id,) = _CORRELATION.unpack_from(frame)
    return correlation_id, skip_tagged_fields(frame, 4) if header_version == 1 else 4


def encode_response_header(correlation_id: int, header_version: int) -> bytes:
    """The bytes of a response header; `header_version` is 0 or 1."""
    return _CORRELATION.pack(correlation_id) + (b"\0" if header_version == 1 else b"")


def skip_tagged_fields(buffer: Buffer, position: int) -> int:
    """The position after the section of tagged fields that begins at `position`."""
    if position < len(buffer) and buffer[position] == 0:
        return position + 1
    count, position = read_unsigned_varint(buffer, position)
    if count > TAGGED_FIELDS_MAX:
        raise DecodeError(f"a header has {count} tagged fields; {TAGGED_FIELDS_MAX} are accepted")
    last = -1
    for _ in range(count):
        tag, position = read_unsigned_varint(buffer, position)
        if tag <= last:
            raise DecodeError(f"tagged field {tag} comes after {last} in a header; tags must ascend")
        last = tag
        size, position = read_unsigned_varint(buffer, position)
        if size > len(buffer) - position:
            raise DecodeError(
                f"tagged field {tag} of a header announces {size} bytes, but only "
                f"{len(buffer) - position} are left"
            )
        position += size
    return position
