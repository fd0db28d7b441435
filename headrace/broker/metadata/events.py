"""Events about topics, brokers and replicas that the controller decides (`controller.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headrace.broker.metadata.image import BrokerImage
from headrace.broker.partitions.topic import TopicImage

Assignment = Sequence[Sequence[int]]
"""Replicas of consecutive partitions; each list begins with the preferred leader."""


class Known(msgspec.Struct, frozen=True):
    """Facts beside the image that a decision about replicas goes by."""

    absent: tuple[BrokerImage, ...] = ()
    """Brokers that are to come back, and may be replicas meanwhile (`absent_of`)."""
    min_isr: int = 1
    """`min.insync.replicas` of topics that do not set it."""


NOTHING_KNOWN: Final = Known()


class CreateTopics(msgspec.Struct, frozen=True):
    """Create checked topics; topics that exist under the same id are left out."""

    topics: tuple[TopicImage, ...]
    replication_factor: int = 1
    assignments: Mapping[str, Assignment] = {}
    """Replicas of each partition by topic, if the client has chosen them."""
    factors: Mapping[str, int] = {}
    """Number of replicas by topic, if it is not `replication_factor`."""
    absent: tuple[BrokerImage, ...] = ()
    """Brokers that are expected to return. They get replicas, too, if there are too few other brokers, or if the client
    has chosen them (`absent_of`).
    """


class DeleteTopics(msgspec.Struct, frozen=True):
    """Delete several topics; missing ones are left out."""

    names: tuple[str, ...]


class ReplaceTopic(msgspec.Struct, frozen=True):
    """The topic's new configuration and its number of partitions, which may be higher. `version` is that of the entry
    that they were made from. Added partitions have as many replicas as the first one, or `replication_factor`.
    """

    topic: TopicImage
    version: int
    replication_factor: int | None = None
    assignment: Assignment | None = None
    """Replicas of the added partitions, if the client has chosen them."""
    known: Known = NOTHING_KNOWN


class AdoptStates(msgspec.Struct, frozen=True):
    """Topics of the layout without states: the broker has and leads all of them, with this epoch."""

    broker_id: int
    leader_epoch: int


class BrokerStarted(msgspec.Struct, frozen=True):
    """A broker has registered and counts from now on.

    - `clean`: its last stop was clean, so its logs are complete
    - `kept`: the stop was not clean, but its logs are complete, because only the process has ended
    - `synced`: it had acknowledged only records on disk, for topics without a durability of their own
    """

    broker: BrokerImage
    clean: bool
    kept: bool = False
    synced: bool = False


class BrokerLeaving(msgspec.Struct, frozen=True):
    """A broker is about to stop: other brokers take over the leadership of its partitions where they can, and it leaves
    every ISR that has another member.
    """

    broker_id: int
    min_isr: int = 1
    """`min.insync.replicas`, see `Known`."""


class BrokerGone(msgspec.Struct, frozen=True):
    broker_id: int
    min_isr: int = 1
    """`min.insync.replicas`, see `Known`."""


class ElectLeaders(msgspec.Struct, frozen=True):
    """Elect leaders of these partitions (None: all): the preferred leader if it may lead. With `unclean`, any broker
    that is alive if no other one may lead.
    """

    partitions: tuple[tuple[str, int], ...] | None = None
    unclean: bool = False


class Reassign(msgspec.Struct, frozen=True):
    """Move partitions to these brokers; None: back to those that had them before the move. Partitions that cannot be
    moved so are left out (`reassigned`).
    """

    targets: tuple[tuple[str, int, tuple[int, ...] | None], ...]
    factor_may_change: bool = True
    known: Known = NOTHING_KNOWN


class ReplicasLost(msgspec.Struct, frozen=True):
    """A broker that is alive reports that it does not have these replicas (topic, partition) any more: their logs are
    damaged, or their disk has failed. They leave the ISR and are not eligible any more, and other brokers take over
    their leadership. Nothing changes where no other replica has everything.
    """

    broker_id: int
    partitions: tuple[tuple[str, int], ...]


class ChangeIsr(msgspec.Struct, frozen=True):
    """A leader's proposal (as in AlterPartition, KIP-497). `isr`: (broker, its epoch). `min_isr` is the leader's
    number.
    """

    topic: str
    index: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    min_isr: int | None = None


class ChangeIsrs(msgspec.Struct, frozen=True):
    """Proposals for different partitions. Those that cannot be carried out (any more) are left out."""

    proposals: tuple[ChangeIsr, ...]


Event = (
    CreateTopics
    | DeleteTopics
    | ReplaceTopic
    | AdoptStates
    | BrokerStarted
    | BrokerGone
    | BrokerLeaving
    | ElectLeaders
    | Reassign
    | ReplicasLost
    | ChangeIsr
    | ChangeIsrs
)
ANYBODYS: Final = (
    CreateTopics,
    DeleteTopics,
    ReplaceTopic,
    ElectLeaders,
    Reassign,
    ReplicasLost,
    ChangeIsr,
    ChangeIsrs,
)
"""Events that any broker decides, with the newest image."""
