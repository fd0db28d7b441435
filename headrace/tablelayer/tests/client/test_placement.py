"""Plans of the future places of partitions."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from headrace.tablelayer.client.admin.placement import (
    Placement,
    PlacementError,
    balanced,
    drained,
    replicated,
)


def scattered(rng: random.Random, brokers: list[int], count: int, factor: int) -> list[Placement]:
    """Return an uneven placement: most replicas on the first brokers."""
    found = []
    for number in range(count):
        some = brokers[: max(factor, rng.randrange(1, len(brokers) + 1))]
        found.append(Placement(f"t{number % 3}", number, tuple(rng.sample(some, factor))))
    return found


def applied(placements: list[Placement], plan: list[Placement]) -> list[Placement]:
    moved = {(each.topic, each.partition): each for each in plan}
    return [moved.get((each.topic, each.partition), each) for each in placements]


def spread(counts: Counter[int], brokers: list[int]) -> int:
    return max(counts[each] for each in brokers) - min(counts[each] for each in brokers)


def held(placements: list[Placement]) -> Counter[int]:
    return Counter(broker for each in placements for broker in each.replicas)


def led(placements: list[Placement]) -> Counter[int]:
    return Counter(each.replicas[0] for each in placements)


@pytest.mark.parametrize("seed", range(40))
def test_all_hold_and_lead_as_many_and_then_nothing_is_left_to_do(seed: int) -> None:
    rng = random.Random(seed)
    brokers = list(range(1, rng.randrange(3, 7)))
    factor = rng.randrange(1, min(4, len(brokers) + 1))
    before = scattered(rng, brokers, rng.randrange(1, 60), factor)
    racks = dict.fromkeys(brokers)
    plan = balanced(before, racks)
    after = applied(before, plan)
    for each in after:
        assert len(set(each.replicas)) == factor
    assert spread(held(after), brokers) <= 1
    assert spread(led(after), brokers) <= 1
    assert balanced(after, racks) == []
    copies = sum(len({*new.replicas} - {*old.replicas}) for old, new in zip(before, after, strict=True))
    surplus = sum(max(0, held(before)[each] - held(after)[each]) for each in brokers)
    assert copies == surplus, "nothing is copied that need not be"


@pytest.mark.parametrize("seed", range(20))
def test_a_drained_broker_holds_nothing_and_the_others_share_its_replicas(seed: int) -> None:
    rng = random.Random(seed)
    brokers = list(range(1, 6))
    before = scattered(rng, brokers, 40, rng.randrange(1, 4))
    plan = drained(before, dict.fromkeys(brokers), 1)
    after = applied(before, plan)
    assert 1 not in held(after)
    assert all(1 in old.replicas for old in before if old not in after)
    for old, new in zip(before, after, strict=True):
        assert len(set(new.replicas)) == len(old.replicas)
        assert {*old.replicas} - {1} <= {*new.replicas}
    others = brokers[1:]
    taken = held(after) - held(before)
    assert not taken or min(held(after)[each] for each in taken) >= min(held(before)[each] for each in others)


def test_a_plan_keeps_replicas_on_as_many_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "b"}
    before = [Placement("t", number, (1, 3)) for number in range(8)]
    after = applied(before, balanced(before, racks))
    assert all(racks[one] != racks[other] for one, other in (each.replicas for each in after))
    assert held(after)[1] == held(after)[2] == 4
    gone = applied(before, drained(before, racks, 3))
    assert {each.replicas[1] for each in gone} == {4, 5}


def test_balancing_leaves_replicas_of_absent_brokers() -> None:
    before = [Placement("t", number, (1, 9)) for number in range(4)]
    assert balanced(before, {1: None, 2: None}) == []
    assert balanced([], {}) == []


def test_draining_needs_enough_other_brokers() -> None:
    with pytest.raises(PlacementError, match=r"t-0 has 2 replicas, and without broker 2 there are 1 brokers"):
        drained([Placement("t", 0, (1, 2))], {1: None, 2: None}, 2)


@pytest.mark.parametrize("seed", range(10))
def test_added_replicas_go_to_the_least_loaded_brokers(seed: int) -> None:
    rng = random.Random(seed)
    brokers = list(range(1, 6))
    before = [Placement("t", number, (1,)) for number in range(40)]
    before += scattered(rng, brokers, 20, 2)
    plan = replicated(before, dict.fromkeys(brokers), 3)
    after = applied(before, plan)
    assert [each.replicas[: len(old.replicas)] for old, each in zip(before, after, strict=True)] == [
        each.replicas for each in before
    ], "who leads goes on to, and nothing is moved"
    assert all(len(set(each.replicas)) == 3 for each in after)
    of_one = replicated(before[:40], dict.fromkeys(brokers), 3)
    assert [held(of_one)[each] for each in brokers] == [40, 20, 20, 20, 20]
    assert replicated(after, dict.fromkeys(brokers), 3) == []
    assert {each.replicas for each in replicated(after, dict.fromkeys(brokers), 1)} <= {
        (broker,) for broker in brokers
    }


def test_replicas_spread_over_racks_and_absent_brokers_lose_theirs_first() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    (more,) = replicated([Placement("t", 0, (1,))], racks, 2)
    assert more.replicas == (1, 3)
    (fewer,) = replicated([Placement("t", 0, (9, 1, 2))], racks, 2)
    assert fewer.replicas == (1, 2)
    with pytest.raises(PlacementError, match="4 replicas need as many brokers, and 3 are alive: 1, 2, 3"):
        replicated([], racks, 4)
