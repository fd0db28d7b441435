"""Protobuf values of a schema registry: by its descriptors where it gives them, else their fields by number.

A registry keeps the text of a `.proto` file. Confluent's gives its descriptors, too (`?format=serialized`), with which
values have the names of their fields. The text alone cannot be compiled here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from headrace.tablelayer.console.registry import Registry
from headrace.tablelayer.console.routes import RequestError

_DEPTH_MAX: Final = 20
_PLACES_MAX: Final = 32
_BY_NUMBER: Final = "fields by number: the registry gives no descriptors of this schema"


def decoder(registry: Registry, number: int) -> Callable[[bytes], tuple[str, str | None]]:
    """Return the decoder of the values of a schema. Raises RequestError if the registry is away."""
    from google.protobuf import descriptor_pool, message_factory
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    file = _file(registry, number, pool)

    def decode(data: bytes) -> tuple[str, str | None]:
        places, body = _places(data)
        if file is None:
            return json.dumps(_fields(body, 0), ensure_ascii=False), _BY_NUMBER
        kinds: Any = list(file.message_types_by_name.values())
        kind: Any = None
        for place in places:
            if place >= len(kinds):
                raise ValueError(f"its message is number {place}, but the schema has {len(kinds)}")
            kind = kinds[place]
            kinds = list(kind.nested_types)
        message = message_factory.GetMessageClass(kind)()
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            raise ValueError(f"it does not fit its schema: {error}") from None
        try:
            value = MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=pool)
        except Exception as error:  # noqa: BLE001 - an Any of an unknown type, a time out of range
            raise ValueError(f"it cannot be shown: {error}") from None
        return json.dumps(value, ensure_ascii=False), kind.full_name

    return decode


def _file(registry: Registry, number: int, pool: Any) -> Any:
    """Return the file descriptor of a schema; None if the registry gives none. Raises RequestError if it is away."""
    from google.protobuf import descriptor_pb2

    def made(name: str, schema: dict[str, Any]) -> Any:
        file = descriptor_pb2.FileDescriptorProto()
        file.ParseFromString(base64.b64decode(str(schema.get("schema")), validate=True))
        file.name = name
        pool.Add(file)
        return pool.FindFileByName(name)

    try:
        schema = registry.schema(number, serialized=True)
        references = registry.referenced(schema, serialized=True)
    except RequestError as error:
        if error.status is HTTPStatus.BAD_GATEWAY:
            raise
        return None
    try:
        _add_known(pool)
        for name, each in references.items():
            made(name, each)
        return made(f"schema-{number}.proto", schema)
    except Exception:  # noqa: BLE001 - the text itself, or descriptors that are wrong or refer to what is unknown
        return None


def _add_known(pool: Any) -> None:
    """Add the files that every compiler of Protobuf brings."""
    from google.protobuf import (
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )

    for known in (
        *(descriptor_pb2, any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2),
        *(timestamp_pb2, wrappers_pb2),
    ):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)


def _places(data: bytes) -> tuple[list[int], bytes]:
    """Return the place of the message in its file, outermost first, and the message."""
    count, at = _number(data, 0)
    if not 0 <= count <= _PLACES_MAX:
        raise ValueError("its message index does not exist in the schema")
    places = []
    for _ in range(count):
        place, at = _number(data, at)
        if place < 0:
            raise ValueError("its message index does not exist in the schema")
        places.append(place)
    return places or [0], data[at:]


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        if at >= len(data):
            raise ValueError("it ends before its message begins")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise ValueError("its message index does not exist in the schema")


def _fields(data: bytes, depth: int) -> dict[str, Any]:
    """Return the fields of a message by number; those that occur several times as lists. Raises ValueError."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    message = Empty()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"it is not a Protobuf message: {error}") from None
    found: dict[str, list[Any]] = {}
    for field in UnknownFieldSet(message):
        found.setdefault(str(field.field_number), []).append(_shown(field.data, depth))
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _shown(value: Any, depth: int) -> Any:
    """Return a number, or bytes as a text or as a message if they look like one."""
    if not isinstance(value, bytes):
        return value if isinstance(value, int) else [_group(each, depth) for each in value]
    try:
        text = value.decode()
        if text.isprintable():
            return text
    except UnicodeDecodeError:
        pass
    if depth < _DEPTH_MAX:
        try:
            return _fields(value, depth + 1)
        except ValueError:
            pass
    return base64.b64encode(value).decode()


def _group(field: Any, depth: int) -> Any:
    return {str(field.field_number): _shown(field.data, depth + 1) if depth < _DEPTH_MAX else None}
