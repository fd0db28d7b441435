"""Keys of a key-value store: those of rows, and the one of its metadata."""

from __future__ import annotations

from struct import Struct

import msgspec

from headrace.tablelayer.server.store.errors import DamagedStoreError

ROW_PREFIX = b"\x01"
META_KEY = b"\x00"
META = Struct("<Bqq")
META_VERSION = 1


class KeyRange(msgspec.Struct, frozen=True):
    """Keys with `lower` <= key < `upper`; `upper` None: no upper bound."""

    lower: bytes = ROW_PREFIX
    upper: bytes | None = None

    def after(self, key: bytes) -> KeyRange:
        """Return the part of the range behind a key."""
        return KeyRange(max(self.lower, key + b"\x00"), self.upper)


def successor(prefix: bytes) -> bytes:
    """Return the first key behind all keys with `prefix`, which is not all FF."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


def decode_meta(meta: bytes) -> tuple[int, int]:
    if len(meta) != META.size or meta[0] != META_VERSION:
        raise DamagedStoreError(f"its metadata is {meta.hex()}, which is not of version {META_VERSION}")
    _, applied_offset, row_count = META.unpack(meta)
    return applied_offset, row_count
