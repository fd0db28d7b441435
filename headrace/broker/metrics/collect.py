"""The broker's own metrics: connections, topics, logs, groups, transactions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from headrace.broker.api.log_dirs import sizes_on_disk
from headrace.broker.metrics.model import OTHERS, Gathering, Metric, MetricKind
from headrace.broker.metrics.totals import Totals
from headrace.broker.net.faults import Fault
from headrace.broker.runtime import open_files

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from pathlib import Path

    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.net.listener import Network
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.runtime.background import BackgroundTasks
    from headrace.broker.runtime.ports import Disk
    from headrace.broker.transactions.coordinator import TransactionCoordinator

GROUP_LAGS_MAX: Final = 500
"""Maximum number of pairs of group and topic with a lag of their own; the lags of further ones are summed up."""

_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
CONNECTIONS = Metric("headrace_connections", _GAUGE, "Open connections of clients.")
CONNECTIONS_ACCEPTED = Metric(
    "headrace_connections_accepted_total",
    _COUNTER,
    "Accepted connections since the server started, including those that are then refused at once.",
    ("listener",),
)
FAULTS = Metric(
    "headrace_connection_faults_total",
    _COUNTER,
    "Connections that were refused or closed because of a fault of the peer, by kind of fault; the log has details, "
    "limited per minute.",
    ("fault",),
)
HANDSHAKES = Metric(
    "headrace_tls_handshakes_pending",
    _GAUGE,
    "Connections whose TLS handshake is running or waits for its turn.",
)
OPEN_FILES = Metric("headrace_open_files", _GAUGE, "Files and sockets that the server has open.")
OPEN_FILES_MAX = Metric(
    "headrace_open_files_max", _GAUGE, "Limit of files and sockets that the server may have open (ulimit -n)."
)
SEGMENT_FILES_OPEN = Metric("headrace_log_files_open", _GAUGE, "Open files of log segments.")
SEGMENT_FILES_MAX = Metric(
    "headrace_log_files_open_max",
    _GAUGE,
    "Number of open files of log segments from which the least recently used ones are closed.",
)
SEGMENT_FILES_CLOSED = Metric(
    "headrace_log_files_closed_total",
    _COUNTER,
    "Files of log segments that were closed because there were too many or because they were idle.",
)
BACKGROUND_FAILURES = Metric(
    "headrace_background_failures_total",
    _COUNTER,
    "Failures of background work since the server started; the log has details.",
)
BYTES_IN = Metric(
    "headrace_topic_bytes_in_total",
    _COUNTER,
    "Bytes appended to a topic's partitions, in their stored form.",
    ("topic",),
)
RECORDS_IN = Metric(
    "headrace_topic_records_in_total",
    _COUNTER,
    "Records appended to a topic's partitions; for a table, rows of its log.",
    ("topic",),
)
BYTES_OUT = Metric(
    "headrace_topic_bytes_out_total",
    _COUNTER,
    "Bytes of records in answers to Fetch and to table scans.",
    ("topic",),
)
RECORDS_OUT = Metric(
    "headrace_topic_records_out_total",
    _COUNTER,
    "Records in answers to Fetch and to table scans; all records of a sent batch count.",
    ("topic",),
)
LOG_SIZE = Metric(
    "headrace_log_size_bytes", _GAUGE, "Bytes of a topic's log files, without indexes.", ("topic",)
)
TOPICS = Metric("headrace_topics", _GAUGE, "Topics, including those of tables and internal ones.")
GROUPS = Metric("headrace_groups", _GAUGE, "Consumer groups, by state.", ("state",))
GROUP_LAG = Metric(
    "headrace_group_lag_records",
    _GAUGE,
    "Records between a group's committed offsets and the ends of a topic, over the partitions used since the start.",
    ("group", "topic"),
)
TRANSACTIONS = Metric(
    "headrace_transactions", _GAUGE, "Transactional ids, by state of their transaction.", ("state",)
)
TRANSACTIONS_ENDED = Metric(
    "headrace_transactions_ended_total", _COUNTER, "Transactions that ended, by result.", ("result",)
)
BROKER_METRICS: Final = (
    CONNECTIONS, CONNECTIONS_ACCEPTED, FAULTS,
    HANDSHAKES, BYTES_IN, RECORDS_IN, BYTES_OUT, RECORDS_OUT, LOG_SIZE, TOPICS,
    GROUPS, GROUP_LAG, TRANSACTIONS, TRANSACTIONS_ENDED, BACKGROUND_FAILURES, OPEN_FILES, OPEN_FILES_MAX,
    SEGMENT_FILES_OPEN, SEGMENT_FILES_MAX, SEGMENT_FILES_CLOSED,
)  # fmt: skip
_TRAFFIC: Final = (BYTES_IN, RECORDS_IN, BYTES_OUT, RECORDS_OUT)


class BrokerCollector:
    """Collects values that the parts of a broker already have."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        replicas: LocalReplicas,
        data_dir: Path,
        disk: Disk,
        executor: Executor,
        background: BackgroundTasks,
        network: Network,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._data_dir = data_dir
        self._disk = disk
        self._executor = executor
        self._background = background
        self._network = network
        self._groups = groups
        self._transactions = transactions
        self._totals = Totals(len(_TRAFFIC))
        self._sizes: dict[Partition, int] = {}
        """Sizes of unopened logs, which do not change."""
        self.label = self._totals.label

    async def collect(self, gathering: Gathering) -> None:
        gathering.put(CONNECTIONS, self._network.connection_count)
        for listening in self._network.listeners:
            gathering.put(CONNECTIONS_ACCEPTED, listening.accepted, listening.name)
        for fault in Fault:  # also those that have not happened: a rate is seen from the first one on
            gathering.put(FAULTS, self._network.faults[fault], fault.value)
        gathering.put(HANDSHAKES, self._network.pending_handshakes)
        gathering.put(OPEN_FILES, open_files.count())
        gathering.put(OPEN_FILES_MAX, open_files.limit())
        gathering.put(SEGMENT_FILES_OPEN, open_files.SEGMENT_FILES.count)
        gathering.put(SEGMENT_FILES_MAX, open_files.SEGMENT_FILES.max or open_files.share())
        gathering.put(SEGMENT_FILES_CLOSED, open_files.SEGMENT_FILES.closed)
        gathering.put(BACKGROUND_FAILURES, self._background.failures)
        await self._collect_topics(gathering)
        await self._collect_groups(gathering)
        for each in list(self._transactions.transactions.values()):
            await gathering.breathe()
            if each.stored is not None:
                gathering.add(TRANSACTIONS, 1, each.stored.state.value)
        for committed, count in self._transactions.ended.items():
            gathering.put(TRANSACTIONS_ENDED, count, "commit" if committed else "abort")

    async def _collect_topics(self, gathering: Gathering) -> None:
        metadata = self._metadata
        partitions = [each for each in self._replicas.all_partitions() if not each.closed]
        await self._look_at_unopened(gathering, partitions)
        gathering.put(TOPICS, metadata.topic_count)
        names = set()
        for partition in partitions:
            await gathering.breathe()
            names.add(partition.topic.name)
            if partition.topic.internal:
                continue
            self._totals.count(partition.topic.name, partition.traffic, partition.traffic.all())
            size = partition.log.size_bytes if partition.is_open else self._sizes.get(partition, 0)
            gathering.add(LOG_SIZE, size, self._totals.label(partition.topic.name))
        await self._totals.keep(names, (each.traffic for each in partitions), gathering.breathe)
        for label, sums in self._totals.sums():
            for metric, total in zip(_TRAFFIC, sums, strict=True):
                gathering.put(metric, total, label)

    async def _look_at_unopened(self, gathering: Gathering, partitions: list[Partition]) -> None:
        known: dict[Partition, int] = {}
        unknown = []
        for partition in partitions:
            await gathering.breathe()
            if partition.is_open:
                continue
            size = self._sizes.get(partition)
            if size is None:
                unknown.append(partition)
            else:
                known[partition] = size
        if unknown:
            loop = asyncio.get_running_loop()
            directory = self._data_dir
            known = await loop.run_in_executor(
                self._executor, lambda: known | sizes_on_disk(self._disk, directory, unknown)
            )
        self._sizes = known

    async def _collect_groups(self, gathering: Gathering) -> None:
        find = self._replicas.find_partition
        lags: dict[tuple[str, str], int] = {}
        for group in list(self._groups.groups.values()):
            gathering.add(GROUPS, 1, group.state_name)
            for topic, offsets in list(group.offsets.items()):
                pair = group.group_id, self._totals.label(topic)
                if len(lags) >= GROUP_LAGS_MAX and pair not in lags:
                    pair = OTHERS, OTHERS
                for index, committed in list(offsets.items()):
                    await gathering.breathe()
                    partition = find(topic, index)
                    if partition is not None and partition.is_open:
                        behind = max(0, partition.high_watermark - committed.offset)
                        lags[pair] = lags.get(pair, 0) + behind
        for (group_id, topic), lag in lags.items():
            gathering.put(GROUP_LAG, lag, group_id, topic)
