"""Plan moves of partitions: off a broker, onto more brokers, or evenly over all of them. Pure.

A plan moves as little as it can. The replicas of a partition stay on as many racks as before. The first replica is the
preferred leader. `Racks` are the live brokers with their racks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

Racks = Mapping[int, str | None]


@dataclass(frozen=True, slots=True)
class Placement:
    """A partition and the brokers that hold its replicas, the preferred leader first."""

    topic: str
    partition: int
    replicas: tuple[int, ...]


class PlacementError(ValueError):
    """There are too few brokers for the plan."""


def drained(placements: Iterable[Placement], brokers: Racks, leaving: int) -> list[Placement]:
    """Return the moves that leave a broker without replicas. PlacementError if there are too few other brokers."""
    there = list(placements)
    held = Counter(broker for each in there for broker in each.replicas)
    first = Counter(each.replicas[0] for each in there)
    moved = []
    for each in there:
        if leaving not in each.replicas:
            continue
        stay = [broker for broker in each.replicas if broker != leaving]
        free = [broker for broker in brokers if broker != leaving and broker not in stay]
        if not free:
            raise PlacementError(
                f"{each.topic}-{each.partition} has {len(each.replicas)} replicas, and without broker {leaving} there"
                f" are {len(brokers.keys() - {leaving})} brokers: start another one, or lower its replicas first"
            )
        used = {brokers.get(broker) for broker in stay}
        taker = min(free, key=lambda broker: (brokers[broker] in used, held[broker], broker))
        held[taker] += 1
        if each.replicas[0] == leaving:
            leader = min((*stay, taker), key=lambda broker: (first[broker], broker != taker))
            first[leader] += 1
            replicas = (leader, *(broker for broker in (*stay, taker) if broker != leader))
        else:
            replicas = tuple(taker if broker == leaving else broker for broker in each.replicas)
        moved.append(replace(each, replicas=replicas))
    return moved


def balanced(placements: Iterable[Placement], brokers: Racks) -> list[Placement]:
    """Return the moves after which all brokers hold as many replicas and lead as many partitions, give or take one.

    Racks may prevent an even number. A partition with a replica on a broker that is not alive stays as it is.
    """
    before = list(placements)
    movable = [each for each in before if all(broker in brokers for broker in each.replicas)]
    after = {(each.topic, each.partition): each.replicas for each in movable}
    held = Counter(dict.fromkeys(brokers, 0))
    held.update(broker for each in before for broker in each.replicas if broker in brokers)
    _even_out(after, held, brokers)
    _even_out_leaders(after, brokers)
    return [
        replace(each, replicas=after[each.topic, each.partition])
        for each in movable
        if after[each.topic, each.partition] != each.replicas
    ]


def replicated(placements: Iterable[Placement], brokers: Racks, factor: int) -> list[Placement]:
    """Return the changes after which each partition has `factor` replicas.

    New replicas go to other racks if possible, and to the brokers that hold the fewest. The last replicas are removed
    first. PlacementError if there are fewer brokers than `factor`.
    """
    if factor > len(brokers):
        raise PlacementError(
            f"{factor} replicas need as many brokers, and {len(brokers)} are alive: "
            + ", ".join(map(str, sorted(brokers)))
        )
    there = list(placements)
    held = Counter(broker for each in there for broker in each.replicas)
    changed = []
    for each in there:
        # Replicas on dead brokers are removed first: nothing can be copied from them.
        kept = sorted(each.replicas, key=lambda broker: broker not in brokers)[:factor]
        replicas = [broker for broker in each.replicas if broker in kept]
        while len(replicas) < factor:
            used = {brokers.get(broker) for broker in replicas}
            free = [broker for broker in brokers if broker not in replicas]
            taker = min(free, key=lambda broker: (brokers[broker] in used, held[broker], broker))
            held[taker] += 1
            replicas.append(taker)
        if tuple(replicas) != each.replicas:
            changed.append(replace(each, replicas=tuple(replicas)))
    return changed


Places = dict[tuple[str, int], tuple[int, ...]]


def _even_out(after: Places, held: Counter[int], brokers: Racks) -> None:
    of: dict[int, dict[tuple[str, int], None]] = {broker: {} for broker in brokers}
    for place, replicas in after.items():
        for broker in replicas:
            of[broker][place] = None
    stuck: set[int] = set()
    while True:
        givers = [broker for broker in brokers if broker not in stuck]
        if not givers:
            return
        giver = max(givers, key=lambda broker: (held[broker], -broker))
        takers = sorted(brokers, key=lambda broker: (held[broker], broker))
        found = None
        for taker in takers:
            if held[giver] - held[taker] <= 1:
                break
            # Move replicas that follow rather than those that lead.
            choices = (
                (after[place][0] == giver, place)
                for place in of[giver]
                if taker not in after[place] and _keeps_racks(after[place], giver, taker, brokers)
            )
            found = min(choices, default=None)
            if found is not None:
                _, place = found
                after[place] = tuple(taker if broker == giver else broker for broker in after[place])
                del of[giver][place]
                of[taker][place] = None
                held[giver] -= 1
                held[taker] += 1
                stuck.clear()
                break
        if found is None:
            stuck.add(giver)


def _keeps_racks(replicas: Sequence[int], giver: int, taker: int, brokers: Racks) -> bool:
    def racks(of: Iterable[int]) -> int:
        return len({brokers[broker] for broker in of if brokers[broker] is not None})

    return racks(taker if broker == giver else broker for broker in replicas) >= racks(replicas)


def _even_out_leaders(after: Places, brokers: Racks) -> None:
    """Even out the leaders: exchange first replicas with later ones, also along a path over other brokers."""
    led: dict[int, dict[tuple[str, int], None]] = {broker: {} for broker in brokers}
    for place, replicas in after.items():
        led[replicas[0]][place] = None
    while True:
        most = max(brokers, key=lambda broker: (len(led[broker]), -broker), default=None)
        if most is None:
            return
        way = _way_down(most, len(led[most]) - 1, led, after)
        if way is None:
            return
        for place, taker in way:
            giver = after[place][0]
            after[place] = (taker, *(broker for broker in after[place] if broker != taker))
            del led[giver][place]
            led[taker][place] = None


def _way_down(
    giver: int, below: int, led: Mapping[int, Mapping[tuple[str, int], None]], after: Places
) -> list[tuple[tuple[str, int], int]] | None:
    """Return the shortest path that takes one partition from `giver` and gives one to a broker that leads fewer than
    `below`: (partition, its new leader) for each step. None if there is no such path.
    """
    came_by: dict[int, tuple[int, tuple[str, int]]] = {}
    at, seen = [giver], {giver}
    while at:
        following = []
        for broker in at:
            for place in led[broker]:
                for taker in after[place][1:]:
                    if taker in seen or taker not in led:
                        continue
                    seen.add(taker)
                    came_by[taker] = broker, place
                    following.append(taker)
        for taker in following:
            if len(led[taker]) < below:
                way = []
                while taker != giver:
                    broker, place = came_by[taker]
                    way.append((place, taker))
                    taker = broker
                return way[::-1]
        at = following
    return None
