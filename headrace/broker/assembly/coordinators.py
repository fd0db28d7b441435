"""The coordinators of groups and of transactions.

Starts: both coordinators, which read their topics in the background.
Stops:  transactions, then groups.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.group_configs import GroupConfigs
from headrace.broker.remote.opening import enter_restored_positions
from headrace.broker.transactions.coordinator import TransactionCoordinator

if TYPE_CHECKING:
    from headrace.broker.context import BrokerContext


class Coordinators(msgspec.Struct, frozen=True):
    groups: GroupCoordinator
    transactions: TransactionCoordinator

    async def stop(self) -> None:
        """Stop both; requests that wait in a group are answered."""
        await self.groups.stop()
        await self.transactions.stop()


async def start_coordinators(context: BrokerContext, undo: AsyncExitStack) -> Coordinators:
    """Start both coordinators. Raises ConfigError if restored positions of groups cannot be entered."""
    groups = GroupCoordinator(
        context.config,
        GroupConfigs(context.store, context.config),
        context.metadata,
        context.replicas,
        context.topics,
        context.executor,
        context.ages,
        context.clock,
        context.background,
    )
    undo.push_async_callback(groups.stop)
    await enter_restored_positions(
        context.disk,
        context.data_dir,
        groups,
        context.metadata,
        context.replicas,
        context.clock,
        context.executor,
    )
    await groups.start()
    context.metadata.deletion_listeners.append(lambda topic: groups.forget_topic(topic.name))
    transactions = TransactionCoordinator(
        context.config,
        groups,
        context.metadata,
        context.replicas,
        context.topics,
        context.following,
        context.executor,
        context.ages,
        context.clock,
        context.background,
        context.peers,
        context.identity.broker_id,
    )
    if context.backups is not None and context.backups.cluster is not None:
        context.backups.cluster.journals.append(transactions.journal)
    undo.push_async_callback(transactions.stop)
    await transactions.start()
    return Coordinators(groups, transactions)
