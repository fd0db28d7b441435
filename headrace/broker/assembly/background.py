"""Background work: retention, cleaning, flushing, the remote log, a watch over other brokers.

Starts: one background task for each.
Stops:  nothing here; `BackgroundTasks.cancel` ends all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.cluster.cleaner import LogCleaner
from headrace.broker.cluster.lookout import Lookout
from headrace.broker.cluster.retention import ClosedLogs, Retention
from headrace.broker.runtime.open_files import close_idle_files

if TYPE_CHECKING:
    from headrace.broker.assembly.cluster import Cluster
    from headrace.broker.assembly.coordinators import Coordinators
    from headrace.broker.assembly.network import Listeners
    from headrace.broker.assembly.storage import Storage
    from headrace.broker.context import BrokerContext
    from headrace.broker.extension import Extension
    from headrace.broker.remote.manager import RemoteLogManager
    from headrace.broker.runtime.slices import Slices


def follow_the_store(context: BrokerContext, storage: Storage, coordinators: Coordinators) -> None:
    """Follow changes that other brokers write into the store."""
    keep = context.background.keep
    keep(context.following.run, "following the cluster's metadata")
    keep(storage.configs.run, "following changes of broker configurations")
    keep(coordinators.groups.configs.run, "following changes of group configurations")


def start_background_work(
    cluster: Cluster,
    storage: Storage,
    listeners: Listeners,
    coordinators: Coordinators,
    extensions: Sequence[Extension],
) -> None:
    """Start the work that runs while clients are served."""
    context, logs = cluster.context, cluster.logs
    config, metadata, background = context.config, context.metadata, context.background
    background.keep(listeners.network.reap_idle, "closing of idle connections")
    background.keep(logs.deleted_files.run, "removal of deleted segments")
    retention = Retention(
        config,
        context.replicas,
        extensions,
        logs.deleted_files,
        context.ages,
        background,
        ClosedLogs(context.executor, logs.retention_limits, logs.retention_due_ms),
        logs.removals,
    )
    background.keep(retention.run, "retention")
    background.start(context.replicas.start_resting(), "the start of partitions that rest")
    if cluster.remote is not None:
        _start_remote_log(context, cluster.remote, coordinators, storage.slices)
    cleaner = LogCleaner(
        config,
        metadata,
        context.replicas,
        context.data_dir,
        context.executor,
        context.ages,
        background,
        context.disk,
        context.entropy,
        logs.removals,
    )
    metadata.deletion_listeners.append(lambda topic: cleaner.forget_topic(topic.name))
    background.keep(cleaner.run, "log cleaner")
    background.keep(cluster.flushing.run, "flush logs")
    background.keep(close_idle_files, "closing of files that are not used")


def _start_remote_log(
    context: BrokerContext, remote: RemoteLogManager, coordinators: Coordinators, slices: Slices
) -> None:
    from headrace.broker.metrics.remote_log import REMOTE_METRICS, collect

    context.background.keep(remote.run, "the remote log")
    remote.follow_groups(coordinators.groups, slices)
    context.background.keep(remote.run_positions, "copying the positions of consumer groups")
    context.metrics.add(REMOTE_METRICS, partial(collect, remote))


def watch_other_brokers(context: BrokerContext) -> None:
    """Notice brokers of the cluster whose processes have ended, before their sessions do."""
    if not context.metadata.is_alone:
        broker_id = context.identity.broker_id
        Lookout(broker_id, context.metadata, context.peers, context.store, context.background).start()
