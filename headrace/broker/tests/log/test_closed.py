"""A closed log's answers, beside those of the log that is opened."""

from __future__ import annotations

import math

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.broker.log import closed
from headrace.broker.log.config import LogConfig
from headrace.broker.log.retention import RetentionLimits
from simulator.log import LogWorld

NO_LIMITS = RetentionLimits(-1, -1)
STEP_MS = 1000


@settings(max_examples=60)
@given(
    ages=st.lists(st.integers(0, 5), max_size=5),
    batches_in_segment=st.integers(1, 3),
    age_ms_max=st.sampled_from([-1, 0, STEP_MS, 3 * STEP_MS]),
    batches_kept=st.sampled_from([-1, 0, 1, 3]),
    deleted_to=st.integers(0, 5),
    waited=st.integers(0, 6),
)
@example(ages=[0], batches_in_segment=1, age_ms_max=0, batches_kept=-1, deleted_to=0, waited=0)
def test_retention_is_due_exactly_when_the_opened_log_deletes_something(
    ages, batches_in_segment, age_ms_max, batches_kept, deleted_to, waited
):
    world = LogWorld()
    size = len(world.batch())
    config = {
        "segment_bytes": batches_in_segment * size,
        "retention_ms": age_ms_max,
        "retention_bytes": -1 if batches_kept < 0 else batches_kept * size,
    }
    log = world.open(**config)
    for age in ages:
        world.append(log, at=world.clock.now_ms - age * STEP_MS)
    log.delete_records(min(deleted_to, log.log_end_offset))
    log.close()
    world.clock.now_ms += waited * STEP_MS
    end_offset = closed.clean_end_offset(world.disk, world.directory)
    due_ms = closed.retention_due_ms(world.disk, world.directory, LogConfig(**config).retention)
    opened = world.open(**config)
    assert end_offset == opened.log_end_offset
    deleted = opened.delete_old_segments(world.clock.now_ms, opened.log_end_offset)
    assert (due_ms <= world.clock.now_ms) == (deleted > 0)


def test_a_log_without_a_folder_or_without_records_never_has_anything_to_do():
    world = LogWorld()
    for _ in range(2):
        assert closed.retention_due_ms(world.disk, world.directory, RetentionLimits(0, 0)) == math.inf
        assert closed.clean_end_offset(world.disk, world.directory) == 0
        world.disk.make_directory(world.directory)


def test_a_log_that_was_not_closed_cleanly_is_due_and_needs_recovery():
    world = LogWorld()
    log = world.open()
    world.append(log)
    assert closed.retention_due_ms(world.disk, world.directory, NO_LIMITS) == 0
    assert closed.clean_end_offset(world.disk, world.directory) is None
    log.close()
    assert closed.retention_due_ms(world.disk, world.directory, NO_LIMITS) == math.inf
    assert closed.clean_end_offset(world.disk, world.directory) == 1
    log = world.open(retention_ms=1)
    world.clock.now_ms += STEP_MS
    assert log.delete_old_segments(world.clock.now_ms, high_watermark=1) == 1
    log.close(clean=False)  # only the checkpoint knows its end now
    assert closed.clean_end_offset(world.disk, world.directory) is None


def test_a_marker_of_other_files_is_not_believed():
    world = LogWorld()
    log = world.open()
    world.append(log)
    log.close()
    marker = world.disk.read(world.directory / "clean-shutdown")
    log = world.open()
    world.append(log)
    log.close(clean=False)
    world.disk.replace(world.directory / "clean-shutdown", marker, sync=False)
    assert closed.retention_due_ms(world.disk, world.directory, NO_LIMITS) == 0
    assert closed.clean_end_offset(world.disk, world.directory) is None
