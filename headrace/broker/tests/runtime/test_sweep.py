"""Recurring work for each of many keys: no key is left out, and each has a next time."""

import asyncio

from headrace.broker.runtime.background import BackgroundTasks
from headrace.broker.runtime.sweep import KEYS_PER_TURN, Sweep


async def test_a_failing_key_is_reported_and_does_not_stop_the_sweep():
    background, seen, again = BackgroundTasks(), [], asyncio.Event()

    def each(key: str) -> None:
        seen.append(key)
        if len(seen) == 4:
            again.set()
        if key == "a":
            raise KeyError(key)

    sweep = Sweep(background, "the expiry of", 1, lambda: ["a", "b"], each)
    sweep.start()
    await again.wait()
    sweep.close()
    assert (seen, background.failures) == (["a", "b", "a", "b"], 2)


async def test_many_keys_leave_turns_to_others():
    seen: list[str] = []
    keys = [str(number) for number in range(2 * KEYS_PER_TURN + 1)]
    sweep = Sweep(BackgroundTasks(), "the expiry of", 60_000, lambda: keys, seen.append)
    running = asyncio.create_task(sweep.run())
    counts = []
    while not running.done():
        await asyncio.sleep(0)
        counts.append(len(seen))
    sweep.close()
    assert counts[:3] == [KEYS_PER_TURN, 2 * KEYS_PER_TURN, 2 * KEYS_PER_TURN + 1]
