"""The event loop of the simulator, and the effects of a world on its process."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.loop import DeadlockError, LivelockError, SimulatedLoop
from simulator.world import World


def run(loop: SimulatedLoop, begin: Callable[[], object]) -> None:
    loop.call_soon(begin)
    try:
        with pytest.raises(DeadlockError):
            loop.run_forever()
    finally:
        loop.close()


def test_timers_of_one_moment_run_in_call_order_without_cancelled_ones() -> None:
    loop, found = SimulatedLoop(0), []

    def begin() -> None:
        timers = [loop.call_at(1_001.0, found.append, number) for number in range(20)]
        for timer in timers[::3]:
            timer.cancel()

    run(loop, begin)
    assert found == [number for number in range(20) if number % 3]


def test_an_endless_loop_at_one_moment_raises_livelock() -> None:
    loop = SimulatedLoop(0)

    def again() -> None:
        loop.call_soon(again)

    loop.call_soon(again)
    with pytest.raises(LivelockError):
        loop.run_forever()
    loop.close()


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_has_no_part_in_a_world_and_is_as_it_was_after_it(tmp_path: Path, is_on: bool) -> None:
    async def scenario() -> bool:
        await asyncio.sleep(1.0)
        return gc.isenabled()

    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        with World(0, tmp_path) as world:
            assert not world.run(scenario())
        assert gc.isenabled() is is_on
    finally:
        (gc.enable if was_on else gc.disable)()
