"""kafka-python 3 writes the same bytes as we do, and reads ours, for every message and version.

Its messages are built by reflection: one class per message, with Kafka's names. Skipped messages are listed with the
reason, and the covered ones are counted.
"""

import importlib
import pkgutil
import warnings

from headrace.protocol.fields import NIL_UUID
from headrace.protocol.messages.api_versions import ApiVersionsResponse
from headrace.protocol.schema import Struct
from headrace.protocol.tests.wire.values import API_PAIRS, carried, with_any_values

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its resources the old way
    import kafka.protocol

    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in module.name and "generate" not in module.name:
            importlib.import_module(module.name)
    from kafka.protocol.api_message import ApiMessage as KafkaPythonMessage
    from kafka.protocol.schemas.fields.codecs import BitField


def subclasses(kind):
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


KAFKA_PYTHON = {kind.__name__: kind for kind in subclasses(KafkaPythonMessage)}

KAFKA_PYTHON_SKIPPED: dict[tuple[str, int], str] = {}


def known_to_kafka_python(kind, version):
    theirs = KAFKA_PYTHON.get(kind.__name__)
    return theirs is not None and theirs.valid_versions[0] <= version <= theirs.valid_versions[1]


KAFKA_PYTHON_PAIRS = [
    pair
    for pair in API_PAIRS
    if known_to_kafka_python(*pair) and (pair[0].__name__, pair[1]) not in KAFKA_PYTHON_SKIPPED
]


RENAMED = {
    "cluster_authorized_operations": "authorized_operations",
    "topic_authorized_operations": "authorized_operations",
}
"""Names that differ from Kafka's, where the struct has no field of Kafka's name."""


def to_kafka_python(message, their_struct, build, version):
    """Return kafka-python's message with the values of ours. It holds authorized operations as a set of bits."""
    given = {}
    for name, field in carried(type(message), version):
        value = getattr(message, name)
        their_name = name if name in their_struct.fields else RENAMED[name]
        their_field = their_struct.fields[their_name]
        if field.is_tagged(version) and (value is None or value == default_of(field)):
            continue
        if isinstance(value, Struct):
            value = to_kafka_python(value, their_field, their_field.data_class, version)
        elif isinstance(value, list) and field.element.structure is not None:
            value = [to_kafka_python(item, their_field, their_field.data_class, version) for item in value]
        elif getattr(their_field, "_type", None) is BitField:
            value = {bit for bit in range(32) if value >> bit & 1}
        given[their_name] = value
    return build(version=version, **given)


def default_of(field):
    return field.structure() if field.kind == "struct" else field.default


def from_kafka_python(theirs, kind, version):
    """Return our message with the values of kafka-python's, which has None for the nil UUID and for unknown
    operations.
    """
    given = {}
    for name, field in carried(kind, version):
        value = getattr(theirs, name if name in theirs._struct.fields else RENAMED[name])
        if field.kind == "struct" and value is not None:
            value = from_kafka_python(value, field.structure, version)
        elif field.kind == "array" and value is not None and field.element.structure is not None:
            value = [from_kafka_python(item, field.element.structure, version) for item in value]
        elif field.kind == "uuid" and value is None:
            value = NIL_UUID
        elif name.endswith("authorized_operations") and not isinstance(value, (int, bool)):
            value = sum(1 << bit for bit in ({31} if value is None else value))
            value -= value >> 31 << 32
        given[name] = value
    return kind(**given)


def check_kafka_python(message, kind, version):
    theirs = KAFKA_PYTHON[kind.__name__]
    expected = bytes(to_kafka_python(message, theirs._struct, theirs, version).encode(version=version))
    encoded = message.encode(version)
    assert encoded == expected
    if kind is ApiVersionsResponse and message.error_code:
        return  # it reads every error as version 0, the one that a broker uses for it
    decoded = from_kafka_python(theirs.decode(encoded, version=version), kind, version)
    assert decoded == kind.decode(encoded, version)


@with_any_values(KAFKA_PYTHON_PAIRS)
def test_kafka_python_agrees(message, kind, version):
    check_kafka_python(message, kind, version)


def test_nothing_falls_out_of_the_comparison():
    """Fewer pairs mean that kafka-python does not know a message of ours any more, or that a skip was added."""
    assert len(API_PAIRS) > 500
    # delegation tokens, UnregisterBroker, the consumer group protocol; kio and Kafka itself know them
    unknown_to_them = {38, 39, 40, 41, 64, 68, 69}
    left_out = {kind.API_KEY for kind, version in API_PAIRS if (kind, version) not in KAFKA_PYTHON_PAIRS}
    assert left_out == unknown_to_them
    assert not KAFKA_PYTHON_SKIPPED
