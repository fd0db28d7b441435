"""All APIs of groups, with the handlers of one coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.broker.groups.handlers.administration import GroupAdministrationHandlers
from headrace.broker.groups.handlers.classic import ClassicGroupHandlers
from headrace.broker.groups.handlers.consumer import ConsumerGroupHandlers
from headrace.broker.groups.handlers.finding import FindingHandlers
from headrace.broker.groups.handlers.offset_commit import OffsetCommitHandlers
from headrace.broker.groups.handlers.offset_delete import OffsetDeleteHandlers
from headrace.broker.groups.handlers.offset_fetch import OffsetFetchHandlers

if TYPE_CHECKING:
    from headrace.broker.cluster.journal_topic import JournalTopic
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.groups.handlers.patterns import PatternResolver
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.metadata.identity import BrokerIdentity
    from headrace.broker.requests.declaration import ApiDeclaration
    from headrace.broker.runtime.ports import Clock, Entropy
    from headrace.broker.runtime.slices import Slices


class Transactions(Protocol):
    """The transaction coordinator, as far as FindCoordinator needs it."""

    @property
    def journal(self) -> JournalTopic: ...


def group_apis(
    coordinator: GroupCoordinator,
    transactions: Transactions,
    patterns: PatternResolver,
    metadata: ClusterMetadata,
    identity: BrokerIdentity,
    clock: Clock,
    entropy: Entropy,
    slices: Slices,
) -> list[ApiDeclaration]:
    return [
        *FindingHandlers(coordinator.journal, transactions.journal, metadata, identity).declarations(),
        *ClassicGroupHandlers(coordinator, entropy, slices).declarations(),
        *GroupAdministrationHandlers(coordinator, slices).declarations(),
        *OffsetCommitHandlers(coordinator, metadata, clock, slices).declarations(),
        *OffsetFetchHandlers(coordinator, metadata).declarations(),
        *OffsetDeleteHandlers(coordinator, metadata, slices).declarations(),
        *ConsumerGroupHandlers(coordinator, patterns, metadata, entropy).declarations(),
    ]
