"""The choice of brokers for the replicas of new partitions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.broker.metadata import reassignment
from headrace.broker.metadata.events import Assignment
from headrace.broker.metadata.image import BrokerImage, ClusterImage, PartitionState
from headrace.broker.partitions.topic import TopicImage
from headrace.protocol.errors import ErrorCode, KafkaError


def placed(
    image: ClusterImage,
    topic: TopicImage,
    indexes: range,
    replication_factor: int,
    absent: Sequence[BrokerImage],
) -> list[PartitionState]:
    """Return the states of new partitions. Leaders rotate over the brokers that are alive, alternating between racks.
    Followers are the brokers after them, starting one further in each round, on other racks if there are any. The
    topic's id decides where it begins, so that many small topics are spread, too. If more replicas are wanted than
    brokers are alive, some absent brokers are the last ones and not in sync, beginning with racks without a live
    broker.
    """
    check_replication_factor(image, replication_factor, absent)
    brokers = _by_racks(image)
    count, racks = len(brokers), {each: image.brokers[each].rack for each in brokers}
    alive_count = min(replication_factor, count)
    live_racks = set(racks.values())
    first = topic.topic_id.int % count
    kinds: dict[tuple[int, int], PartitionState] = {}
    states = []
    for index in indexes:
        place, shift = (first + index) % count, (index // count) % max(count - 1, 1)
        state = kinds.get((place, shift))
        if state is None:
            others = [
                brokers[(place + 1 + (shift + step) % (count - 1)) % count] for step in range(count - 1)
            ]
            isr = (brokers[place], *_on_other_racks(brokers[place], others, racks, alive_count - 1))
            turned = [absent[(place + step) % len(absent)] for step in range(len(absent))]
            turned.sort(key=lambda broker: broker.rack in live_racks)
            later = [broker.broker_id for broker in turned[: replication_factor - alive_count]]
            state = kinds[place, shift] = PartitionState((*isr, *later), isr[0], 0, isr)
        states.append(state)
    return states


def _by_racks(image: ClusterImage) -> list[int]:
    """Return the brokers that may be given partitions, alternating between racks."""
    of_rack: dict[str, list[int]] = {}
    for broker in sorted(staying_brokers(image)):
        of_rack.setdefault(image.brokers[broker].rack or "", []).append(broker)
    turns = max(map(len, of_rack.values()))
    return [
        of_rack[rack][turn] for turn in range(turns) for rack in sorted(of_rack) if turn < len(of_rack[rack])
    ]


def _on_other_racks(
    leader: int, others: Sequence[int], racks: Mapping[int, str | None], count: int
) -> list[int]:
    """Return the first `count` of `others`, beginning with those on a rack of their own."""
    chosen: list[int] = []
    used = {racks[leader]}
    for broker in others:
        if len(chosen) < count and racks[broker] is not None and racks[broker] not in used:
            used.add(racks[broker])
            chosen.append(broker)
    chosen += [broker for broker in others if broker not in chosen][: count - len(chosen)]
    return chosen


def staying_brokers(image: ClusterImage) -> set[int]:
    """Return the brokers that are alive and not leaving."""
    return {broker.broker_id for broker in image.brokers.values() if not broker.leaving}


def registered_brokers(image: ClusterImage, absent: Iterable[BrokerImage]) -> set[int]:
    """Return the brokers that may be chosen."""
    return {*image.brokers, *(broker.broker_id for broker in absent)}


def assigned(
    image: ClusterImage, assignment: Assignment, absent: Sequence[BrokerImage] = ()
) -> list[PartitionState]:
    """Return the states of new partitions whose replicas the client has chosen, led by the first live one. Raises
    KafkaError(INVALID_REPLICA_ASSIGNMENT).
    """
    states: list[PartitionState] = []
    staying, registered = staying_brokers(image), registered_brokers(image, absent)
    for replicas in assignment:
        missing = next((broker for broker in replicas if broker not in registered), None)
        isr = tuple(broker for broker in replicas if broker in staying)
        if not replicas:
            problem = "includes an empty replica list."
        elif len(set(replicas)) != len(replicas):
            twice = next(broker for broker in replicas if list(replicas).count(broker) > 1)
            problem = f"includes the broker {twice} more than once."
        elif len(replicas) != len(assignment[0]):
            problem = "gives partitions different numbers of replicas."
        elif missing is not None:
            problem = reassignment.not_registered(missing, registered)
        elif not isr:
            problem = f"names for partition {len(states)} only brokers that are not alive: {list(replicas)}."
        else:
            states.append(PartitionState(tuple(replicas), isr[0], 0, isr))
            continue
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {problem}")
    return states


def absent_of(image: ClusterImage, known: Iterable[BrokerImage]) -> tuple[BrokerImage, ...]:
    """Return the known brokers that are not alive, or are about to stop."""
    staying = staying_brokers(image)
    return tuple(broker for broker in known if broker.broker_id not in staying)


def check_replication_factor(
    image: ClusterImage, replication_factor: int, absent: Sequence[BrokerImage] = ()
) -> None:
    """Raise KafkaError(INVALID_REPLICATION_FACTOR) if there are fewer brokers, alive or absent, than
    `replication_factor`.
    """
    alive = len(staying_brokers(image))
    if alive == 0 or not 0 < replication_factor <= alive + len(absent):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of"
            f" {replication_factor} cannot be reached because only {alive + len(absent)} broker(s) are registered.",
        )
