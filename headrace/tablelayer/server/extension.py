"""The table extension of the broker: the composition root of the table layer's server side.

Topics with a `table.schema` are tables; the broker serves all others. Key-value stores are under
`DATA/extensions/tables/<table id>/<bucket>`; everything else is in the topics' logs and in the coordination store
(`/databases`, `/lake`).
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.configs.config_key import ConfigKey, ConfigType, at_least, between
from headrace.broker.requests.declaration import ApiDeclaration
from headrace.broker.runtime.invariants import InvariantError
from headrace.protocol.errors import KafkaError
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.lake import topic_options
from headrace.tablelayer.model.options.lake_options import (
    ICEBERG_DOC,
    ICEBERG_PREFIX,
    PAIMON_DOC,
    PAIMON_PREFIX,
)
from headrace.tablelayer.model.options.table_options import (
    DECLARED,
    DEFAULT_BUCKET_COUNT_CONFIG,
    MAX_BUCKET_COUNT,
    TableOptions,
)
from headrace.tablelayer.model.table.definition import DEFINITION_CONFIGS
from headrace.tablelayer.server.api.declarations import TableApis
from headrace.tablelayer.server.api.process import ProcessApi
from headrace.tablelayer.server.api.targets import Targets
from headrace.tablelayer.server.catalog.catalog import MAX_PARTITIONS_CONFIG, Catalog, is_partition, is_table
from headrace.tablelayer.server.catalog.topic_checks import TopicChecks
from headrace.tablelayer.server.kafka_view.schema_registry import REGISTRY_CONFIGS
from headrace.tablelayer.server.lake.dropped import GonePartitionsStore
from headrace.tablelayer.server.lake.machine import Timing
from headrace.tablelayer.server.lake.subjects import LakeSubjects
from headrace.tablelayer.server.lake.tiering import LAKE_NODES, LakeRounds
from headrace.tablelayer.server.lake_catalogs import LAKE_CATALOG_CONFIGS
from headrace.tablelayer.server.lake_options import LAKE_OPTION_CONFIG
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.metrics import TABLE_METRICS, TableCollector
from headrace.tablelayer.server.partitions.automatic import Calendar
from headrace.tablelayer.server.rights.column_grants import ColumnGrants
from headrace.tablelayer.server.rights.table_rights import TableRights
from headrace.tablelayer.server.services import (
    BLOCK_CACHE_CONFIG,
    OPEN_STORES_CONFIG,
    SNAPSHOT_CONFIGS,
    Due,
    Services,
)

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from headrace.broker.context import BrokerContext
    from headrace.broker.metadata.image import TopicEntry
    from headrace.broker.partitions.hooks import PartitionHooks, ReplicaHooks
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.partitions.topic import TopicImage
    from headrace.broker.replication.following import Follower
    from headrace.tablelayer.server.api.handlers import Handlers
    from headrace.tablelayer.server.read.snapshot_scans import SnapshotScans
    from headrace.tablelayer.server.staged.commits import StagedCommits

logger = logging.getLogger("headrace.tables")

_CHECK_SECONDS = 1.0
_STAGED_CHECK_SECONDS = 600.0
"""Interval between searches for abandoned staged rows. They are kept for a day, so minutes do not matter."""
_BUCKETS_PER_TURN = 256
_STAGED_NODES = "/staged"
_DEFINITION_DOCS = {
    "table.schema": "Makes the topic a table: its columns, as 'id BIGINT, name STRING' or in JSON.",
    "table.schema.history": "The table's earlier schemas, in JSON; kept by the server.",
    "table.primary-key": "The columns of the primary key, separated by commas; makes it a primary-key table.",
    "table.bucket-key": "The columns whose hash chooses the bucket, separated by commas.",
    "table.comment": "A description of the table.",
    "table.partitioned-by": "The columns whose values determine a row's partition, separated by commas.",
    "table.partition-of": "The id of the table that the topic is a partition of; given by the server.",
}
_BROKER_CONFIGS = (
    LAKE_OPTION_CONFIG,
    *LAKE_CATALOG_CONFIGS,
    *SNAPSHOT_CONFIGS,
    BLOCK_CACHE_CONFIG,
    OPEN_STORES_CONFIG,
    *REGISTRY_CONFIGS,
    ConfigKey(
        MAX_PARTITIONS_CONFIG,
        ConfigType.INT,
        "1000",
        "Maximum number of partitions of one table.",
        at_least(1),
    ),
    ConfigKey(
        DEFAULT_BUCKET_COUNT_CONFIG,
        ConfigType.INT,
        "1",
        "Number of buckets of a new table whose CREATE names none ('bucket.num'). A Kafka client that creates a table "
        "gives its number of partitions, or gets `num.partitions`.",
        between(1, MAX_BUCKET_COUNT),
        dynamic=True,
    ),
    ConfigKey(
        "auto-partition.check.interval.ms",
        ConfigType.LONG,
        "600000",
        "Interval of the maintenance of automatic partitions: they are created ahead of time, and "
        "dropped when they are old.",
        at_least(1),
    ),
    ConfigKey(
        "table.kv.ttl.check.interval.ms",
        ConfigType.LONG,
        "10000",
        "Interval at which rows older than 'table.kv.ttl' are deleted, in milliseconds.",
        at_least(1),
    ),
)


class TableExtension:
    """The table layer's `broker.extension.Extension`."""

    name = "tables"

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = Limits() if limits is None else limits
        self.catalog = Catalog()
        self._checks = TopicChecks(self.catalog)
        self.on_first_table: Callable[[], object] | None = None
        """Called once, for the first table that is created or opened; it may load what tables need in the meantime."""
        self.column_grants = ColumnGrants()
        self._lake: LakeRounds
        self._calendar: Calendar
        """Set by `start`, as `lake_subjects` and `_services` are. A broker starts its extension before it uses it."""
        self.lake_subjects: LakeSubjects
        """The lake's progress, also for metrics."""
        self._services: Services
        self._scans: SnapshotScans | None = None
        self._process = ProcessApi()
        self._staged: StagedCommits | None = None
        self._staged_expired_at = 0.0
        self._snapshots_due_at = 0.0
        self._looked_for_staged = False
        self._gained: set[UUID] = set()
        """Tables whose first bucket this broker now leads: it now decides about their staged rows."""
        self._loading = asyncio.Lock()
        self._handlers: Handlers | None = None

    # -- declarations --------------------------------------------------------------------------------------

    def broker_configs(self) -> Sequence[ConfigKey]:
        return _BROKER_CONFIGS

    def topic_configs(self) -> Sequence[ConfigKey]:
        """Return all configurations that make or configure a table; `validate_topic` checks their values."""
        definitions = [
            ConfigKey(name, ConfigType.STRING, None, _DEFINITION_DOCS[name]) for name in DEFINITION_CONFIGS
        ]
        # Without a default: an option that is not set must not look as if it were set on plain topics.
        options = [
            ConfigKey(
                each.name,
                ConfigType.STRING,
                None,
                each.doc,
                names_topic=each.name == TableOptions.kafka_dead_letter_topic.name,
            )
            for each in DECLARED.values()
        ]
        passed = [
            ConfigKey(f"{prefix}*", ConfigType.STRING, None, doc)
            for prefix, doc in ((ICEBERG_PREFIX, ICEBERG_DOC), (PAIMON_PREFIX, PAIMON_DOC))
        ]
        topics = [
            ConfigKey(each.name, ConfigType.STRING, None, each.doc)
            for each in topic_options.DECLARED.values()
        ]
        return [*definitions, *options, *passed, *topics]

    def apis(self) -> Sequence[ApiDeclaration]:
        return [
            *TableApis(self._load_handlers, self.catalog.refreshed).declarations(),
            *self._process.declarations(),
        ]

    async def _load_handlers(self) -> Handlers:
        """Load the handlers in a thread: they import much that a broker without tables does not need."""
        await self._services.run(importlib.import_module, "headrace.tablelayer.server.api.handlers")
        async with self._loading:
            if self._handlers is None:
                from headrace.tablelayer.server.api.handlers import Handlers
                from headrace.tablelayer.server.bucket.bucket import TableBucket
                from headrace.tablelayer.server.read.snapshot_scans import SnapshotScans
                from headrace.tablelayer.server.staged.commits import StagedCommits
                from headrace.tablelayer.server.staged.staging import StagingArea

                self._scans = SnapshotScans(self._services)
                self._services.release_scans = self._scans.release
                rights = TableRights(self.catalog, self.column_grants)
                bucket = partial(Targets(self.catalog, rights).bucket, kind=TableBucket)
                services, context = self._services, self._services.context
                area = StagingArea(services.staged_directory, context.data_dir, context.disk, context.clock)
                staged = StagedCommits(self._services, area, self.catalog.by_id, bucket)
                await staged.ledgers.load()
                self._staged = staged
                self._handlers = Handlers(
                    self._services,
                    self.catalog,
                    self._lake,
                    self.lake_subjects,
                    self._scans,
                    staged,
                    rights,
                    self.column_grants,
                )
        return self._handlers

    async def _load_staged(self) -> StagedCommits:
        await self._load_handlers()
        if self._staged is None:
            raise InvariantError("the handlers of tables are loaded without those of staged writes")
        return self._staged

    def judged_as(self, topic: str) -> str:
        """Return the topic whose rights apply: for a partition, its table."""
        return self.catalog.table_of_partition(topic) or topic

    async def validate_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> dict[str, str]:
        if is_table(config):
            await self._services.run(importlib.import_module, "pyarrow")  # the first table's schema needs it
        return await self._checks.validate_topic(topic, partitions, config)

    async def validate_change(
        self, topic: TopicImage, partitions: int, config: Mapping[str, str]
    ) -> dict[str, str]:
        return await self._checks.validate_change(topic, partitions, config)

    def replicas_wanted(self, topic: str, config: Mapping[str, str]) -> int | None:
        """Return the number of replicas that a table sets; for a partition, that of its table."""
        wanted = config.get(TableOptions.replication_factor.name)
        if wanted is not None and wanted.isdigit():
            return int(wanted)
        if not is_partition(config):
            return None
        state = self._services.context.metadata.state(".".join(topic.split(".", 2)[:2]), 0)
        return None if state is None else len(state.replicas)

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self, context: BrokerContext) -> None:
        self._process.broker_id, self._process.backups = context.identity.broker_id, context.backups
        await self.catalog.load(context)
        await self.column_grants.load(context.store)
        limits = self.limits
        timing = Timing(
            limits.lake_lease_ms, limits.lake_round_ms_max, limits.lake_retry_ms, limits.lake_retry_ms_max
        )
        self._lake = LakeRounds(context.store, context.clock, timing)
        await self._lake.load()
        self.lake_subjects = LakeSubjects(self.catalog, self._lake)
        self._calendar = Calendar(self.catalog, context, self.lake_subjects.hold)
        self._services = Services(
            context,
            self.limits,
            context.extension_dir(self.name),
            self.lake_subjects.tiered_offset,
            self.catalog,
        )
        self._services.give_staged = self._give_staged
        if not context.metadata.is_alone:
            context.metadata.topic_listeners.append(self._followed)
        services = self._services
        collector = TableCollector(
            context,
            self.catalog,
            self.lake_subjects,
            services.refusals,
            services.standbys,
            services.open_stores,
        )
        context.metrics.add(TABLE_METRICS, collector.collect)

    async def _give_staged(self, partition: Partition, broker: int) -> None:
        staged = await self._load_staged()
        await staged.sharing.give(partition, broker)

    def _followed(self, before: TopicEntry | None, entry: TopicEntry) -> None:
        own_id, topic = self._services.context.identity.broker_id, entry.topic
        if (
            before is not None
            and before.state(0).leader != entry.state(0).leader == own_id
            and is_table(topic.config)
        ):
            self._gained.add(topic.topic_id)
            self._looked_for_staged = False

    def partition_hooks(self, partition: Partition, topic: TopicImage) -> PartitionHooks | None:
        if not (is_table(topic.config) or is_partition(topic.config)):
            return None
        if self.on_first_table is not None:
            told, self.on_first_table = self.on_first_table, None
            told()
        from headrace.tablelayer.server.bucket.key_bucket import KeyBucket
        from headrace.tablelayer.server.bucket.log_bucket import LogBucket

        try:
            definition = self.catalog.definition(topic)
        except TableError as error:
            if not is_partition(topic.config):
                raise
            from headrace.tablelayer.server.partitions.partitioned import OrphanBucket

            logger.warning("%s will be deleted: %s", topic.name, error)
            return OrphanBucket(self._services, partition)
        if definition.is_partitioned:
            from headrace.tablelayer.server.partitions.partitioned import PartitionedBucket

            return PartitionedBucket(self._services, partition)
        if definition.is_primary_key_table:
            standby = self._services.standbys.pop((topic.topic_id, partition.index), None)
            return KeyBucket(self._services, partition, standby)
        return LogBucket(self._services, partition)

    def replica_hooks(self, follower: Follower, topic: TopicImage) -> ReplicaHooks | None:
        """Return a standby store for a primary-key table; a log table has nothing but its log."""
        if not (is_table(topic.config) or is_partition(topic.config)):
            return None
        definition = self.catalog.definition(topic)
        if definition.is_partitioned or not definition.is_primary_key_table:
            return None
        from headrace.tablelayer.server.bucket.standby import Standby

        standbys, key = self._services.standbys, (topic.topic_id, follower.partition.index)
        standby = standbys[key] = Standby(self._services, follower, standbys.get(key))
        return standby

    async def replica_removed(self, topic: TopicImage, index: int, *, with_topic: bool = False) -> None:
        if not (is_table(topic.config) or is_partition(topic.config)):
            return
        from headrace.tablelayer.server.bucket.standby import remove_store

        await remove_store(self._services, topic.topic_id, index, with_table=with_topic)

    def retention_floor(self, partition: Partition) -> int | None:
        """Return the offset from which the lake lacks a tiered plain topic's records; they are kept."""
        return self.lake_subjects.tiered_offset(partition.topic.topic_id, partition.index)

    async def checkpoint(self, folder: Path) -> None:
        """Copy the key-value stores of primary-key tables into `folder`, one after the other."""
        metadata = self._services.context.metadata
        if not any(is_table(image.config) or is_partition(image.config) for image in metadata.topics()):
            return
        from headrace.tablelayer.server.bucket.key_bucket import KeyBucket

        for partition in self._services.context.replicas.all_partitions():
            bucket: object = partition.hooks
            if isinstance(bucket, KeyBucket):
                await bucket.checkpoint(folder / str(partition.topic.topic_id) / str(partition.index))

    def early_nodes(self) -> Sequence[str]:
        """Return the progress of lakes: what was not written to a log of the backup was not tiered."""
        return (LAKE_NODES,)

    def still_nodes(self) -> Sequence[str]:
        """Return the decisions about staged rows, which several logs of a table get."""
        return (_STAGED_NODES,)

    async def run(self, context: BrokerContext) -> None:
        """At intervals: flush stores that were written to long ago, and release abandoned scans and staged rows."""
        keep = context.background.keep
        beside = [
            keep(partial(self._expire_rows, context), "deleting expired rows"),
            keep(self.catalog.run, "following changes of databases"),
            keep(self.column_grants.run, "following column grants"),
        ]
        if not context.metadata.is_alone:
            beside.append(keep(self._lake.run, "following tiering progress"))
        try:
            await self._look_after(context)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _expire_rows(self, context: BrokerContext) -> None:
        """At intervals: delete rows that are older than their table's `table.kv.ttl`."""
        interval_s: float = context.config["table.kv.ttl.check.interval.ms"] / 1000
        while True:
            await asyncio.sleep(interval_s)
            with_ttl = self.catalog.all_tables(TableOptions.kv_ttl_ms.name)
            expiring = [each for each in with_ttl if each.settings.kv_ttl_ms is not None]
            if not expiring:
                continue
            from headrace.tablelayer.server.bucket.key_bucket import KeyBucket

            topics = [
                each.path.topic
                for table in expiring
                for each in (self.catalog.partitions(table) if table.is_partitioned else (table,))
            ]
            for partition in [each for topic in topics for each in context.replicas.partitions(topic)]:
                bucket: object = partition.hooks
                if not isinstance(bucket, KeyBucket) or partition.failure is not None:
                    continue
                try:
                    deleted = await bucket.expire_rows()
                except (KafkaError, TableError) as error:
                    logger.warning("%s cannot delete expired rows: %s", bucket.name, error.message)
                except Exception as error:  # noqa: BLE001 - logged for this bucket
                    context.background.failed(f"the expiry of rows of {bucket.name}", error)
                else:
                    if deleted:
                        logger.debug("%s: deleted %d expired rows", bucket.name, deleted)

    async def _look_after(self, context: BrokerContext) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            await self._calendar.check_if_due()
            if self._scans is not None:
                self._scans.expire()
            await self._tend_buckets(context)
            await self._close_idle_stores(context)
            if not context.metadata.is_loaded:
                continue  # recovery takes time: an unknown table is not a dropped one
            await self._forget_dropped(context)
            await self._look_after_staged(context)
            self.lake_subjects.warn_without_lake()

    async def _forget_dropped(self, context: BrokerContext) -> None:
        """Forget the state of dropped tables.

        Only the controller does this: another broker may not know a new table yet.
        """
        if not context.metadata.is_controller:
            return
        for forget, known in (
            (self._forget_lake, self._lake.known_tables()),
            (self.column_grants.forget, self.column_grants.tables()),
        ):
            for table_id in known:
                if context.metadata.topic_by_id(table_id) is None:
                    try:
                        await forget(table_id)
                    except Exception as error:  # noqa: BLE001 - logged for this table
                        context.background.failed(f"forgetting the state of table {table_id}", error)

    async def _forget_lake(self, table_id: UUID) -> None:
        await GonePartitionsStore(self._services.context.store).forget(table_id)
        await self._lake.forget(table_id)

    async def _look_after_staged(self, context: BrokerContext) -> None:
        """Complete commits that a stop interrupted; at intervals forget abandoned staged rows."""
        if self._staged is None:
            if self._looked_for_staged:
                return  # a request that stages rows here loads the handlers
            is_left = await context.store.children(_STAGED_NODES)
            self._looked_for_staged = True
            if not is_left:
                return
        staged = await self._load_staged()
        while self._gained:
            await staged.ledgers.load_table(self._gained.pop())
        staged.resume_in(context.background.start)
        now = context.clock.monotonic()
        if now >= self._staged_expired_at + _STAGED_CHECK_SECONDS:
            self._staged_expired_at = now
            await staged.expiry.expire(lambda table_id: context.metadata.topic_by_id(table_id) is not None)

    async def _close_idle_stores(self, context: BrokerContext) -> None:
        try:
            await self._services.close_idle_stores()
        except Exception as error:  # noqa: BLE001 - logged, and tried again
            context.background.failed("closing key-value stores that are not used", error)

    async def _tend_buckets(self, context: BrokerContext) -> None:
        """Look after buckets that were written to. Those that only wait for a snapshot are asked less often."""
        services, now = self._services, context.clock.monotonic()
        restless, unsaved = services.restless, services.unsaved
        if now >= self._snapshots_due_at:
            self._snapshots_due_at = now + services.snapshot_config.look_seconds
            restless.update(unsaved)
            unsaved.clear()
        for turn, bucket in enumerate(list(restless), 1):
            if turn % _BUCKETS_PER_TURN == 0:
                await asyncio.sleep(0)
            try:
                due = bucket.tend()
                if due is not Due.SOON:
                    restless.pop(bucket, None)
                if due is Due.LATER:
                    unsaved[bucket] = None
            except Exception as error:  # noqa: BLE001 - logged for this bucket
                context.background.failed(f"maintenance of {bucket.name}", error)
