"""While long work is done in slices the garbage collector rests, and never for good."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from broker import slices
from broker.slices import Slices


@pytest.fixture(autouse=True)
def _on() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def counting(to: int) -> Iterator[None]:
    for _ in range(to):
        yield


def clock_of_ticks() -> Slices:
    """Every look at the clock finds a millisecond gone."""
    ticks = iter(range(10**9))
    return Slices(lambda: next(ticks) / 1000)


async def test_it_rests_from_the_first_slice_that_was_not_enough_until_after_the_last(monkeypatch) -> None:
    monkeypatch.setattr(slices, "_COLLECTOR_RESTS_SECONDS", 0.01)
    work = clock_of_ticks()
    running = asyncio.ensure_future(work.run(counting(50)))
    while not running.done():
        await asyncio.sleep(0)
        assert running.done() or not gc.isenabled()
    async with asyncio.timeout(5):
        while not gc.isenabled():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.005)


async def test_it_does_not_rest_for_ever_while_there_is_always_work(monkeypatch) -> None:
    monkeypatch.setattr(slices, "_COLLECTOR_RESTS_SECONDS", 0.01)
    monkeypatch.setattr(slices, "_COLLECTOR_RESTS_SECONDS_MAX", 0.05)
    work = clock_of_ticks()
    running = asyncio.ensure_future(work.run(counting(10**9)))
    async with asyncio.timeout(5):
        await asyncio.sleep(0)
        assert not gc.isenabled()
        while not gc.isenabled():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.005)
    running.cancel()


async def test_one_that_is_off_stays_off_and_short_work_does_not_touch_it() -> None:
    await clock_of_ticks().run(counting(0))
    assert gc.isenabled()
    gc.disable()
    work = clock_of_ticks()
    await work.run(counting(50))
    work.collector.end()
    assert not gc.isenabled()


async def test_a_server_that_stops_leaves_it_on() -> None:
    work = clock_of_ticks()
    await work.run(counting(50))
    assert not gc.isenabled()
    work.collector.end()
    assert gc.isenabled()
