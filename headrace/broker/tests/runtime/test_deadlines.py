"""The scheduler: one timer, many deadlines."""

import asyncio

import pytest

from headrace.broker.runtime.deadlines import Deadlines


class Timer:
    def __init__(self, when, callback):
        self.when, self.callback, self.cancelled = when, callback, False

    def cancel(self):
        self.cancelled = True


class Loop:
    """A loop with virtual time, which is also the clock: `run_to` runs due callbacks in order."""

    def __init__(self):
        self.now = 0.0
        self.timers = []

    def monotonic(self):
        return self.now

    def call_later(self, delay, callback):
        timer = Timer(self.now + delay, callback)
        self.timers.append(timer)
        return timer

    @property
    def armed(self):
        return [timer for timer in self.timers if not timer.cancelled]

    def run_to(self, when):
        while due := [timer for timer in self.armed if timer.when <= when]:
            timer = min(due, key=lambda timer: timer.when)
            self.timers.remove(timer)
            self.now = max(self.now, timer.when)
            timer.callback()
        self.now = when


@pytest.fixture
def loop(monkeypatch):
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    return loop


@pytest.fixture
def fired():
    return []


@pytest.fixture
def deadlines(loop, fired):
    return Deadlines(loop, lambda key: fired.append((loop.now, key)))


def test_fire_in_order_with_one_timer(loop, deadlines, fired):
    for when, key in [(5, "b"), (3, "a"), (9, "c")]:
        deadlines.wake(key, when)
        assert len(loop.armed) == 1
    loop.run_to(4)
    assert fired == [(3, "a")]
    loop.run_to(20)
    assert fired == [(3, "a"), (5, "b"), (9, "c")]
    assert not loop.armed


def test_earliest_deadline_of_a_key_counts(loop, deadlines, fired):
    deadlines.wake("a", 5)
    deadlines.wake("a", 3)
    deadlines.wake("a", 8)
    loop.run_to(20)
    assert fired == [(3, "a")]


def test_forgotten_key_does_not_fire(loop, deadlines, fired):
    deadlines.wake("a", 3)
    deadlines.wake("b", 4)
    deadlines.forget("a")
    loop.run_to(20)
    assert fired == [(4, "b")]
    assert len(deadlines) == 0


def test_forgotten_key_can_be_woken_again_later(loop, deadlines, fired):
    deadlines.wake("a", 3)
    deadlines.forget("a")
    deadlines.wake("a", 6)
    loop.run_to(20)
    assert fired == [(6, "a")]


def test_key_that_is_due_at_once_again_does_not_hold_the_loop(loop):
    seen = []

    def due(key):
        seen.append(key)
        if len(seen) < 3:
            deadlines.wake(key, loop.now)
            assert len(seen) < 3

    deadlines = Deadlines(loop, due)
    deadlines.wake("a", 1)
    timer = loop.armed[0]
    loop.timers.remove(timer)
    loop.now = 1
    timer.callback()
    assert seen == ["a"]  # the second time is another turn of the loop
    loop.run_to(1)
    assert seen == ["a", "a", "a"]


def test_stall_of_the_loop_gives_a_grace(loop, deadlines, fired):
    deadlines.wake("a", 1)
    deadlines.wake("b", 2)
    timer = loop.armed[0]
    loop.timers.remove(timer)
    loop.now = 5
    timer.callback()  # four seconds late
    assert fired == []
    loop.run_to(6)
    assert [key for _, key in fired] == ["a", "b"]
    assert fired[0][0] == pytest.approx(5.1)


def test_closed_scheduler_is_silent(loop, deadlines, fired):
    deadlines.wake("a", 3)
    deadlines.close()
    deadlines.wake("b", 4)
    loop.run_to(20)
    assert fired == []
    assert not loop.armed
