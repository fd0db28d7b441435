"""The consumer's subscriptions and assignments, compared with kio's encoding of the same."""

import contextlib
import io
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from headrace.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    parse_subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from headrace.protocol.errors import DecodeError

names = st.text("abcäö.-", min_size=1, max_size=6)
partitions = st.lists(
    st.tuples(names, st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple)), max_size=3
).map(tuple)
user_data = st.none() | st.binary(max_size=8)


def kio(kind, version):
    module = import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")
    return module, getattr(module, f"ConsumerProtocol{kind.capitalize()}")


def written(entity):
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def prefixed(version, entity):
    return version.to_bytes(2, "big") + written(entity)


@given(st.integers(0, 3), st.lists(names, max_size=4), user_data, partitions, st.none() | names)
def test_subscriptions_as_kio_writes_them(version, topics, data, owned, rack):
    module, kind = kio("subscription", version)
    fields = {"topics": tuple(topics), "user_data": data}
    if version >= 1:
        fields["owned_partitions"] = tuple(
            module.TopicPartition(topic=topic, partitions=indexes) for topic, indexes in owned
        )
    if version >= 2:
        fields["generation_id"] = 7
    if version >= 3:
        fields["rack_id"] = rack
    read = read_subscription(prefixed(version, kind(**fields)))
    assert read == Subscription(
        version, tuple(topics), owned if version >= 1 else (), rack if version >= 3 else None
    )


@given(st.integers(0, 3), partitions, user_data)
def test_assignments_both_ways(version, assigned, data):
    module, kind = kio("assignment", version)
    entries = tuple(module.TopicPartition(topic=topic, partitions=indexes) for topic, indexes in assigned)
    theirs = prefixed(version, kind(assigned_partitions=entries, user_data=data))
    assert read_assignment(theirs) == Assignment(assigned, data or b"")
    ours = write_assignment(assigned, version)
    assert ours == prefixed(version, kind(assigned_partitions=entries, user_data=None))
    assert entity_reader(kind)(memoryview(ours), 2)[0].assigned_partitions == entries


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    for read in (read_subscription, read_assignment):
        with contextlib.suppress(DecodeError):
            read(data)
    parse_subscription(data)


def test_version_1_without_owned_partitions_and_future_versions():
    assert read_subscription(b"\0\1" + b"\0\0\0\1\0\1t" + b"\xff" * 4) == Subscription(1, ("t",))
    later = b"\0\7" + b"\0\0\0\1\0\1t" + b"\xff" * 4 + b"\0\0\0\0" + b"\0\0\0\1" + b"\xff\xff" + b"more"
    assert read_subscription(later) == Subscription(3, ("t",))
    assert read_assignment(b"") == Assignment(())


@pytest.mark.parametrize("count", [2**31 - 1, -1, 1_000])
def test_a_count_beyond_the_bytes_is_refused_at_once(count):
    with pytest.raises(DecodeError, match="bytes are left"):
        read_subscription(b"\0\3" + (count % 2**32).to_bytes(4, "big"))
