"""D7: a jump of the wall clock neither ages records nor ends anything: deadlines and ages use the monotonic clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.runtime.ports import AgeClock
from simulator.direct import direct_broker, values_of
from simulator.log import StillClock

HOUR_MS = 3_600_000
YEARS_MS = 10 * 365 * 24 * HOUR_MS


class JumpingClock(StillClock):
    """A clock whose two times go on together until the wall clock is set."""

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.now_ms += int(seconds * 1000)


@pytest.mark.parametrize("jump_ms", [HOUR_MS, YEARS_MS, -HOUR_MS, -YEARS_MS])
async def test_d7_a_jump_deletes_no_segment_early_and_forgets_no_producer(tmp_path, jump_ms) -> None:
    clock = JumpingClock()
    async with direct_broker(tmp_path, clock=clock) as broker:
        await broker.create_topic("t", retention_ms=str(HOUR_MS // 2), segment_bytes="100")
        for number in range(3):
            await broker.produce("t", [b"%d" % number], producer_id=5, producer_epoch=0, base_sequence=number)
        partition = broker.context.replicas.partition("t", 0)
        ages = broker.context.ages
        clock.now_ms += jump_ms
        assert partition.apply_retention(ages.time_ms()) == 0
        clock.sleep(60)
        assert partition.apply_retention(ages.time_ms()) == 0
        again = await broker.produce("t", [b"2"], producer_id=5, producer_epoch=0, base_sequence=2)
        assert (again.error_code, again.base_offset) == (0, 2), "its producer is not forgotten"
        for offset in range(3):
            assert values_of((await broker.fetch("t", offset)).records) == [(offset, b"%d" % offset)]
        clock.now_ms -= jump_ms
        clock.sleep(3600)
        assert partition.apply_retention(ages.time_ms()) == 3, "in its time it goes"


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 1e5), st.sampled_from([0, 0, HOUR_MS, -HOUR_MS, YEARS_MS, -YEARS_MS]))
    )
)
def test_d7_nothing_is_older_than_the_time_that_has_passed(steps) -> None:
    clock = JumpingClock()
    ages, started_ms, passed = AgeClock(clock), clock.now_ms, 0.0
    for seconds, jump_ms in steps:
        clock.sleep(seconds)
        passed += seconds
        clock.now_ms += jump_ms
        assert ages.time_ms() <= min(clock.now_ms, started_ms + passed * 1000 + 1)
