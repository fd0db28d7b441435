"""kio writes the same bytes as we do, and reads ours, for every message and version.

Its messages are built by reflection: kio has one class per version, whose fields are in the order of Kafka's
definitions. Skipped messages are listed with the reason, and the covered ones are counted.
"""

import dataclasses
import datetime
import io
from typing import get_args

import kio.index
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from headrace.protocol.fields import NIL_UUID
from headrace.protocol.schema import Struct
from headrace.protocol.tests.wire.values import API_PAIRS, carried, with_any_values


def kio_class(kind, version):
    load = kio.index.load_request_schema if kind.KIND == "request" else kio.index.load_response_schema
    return load(kind.API_KEY, version)


def kio_knows(kind, version):
    """Return whether kio has the message, without loading it: collecting the tests needs no class."""
    return EntityType[kind.KIND] in schema_name_map.get(api_key_map.get(kind.API_KEY), {}).get(version, {})


KIO_SKIPPED: dict[tuple[str, int], str] = {}
KIO_PAIRS = [
    pair for pair in API_PAIRS if kio_knows(*pair) and (pair[0].__name__, pair[1]) not in KIO_SKIPPED
]


def to_kio(message, theirs, version):
    """Return kio's object for our message.

    Values that kio's types cannot hold are changed in ours: times are whole seconds from 1970 on, and error codes are
    existing ones.
    """
    fields = dataclasses.fields(theirs)
    ours = carried(type(message), version)
    assert len(fields) == len(ours), (theirs, [name for name, _ in ours])
    given = {}
    for (name, field), their_field in zip(ours, fields, strict=True):
        value = getattr(message, name)
        wire_type = their_field.metadata.get("kafka_type")
        assert their_field.metadata.get("tag") == (field.tag if field.is_tagged(version) else None)
        if wire_type == "datetime_i64":
            value = value if value == -1 else abs(value) % 10**9 * 1000
            setattr(message, name, value)
            value = None if value == -1 else datetime.datetime.fromtimestamp(value // 1000, datetime.UTC)
        elif wire_type == "error_code":
            setattr(message, name, value % 134 - 1)
            value = KioErrorCode(value % 134 - 1)
        elif wire_type == "timedelta_i64":
            value = value % 2**46
            setattr(message, name, value)
            value = datetime.timedelta(milliseconds=value)
        elif wire_type == "timedelta_i32":
            value = datetime.timedelta(milliseconds=value)
        elif wire_type == "uuid" and value == NIL_UUID:
            value = None
        elif field.kind == "struct":
            if value is None and field.is_tagged(version):
                value = field.structure()
            value = value and to_kio(value, nested_class(their_field.type), version)
        elif field.kind == "array" and value is not None:
            nested = nested_class(their_field.type)
            value = tuple(
                to_kio(item, nested, version) if isinstance(item, Struct) else item for item in value
            )
        given[their_field.name] = value
    return theirs(**given)


def nested_class(annotation):
    """The class of a nested struct in an annotation like `tuple[FetchTopic, ...] | None`."""
    if dataclasses.is_dataclass(annotation):
        return annotation
    return next((found for part in get_args(annotation) if (found := nested_class(part))), None)


def check_kio(message, kind, version):
    theirs = kio_class(kind, version)
    expected = to_kio(message, theirs, version)
    buffer = io.BytesIO()
    entity_writer(theirs)(buffer, expected)
    assert message.encode(version) == buffer.getvalue()
    decoded, end = entity_reader(theirs)(buffer.getvalue(), 0)
    assert decoded == expected
    assert end == len(buffer.getvalue())


@with_any_values(KIO_PAIRS)
def test_kio_agrees(message, kind, version):
    check_kio(message, kind, version)


def test_kio_header_versions_agree():
    for kind, version in KIO_PAIRS:
        assert kio_class(kind, version).__header_schema__.__version__ == kind.header_version(version)


def test_nothing_falls_out_of_the_comparison():
    """Fewer pairs mean that kio does not know a message of ours any more, or that a skip was added."""
    assert len(API_PAIRS) > 500
    assert [pair for pair in API_PAIRS if pair not in KIO_PAIRS] == []
    assert not KIO_SKIPPED
