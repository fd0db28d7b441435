"""A record of a topic as JSON. `topics tail -o json` writes it; `topics produce --input json` and the console read it.

A text stands for its UTF-8 bytes, null for null. Other bytes are base64, and `key_encoding` or `value_encoding` is
`base64`. Headers are a list in their order, `[name, value]` or `[name, value, "base64"]`. Reading a written record
gives equal bytes.
"""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from headrace.tablelayer.client.admin.kafka_answers import KafkaRecord
from headrace.tablelayer.client.admin.produce import OutgoingRecord

Encoding: TypeAlias = Literal["utf-8", "base64"]
BASE64: Final = "base64"
UTF8: Final = "utf-8"

_ABSENT: Final = msgspec.Raw(b"")
_Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_HEADERS: Final = (
    'write headers as [["name", "value"], ...], or as ["name", "base64 text", "base64"] for bytes'
)


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    key: msgspec.Raw = _ABSENT
    value: msgspec.Raw = _ABSENT
    headers: msgspec.Raw = _ABSENT
    key_encoding: Encoding = UTF8
    value_encoding: Encoding = UTF8
    timestamp: _Int64 | None = None
    partition: _Int64 | None = None
    offset: _Int64 | None = None


def text_and_encoding(data: bytes | None) -> tuple[str | None, str | None]:
    """Return the text for some bytes and its encoding, or (None, None) for null."""
    if data is None:
        return None, None
    try:
        return data.decode(), UTF8
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), BASE64


def headers_to_json(record: KafkaRecord) -> str:
    """Return the headers of a record as JSON."""
    listed = []
    for name, value in record.headers:
        text, encoding = text_and_encoding(value)
        listed.append([name, text, encoding] if encoding == BASE64 else [name, text])
    return json.dumps(listed, ensure_ascii=False)


def record_to_json(record: KafkaRecord) -> str:
    """Return a record as one line of JSON."""
    (key, of_key), (value, of_value) = text_and_encoding(record.key), text_and_encoding(record.value)
    fields: dict[str, Any] = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": key,
        "value": value,
    }
    fields |= {"key_encoding": BASE64} if of_key == BASE64 else {}
    fields |= {"value_encoding": BASE64} if of_value == BASE64 else {}
    return f'{json.dumps(fields, ensure_ascii=False)[:-1]}, "headers": {headers_to_json(record)}}}'


def record_from_json(text: bytes) -> OutgoingRecord:
    """Return the record that a JSON object describes, with its timestamp and partition if they are given.

    A key or a value that is neither a text nor null stands for its JSON, byte for byte. `offset` is ignored. Raises
    ValueError for text that cannot be read, or that has an unknown field.
    """
    try:
        text.decode()
        line = msgspec.json.decode(text, type=_Line)
    except msgspec.ValidationError as error:
        raise ValueError(f"is not an object with a key or a value: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if line.key is _ABSENT and line.value is _ABSENT:
        raise ValueError("is not an object with a key or a value")
    return OutgoingRecord(
        _bytes("value", line.value, line.value_encoding),
        _bytes("key", line.key, line.key_encoding),
        _headers(line.headers),
        line.timestamp,
        line.partition,
    )


def _bytes(name: str, value: msgspec.Raw, encoding: str) -> bytes | None:
    raw = bytes(value)
    if raw in (b"", b"null"):
        return None
    if not raw.startswith(b'"'):
        if encoding != UTF8:
            raise ValueError(f"has a {name} that is declared {encoding} and is not a text")
        return raw
    try:
        text = msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError as error:
        raise ValueError(f"has a {name} that is not a text: {error}") from None
    if encoding == UTF8:
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(f"has a {name} that is not base64: {error}") from None


def _headers(raw: msgspec.Raw) -> list[tuple[str, bytes | None]]:
    text = bytes(raw)
    if text in (b"", b"null"):
        return []
    try:
        if text.startswith(b"{"):
            named = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            if len(named) != len(json.loads(text, object_pairs_hook=list)):
                raise ValueError(f"names a header twice in an object: {_HEADERS}")
            return [(name, _bytes(f"header {name!r}", value, UTF8)) for name, value in named.items()]
        listed = msgspec.json.decode(text, type=list[list[msgspec.Raw]])
        if not all(2 <= len(each) <= 3 for each in listed):
            raise ValueError(f"has a header that is not a pair: {_HEADERS}")
        read = []
        for each in listed:
            name = msgspec.json.decode(each[0], type=str)
            encoding = msgspec.json.decode(each[2], type=Encoding) if len(each) == 3 else UTF8
            read.append((name, _bytes(f"header {name!r}", each[1], encoding)))
    except msgspec.DecodeError as error:
        raise ValueError(f"{_HEADERS}: {error}") from None
    return read
