"""The choice of segments that retention deletes, against the rules of Kafka's documentation."""

from itertools import accumulate, takewhile
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.log.retention import RetentionLimits, retention_plan

NOW_MS = 100


class Facts(NamedTuple):
    end_offset: int
    size: int
    newest_ms: int


@st.composite
def logs(draw):
    rows = draw(
        st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(-1, NOW_MS)), max_size=6)
    )
    ends = accumulate(records for records, _, _ in rows)
    return [Facts(end, size, newest) for end, (_, size, newest) in zip(ends, rows, strict=True)]


LIMITS = st.builds(RetentionLimits, st.integers(-1, NOW_MS), st.integers(-1, 60))
OFFSETS = st.integers(0, 30)


def is_too_old(segment, limits):
    if limits.age_ms_max == -1 or segment.newest_ms == -1:
        return False
    return NOW_MS - segment.newest_ms > limits.age_ms_max


@given(sealed=logs(), limits=LIMITS, log_start=OFFSETS, deletable_to=OFFSETS, more=st.integers(0, 20))
def test_the_oldest_sealed_segments_go_while_a_limit_or_the_log_start_passes_them(
    sealed, limits, log_start, deletable_to, more
):
    total = sum(segment.size for segment in sealed) + more

    def goes(index):
        segment = sealed[index]
        left = total - sum(each.size for each in sealed[: index + 1])
        return segment.end_offset <= deletable_to and (
            segment.end_offset <= log_start
            or (limits.size_bytes_max >= 0 and left >= limits.size_bytes_max)
            or is_too_old(segment, limits)
        )

    count = retention_plan(
        sealed,
        limits,
        size_bytes=total,
        log_start_offset=log_start,
        deletable_to=deletable_to,
        now_ms=NOW_MS,
    )
    assert count == len(list(takewhile(goes, range(len(sealed)))))


@given(
    sealed=logs(),
    limits=LIMITS,
    size=st.integers(0, 9),
    newest=st.integers(-1, NOW_MS),
    beyond=st.integers(-1, 10),
)
def test_the_active_segment_goes_by_its_age_only_and_after_all_others(sealed, limits, size, newest, beyond):
    end = sealed[-1].end_offset if sealed else 0
    active = Facts(end + size, size, newest)
    rest = {
        "size_bytes": sum(segment.size for segment in sealed) + size,
        "log_start_offset": active.end_offset,
        "deletable_to": end + beyond,
        "now_ms": NOW_MS,
    }
    without = retention_plan(sealed, limits, **rest)
    goes = without == len(sealed) and size > 0 and size <= beyond and is_too_old(active, limits)
    assert retention_plan(sealed, limits, active=active, **rest) == without + goes


def test_nothing_is_read_of_segments_behind_the_first_that_stays():
    def segments():
        yield Facts(1, 10, 0)
        yield Facts(2, 10, NOW_MS)
        raise AssertionError("a third segment was read")

    count = retention_plan(
        segments(),
        RetentionLimits(50, -1),
        size_bytes=30,
        log_start_offset=0,
        deletable_to=9,
        now_ms=NOW_MS,
    )
    assert count == 1
