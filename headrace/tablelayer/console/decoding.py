"""Keys and values of records as texts, by the schema that their first bytes name in a schema registry.

Confluent's wire format is a zero byte, the number of the schema in four bytes, and the value: Avro, JSON, or Protobuf
behind the place of its message in the file. A failure is said in one line beside the bytes.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.tablelayer.console.registry import AVRO, AWAY_SECONDS, Registry
from headrace.tablelayer.console.routes import RequestError
from headrace.tablelayer.console.values import FRAME_BYTES, FRAMED_MAX, TEXT_MAX, Piece, plain

SCHEMAS_MAX: Final = 64
"""Schemas that one request decodes with."""
_TOO_MANY: Final = f"more than {SCHEMAS_MAX} schemas are here: choose fewer records"
_JSON: Final = "JSON"
_PROTOBUF: Final = "PROTOBUF"
_NAMES: Final = {AVRO: "Avro", _JSON: "JSON Schema", _PROTOBUF: "Protobuf"}
_Decode = Callable[[bytes], tuple[str, str | None]]
"""Returns the value behind the wire format's front as JSON, and what else is to be said. Raises ValueError."""


class Decoder:
    """Decodes with the schemas of one registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._known = lru_cache(maxsize=SCHEMAS_MAX)(self._decoder)

    def decode(self, pieces: Sequence[Piece], bytes_max: int = TEXT_MAX) -> None:
        """Add to each piece how it is decoded: `format`, `schema`, and `text`, or `error` in a sentence."""
        if not self._registry.is_there:
            return
        decoders: dict[int, tuple[str | None, _Decode]] = {}
        for shown, data in pieces:
            number = int.from_bytes(data[1:FRAME_BYTES], "big")
            if number not in decoders:
                decoders[number] = (
                    self._found(number) if len(decoders) < SCHEMAS_MAX else (None, _failing(_TOO_MANY))
                )
            name, decode = decoders[number]
            shown["decoded"] = {"schema": number, "format": name, **_decoded(shown, data, decode, bytes_max)}

    def search(self) -> DecodedTexts | None:
        """Return the decoder of the keys and values of one search; None without a registry."""
        return DecodedTexts(self.find) if self._registry.is_there else None

    def find(self, number: int) -> _Decode:
        """Return the decoder of a schema. Raises RequestError, ValueError."""
        return self._known(number)[1]

    def _found(self, number: int) -> tuple[str | None, _Decode]:
        try:
            return self._known(number)
        except (RequestError, ValueError) as error:
            return None, _failing(str(error))

    def _decoder(self, number: int) -> tuple[str, _Decode]:
        """Return the name of a schema's format, and its decoder. Raises RequestError, ValueError."""
        schema = self._registry.schema(number)
        kind = str(schema.get("schemaType") or AVRO)
        name = _NAMES.get(kind, kind)
        if kind == AVRO:
            references = self._registry.referenced(schema)
            return name, _avro(
                str(schema.get("schema")), [str(each.get("schema")) for each in references.values()]
            )
        if kind == _JSON:
            return name, _json
        if kind == _PROTOBUF:
            from headrace.tablelayer.console.protobuf import decoder

            return name, decoder(self._registry, number)
        raise ValueError(f"schema {number} is {kind[:100]}, which the console does not know")


class DecodedTexts:
    """The texts of keys and values for one search. `failure` says why the first one was not decoded."""

    def __init__(self, find: Callable[[int], _Decode]) -> None:
        self._find = find
        self._decoders: dict[int, _Decode] = {}
        self._again = 0.0
        self.failure: str | None = None

    def text(self, data: bytes | None) -> str | None:
        """Return a key or value in the wire format as JSON; None for others, and if it cannot be decoded."""
        if data is None or len(data) <= FRAME_BYTES or data[0]:
            return None
        try:
            if len(data) > FRAMED_MAX:
                raise ValueError(_too_long(len(data)))
            return self._decoder(int.from_bytes(data[1:FRAME_BYTES], "big"))(data[FRAME_BYTES:])[0]
        except (ValueError, RecursionError, MemoryError) as error:
            self.failure = self.failure or str(error) or type(error).__name__
            return None

    def _decoder(self, number: int) -> _Decode:
        if time.monotonic() > self._again:
            self._decoders.clear()  # also those that failed: a live tail goes on for hours
            self._again = time.monotonic() + AWAY_SECONDS
        if number not in self._decoders:
            if len(self._decoders) >= SCHEMAS_MAX:
                raise ValueError(_TOO_MANY)
            try:
                self._decoders[number] = self._find(number)
            except (RequestError, ValueError) as error:
                self._decoders[number] = _failing(f"schema {number}: {error}")
        return self._decoders[number]


def _too_long(size: int) -> str:
    return f"{size} bytes are not decoded: at most {FRAMED_MAX} are"


def _decoded(shown: dict[str, Any], data: bytes, decode: _Decode, bytes_max: int) -> dict[str, Any]:
    if shown["size"] > FRAMED_MAX:
        return {"error": _too_long(shown["size"])}
    try:
        found, note = decode(data[FRAME_BYTES:])
    except (ValueError, RecursionError, MemoryError) as error:
        return {"error": str(error) or type(error).__name__}
    text = found.encode("utf-8", "replace")
    cut = text[:bytes_max].decode("utf-8", "ignore")
    return {"text": cut, "size": len(text), **({} if note is None else {"note": note})}


def _failing(reason: str) -> _Decode:
    def decode(_: bytes) -> tuple[str, str | None]:
        raise ValueError(reason)

    return decode


def _json(data: bytes) -> tuple[str, str | None]:
    """Return the text as it is: its numbers keep all their digits."""
    try:
        msgspec.json.decode(data)
        return data.decode(), None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not JSON: {error}") from None


def _avro(text: str, references: Sequence[str]) -> _Decode:
    """Return the decoder of an Avro schema. The project's reader checks the lengths in a value; fastavro reads it.

    Raises ValueError for a schema that cannot be used.
    """
    import fastavro

    from headrace.tablelayer.model.avro.read import AvroTexts, avro_to_rows
    from headrace.tablelayer.model.avro.schema import AvroKind, AvroSchema
    from headrace.tablelayer.model.errors import RowError

    whole = json.loads(text)
    for each in reversed(references):
        definition = json.loads(each)
        name = _full_name(definition)
        space, _, own = name.rpartition(".")
        whole, _ = _with_definition(whole, name, {**definition, "name": own, "namespace": space}, "")
    checked = AvroSchema.parse(json.dumps(whole))
    for node in checked.nodes:
        if node.kind is AvroKind.ARRAY and checked.table[node.children[0].index, 3]:
            raise ValueError("the schema has a list of values that take no bytes, which is not decoded")
    as_field = checked.as_field("value")
    try:
        parsed: Any = fastavro.parse_schema(whole)
    except Exception as error:  # noqa: BLE001 - of a library, about a schema of others
        raise ValueError(f"the schema cannot be used: {error or type(error).__name__}") from None

    def decode(data: bytes) -> tuple[str, str | None]:
        try:
            avro_to_rows(AvroTexts.of(pa.array([data], pa.binary())), as_field, [])
        except RowError as error:
            raise ValueError(error.reason) from None
        try:
            value = fastavro.schemaless_reader(io.BytesIO(data), parsed, None)
            return _text_of(value), None
        except Exception as error:  # noqa: BLE001 - of a library, about bytes of others
            raise ValueError(f"it does not fit its schema: {error or type(error).__name__}") from None

    return decode


def _text_of(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=plain, allow_nan=False)
    except ValueError:  # JSON has no NaN and no Infinity: they become texts
        return json.dumps(plain(value), ensure_ascii=False)


def _full_name(definition: Any) -> str:
    """Return the full name of a named type."""
    if not isinstance(definition, dict) or not isinstance(definition.get("name"), str):
        raise ValueError("the schema refers to one that has no name")
    name, space = definition["name"], definition.get("namespace")
    return f"{space}.{name}" if space and "." not in name else name


def _with_definition(part: Any, name: str, definition: Any, space: str) -> tuple[Any, bool]:
    """Return a schema with the definition of a named type at its first use, and whether it is used."""
    if isinstance(part, str):
        full = f"{space}.{part}" if space and "." not in part else part
        return (definition, True) if name in (part, full) else (part, False)
    if isinstance(part, list):
        for index, each in enumerate(part):
            made, done = _with_definition(each, name, definition, space)
            if done:
                return [*part[:index], made, *part[index + 1 :]], True
    if isinstance(part, dict):
        own = (
            str(part.get("namespace") or _full_name(part).rpartition(".")[0] or space)
            if "name" in part
            else space
        )
        for key in ("type", "items", "values", "fields"):
            if key in part and not (key == "type" and isinstance(part[key], str) and part[key] in _COMPLEX):
                made, done = _with_definition(part[key], name, definition, own)
                if done:
                    return {**part, key: made}, True
    return part, False


_COMPLEX: Final = ("record", "error", "enum", "fixed", "array", "map")
