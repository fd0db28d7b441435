"""Long work on the event loop, as other tasks feel it: counted in calls, not timed."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.broker.runtime.slices import Slices
from simulator.call_clock import CallClock

OF_A_TURN_MAX = 600
"""A quarter of a millisecond at a microsecond for each call, twice, and what the loop does beside."""


def work(steps: int) -> Iterator[None]:
    for _ in range(steps):
        yield


async def test_long_work_rests_after_a_quarter_of_a_millisecond() -> None:
    async with CallClock() as clock:
        slices = Slices(clock.monotonic)
        await slices.run(work(20_000))  # type: ignore[arg-type]
        alone = clock.longest_turn
        clock.reset()
        pace = slices.pace()
        for _ in range(5_000):
            await pace.rest()
    assert 0 < alone <= OF_A_TURN_MAX
    assert 0 < clock.longest_turn <= OF_A_TURN_MAX
