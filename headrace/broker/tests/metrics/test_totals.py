"""Growing sums over counters that come and go, and a bound on names."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.metrics.model import OTHERS, Gathering
from headrace.broker.metrics.totals import Totals

_steps = st.lists(
    st.one_of(
        st.tuples(st.just("count"), st.integers(0, 5), st.integers(0, 9)),
        st.tuples(st.just("drop"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("look"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


def keep(totals, names, counters):
    asyncio.run(totals.keep(names, counters, Gathering().breathe))


@given(_steps, st.integers(0, 4))
def test_sums_are_those_of_a_plain_model(steps, names_max):
    """Every counter belongs to the topic of its number; each drop is followed by a read."""
    totals = Totals(1, names_max)
    counters: dict[int, tuple[object, int]] = {}
    seen: dict[str, int] = {}
    for kind, number, amount in steps:
        if kind == "count":
            counter, value = counters.get(number, (object(), 0))
            counters[number] = counter, value + amount
        else:
            if kind == "drop":
                counters.pop(number, None)
            for each, (counter, value) in sorted(counters.items()):
                totals.count(f"t{each}", counter, (value,))
            alive = [f"t{each}" for each in counters]
            keep(totals, alive, [counter for counter, _ in counters.values()])
            now = {label: sums[0] for label, sums in totals.sums()}
            named = [label for label in now if label != OTHERS]
            assert len(named) <= names_max
            for label in named:
                assert now[label] == counters[int(label[1:])][1]
            assert now.get(OTHERS, 0) >= seen.get(OTHERS, 0)
            rest = [number for number in counters if f"t{number}" not in named]
            assert now.get(OTHERS, 0) >= sum(counters[number][1] for number in rest)
            assert not rest or OTHERS in now
            seen = now


def test_a_topic_that_is_made_again_counts_from_nothing_and_the_rest_never_shrinks():
    totals = Totals(2, 1)
    first, second, third = object(), object(), object()
    totals.count("a", first, (5, 1))
    totals.count("b", second, (7, 2))
    keep(totals, ["a", "b"], [first, second])
    assert dict(totals.sums()) == {"a": [5, 1], OTHERS: [7, 2]}
    keep(totals, ["b"], [second])
    totals.count("a", third, (3, 3))
    totals.count("b", second, (8, 2))
    assert dict(totals.sums()) == {"a": [3, 3], OTHERS: [8, 2]}
    keep(totals, ["a"], [third])
    assert dict(totals.sums()) == {"a": [3, 3], OTHERS: [8, 2]}
    assert totals.label("b") == OTHERS
