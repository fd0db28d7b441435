"""The broker's assignors: every partition is assigned once, evenly, with as few moves as possible."""

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.groups.modern.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)


@st.composite
def groups(draw):
    counts = {topic: draw(st.integers(1, 9)) for topic in (A, B, C)[: draw(st.integers(1, 3))]}
    subscribers = []
    for number in range(draw(st.integers(1, 6))):
        topics = frozenset(draw(st.sets(st.sampled_from(sorted(counts)))))
        instance = draw(st.sampled_from([None, None, f"instance-{number}"]))
        subscribers.append(Subscriber(f"member-{number}", instance, topics, {}))
    read = frozenset().union(*(one.topics for one in subscribers))
    return subscribers, {topic: count for topic, count in counts.items() if topic in read}


def with_targets(subscribers, targets):
    return [
        Subscriber(one.member_id, one.instance_id, one.topics, targets.get(one.member_id, {}))
        for one in subscribers
    ]


def sizes(targets):
    return {name: sum(map(len, target.values())) for name, target in targets.items()}


@given(st.sampled_from(sorted(ASSIGNORS)), groups())
def test_every_partition_once_and_only_to_subscribers(name, group):
    subscribers, counts = group
    targets = ASSIGNORS[name](subscribers, counts)
    assert targets.keys() == {one.member_id for one in subscribers}
    given_out = [
        (topic, index) for target in targets.values() for topic, part in target.items() for index in part
    ]
    assert sorted(given_out) == sorted((topic, index) for topic in counts for index in range(counts[topic]))
    for one in subscribers:
        assert targets[one.member_id].keys() <= one.topics
        assert all(targets[one.member_id].values())


@given(groups())
def test_uniform_is_even_where_subscriptions_are_alike(group):
    subscribers, counts = group
    alike = [Subscriber(one.member_id, None, frozenset(counts), {}) for one in subscribers]
    found = sizes(assign_uniform(alike, counts)).values()
    assert max(found) - min(found) <= 1


@given(groups())
def test_uniform_is_even_among_the_readers_of_each_topic_that_is_read_alone(group):
    """With one topic each, its partitions are cut evenly."""
    subscribers, counts = group
    single = [Subscriber(one.member_id, None, frozenset(sorted(one.topics)[:1]), {}) for one in subscribers]
    read = {topic: count for topic, count in counts.items() if any(topic in one.topics for one in single)}
    targets = assign_uniform(single, read)
    for topic in read:
        found = [len(targets[one.member_id].get(topic, ())) for one in single if topic in one.topics]
        assert max(found) - min(found) <= 1


@given(groups())
def test_uniform_leaves_a_balanced_assignment_alone(group):
    subscribers, counts = group
    once = assign_uniform(subscribers, counts)
    assert assign_uniform(with_targets(subscribers, once), counts) == once


@settings(max_examples=60)
@given(groups(), st.data())
def test_uniform_moves_no_more_than_it_must(group, data):
    """A new member joins: only the partitions that it gets have moved."""
    subscribers, counts = group
    alike = [Subscriber(one.member_id, None, frozenset(counts), {}) for one in subscribers]
    before = assign_uniform(alike, counts)
    newcomer = Subscriber(data.draw(st.sampled_from(["a-first", "z-last"])), None, frozenset(counts), {})
    after = assign_uniform([*with_targets(alike, before), newcomer], counts)
    for one in alike:
        for topic, part in after[one.member_id].items():
            assert part <= before[one.member_id].get(topic, frozenset())


@given(groups())
def test_range_cuts_each_topic_into_ranges_that_differ_by_one_at_most(group):
    subscribers, counts = group
    targets = assign_range(subscribers, counts)
    for topic in counts:
        parts = [sorted(targets[one.member_id].get(topic, ())) for one in subscribers if topic in one.topics]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert all(part == list(range(part[0], part[-1] + 1)) for part in parts if part)


def test_range_puts_together_what_has_the_same_number():
    subscribers = [Subscriber(name, None, frozenset((A, B)), {}) for name in ("m1", "m0")]
    assert assign_range(subscribers, {A: 3, B: 3}) == {
        "m0": {A: frozenset((0, 1)), B: frozenset((0, 1))},
        "m1": {A: frozenset((2,)), B: frozenset((2,))},
    }


def test_range_takes_static_members_first_in_the_order_of_their_names():
    """So a restarted static member, whatever its new member id, gets the same again."""
    for member_ids in (("x", "y"), ("y", "x")):
        subscribers = [
            Subscriber("a", None, frozenset((A,)), {}),
            Subscriber(member_ids[0], "instance-1", frozenset((A,)), {}),
            Subscriber(member_ids[1], "instance-2", frozenset((A,)), {}),
        ]
        targets = assign_range(subscribers, {A: 3})
        assert targets[member_ids[0]] == {A: frozenset((0,))}
        assert targets[member_ids[1]] == {A: frozenset((1,))}
        assert targets["a"] == {A: frozenset((2,))}


def test_uniform_evens_out_across_topics_with_overlapping_readers():
    subscribers = [
        Subscriber("m0", None, frozenset((A,)), {A: frozenset(range(6))}),
        Subscriber("m1", None, frozenset((A, B)), {}),
        Subscriber("m2", None, frozenset((B,)), {}),
    ]
    found = sizes(assign_uniform(subscribers, {A: 6, B: 6}))
    assert abs(found["m0"] - found["m1"]) <= 1
    assert abs(found["m1"] - found["m2"]) <= 1
