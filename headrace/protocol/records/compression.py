"""The codecs of record batches, with a bound on what may come out.

`decompress` never produces more than it is allowed to: output goes into a buffer that grows up to the bound,
so a small input that would inflate to gigabytes costs no more than the bound and ends in a DecodeError.

Snappy is accepted raw and in the framing of Java's snappy library ("xerial": 16 byte header, then blocks each
with an int32 length), and written in that framing, which every Kafka client reads. LZ4 is the frame format,
written with independent blocks because Java's client reads no others.

Pure functions; cramjam does the work and releases the GIL. Source: KIP-110 (zstd), Kafka's `CompressionType`.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import cramjam

from headrace.protocol.errors import DecodeError
from headrace.protocol.loading.lazy import lazy_module
from headrace.protocol.records.header import HEADER_SIZE, MAGIC_V2, BatchHeader, Buffer, read_header

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = lazy_module("numpy")

Bytes: TypeAlias = "NDArray[np.uint8]"

MAX_DECOMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""Default bound. A batch is at most `max.message.bytes` compressed (1 MiB unless configured); 256 times that
is more than any real record set reaches and still far from exhausting a small machine."""

LZ4_DEFAULT_LEVEL: Final = 9

_FIRST_GUESS: Final = 64 * 1024
_RATIO_GUESS: Final = 16
"""First guess of the ratio. Unwritten memory costs nothing; a second attempt costs as much as the first one."""
_INT32: Final = Struct(">i")
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK: Final = 32 * 1024
# Magic, version 1 with independent blocks, blocks of at most 64 KiB, and the checksum of these two bytes.
_LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK: Final = 64 * 1024
_LZ4_STORED: Final = 1 << 31
_LZ4_SIZE: Final = Struct("<I")
_LZ4_FLAGS_POSITION: Final = 4
_LZ4_HAS_CONTENT_SIZE: Final = 0x08
_LZ4_HAS_CONTENT_CHECKSUM: Final = 0x04
_LZ4_HAS_BLOCK_CHECKSUMS: Final = 0x10
_LZ4_HAS_DICTIONARY: Final = 0x01
_LZ4_FRAME_MIN: Final = 11
_NO_ROOM: Final = "failed to write whole buffer"


class DecompressedTooLarge(DecodeError):  # noqa: N818 - what Kafka calls MESSAGE_TOO_LARGE
    """The data would decompress to more bytes than allowed; at most the allowed number was produced."""


class Compression(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_STREAMS: Final = {
    Compression.GZIP: cramjam.gzip,
    Compression.LZ4: cramjam.lz4,
    Compression.ZSTD: cramjam.zstd,
}


def codec_of(number: int) -> Compression:
    """Return the codec of a number. Raise DecodeError for one that Kafka does not define (5 to 7)."""
    try:
        return Compression(number)
    except ValueError:
        raise DecodeError(
            f"compression codec {number} is unknown; known are 0 (none), 1 (gzip), 2 (snappy), 3 (lz4), 4 (zstd)"
        ) from None


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """Return the compressed bytes, or `data` itself for codec 0.

    `level` is that of gzip (1 to 9), zstd (-131072 to 22) or lz4 (1 to 17), in Kafka's numbers (KIP-780); None is
    the codec's default. LZ4's default, 9, means its fast mode, as in Kafka; other levels are of high compression.
    """
    compression = codec_of(codec)
    if compression is Compression.NONE:
        return data
    if compression is Compression.SNAPPY:
        return _compress_xerial(data)
    if compression is Compression.LZ4:
        return _compress_lz4_frame(data, level)
    return memoryview(_STREAMS[compression].compress(data, level=level))


def open_batch(batch: Buffer, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> tuple[BatchHeader, Bytes]:
    """Header and decompressed records of the one batch (magic 2) that `batch` begins with.

    Raises DecodeError for another magic, a batch that is cut short, and as `decompress` does.
    """
    header = read_header(batch)
    if header.magic != MAGIC_V2:
        raise DecodeError(f"a batch of magic {header.magic} holds no Kafka records; magic {MAGIC_V2} does")
    if header.size > len(batch):
        raise DecodeError(f"a batch of {header.size} bytes is cut short: {len(batch)} bytes are there")
    body = memoryview(batch)[HEADER_SIZE : header.size]
    return header, decompress(header.compression, body, max_bytes=max_bytes)


def decompress(codec: int, data: Buffer, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Bytes:
    """The decompressed bytes, a view of `data` for codec 0.

    Raises DecodeError if the data is malformed, DecompressedTooLarge if there would be more than `max_bytes`.
    """
    compression = codec_of(codec)
    if compression is Compression.NONE:
        if len(data) > max_bytes:
            raise _too_large(compression, max_bytes)
        return np.frombuffer(data, np.uint8)
    if compression is Compression.SNAPPY:
        return _decompress_snappy(data, max_bytes)
    decompress_into = _STREAMS[compression].decompress_into
    capacity = min(max_bytes, max(_FIRST_GUESS, _RATIO_GUESS * len(data)))
    while True:
        output = np.empty(capacity, np.uint8)
        try:
            return output[: decompress_into(data, output)]
        except cramjam.DecompressionError as error:
            del output  # the exception keeps the frame, and with it large objects
            if _NO_ROOM not in str(error):
                raise _malformed(compression, error) from None
            if capacity >= max_bytes:
                raise _too_large(compression, max_bytes) from None
        capacity = max_bytes


class Lz4Frame(NamedTuple):
    """The frame of the blocks of LZ4 data."""

    blocks: int
    has_checksums: bool
    """Checksums of blocks or of the content."""


def lz4_frame(data: Buffer, blocks_max: int) -> Lz4Frame | None:
    """Return the shape of data that is one whole LZ4 frame of at most `blocks_max` blocks, else None.

    Nothing is decompressed; each block is a step. Source: LZ4 frame format 1.6.
    """
    view = memoryview(data)
    size = len(view)
    if size < _LZ4_FRAME_MIN or bytes(view[:_LZ4_FLAGS_POSITION]) != _LZ4_HEADER[:_LZ4_FLAGS_POSITION]:
        return None
    flags = view[_LZ4_FLAGS_POSITION]
    after_block = 4 if flags & _LZ4_HAS_BLOCK_CHECKSUMS else 0
    after_frame = 4 if flags & _LZ4_HAS_CONTENT_CHECKSUM else 0
    position = _LZ4_FLAGS_POSITION + 3
    position += (8 if flags & _LZ4_HAS_CONTENT_SIZE else 0) + (4 if flags & _LZ4_HAS_DICTIONARY else 0)
    for blocks in range(blocks_max + 1):
        if position + _LZ4_SIZE.size > size:
            return None
        (length,) = _LZ4_SIZE.unpack_from(view, position)
        position += _LZ4_SIZE.size
        if not length:
            is_whole = position + after_frame == size
            return Lz4Frame(blocks, bool(after_block or after_frame)) if is_whole else None
        position += (length & ~_LZ4_STORED) + after_block
    return None


def _too_large(compression: Compression, max_bytes: int) -> DecompressedTooLarge:
    return DecompressedTooLarge(
        f"{compression.name.lower()} data decompresses to more than the allowed {max_bytes} bytes"
    )


def _malformed(compression: Compression, error: Exception) -> DecodeError:
    return DecodeError(f"malformed {compression.name.lower()} data: {error}")


def _compress_xerial(data: Buffer) -> Buffer:
    view = memoryview(data)
    parts: list[bytes | memoryview] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = memoryview(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts.append(_INT32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _compress_lz4_frame(data: Buffer, level: int | None) -> Buffer:
    view = memoryview(data)
    is_fast = level is None or level == LZ4_DEFAULT_LEVEL
    parts: list[bytes | memoryview] = [_LZ4_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK):
        raw = view[start : start + _LZ4_BLOCK]
        if is_fast:
            block = memoryview(cramjam.lz4.compress_block(raw, store_size=False))
        else:
            block = _lz4_block(memoryview(cramjam.lz4.compress(raw, level=level)), raw)
        if len(block) < len(raw):
            parts += (_LZ4_SIZE.pack(len(block)), block)
        else:
            parts += (_LZ4_SIZE.pack(len(raw) | _LZ4_STORED), raw)
    parts.append(_LZ4_SIZE.pack(0))
    return b"".join(parts)


def _lz4_block(frame: memoryview, raw: memoryview) -> memoryview:
    """The only block of a frame: the library has levels for frames only, and its frames link their blocks."""
    flags = frame[_LZ4_FLAGS_POSITION]
    start = _LZ4_FLAGS_POSITION + 3 + (8 if flags & _LZ4_HAS_CONTENT_SIZE else 0)
    (size,) = _LZ4_SIZE.unpack_from(frame, start)
    return raw if size & _LZ4_STORED else frame[start + _LZ4_SIZE.size : start + _LZ4_SIZE.size + size]


def _decompress_snappy(data: Buffer, max_bytes: int) -> Bytes:
    view = memoryview(data)
    blocks = _xerial_blocks(view) if bytes(view[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC else [view]
    try:
        sizes = [int(cramjam.snappy.decompress_raw_len(block)) for block in blocks]
        if sum(sizes) > max_bytes:
            raise _too_large(Compression.SNAPPY, max_bytes)
        output = np.empty(sum(sizes), np.uint8)
        position = 0
        for block, size in zip(blocks, sizes, strict=True):
            if not size and len(block) > 1:  # the length alone is one byte; cramjam looks no further
                raise DecodeError(f"malformed snappy data: {len(block) - 1} bytes follow an empty block")
            target = output.data[position : position + size]
            written = cramjam.snappy.decompress_raw_into(block, target) if size else 0
            if written != size:
                raise DecodeError(f"malformed snappy data: a block holds {written} bytes and promised {size}")
            position += size
    except cramjam.DecompressionError as error:
        raise _malformed(Compression.SNAPPY, error) from None
    return output


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    blocks = []
    position, end = len(_XERIAL_HEADER), len(view)
    while position < end:
        if end - position < 4:
            raise DecodeError("malformed snappy data: cut short before a block length")
        (size,) = _INT32.unpack_from(view, position)
        position += 4
        if not 0 < size <= end - position:
            raise DecodeError(f"malformed snappy data: a block of {size} bytes, {end - position} are left")
        blocks.append(view[position : position + size])
        position += size
    return blocks
