from __future__ import annotations

import asyncio
import time

from simulator.loop_watchdog import LoopWatchdog


def hold_up_the_loop(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_a_loop_that_was_held_up_is_told_with_the_place():
    async def test() -> LoopWatchdog:
        async with LoopWatchdog() as watchdog:
            await asyncio.sleep(0.01)
            hold_up_the_loop(0.1)
            await asyncio.sleep(0.01)
        return watchdog

    watchdog = asyncio.run(test())
    assert watchdog.longest_seconds >= 0.09
    assert watchdog.longest_cpu_seconds >= 0.09
    assert watchdog.stalls
    assert "hold_up_the_loop" in watchdog.report()


def test_work_in_threads_and_waiting_do_not_count_as_loop_time():
    async def test() -> LoopWatchdog:
        async with LoopWatchdog() as watchdog:
            time.sleep(0.1)  # noqa: ASYNC251 - that is what is looked for
            await asyncio.sleep(0.01)
            told = watchdog.longest_seconds, watchdog.longest_cpu_seconds
            watchdog.reset()
            await asyncio.to_thread(time.sleep, 0.05)
        assert told[0] >= 0.09
        assert told[1] < 0.09
        assert watchdog.longest_cpu_seconds < 0.09
        return watchdog

    assert asyncio.run(test()).beats >= 2


def test_a_blocked_loop_is_seen_when_the_watchdog_ends():
    async def test() -> LoopWatchdog:
        async with LoopWatchdog() as watchdog:
            hold_up_the_loop(0.05)
        return watchdog

    assert asyncio.run(test()).longest_cpu_seconds >= 0.04
