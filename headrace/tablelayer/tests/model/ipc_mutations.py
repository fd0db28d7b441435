"""Arrow record batch messages with one error: in a field of the metadata, in a buffer, or in the frame.

`mutated` returns one of them, with a name of the error; the same generator state gives the same one. Most must be
refused; some stay valid (another number in a column of numbers), so tests require "refused, or readable by every
reader" instead of "refused". `framed` puts a message into a batch of the log, with a right CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import cramjam
import numpy as np

from headrace.protocol.records.header import LOG_OVERHEAD, write_crc
from headrace.tablelayer.model.batches.batch import ArrowBatch, message_position
from headrace.tablelayer.model.batches.ipc_metadata import build_metadata, parse_metadata

EDGES = (-(1 << 63), -(1 << 31), -2, -1, 0, 1, 7, 8, 9, 63, 64, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1)

VERSION_AT, TYPE_AT, BODY_SIZE_AT = 40, 42, 32
"""The positions of the message's fields, as `build_metadata` writes them, from its first byte."""
METHOD_AT = 8 + 80 + 5

SURPLUS_ROWS_MAX = 1 << 16
"""A message that was mutated before may state 2^62 rows."""

Pieces = list[bytes]


class Message:
    """A message taken apart: `nodes` [[length, null count]], `buffers` one bytes each, as they are in the body."""

    def __init__(self, message: bytes | memoryview) -> None:
        data = bytes(message)
        found = parse_metadata(data)
        self.row_count, self.codec = found.row_count, found.codec
        self.nodes: list[list[int]] = found.nodes.tolist()
        body = data[found.body_position :]
        self.buffers: Pieces = [body[at : at + size] for at, size in found.buffers.tolist()]

    def placed(self) -> tuple[list[list[int]], bytes]:
        """[[position, length]] of the buffers, and the body."""
        places, body = [], bytearray()
        for buffer in self.buffers:
            places.append([len(body), len(buffer)])
            body += buffer + bytes(-len(buffer) % 8)
        return places, bytes(body)

    def encoded(
        self, places: list[list[int]] | None = None, body: bytes | None = None, body_size: int | None = None
    ) -> bytearray:
        """Return the message, with these places of its buffers, this body and this stated size of the body."""
        honest_places, honest_body = self.placed()
        places = honest_places if places is None else places
        body = honest_body if body is None else body
        nodes = np.array(self.nodes, np.int64).reshape(-1, 2)
        where = np.array(places, np.int64).reshape(-1, 2)
        size = len(body) if body_size is None else body_size
        return bytearray(build_metadata(self.row_count, nodes, where, self.codec, size) + body)


def bomb(codec: int, size: int) -> bytes:
    """`size` zeros as a compressed buffer of a message."""
    packed = cramjam.lz4.compress(bytes(size)) if codec == 0 else cramjam.zstd.compress(bytes(size))
    return struct.pack("<q", size) + bytes(packed)


def framed(batch: bytes | bytearray, message: bytes | bytearray) -> bytes:
    """The batch with another message in it, and a CRC that is right."""
    parsed = ArrowBatch.parse(batch)
    changes = 0 if parsed.change_types is None else len(parsed.change_types)
    result = bytearray(batch[: message_position(changes, len(parsed.statistics))]) + message
    struct.pack_into(">i", result, 8, len(result) - LOG_OVERHEAD)
    write_crc(result)
    return bytes(result)


def with_field(batch: bytes | bytearray, position: int, form: str, *values: int) -> bytes:
    """The batch with a field of its header overwritten, and a CRC that is right."""
    result = bytearray(batch)
    struct.pack_into(form, result, position, *values)
    if struct.unpack_from(">i", result, 8)[0] + LOG_OVERHEAD == len(result):
        write_crc(result)
    return bytes(result)


def mutated(message: bytes | memoryview, rng: np.random.Generator) -> tuple[str, bytes]:
    """Return (the name of the mutation, the message with that one change)."""
    mutation = MUTATIONS[int(rng.integers(len(MUTATIONS)))]
    name, result = mutation(bytes(message), rng)
    return f"{mutation.__name__.strip('_')}: {name}", bytes(result)


def _edge(rng: np.random.Generator, near: int) -> int:
    value = int(rng.choice(np.array(EDGES, np.int64)))
    return (
        value if rng.random() < 0.5 else max(-(1 << 63), min(near + int(rng.integers(-9, 10)), (1 << 63) - 1))
    )


def _one(rng: np.random.Generator, count: int) -> int:
    return int(rng.integers(count)) if count else 0


def _row_count(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    message = Message(data)
    before, message.row_count = message.row_count, _edge(rng, message.row_count)
    if rng.random() < 0.5:
        for node in message.nodes:
            node[0] = message.row_count if node[0] == before else node[0]
    return f"{before} rows are {message.row_count}", message.encoded()


def _node(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    message = Message(data)
    index, field = _one(rng, len(message.nodes)), int(rng.integers(2))
    before, after = message.nodes[index][field], _edge(rng, message.nodes[index][field])
    message.nodes[index][field] = after
    return f"node {index} field {field}: {before} is {after}", message.encoded()


def _place(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    message = Message(data)
    places, body = message.placed()
    index, field = _one(rng, len(places)), int(rng.integers(2))
    before, after = places[index][field], _edge(rng, places[index][field])
    places[index][field] = after
    return f"buffer {index} field {field}: {before} is {after}", message.encoded(places, body)


def _shared(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    message = Message(data)
    places, body = message.placed()
    one, other = _one(rng, len(places)), _one(rng, len(places))
    places[one] = list(places[other])
    return f"buffer {one} is buffer {other}", message.encoded(places, body)


def _count(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    message = Message(data)
    things: list[list[object]] = [message.nodes, message.buffers]  # type: ignore[list-item]
    which = int(rng.integers(3))
    name = ("node", "buffer", "column")[which]
    add = bool(rng.random() < 0.5)
    if which == 2:  # a surplus column that is whole, or one less
        if add:
            message.nodes.append([message.row_count, 0])
            message.buffers += [b"", bytes(8 * max(0, min(message.row_count, SURPLUS_ROWS_MAX)))]
        else:
            del message.nodes[-1], message.buffers[-2:]
    elif add:
        at = _one(rng, len(things[which]) + 1)
        things[which].insert(at, [message.row_count, 0] if which == 0 else bytes(8))
    else:
        del things[which][_one(rng, len(things[which]))]
    return f"one {name} {'more' if add else 'less'}", message.encoded()


def _body(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    message = Message(data)
    places, body = message.placed()
    size = _edge(rng, len(body))
    how = int(rng.integers(3))
    if how == 0:
        return f"a body of {len(body)} says {size}", message.encoded(body_size=size)
    if how == 1:
        return "bytes behind the body", message.encoded() + bytes(int(rng.integers(1, 20)))
    return "a body cut short", message.encoded(places, body[: _one(rng, len(body))])


def _form(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    message = Message(data)
    result = message.encoded()
    how = int(rng.integers(6))
    if how == 0:
        result[0:4] = struct.pack("<I", int(rng.integers(1 << 32)))
        return "another marker", result
    if how == 1:
        result[4:8] = struct.pack("<i", max(-(1 << 31), min(_edge(rng, len(result)), (1 << 31) - 1)))
        return "another length of metadata", result
    if how == 2:
        result[VERSION_AT : VERSION_AT + 2] = struct.pack("<h", int(rng.integers(-3, 8)))
        return "another version", result
    if how == 3:
        result[TYPE_AT] = int(rng.integers(0, 7))
        return "another type of message", result
    if how == 4:
        message.codec = int(rng.integers(-1, 4))
        return f"codec {message.codec}", message.encoded()
    result = result[8:]  # the form of before the marker, and metadata that begins anywhere
    return "no marker", result


def _metadata_bits(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    result = bytearray(data)
    end = min(len(data), 8 + struct.unpack_from("<i", data, 4)[0])
    at = int(rng.integers(0, end))
    result[at] ^= 1 << int(rng.integers(8))
    return f"a bit of byte {at} of the metadata", result


def _buffer(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    """Return the content of a buffer: if the message is compressed, its length in front, or the compressed bytes."""
    message = Message(data)
    filled = [index for index, buffer in enumerate(message.buffers) if buffer]
    if not filled:
        return "nothing", message.encoded()
    index = filled[_one(rng, len(filled))]
    buffer = bytearray(message.buffers[index])
    how = int(rng.integers(8))
    name = ("bits", "words", "noise", "zeros", "shorter", "longer", "none", "huge words")[how]
    if how == 0:
        for _ in range(int(rng.integers(1, 4))):
            buffer[_one(rng, len(buffer))] ^= 1 << int(rng.integers(8))
    elif how in (1, 7) and len(buffer) >= 8:
        word = int(rng.integers(len(buffer) // 4))
        value = int(rng.integers(-(1 << 31), 1 << 31)) if how == 7 else int(rng.integers(-3, 40))
        struct.pack_into("<i", buffer, 4 * word, value)
    elif how == 2:
        buffer[:] = rng.bytes(len(buffer))
    elif how == 3:
        buffer[:] = bytes(len(buffer))
    elif how == 4:
        del buffer[_one(rng, len(buffer)) :]
    elif how == 5:
        buffer += rng.bytes(int(rng.integers(1, 70)))
    elif how == 6:
        buffer.clear()
    message.buffers[index] = bytes(buffer)
    return f"buffer {index}: {name}", message.encoded()


def _opened_length(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    """Return the stated length of a compressed buffer; in a message without compression, some buffer's first word."""
    message = Message(data)
    filled = [index for index, buffer in enumerate(message.buffers) if len(buffer) >= 8]
    if not filled:
        return "nothing", message.encoded()
    index = filled[_one(rng, len(filled))]
    buffer = bytearray(message.buffers[index])
    struct.pack_into("<q", buffer, 0, _edge(rng, struct.unpack_from("<q", buffer)[0]))
    message.buffers[index] = bytes(buffer)
    return f"buffer {index} says another length", message.encoded()


def _bomb(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    message = Message(data)
    if message.codec < 0:
        return _buffer(data, rng)
    index = _one(rng, len(message.buffers))
    size = int(rng.choice([1 << 16, 1 << 22, 101 << 20]))
    message.buffers[index] = bomb(message.codec, size)
    return f"buffer {index}: {size} zeros", message.encoded()


def _cut(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    return "cut", data[: _one(rng, len(data))]


MUTATIONS: list[Callable[[bytes, np.random.Generator], tuple[str, bytes]]] = [
    _row_count, _node, _node, _place, _place, _shared, _count, _body, _form, _metadata_bits, _buffer, _buffer, _buffer,
    _buffer, _opened_length, _bomb, _cut,
]  # fmt: skip
