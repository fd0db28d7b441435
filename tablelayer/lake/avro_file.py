"""Records of an Avro object container file, as Python values: for the few wide records of a lake's manifests.

Rows of tables in Avro are another matter (`tablelayer.model.avro_read`: compiled, by column). Blocks may be plain,
deflated or zstandard; a file's own schema says what is in it, and names that were written are the keys of the result.
Source: the Avro 1.11 specification, "Binary Encoding" and "Object Container Files".
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

_MAGIC = b"Obj\x01"
_METADATA = {"type": "map", "values": "bytes"}


class AvroError(ValueError):
    """The bytes are no Avro file, or one with what is not read here. The message says what."""


def read_avro(data: bytes) -> Iterator[dict[str, Any]]:
    """The records of a whole file. Raises AvroError, also when it is cut off."""
    if data[:4] != _MAGIC:
        raise AvroError(f"no Avro file: it begins with {data[:4]!r}")
    try:
        yield from _records(data)
    except (IndexError, struct.error) as error:
        raise AvroError("the file is cut off") from error


def _records(data: bytes) -> Iterator[dict[str, Any]]:
    cursor = _Cursor(data, 4)
    metadata = cursor.value(_METADATA, {})
    names: dict[str, Any] = {}
    schema = json.loads(metadata["avro.schema"])
    _define(schema, names)
    codec = metadata.get("avro.codec", b"null").decode()
    marker = cursor.take(16)
    while cursor.at < len(data):
        count, size = cursor.number(), cursor.number()
        block = _Cursor(_unpacked(cursor.take(size), codec), 0)
        for _ in range(count):
            yield block.value(schema, names)
        if cursor.take(16) != marker:
            raise AvroError(f"a block before byte {cursor.at} does not end as this file's blocks do")


def _unpacked(block: bytes, codec: str) -> bytes:
    if codec == "null":
        return block
    if codec == "deflate":
        return zlib.decompress(block, -15)
    if codec == "zstandard":
        return bytes(pa.CompressedInputStream(pa.BufferReader(block), "zstd").read())
    raise AvroError(f"its blocks are compressed with {codec}: null, deflate and zstandard are read")


def _define(schema: Any, names: dict[str, Any]) -> None:
    """Remember what has a name, for where it is used by it."""
    if isinstance(schema, list):
        for branch in schema:
            _define(branch, names)
    elif isinstance(schema, dict):
        if "name" in schema:
            names[schema["name"]] = schema
            if "namespace" in schema:
                names[f"{schema['namespace']}.{schema['name']}"] = schema
        for part in ("type", "items", "values"):
            _define(schema.get(part), names)
        for field in schema.get("fields", ()):
            _define(field["type"], names)


class _Cursor:
    """Reads values one after the other."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise AvroError("the file is cut off")
        found = self.data[self.at : end]
        self.at = end
        return found

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def value(self, schema: Any, names: dict[str, Any]) -> Any:
        """The next value, of this schema."""
        if isinstance(schema, list):
            branch = self.number()
            if not 0 <= branch < len(schema):
                raise AvroError(f"a union has no branch {branch}")
            return self.value(schema[branch], names)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if not isinstance(kind, str):
            return self.value(kind, names)
        if kind == "record":
            return {field["name"]: self.value(field["type"], names) for field in schema["fields"]}
        if kind == "array":
            return [self.value(schema["items"], names) for _ in self._items()]
        if kind == "map":
            return {
                self.take(self.number()).decode(): self.value(schema["values"], names) for _ in self._items()
            }
        if kind == "fixed":
            return self.take(schema["size"])
        if kind == "enum":
            return schema["symbols"][self.number()]
        if kind in names:
            return self.value(names[kind], names)
        return self._plain(kind)

    def _plain(self, kind: str) -> Any:
        if kind in ("int", "long"):
            return self.number()
        if kind == "bytes":
            return self.take(self.number())
        if kind == "string":
            return self.take(self.number()).decode()
        if kind == "null":
            return None
        if kind == "boolean":
            return self.take(1) != b"\x00"
        if kind == "float":
            return struct.unpack("<f", self.take(4))[0]
        if kind == "double":
            return struct.unpack("<d", self.take(8))[0]
        raise AvroError(f"no Avro type: {kind!r}")

    def _items(self) -> Iterator[None]:
        """Once for each item of an array or map, which come in blocks."""
        while count := self.number():
            if count < 0:
                self.number()  # how many bytes the block has
                count = -count
            for _ in range(count):
                yield None
