"""The garbage collector pauses while long work is done in slices, and never for good."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from headrace.broker.cluster.topic_changes import MANY_TOPICS, NewTopic
from headrace.broker.partitions.partition import Partition
from headrace.broker.runtime import slices
from headrace.broker.runtime.slices import Slices
from simulator.direct import direct_broker


@pytest.fixture(autouse=True)
def _on() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def counting(to: int) -> Iterator[None]:
    for _ in range(to):
        yield


def clock_of_ticks() -> Slices:
    """A clock that goes on by a millisecond at every call."""
    ticks = iter(range(10**9))
    return Slices(lambda: next(ticks) / 1000)


async def test_the_collector_rests_from_the_second_slice_to_the_last(monkeypatch) -> None:
    monkeypatch.setattr(slices, "_COLLECTOR_RESTS_SECONDS", 0.01)
    work = clock_of_ticks()
    running = asyncio.ensure_future(work.run(counting(50)))
    while not running.done():
        await asyncio.sleep(0)
        assert running.done() or not gc.isenabled()
    async with asyncio.timeout(60):
        while not gc.isenabled():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.005)


async def test_the_collector_rests_for_a_bounded_time(monkeypatch) -> None:
    monkeypatch.setattr(slices, "_COLLECTOR_RESTS_SECONDS", 0.01)
    monkeypatch.setattr(slices, "_COLLECTOR_RESTS_SECONDS_MAX", 0.05)
    work = clock_of_ticks()
    running = asyncio.ensure_future(work.run(counting(10**9)))
    async with asyncio.timeout(60):
        await asyncio.sleep(0)
        assert not gc.isenabled()
        while not gc.isenabled():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.005)
    running.cancel()


async def test_a_disabled_collector_stays_disabled() -> None:
    await clock_of_ticks().run(counting(0))
    assert gc.isenabled()
    gc.disable()
    work = clock_of_ticks()
    await work.run(counting(50))
    work.collector.end()
    assert not gc.isenabled()


async def test_a_server_that_stops_leaves_the_collector_on() -> None:
    work = clock_of_ticks()
    await work.run(counting(50))
    assert not gc.isenabled()
    work.collector.end()
    assert gc.isenabled()


async def test_the_collector_rests_during_a_block_of_other_work(monkeypatch) -> None:
    monkeypatch.setattr(slices, "_COLLECTOR_RESTS_SECONDS", 0.01)
    collector = clock_of_ticks().collector
    with collector.during():
        await asyncio.sleep(0.03)
        assert not gc.isenabled()
    async with asyncio.timeout(60):
        while not gc.isenabled():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(("count", "is_spared"), [(MANY_TOPICS, True), (MANY_TOPICS - 1, False)])
async def test_many_topics_that_are_made_at_once_are_not_looked_at_again(tmp_path, count, is_spared) -> None:
    async with direct_broker(tmp_path) as broker:
        broker.broker._storage.slices.collector.own_process()
        try:
            before = gc.get_freeze_count()
            await broker.broker.context.topics.create_topics([NewTopic(f"t{n}", 1, {}) for n in range(count)])
            assert (gc.get_freeze_count() > before) is is_spared
        finally:
            gc.unfreeze()


async def test_a_process_that_is_not_a_server_freezes_nothing(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        before = gc.get_freeze_count()
        await broker.broker.context.topics.create_topics(
            [NewTopic(f"t{n}", 1, {}) for n in range(MANY_TOPICS)]
        )
        assert gc.get_freeze_count() <= before


async def test_topics_that_are_deleted_are_freed_without_the_collector(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.broker.context.topics.create_topics([NewTopic("deleted", 2, {})])
        gc.disable()
        await broker.broker.context.topics.delete_topic("deleted")
        await asyncio.sleep(0)

        def left() -> list[Partition]:
            # `type`, because `isinstance` asks a weak proxy for the class of its object, which may be gone
            found = (each for each in gc.get_objects() if issubclass(type(each), Partition))
            return [each for each in found if each.topic.name == "deleted"]

        async with asyncio.timeout(60):
            while left():  # noqa: ASYNC110 - a thread lets go of its last work when it comes to it
                await asyncio.sleep(0.01)
