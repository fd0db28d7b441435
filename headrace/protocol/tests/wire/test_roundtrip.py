"""Every message in every version can be encoded and decoded again, and fields that a version lacks are refused."""

import copy
from uuid import UUID

import pytest

from headrace.protocol.errors import EncodeError
from headrace.protocol.schema import Struct
from headrace.protocol.tests.wire.values import PAIRS, full, in_every_version, with_any_values


@in_every_version
def test_defaults_come_back(kind, version):
    assert kind.decode(kind().encode(version), version) == kind()


@in_every_version
def test_every_field_comes_back(kind, version):
    message = full(kind, version)
    assert kind.decode(message.encode(version), version) == message


@with_any_values(PAIRS)
def test_any_values_come_back(message, kind, version):
    encoded = message.encode(version)
    decoded = kind.decode(encoded, version)
    assert decoded.encode(version) == encoded
    assert b"".join(message.encode_parts(version)) == encoded
    assert decoded == normalized(message)


def normalized(value):
    """Return the struct as it is decoded: a tagged struct with only default values is absent."""
    for name, field in value.FIELDS.items():
        child = getattr(value, name)
        if isinstance(child, Struct):
            setattr(
                value, name, None if field.tag is not None and child == type(child)() else normalized(child)
            )
        elif isinstance(child, list):
            setattr(value, name, [normalized(item) if isinstance(item, Struct) else item for item in child])
    return value


@in_every_version
def test_buffers_of_all_kinds_decode_alike(kind, version):
    message = full(kind, version)
    encoded = message.encode(version)
    assert kind.decode(bytearray(encoded), version) == message
    assert kind.decode(memoryview(encoded), version) == message
    assert kind.decode(b"head" + encoded, version, position=4) == message


def reachable(kind, version, path=()):
    """Paths to structs that the version carries, with one element per array."""
    yield path
    for name, field in kind.FIELDS.items():
        inner = field.element or field
        if version in field.versions and inner.structure is not None:
            yield from reachable(inner.structure, version, (*path, name))


@in_every_version
def test_fields_of_other_versions_are_dropped_or_refused(kind, version):
    """Kafka's rule: a field that the version lacks must have its default, unless it is declared ignorable."""
    for path in reachable(kind, version):
        owner = kind
        for name in path:
            owner = (owner.FIELDS[name].element or owner.FIELDS[name]).structure
        for name, field in owner.FIELDS.items():
            if version in field.versions:
                continue
            message = full(kind, version)
            target = message
            for step in path:
                target = getattr(target, step)
                target = target[-1] if isinstance(target, list) else target
            expected = message.encode(version)
            setattr(target, name, different(field))
            if field.ignorable:
                assert message.encode(version) == expected
            else:
                with pytest.raises(EncodeError, match=f"{name} is .* version {version} has no such field"):
                    message.encode(version)


def different(field):
    if field.kind == "array":
        return [1]
    if field.kind == "struct":
        return full(field.structure, 32767)
    return {"string": "other", "boolean": not field.default, "uuid": UUID(int=7), "binary": b"x"}.get(
        field.kind, 77
    )


def test_defaults_are_not_shared_between_messages():
    from headrace.protocol.messages.fetch import FetchRequest

    FetchRequest().topics.append("x")
    assert FetchRequest().topics == []
    assert copy.deepcopy(FetchRequest(max_wait_ms=5)) == FetchRequest(max_wait_ms=5)
