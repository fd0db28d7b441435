"""One request with many elements does not hold up the event loop: every array of every API, with thousands.

Time is counted in calls (`simulator.call_clock`), so nothing here depends on the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from uuid import UUID

import pytest

from headrace.broker.net.reply import CloseConnection
from headrace.protocol.headers import RequestHeader, encode_request_header
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.schema import ApiMessage, Field, Struct
from simulator.call_clock import CallClock
from simulator.direct import direct_broker

ELEMENTS = 3000
CALLS_MAX = 5000
"""Calls between two turns of the event loop. A slice is 1000; answering 3000 elements takes 50,000 and more."""
NAMED = "text-1"


def arrays(kind: type[Struct], version: int, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths to all arrays of a message."""
    for name, field in kind.FIELDS.items():
        if version not in field.versions:
            continue
        if field.kind == "array":
            yield (*above, name)
        inner = field.structure or (field.element and field.element.structure)
        if inner:
            yield from arrays(inner, version, (*above, name))


def wide(
    kind: type[Struct], version: int, path: tuple[str, ...], count: int, *, same: bool, seed=1
) -> Struct:
    """Return a request with every field set and one element in each array.

    The array at `path` has `count` elements, all the same or all different.
    """

    def value(field: Field, name: str, seed: int) -> object:
        here = path[:1] == (name,)
        if field.structure is not None:
            return wide(field.structure, version, path[1:] if here else (), count, same=same, seed=seed)
        if field.element is not None:
            if path == (name,):
                if same:
                    return [value(field.element, "", 1)] * count
                return [value(field.element, "", 1 + i) for i in range(count)]
            if field.element.structure is not None:
                below = path[1:] if here else ()
                return [wide(field.element.structure, version, below, count, same=same)]
            return [value(field.element, "", 1)]
        if name in ("max_wait_ms", "timeout_ms", "key_type"):
            return 0
        if name == "acks":
            return -1
        return {
            "string": f"text-{seed}",
            "binary": b"b" * 8,
            "records": b"records",
            "boolean": True,
            "uuid": UUID(int=0),
            "float64": 1.0,
        }.get(field.kind, (seed - 1) % 100 if field.kind in ("int8", "int16") else seed - 1)

    return kind(
        **{name: value(field, name, seed) for name, field in kind.FIELDS.items() if version in field.versions}
    )


def framed(request: ApiMessage, version: int) -> bytes:
    header = RequestHeader(request.API_KEY, version, 1, "wide")
    return encode_request_header(header, request.header_version(version)) + request.encode(version)


@pytest.mark.parametrize("same", [True, False], ids=["the same", "different ones"])
def test_requests_with_thousands_of_names_are_handled_in_slices(tmp_path, same, caplog) -> None:
    clock = CallClock()
    caplog.set_level(logging.ERROR, "headrace")
    stalls = []

    async def test() -> None:
        async with direct_broker(tmp_path, {"auto.create.topics.enable": "false"}, clock=clock) as broker:
            await broker.create_topic(NAMED, 2)
            declarations = list(broker.broker.dispatcher._declarations.values())
            for declaration in declarations:
                version = declaration.max_version
                for path in arrays(declaration.request, version):
                    few, many = (
                        framed(wide(declaration.request, version, path, count, same=same), version)
                        for count in (1, ELEMENTS)
                    )
                    for frame in (few, many):  # the first one has decoders compiled and topics made
                        async with clock:
                            with contextlib.suppress(CloseConnection, TimeoutError):
                                async with asyncio.timeout(0.5):
                                    await broker.send_frame(frame)
                    if clock.longest_turn > CALLS_MAX:
                        stalls.append(
                            f"{declaration.request.__name__}.{'.'.join(path)}: {clock.longest_turn}"
                        )

    asyncio.run(test())
    assert not stalls, "\n".join(stalls)
    assert not [record for record in caplog.records if record.exc_info]


def test_topics_that_a_metadata_request_makes_by_the_thousand_are_made_in_turns(tmp_path) -> None:
    clock = CallClock()

    async def test() -> None:
        async with direct_broker(tmp_path, {"auto.create.topics.enable": "true"}, clock=clock) as broker:
            for first in (0, ELEMENTS):  # the first ones have decoders compiled
                names = [MetadataRequestTopic(name=f"made-{n}") for n in range(first, first + ELEMENTS)]
                frame = framed(MetadataRequest(topics=names, allow_auto_topic_creation=True), 12)
                async with clock:
                    await broker.send_frame(frame)
            assert broker.broker.context.metadata.topic_count == 2 * ELEMENTS

    asyncio.run(test())
    assert clock.longest_turn <= CALLS_MAX
