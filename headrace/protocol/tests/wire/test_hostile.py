"""Decoding any bytes ends in a message or a DecodeError, within its limit of memory."""

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.budget import BudgetExceeded, DecodeBudget
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.metadata import MetadataResponse
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.protocol.tests.wire.values import MESSAGES, full, in_every_version, name_of
from headrace.protocol.varint import encode_unsigned_varint


def decode_or_refuse(kind, data, version, budget=None):
    """Decode; DecodeError is the only exception that may come out of it."""
    try:
        return kind.decode(data, version, budget)
    except DecodeError:
        return None


@in_every_version
def test_every_truncation_is_refused(kind, version):
    encoded = full(kind, version).encode(version)
    decoded = [
        end for end in range(len(encoded)) if decode_or_refuse(kind, encoded[:end], version) is not None
    ]
    assert decoded == []


@in_every_version
def test_trailing_bytes_are_refused(kind, version):
    with pytest.raises(DecodeError, match="more bytes follow"):
        kind.decode(full(kind, version).encode(version) + b"\0", version)


@in_every_version
def test_flipped_bits_give_a_message_or_an_error(kind, version):
    """If flipped bits can be decoded, the message is legal: it can be encoded and decoded again."""
    rng = random.Random(f"{kind.__name__} {version}")
    encoded = full(kind, version).encode(version)
    for position in range(len(encoded)):
        broken = bytearray(encoded)
        broken[position] ^= 1 << rng.randrange(8)
        message = decode_or_refuse(kind, bytes(broken), version)
        if message is not None:
            assert kind.decode(message.encode(version), version) == message


@pytest.mark.parametrize("kind", MESSAGES, ids=name_of)
@settings(max_examples=20, deadline=None, database=None)
@given(data=st.binary(max_size=80), choice=st.integers(0, 1000))
def test_noise_gives_a_message_or_an_error(kind, data, choice):
    version = kind.MIN_VERSION + choice % (kind.MAX_VERSION - kind.MIN_VERSION + 1)
    decode_or_refuse(kind, data, version)


CORNERS = [
    (kind, version)
    for kind in MESSAGES
    for version in sorted({kind.MIN_VERSION, min(kind.FLEXIBLE_FROM, kind.MAX_VERSION), kind.MAX_VERSION})
]


@pytest.mark.parametrize(("kind", "version"), CORNERS, ids=name_of)
def test_huge_lengths_allocate_nothing(kind, version):
    """A large number written over every byte, wherever a length or count may stand."""
    flexible = kind.is_flexible(version)
    numbers = (b"\xff\xff\xff\xff\x0f", b"\x80\x80\x04") if flexible else (b"\x7f\xff\xff\xff", b"\x7f\xff")
    encoded = full(kind, version, elements=1).encode(version)
    decode_or_refuse(kind, encoded, version)  # compiled before measuring
    tracemalloc.start()
    try:
        for position in range(len(encoded)):
            for huge in numbers:
                broken = encoded[:position] + huge + encoded[position + (1 if flexible else len(huge)) :]
                decode_or_refuse(kind, broken, version)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000


def test_an_array_bomb_is_refused_before_it_is_built():
    """Three bytes a topic that would be 200 bytes of objects each."""
    count = 200_000
    bomb = FetchRequest().encode(12)
    FetchRequest.decode(bomb, 12)  # compiled before measuring
    head = bomb[: bomb.index(b"\x01\x01\x01\x00")]
    frame = head + encode_unsigned_varint(count + 1) + b"\x01\x01\x00" * count + b"\x01\x01\x00"
    tracemalloc.start()
    try:
        with pytest.raises(BudgetExceeded, match="budget"):
            FetchRequest.decode(frame, 12, DecodeBudget(10_000_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000
    assert len(FetchRequest.decode(frame, 12, DecodeBudget(10**9)).topics) == count


@in_every_version
def test_the_budget_covers_what_decoding_allocates(kind, version):
    encoded = full(kind, version).encode(version)
    kind.decode(encoded, version)
    budget = DecodeBudget()
    tracemalloc.start()
    try:
        kept = [kind.decode(encoded, version, budget) for _ in range(20)]
        allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert allocated <= budget.limit_bytes - budget.remaining_bytes + 2000
    assert len(kept) == 20


@pytest.mark.parametrize(("letter", "bytes_per_character"), [("a", 1), ("é", 4), ("中", 4), ("𝄞", 4)])
def test_text_is_charged_at_its_widest(letter, bytes_per_character):
    """One letter beyond Latin-1 makes every character of a Python string two or four bytes wide."""
    encoded = ProduceRequest(transactional_id=letter + "a" * 30_000).encode(3)
    ProduceRequest.decode(encoded, 3, DecodeBudget(30_000 * bytes_per_character + 1000))
    with pytest.raises(BudgetExceeded):
        ProduceRequest.decode(encoded, 3, DecodeBudget(30_000 * bytes_per_character))


def test_one_budget_serves_several_messages():
    encoded = full(MetadataResponse, 12).encode(12)
    budget = DecodeBudget(10_000)
    with pytest.raises(BudgetExceeded):
        for _ in range(100):
            MetadataResponse.decode(encoded, 12, budget)
    assert 0 <= budget.remaining_bytes < 10_000


def test_charging_by_hand():
    budget = DecodeBudget(100)
    budget.charge(60)
    with pytest.raises(BudgetExceeded, match="41 more bytes of memory, but only 40"):
        budget.charge(41)
    budget.charge(40)
    assert budget.remaining_bytes == 0


@pytest.mark.parametrize(
    ("kind", "version", "data", "words"),
    [
        (ProduceRequest, 3, b"\xff\xff\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff", "topic_data: null is not"),
        (ProduceRequest, 3, b"\xff\xff\x00\x01\x00\x00\x00\x00\xff\xff\xff\xfe", "-2 is not a length"),
        (ProduceRequest, 3, b"\xff\xfe" + bytes(10), "transactional_id: -2 is not a length"),
        (ProduceRequest, 3, b"\x00\x02\xc3\x28" + bytes(10), "not UTF-8"),
        (ProduceRequest, 3, b"\x7f\xff" + bytes(20), "32767 bytes are announced, but only 20 are left"),
        (ProduceRequest, 3, bytes(8) + b"\x10\x00\x00\x00", "268435456 elements are announced"),
        (ProduceRequest, 9, b"\x80\x80\x80\x80\x80\x00" + bytes(20), "more than the 32 bits"),
        (ProduceRequest, 9, b"\xff\xff\xff\xff\x1f" + bytes(20), "more than the 32 bits"),
        (ProduceRequest, 2, b"", "versions 3 to 13, not 2"),
        (ProduceRequest, 14, b"", "versions 3 to 13, not 14"),
        (ProduceRequest, 9, b"\x00\x00\x01\x00\x00\x00\x00\x01\x02\x01\x00\x01\x00", "1 comes after 1; tags"),
        (ProduceRequest, 9, b"\x00\x00\x01\x00\x00\x00\x00\x01\x01\x01\x05\x00", "field 1: 5 bytes are"),
        (ProduceResponse, 10, b"\x01\x00\x00\x00\x00\x01\x00\x02\x01\x00", "ends at byte 9, not at byte 10"),
        (JoinGroupRequest, 0, b"", "cut off"),
    ],
)  # fmt: skip
def test_malformed_input_is_named(kind, version, data, words):
    with pytest.raises(DecodeError, match=words):
        kind.decode(data, version)


def test_booleans_are_zero_or_one():
    encoded = bytearray(full(MetadataResponse, 1).encode(1))
    message = MetadataResponse.decode(encoded, 1)
    position = encoded.index(b"\x01", encoded.index(message.topics[0].name.encode()) + 6)
    assert encoded[position] == message.topics[0].is_internal
    encoded[position] = 2
    with pytest.raises(DecodeError, match="is_internal: 2 is not a boolean"):
        MetadataResponse.decode(encoded, 1)


@in_every_version
def test_unknown_tagged_fields_are_skipped(kind, version):
    if not kind.is_flexible(version):
        return
    encoded = kind().encode(version)
    assert encoded.endswith(b"\0")
    unknown = b"\x02" + b"\x64\x03abc" + b"\xe8\x07\x00"  # tag 100 with three bytes, tag 1000 with none
    assert kind.decode(encoded[:-1] + unknown, version) == kind()


def test_known_tagged_fields_are_read_among_unknown_ones():
    message = FetchRequest(cluster_id="c")
    encoded = message.encode(12)
    assert encoded.endswith(b"\x01\x00\x02\x02c")
    body = encoded[: -len(b"\x01\x00\x02\x02c")]
    assert FetchRequest.decode(body + b"\x02\x00\x02\x02c\x07\x01?", 12) == message
