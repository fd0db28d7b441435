"""The assignors of the broker: they give each member its partitions.

Both are pure functions of the members' subscriptions, the topics' partition counts and, for `uniform`, the assignment
so far. The result names every member, and each partition of a subscribed topic exactly once.

- `range` cuts each topic into contiguous ranges, one per subscriber; the first ones are larger by one. Members are in
  the order of instance ids, then of member ids. Topics with equal partition counts are therefore co-partitioned among
  members with equal subscriptions.
- `uniform` balances as evenly as subscriptions allow, with few moves. If all members subscribe to the same topics,
  their partition counts differ by at most one.

Source: KIP-848, Kafka's RangeAssignor and UniformAssignor. The promises are the same; ties are broken by name here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from uuid import UUID

import msgspec

from headrace.broker.groups.model.assignment import NOTHING, Assignment

BALANCE_ROUNDS_MAX = 16
"""Maximum number of rounds. With overlapping subscriptions each round about halves the imbalance. Kafka's bound too."""


class Subscriber(msgspec.Struct, frozen=True):
    """A member as an assignor sees it. `topics` has only existing topics."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    assigned: Assignment
    """Its target before."""


Assignor = Callable[[list[Subscriber], Mapping[UUID, int]], dict[str, Assignment]]
"""Subscribers and the partition count of each of their topics -> the new target of each member."""


def assign_range(subscribers: list[Subscriber], counts: Mapping[UUID, int]) -> dict[str, Assignment]:
    ordered = sorted(
        subscribers, key=lambda one: (one.instance_id is None, one.instance_id or "", one.member_id)
    )
    result: dict[str, dict[UUID, frozenset[int]]] = {one.member_id: {} for one in subscribers}
    for topic_id, count in counts.items():
        readers = [one for one in ordered if topic_id in one.topics]
        start = 0
        for index, reader in enumerate(readers):
            end = start + count // len(readers) + (index < count % len(readers))
            if end > start:
                result[reader.member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(result)


def assign_uniform(subscribers: list[Subscriber], counts: Mapping[UUID, int]) -> dict[str, Assignment]:
    if not subscribers:
        return {}
    first = subscribers[0].topics
    if all(one.topics == first for one in subscribers):
        return _uniform_alike(subscribers, {topic_id: counts[topic_id] for topic_id in first})
    return _uniform_mixed(subscribers, counts)


def _uniform_alike(subscribers: list[Subscriber], counts: Mapping[UUID, int]) -> dict[str, Assignment]:
    """Equal subscriptions: fill up to quotas, and keep the partitions that fit under them."""
    smallest, extra = divmod(sum(counts.values()), len(subscribers))
    # Members with the most partitions get the larger quotas, so that the fewest partitions move.
    ordered = sorted(subscribers, key=lambda one: (-_size(one.assigned, counts), one.member_id))
    free = {topic_id: set(range(count)) for topic_id, count in counts.items()}
    kept: dict[str, dict[UUID, set[int]]] = {}
    room: dict[str, int] = {}
    for index, one in enumerate(ordered):
        quota = smallest + (index < extra)
        mine = kept[one.member_id] = {}
        for topic_id, partitions in one.assigned.items():
            available = free.get(topic_id)
            if available is None or quota == 0:
                continue
            keep = sorted(partitions & available)[:quota]
            if keep:
                mine[topic_id] = set(keep)
                available.difference_update(keep)
                quota -= len(keep)
        room[one.member_id] = quota
    left = [(topic_id, index) for topic_id in sorted(free) for index in sorted(free[topic_id])]
    position = 0
    for one in ordered:
        for topic_id, index in left[position : position + room[one.member_id]]:
            kept[one.member_id].setdefault(topic_id, set()).add(index)
        position += room[one.member_id]
    return {member_id: _frozen(mine) for member_id, mine in kept.items()}


def _uniform_mixed(subscribers: list[Subscriber], counts: Mapping[UUID, int]) -> dict[str, Assignment]:
    """Different subscriptions: keep legal partitions, give the others to the least loaded, then balance."""
    names = sorted(one.member_id for one in subscribers)
    by_name = {one.member_id: one for one in subscribers}
    readers = {topic_id: [name for name in names if topic_id in by_name[name].topics] for topic_id in counts}
    # Topics with the fewest choices come first: topics with many can balance the load afterwards.
    topics = sorted(
        (topic_id for topic_id in counts if readers[topic_id]),
        key=lambda topic_id: (-counts[topic_id] / len(readers[topic_id]), len(readers[topic_id]), topic_id),
    )
    owner: dict[UUID, list[str | None]] = {topic_id: [None] * counts[topic_id] for topic_id in topics}
    load = dict.fromkeys(names, 0)
    for name in names:
        for topic_id, partitions in by_name[name].assigned.items():
            owners = owner.get(topic_id)
            if owners is None or topic_id not in by_name[name].topics:
                continue
            for index in partitions:
                if index < len(owners) and owners[index] is None:
                    owners[index] = name
                    load[name] += 1
    for topic_id in topics:
        takers = [(load[name], name) for name in readers[topic_id]]
        heapq.heapify(takers)
        for index, current in enumerate(owner[topic_id]):
            if current is None:
                _, least = takers[0]
                owner[topic_id][index] = least
                load[least] += 1
                heapq.heapreplace(takers, (load[least], least))
    for _ in range(BALANCE_ROUNDS_MAX):
        moves = [_even_out(owner[topic_id], readers[topic_id], load) for topic_id in topics]
        if not any(moves):
            break
    result: dict[str, dict[UUID, set[int]]] = {name: {} for name in names}
    for topic_id in topics:
        for index, holder in enumerate(owner[topic_id]):
            if holder is not None:
                result[holder].setdefault(topic_id, set()).add(index)
    return {name: _frozen(mine) for name, mine in result.items()}


def _even_out(owners: list[str | None], readers: list[str], load: dict[str, int]) -> bool:
    """Move partitions of a topic from its most to its least loaded readers. Returns whether any moved."""
    held: dict[str, list[int]] = {}
    for index, name in enumerate(owners):
        if name is not None:
            held.setdefault(name, []).append(index)
    givers = [(-load[name], name) for name in held]
    takers = [(load[name], name) for name in readers]
    heapq.heapify(givers)
    heapq.heapify(takers)
    moved = False
    while givers:
        (most, giver), (least, taker) = givers[0], takers[0]
        # If the load of a name has changed since it was added, it is added again at its new place.
        if -most != load[giver]:
            heapq.heapreplace(givers, (-load[giver], giver))
        elif least != load[taker]:
            heapq.heapreplace(takers, (load[taker], taker))
        elif load[giver] - load[taker] <= 1:
            break
        elif not held[giver]:
            heapq.heappop(givers)
        else:
            index = held[giver].pop()
            owners[index] = taker
            if taker not in held:
                held[taker] = []
                heapq.heappush(givers, (-load[taker], taker))
            held[taker].append(index)
            load[giver] -= 1
            load[taker] += 1
            moved = True
    return moved


def _size(assignment: Assignment, counts: Mapping[UUID, int]) -> int:
    return sum(len(partitions) for topic_id, partitions in assignment.items() if topic_id in counts)


def _frozen(assignment: Mapping[UUID, set[int]]) -> Assignment:
    if not assignment:
        return NOTHING
    return {topic_id: frozenset(partitions) for topic_id, partitions in assignment.items()}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
