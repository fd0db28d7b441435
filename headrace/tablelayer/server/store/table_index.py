"""The indexes of RocksDB's table files: the positions of blocks, and the keys that separate them.

Format: RocksDB's `table/format.cc`, block-based tables of format version 5. Anything else raises UnknownTableError.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from pathlib import Path
from struct import Struct
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.broker.runtime.ports import Disk
from headrace.tablelayer.model.arrays.arrays import sealed
from headrace.tablelayer.server.store import table_kernels as kernels
from headrace.tablelayer.server.store.table_kernels import TRAILER_BYTES, UNKNOWN, Table

INDEXES_BYTES_MAX: Final = 32 << 20
"""Maximum size of the indexes that are kept, all stores of a process together: those of 16 GiB of files."""
_FOOTER_BYTES: Final = 53
_FOOTER_END: Final = Struct("<IQ")
_MAGIC: Final = 0x88E241B785F4CFF7
_FORMAT_VERSION: Final = 5
_XXH3: Final = 4
_TAG_BYTES: Final = 8
NO_ZONE: Final = -1
_META_BLOCK_BYTES_MAX: Final = 1 << 20
_PROPERTIES: Final = b"rocksdb.properties"
_META_BLOCKS: Final = frozenset({_PROPERTIES, b"fullfilter.rocksdb.BuiltinBloomFilter"})
_EXPECTED: Final = {
    b"rocksdb.comparator": b"leveldb.BytewiseComparator",
    b"rocksdb.block.based.table.index.type": bytes(4),
    b"rocksdb.num.range-deletions": b"\x00",
    b"rocksdb.merge.operands": b"\x00",
}
_USER_KEYS: Final = b"rocksdb.index.key.is.user.key"
_DELTAS: Final = b"rocksdb.index.value.is.delta.encoded"
_BLOCK_COUNT: Final = b"rocksdb.num.data.blocks"
_REFUSED: Final = frozenset({b"rocksdb.external_sst_file.global_seqno", b"rocksdb.external_sst_file.version"})


class UnknownTableError(Exception):
    """A table file is damaged, or has a form that the kernels do not know."""


class Zones(msgspec.Struct, frozen=True):
    """Statistics of zones, each some blocks of a file. `of_block` has the index of each block's zone, or `NO_ZONE`."""

    of_block: npt.NDArray[np.int32]
    known: list[object]
    lock: threading.Lock
    """Held while zones are added."""


class TableIndex(msgspec.Struct, frozen=True):
    """The index of one file: `blocks` is int64[n, 2] (position, size); separators as in `table_kernels.read_index`."""

    blocks: Table
    arena: npt.NDArray[np.uint8]
    separators: Table
    has_tags: bool
    """Whether versions of one key can be in several blocks."""
    statistics: dict[Hashable, Zones]
    """The statistics by `Groups.key` (`pruning`)."""

    @property
    def size(self) -> int:
        return int(self.blocks.nbytes + self.arena.nbytes + self.separators.nbytes)

    def first_from(self, key: bytes) -> int:
        """Return the first block that can have keys from `key` on."""
        return int(kernels.first_block_from(self.arena, self.separators, bytes_array(key)))

    def separator(self, block: int) -> bytes:
        at, length = self.separators[block].tolist()
        return self.arena[at : at + length].tobytes()

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """Return (position, size) of some blocks with their trailers."""
        if first >= stop:
            return 0, 0
        begin, last = int(self.blocks[first, 0]), self.blocks[stop - 1]
        return begin, int(last[0] + last[1]) + TRAILER_BYTES - begin


def bytes_array(value: bytes) -> npt.NDArray[np.uint8]:
    return sealed(np.frombuffer(value, np.uint8))


def read_bytes(disk: Disk, path: Path, position: int, size: int) -> bytes:
    """Return bytes of a table file. Raises UnknownTableError if it ends before, OSError."""
    file = disk.open_read_only(path)
    try:
        data = file.read(size, position) if size else b""
    finally:
        file.close()
    if len(data) != size:
        raise UnknownTableError(f"{path.name} ends before {position + size}")
    return data


def read_index(disk: Disk, path: Path) -> TableIndex:
    """Return the index of a table file. Raises UnknownTableError, OSError."""
    file = disk.open_read_only(path)
    try:
        size = file.size()
        footer = file.read(_FOOTER_BYTES, max(0, size - _FOOTER_BYTES))
        if len(footer) < _FOOTER_BYTES:
            raise UnknownTableError(f"{path.name} has {size} bytes")
        version, magic = _FOOTER_END.unpack_from(footer, _FOOTER_BYTES - _FOOTER_END.size)
        if (footer[0], version, magic) != (_XXH3, _FORMAT_VERSION, _MAGIC):
            raise UnknownTableError(
                f"{path.name} has checksum {footer[0]}, version {version}, magic {magic:x}"
            )
        at, meta_position = _varint(footer, 1)
        at, meta_size = _varint(footer, at)
        at, index_position = _varint(footer, at)
        at, index_size = _varint(footer, at)

        def block(position: int, length: int) -> tuple[int, int, list[Any]]:
            """Return (address, size, owners) of a block."""
            data = np.frombuffer(file.read(length + TRAILER_BYTES, position), np.uint8)
            if len(data) != length + TRAILER_BYTES:
                raise UnknownTableError(f"{path.name} ends in a block")
            owners: list[Any] = [data]
            places, sizes, kinds = np.array([data.ctypes.data]), np.array([length]), np.empty(1, np.int64)
            unpacked_bytes = kernels.check(places, sizes, kinds)
            if unpacked_bytes == UNKNOWN:
                raise UnknownTableError(f"{path.name}: the block at {position} is damaged")
            if unpacked_bytes:
                owners.append(np.empty(unpacked_bytes, np.uint8))
                if kernels.unpack(places, sizes, kinds, owners[-1].ctypes.data) == UNKNOWN:
                    raise UnknownTableError(f"{path.name}: the block at {position} is damaged")
            return int(places[0]), int(sizes[0]), owners

        def entries(position: int, length: int) -> dict[bytes, bytes]:
            if length > _META_BLOCK_BYTES_MAX:
                raise UnknownTableError(f"{path.name} has a meta block of {length} bytes")
            place, plain, owners = block(position, length)
            begin = place - owners[-1].ctypes.data
            end = int(kernels.entries_end(place, plain))
            return _entries(owners[-1].tobytes()[begin : begin + end - place])

        meta = entries(meta_position, meta_size)
        unknown = meta.keys() - _META_BLOCKS
        if unknown or _PROPERTIES not in meta:
            raise UnknownTableError(f"{path.name} has the blocks {sorted(meta)}")
        at, position = _varint(meta[_PROPERTIES], 0)
        properties = entries(position, _varint(meta[_PROPERTIES], at)[1])
        for name, expected in _EXPECTED.items():
            if properties.get(name, expected) != expected:
                raise UnknownTableError(f"{path.name}: {name.decode()} is {properties[name]!r}")
        if properties.keys() & _REFUSED:
            raise UnknownTableError(f"{path.name} was made elsewhere")
        count = _varint(properties[_BLOCK_COUNT], 0)[1]
        tag_bytes = 0 if properties.get(_USER_KEYS) == b"\x01" else _TAG_BYTES
        is_delta = properties.get(_DELTAS) == b"\x01"
        place, plain, owners = block(index_position, index_size)
        end = int(kernels.entries_end(place, plain))
        if end == UNKNOWN or count > plain:
            raise UnknownTableError(f"{path.name} has no valid index")
        blocks, separators = np.empty((count, 2), np.int64), np.empty((count, 2), np.int64)
        arena_bytes = plain + kernels.SLACK
        while True:
            arena = np.empty(arena_bytes, np.uint8)
            found = kernels.read_index(place, end, is_delta, tag_bytes, size, blocks, arena, separators)
            if found == count or arena_bytes > 64 * (plain + kernels.SLACK):
                break
            arena_bytes *= 4  # separators share the beginnings of the ones before them
        del owners
        if found != count:
            raise UnknownTableError(f"{path.name} has no valid index")
        used = int(separators[-1].sum()) if count else 0
        return TableIndex(blocks, sealed(arena[: used + tag_bytes].copy()), separators, tag_bytes > 0, {})
    finally:
        file.close()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (position behind it, value) of a varint."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return at, value
        shift += 7
    raise UnknownTableError("a number is cut off")


def _entries(data: bytes) -> dict[bytes, bytes]:
    """Return the entries of a small block, whose keys have no tags."""
    found: dict[bytes, bytes] = {}
    key, at = b"", 0
    while at < len(data):
        at, shared = _varint(data, at)
        at, other = _varint(data, at)
        at, size = _varint(data, at)
        key = key[:shared] + data[at : at + other]
        at += other
        found[key] = data[at : at + size]
        at += size
    return found
