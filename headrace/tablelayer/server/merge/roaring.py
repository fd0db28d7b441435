"""Unions of serialised Roaring bitmaps, bytes to bytes, by CRoaring (`pyroaring`).

32 bits: the portable format of the Roaring specification (github.com/RoaringBitmap/RoaringFormatSpec), which CRoaring,
Java, Go and Rust share. 64 bits: that specification's extension: the number of 32-bit bitmaps as a uint64, then for
each, in order, its high 32 bits as a uint32 and the bitmap. Java's Roaring64NavigableMap in portable mode and CRoaring
write it. (Java's Roaring64Bitmap has a format of its own, which is refused.)

A union is canonical: every container is an array, bits or runs, whichever is smallest. Each input is checked as a
whole, and a bitmap that is stored alone keeps its bytes.
"""

from __future__ import annotations

from typing import Any

from pyroaring import BitMap, BitMap64


class MalformedBitmapError(Exception):
    """The bytes are not a bitmap of the expected format."""


def union(one: bytes, other: bytes | None, *, wide: bool) -> bytes:
    """Return the union of two bitmaps; with `other` None, check `one` alone. Raises MalformedBitmapError."""
    united = _read(one, wide)
    if other is None:
        return one
    united |= _read(other, wide)
    united.run_optimize()
    written: bytes = united.serialize()
    return written


def _read(data: bytes, wide: bool) -> Any:
    kind = BitMap64 if wide else BitMap
    try:
        bitmap = kind.deserialize(data)
    except (ValueError, IndexError) as error:
        raise MalformedBitmapError(f"its {len(data)} bytes are cut short or malformed: {error}") from error
    if len(bitmap.serialize()) != len(data) and _parses(kind, data[:-1]):
        raise MalformedBitmapError("other bytes follow it")
    return bitmap


def _parses(kind: type[BitMap | BitMap64], data: bytes) -> bool:
    """Return whether bytes begin with a bitmap; deserialisation ignores bytes behind it."""
    try:
        kind.deserialize(data)
    except (ValueError, IndexError):
        return False
    return True
