"""The vocabulary in which a message is declared: one function per wire type, each giving a `Field`.

    class FetchPartition(Struct):
        partition: int = int32()
        current_leader_epoch: int = int32(versions="9+", default=-1, ignorable=True)

Every function takes the same keywords, which mean what they mean in Kafka's message definitions:

- `versions`: the message versions that carry the field ("3+", "0-14", "5"); all of them by default.
- `nullable`: the versions in which None is a legal value; none by default.
- `default`: the value of a field that is not set or not in the version; zero, false, empty by default. -
  `ignorable`: when a version does not carry the field, drop a value that is not the default instead of
  refusing to encode.
- `tag`, `tagged`: the number of a tagged field and the versions in which it is tagged (all of `versions` by
  default).

Two conventions of ours. A tagged `struct` that is absent is None, so that the hot paths need not build empty ones.
And the functions are typed as returning Any, so that `name: int = int32()` reads as an attribute with a default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol
from uuid import UUID

import msgspec

NIL_UUID: Final = UUID(int=0)
LATEST: Final = 32767
"""The upper end of an open version range."""

FORMATS: Final = {
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "boolean": ("B", 1),
    "uuid": ("16s", 16),
}
"""Wire types of a fixed size: the `struct` module's letter and the size in bytes."""


class Versions:
    """A closed range of versions. `Versions.parse` takes "4-17", "9+", "3" and "none"."""

    __slots__ = ("high", "low")

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high

    @classmethod
    def parse(cls, text: str) -> Versions:
        if text == "none":
            return cls(0, -1)
        low, dash, high = text.partition("-")
        if low.endswith("+") and not dash:
            return cls(int(low[:-1]), LATEST)
        return cls(int(low), int(high) if dash else int(low))

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high


class Declared(Protocol):
    """A class of fields: the part of a `protocol.schema.Struct` that the compilers use."""

    FIELDS: ClassVar[dict[str, Field]]


class DeclaredMessage(Declared, Protocol):
    """The part of a `protocol.schema.Message` that the compilers use."""

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Whether `version` has compact lengths and tagged fields (KIP-482)."""


class Field(msgspec.Struct, frozen=True, eq=False):
    """One field of a struct as declared. `kind` is a key of FORMATS or string, binary, records, array, struct."""

    kind: str
    versions: Versions
    nullable: Versions
    default: Any
    ignorable: bool
    tag: int | None
    tagged: Versions
    element: Field | None = None
    structure: type[Declared] | None = None

    def is_tagged(self, version: int) -> bool:
        return self.tag is not None and version in self.tagged


def _field(
    kind: str,
    zero: Any,
    *,
    versions: str = "0+",
    nullable: str = "none",
    ignorable: bool = False,
    tag: int | None = None,
    tagged: str | None = None,
    element: Field | None = None,
    structure: type[Declared] | None = None,
    **given: Any,
) -> Any:
    default = given.pop("default", zero)
    if given:
        raise TypeError(f"{kind} field: unknown keyword {sorted(given)[0]!r}")
    return Field(
        kind=kind,
        versions=Versions.parse(versions),
        nullable=Versions.parse(nullable),
        default=default,
        ignorable=ignorable,
        tag=tag,
        tagged=Versions.parse(tagged or versions) if tag is not None else Versions(0, -1),
        element=element,
        structure=structure,
    )


def int8(**keywords: Any) -> Any:
    """A signed byte."""
    return _field("int8", 0, **keywords)


def int16(**keywords: Any) -> Any:
    """A signed 16 bit integer, big endian as all integers."""
    return _field("int16", 0, **keywords)


def uint16(**keywords: Any) -> Any:
    """An unsigned 16 bit integer."""
    return _field("uint16", 0, **keywords)


def int32(**keywords: Any) -> Any:
    """A signed 32 bit integer."""
    return _field("int32", 0, **keywords)


def uint32(**keywords: Any) -> Any:
    """An unsigned 32 bit integer."""
    return _field("uint32", 0, **keywords)


def int64(**keywords: Any) -> Any:
    """A signed 64 bit integer."""
    return _field("int64", 0, **keywords)


def float64(**keywords: Any) -> Any:
    """An IEEE 754 double."""
    return _field("float64", 0.0, **keywords)


def boolean(**keywords: Any) -> Any:
    """One byte, 0 or 1; anything else is malformed."""
    return _field("boolean", False, **keywords)


def uuid(**keywords: Any) -> Any:
    """Sixteen bytes as `uuid.UUID`; NIL_UUID stands for none."""
    return _field("uuid", NIL_UUID, **keywords)


def string(**keywords: Any) -> Any:
    """UTF-8 text with its size in bytes: int16, or a compact length in flexible versions."""
    return _field("string", "", **keywords)


def binary(**keywords: Any) -> Any:
    """Bytes with their size: int32, or a compact length in flexible versions. Decoded as a copy."""
    return _field("binary", b"", **keywords)


def records(**keywords: Any) -> Any:
    """Record batches. Decoded as a memoryview of the frame; encoded by reference from a buffer or a region
    of a file.
    """
    return _field("records", None, **keywords)


def array(element: type[Declared] | Callable[[], Any], **keywords: Any) -> Any:
    """A list of structs, `array(FetchTopic)`, or of plain values, `array(int32)`."""
    inner = _field("struct", None, structure=element) if isinstance(element, type) else element()
    return _field("array", [], element=inner, **keywords)


def struct(structure: type[Declared], **keywords: Any) -> Any:
    """A nested struct. Tagged: None when absent. Nullable and not tagged: preceded by a byte, -1 for None
    and 1 otherwise.
    """
    if keywords.get("tag") is not None:
        keywords.setdefault("default", None)
    return _field("struct", STRUCT_DEFAULT, structure=structure, **keywords)


STRUCT_DEFAULT: Final = object()
"""Stands in a declaration for "a new struct with all its defaults"."""
