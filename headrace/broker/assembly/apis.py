"""The path of a request: metrics, the dispatcher, and the APIs of the broker and of its extensions.

Starts: nothing that runs by itself; the network gets its answerer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.api import not_offered
from headrace.broker.api.acls import AclsApi
from headrace.broker.api.api_versions import ApiVersionsApi
from headrace.broker.api.brokers import BrokersApi
from headrace.broker.api.configs import ConfigsApi
from headrace.broker.api.delegation_tokens import DelegationTokensApi
from headrace.broker.api.dispatch import Dispatcher
from headrace.broker.api.fetch import FetchApi
from headrace.broker.api.log_dirs import LogDirsApi
from headrace.broker.api.metadata import MetadataApi
from headrace.broker.api.offsets import OffsetsApi
from headrace.broker.api.produce import ProduceApi
from headrace.broker.api.producer_ids import ProducerIdsApi
from headrace.broker.api.quotas import QuotasApi
from headrace.broker.api.replicas import ReplicasApi
from headrace.broker.api.sasl import SaslApi, SaslDoor
from headrace.broker.api.topics import TopicsApi
from headrace.broker.api.users import UsersApi
from headrace.broker.groups.handlers.apis import group_apis
from headrace.broker.groups.handlers.patterns import PatternResolver
from headrace.broker.metrics.collect import BROKER_METRICS, BrokerCollector
from headrace.broker.metrics.event_loop import TURN_CPU_SECONDS, TURN_SECONDS, LoopMeter
from headrace.broker.metrics.replication import REPLICATION_METRICS, ReplicationCollector
from headrace.broker.metrics.requests import REQUEST_SECONDS, RequestMeter
from headrace.broker.net.poller import measure_turns
from headrace.broker.transactions.administration import TransactionAdministration
from headrace.broker.transactions.handlers import TransactionHandlers

if TYPE_CHECKING:
    from headrace.broker.assembly.coordinators import Coordinators
    from headrace.broker.assembly.network import Listeners
    from headrace.broker.assembly.storage import Storage
    from headrace.broker.context import BrokerContext
    from headrace.broker.extension import Extension
    from headrace.broker.replication.follower_fetches import FollowerFetches
    from headrace.broker.requests.declaration import ApiDeclaration
    from headrace.broker.security.audit import AuditLog
    from headrace.broker.security.quotas.store import QuotaStore
    from headrace.broker.security.sasl.service import SaslService


class Apis(msgspec.Struct, frozen=True):
    """The handlers that a stopping broker has to wake, and the dispatcher."""

    fetches: FetchApi
    dispatcher: Dispatcher


def assemble_apis(
    context: BrokerContext,
    storage: Storage,
    coordinators: Coordinators,
    sasl: SaslService,
    quotas: QuotaStore,
    followers: FollowerFetches | None,
    audit: AuditLog | None,
    extensions: Sequence[Extension],
) -> Apis:
    """Make the APIs. `followers`: set if other brokers copy from this one. `audit`: set if there is an authorizer."""
    fetches = FetchApi(
        context.config,
        context.metadata,
        context.replicas,
        context.identity,
        context.clock,
        context.entropy,
        storage.slices,
        followers,
    )
    declarations = [
        *_of_records(context, storage, coordinators, fetches),
        *_of_administration(context, storage, coordinators, quotas),
        *_of_security(context, storage, sasl),
        *_of_coordinators(context, storage, coordinators),
    ]
    for extension in extensions:
        declarations.extend(extension.apis())
    declarations.extend(ApiVersionsApi(lambda: declarations, context.metadata).declarations())
    if audit is not None:
        audit.names = {each.key: each.request.__name__.removesuffix("Request") for each in declarations}
    dispatcher = Dispatcher(
        declarations, storage.slices, context.authorizer, audit, quotas.quotas, context.clock.monotonic
    )
    return Apis(fetches, dispatcher)


def _of_records(
    context: BrokerContext, storage: Storage, coordinators: Coordinators, fetches: FetchApi
) -> list[ApiDeclaration]:
    metadata, replicas = context.metadata, context.replicas
    identity, executor, transactions = context.identity, context.executor, coordinators.transactions
    return [
        *ProduceApi(transactions, metadata, replicas, identity, executor, storage.slices).declarations(),
        *fetches.declarations(),
        *OffsetsApi(replicas, executor).declarations(),
        *MetadataApi(context.config, metadata, context.topics, context.brokers, identity).declarations(),
    ]


def _of_administration(
    context: BrokerContext, storage: Storage, coordinators: Coordinators, quotas: QuotaStore
) -> list[ApiDeclaration]:
    config, slices, groups = context.config, storage.slices, coordinators.groups
    metadata, replicas, topics = context.metadata, context.replicas, context.topics
    following, executor = context.following, context.executor
    configs = ConfigsApi(
        config, storage.configs, groups.configs, metadata, topics, following, context.identity, slices
    )
    return [
        *TopicsApi(config, metadata, topics, following, slices).declarations(),
        *configs.declarations(),
        *LogDirsApi(metadata, replicas, context.data_dir, executor, slices, context.disk).declarations(),
        *ReplicasApi(metadata, replicas, context.replica_changes, following, slices).declarations(),
        *QuotasApi(quotas).declarations(),
        *BrokersApi(context.brokers).declarations(),
        *not_offered.declarations(),
    ]


def _of_security(context: BrokerContext, storage: Storage, sasl: SaslService) -> list[ApiDeclaration]:
    return [
        *AclsApi(context.acls, storage.slices).declarations(),
        *SaslApi().declarations(),
        *UsersApi(sasl.users).declarations(),
        *DelegationTokensApi(sasl.tokens, context.clock, context.entropy, context.executor).declarations(),
    ]


def _of_coordinators(
    context: BrokerContext, storage: Storage, coordinators: Coordinators
) -> list[ApiDeclaration]:
    groups, transactions = coordinators.groups, coordinators.transactions
    metadata, clock, entropy, executor = context.metadata, context.clock, context.entropy, context.executor
    slices = storage.slices
    patterns = PatternResolver(groups, metadata, executor, clock, context.background)
    return [
        *ProducerIdsApi(transactions, context.allocate_producer_id).declarations(),
        *group_apis(groups, transactions, patterns, metadata, context.identity, clock, entropy, slices),
        *TransactionHandlers(
            transactions, metadata, context.replicas, context.allocate_producer_id, clock, slices
        ).declarations(),
        *TransactionAdministration(transactions, context.replicas, executor, clock, slices).declarations(),
    ]


def answer(
    listeners: Listeners,
    apis: Apis,
    context: BrokerContext,
    coordinators: Coordinators,
    sasl: SaslService,
    *,
    measured: bool,
) -> None:
    """Connect the network to the dispatcher, through SASL; `measured` times every request."""
    loop, network, metrics = asyncio.get_running_loop(), listeners.network, context.metrics
    network.answerer = apis.dispatcher
    collector = BrokerCollector(
        context.metadata,
        context.replicas,
        context.data_dir,
        context.disk,
        context.executor,
        context.background,
        network,
        coordinators.groups,
        coordinators.transactions,
    )
    metrics.add(BROKER_METRICS, collector.collect)
    health = ReplicationCollector(
        context.metadata,
        context.replicas,
        context.following.counts,
        context.brokers.known_brokers,
        collector.label,
    )
    metrics.add(REPLICATION_METRICS, health.collect)
    if measured:
        network.answerer = meter = RequestMeter(apis.dispatcher, apis.dispatcher.declarations)
        metrics.add((REQUEST_SECONDS,), meter.collect)
        if measure_turns(loop, turns := LoopMeter()):
            metrics.add((TURN_SECONDS, TURN_CPU_SECONDS), turns.collect)
    if sasl.mechanisms:
        network.answerer = SaslDoor(
            network.answerer,
            sasl.mechanisms,
            loop.time,
            context.clock.time_ms,
            lambda: context.config["connection.failed.authentication.delay.ms"] / 1000,
        )
