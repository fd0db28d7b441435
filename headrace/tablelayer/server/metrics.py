"""The metrics of tables: rows written, rows stored, sizes, snapshots, the lake.

All values are read from existing state; sizes of key-value stores are RocksDB's own counters. The partitions of a
partitioned table are summed under the table's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from headrace.broker.metrics.model import Gathering, Metric, MetricKind
from headrace.broker.metrics.totals import Totals
from headrace.protocol.errors import ErrorCode
from headrace.tablelayer.model.errors import TableError

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.context import BrokerContext
    from headrace.tablelayer.model.table.definition import StoredTable
    from headrace.tablelayer.server.catalog.catalog import Catalog
    from headrace.tablelayer.server.kafka_view.refusals import Refusals
    from headrace.tablelayer.server.lake.subjects import LakeSubjects
    from headrace.tablelayer.server.services import KeptStore
    from headrace.tablelayer.server.store.open_stores import OpenStores

_GAUGE: Final = MetricKind.GAUGE
_TABLE: Final = ("table",)
TABLES = Metric("headrace_tables", _GAUGE, "Tables.")
ROWS_WRITTEN = Metric(
    "headrace_table_rows_written_total",
    MetricKind.COUNTER,
    "Rows written to a table by table clients and Kafka producers: rows of a log table, keys of a "
    "primary-key table.",
    _TABLE,
)
LOOKUPS = Metric(
    "headrace_table_lookups_total",
    MetricKind.COUNTER,
    "Keys and prefixes that were looked up in a primary-key table's buckets that this broker leads.",
    _TABLE,
)
UNREADABLE = Metric(
    "headrace_table_unreadable_batches_total",
    MetricKind.COUNTER,
    "Unreadable batches of a table's log that readers skipped, each counted once per start.",
    _TABLE,
)
ROWS = Metric("headrace_table_rows", _GAUGE, "Rows of a primary-key table.", _TABLE)
KV_SIZE = Metric(
    "headrace_table_kv_size_bytes",
    _GAUGE,
    "Size of a primary-key table's key-value stores in bytes, in files and in memory.",
    _TABLE,
)
UNFLUSHED = Metric(
    "headrace_table_replay_records",
    _GAUGE,
    "Records of a primary-key table's log that a start after a crash would replay.",
    _TABLE,
)
STORES_OPEN = Metric(
    "headrace_kv_stores_open", _GAUGE, "Key-value stores of primary-key tables that are open."
)
STORES_CLOSED = Metric(
    "headrace_kv_stores_closed",
    _GAUGE,
    "Key-value stores that are closed because they were not used lately; their next use opens them.",
)
STORES_MAX = Metric(
    "headrace_kv_stores_open_max",
    _GAUGE,
    "Number of key-value stores that may be open: `kv.open.stores.max`, or less under a low limit of open files.",
)
STORE_FILES = Metric("headrace_kv_store_files_open", _GAUGE, "Open files of key-value stores, about.")
STORES_REOPENED = Metric(
    "headrace_kv_stores_reopened_total",
    MetricKind.COUNTER,
    "Number of times that a closed key-value store was opened again. If it rises all the time, raise "
    "`kv.open.stores.max` or the limit of open files.",
)
SNAPSHOT_SIZE = Metric(
    "headrace_table_snapshot_size_bytes",
    _GAUGE,
    "Size of the newest snapshots of a table's buckets in bytes.",
    _TABLE,
)
SNAPSHOT_AGE = Metric(
    "headrace_table_snapshot_age_seconds",
    _GAUGE,
    "Seconds since the oldest of the newest snapshots of a table's buckets was created.",
    _TABLE,
)
LAKE_LAG = Metric(
    "headrace_lake_lag_records",
    _GAUGE,
    "Records of a tiered table or topic that are not in the lake.",
    _TABLE,
)
LAKE_LAG_SECONDS = Metric(
    "headrace_lake_lag_seconds",
    _GAUGE,
    "Age of the oldest record of a tiered table or topic that is not in the lake; 0 if the lake has all "
    "records.",
    _TABLE,
)
LAKE_COMMITS = Metric(
    "headrace_lake_commits_total",
    MetricKind.COUNTER,
    "Commits to the lake that tiering jobs reported since the server started.",
    _TABLE,
)
LAKE_AGE = Metric(
    "headrace_lake_age_seconds",
    _GAUGE,
    "Seconds since the last commit of a table or topic to the lake.",
    _TABLE,
)
LAKE_FAILURES = Metric(
    "headrace_lake_failures", _GAUGE, "Consecutive failed tiering rounds since the last commit.", _TABLE
)
LAKE_MISSING = Metric(
    "headrace_lake_missing",
    _GAUGE,
    "1 for a table or topic that is to be tiered, never was, and has no lake catalog in the broker's "
    "configuration: its log never expires.",
    _TABLE,
)
STANDBY_LAG = Metric(
    "headrace_table_standby_lag_records",
    _GAUGE,
    "Replicated records of buckets of other brokers that are not yet in the key-value stores of this broker.",
    _TABLE,
)
STANDBY_ROWS = Metric(
    "headrace_table_standby_rows_total",
    MetricKind.COUNTER,
    "Changes of buckets of other brokers that were applied to the key-value stores of this broker.",
    _TABLE,
)
STANDBY_LOOKUPS = Metric(
    "headrace_table_standby_lookups_total",
    MetricKind.COUNTER,
    "Lookups of keys or prefixes in buckets of other brokers that this broker answered.",
    _TABLE,
)
REFUSED = Metric(
    "headrace_table_refused_records_total",
    MetricKind.COUNTER,
    "Refused records of a table, by the error's name, or `dead-letter`; a batch that is refused whole "
    "counts its first bad record.",
    ("table", "reason"),
)
TABLE_METRICS: Final = (
    TABLES, ROWS_WRITTEN, LOOKUPS, REFUSED, UNREADABLE, ROWS, KV_SIZE, UNFLUSHED, STORES_OPEN, STORES_CLOSED,
    STORES_MAX, STORE_FILES, STORES_REOPENED, SNAPSHOT_SIZE, SNAPSHOT_AGE, LAKE_LAG, LAKE_LAG_SECONDS, LAKE_COMMITS,
    LAKE_AGE, LAKE_FAILURES, LAKE_MISSING, STANDBY_LAG, STANDBY_ROWS, STANDBY_LOOKUPS,
)  # fmt: skip


class TableCollector:
    """Collects the metrics of tables (`broker.metrics.model`)."""

    def __init__(
        self,
        context: BrokerContext,
        catalog: Catalog,
        subjects: LakeSubjects,
        refusals: Refusals,
        standbys: Mapping[tuple[UUID, int], KeptStore],
        open_stores: Callable[[], OpenStores | None] = lambda: None,
    ) -> None:
        """`open_stores` returns the open key-value stores, if there are any."""
        self._open_stores = open_stores
        self._refusals = refusals
        self._standbys = standbys
        self._standby_totals = Totals(2)
        self._context = context
        self._catalog = catalog
        self._subjects = subjects
        self._totals = Totals(3)

    async def collect(self, gathering: Gathering) -> None:
        tables = self._catalog.all_tables()
        gathering.put(TABLES, len(tables))
        await self._collect_lake(gathering)
        if not tables:
            return
        await self._collect_refused(gathering, tables)
        await self._collect_standbys(gathering)
        from headrace.tablelayer.server.bucket.bucket import TableBucket
        from headrace.tablelayer.server.bucket.key_bucket import KeyBucket
        from headrace.tablelayer.server.store.open_stores import FILES_MIN

        now_ms = self._context.clock.time_ms()
        closed = 0
        names, buckets = set(), []
        ages: dict[str, float] = {}
        for partition in self._context.replicas.all_partitions():
            await gathering.breathe()
            bucket: object = partition.hooks
            if not isinstance(bucket, TableBucket) or partition.failure is not None:
                continue
            try:
                name = str(bucket.definition.path.whole)
            except TableError:
                continue  # it is being dropped
            label = self._totals.label(name)
            names.add(name)
            buckets.append(bucket)
            lookups = bucket.keys_looked_up if isinstance(bucket, KeyBucket) else 0
            self._totals.count(name, bucket, (bucket.rows_written, bucket.unreadable_batches, lookups))
            if not isinstance(bucket, KeyBucket):
                continue
            store = bucket.store
            if store is not None:
                closed += store.is_made and not store.is_open
                gathering.add(ROWS, store.row_count, label)
                gathering.add(KV_SIZE, store.size_bytes(), label)
                gathering.add(UNFLUSHED, max(0, partition.high_watermark - store.durable_offset), label)
            newest = bucket.snapshots.known[0] if bucket.snapshots and bucket.snapshots.known else None
            if newest is not None:
                gathering.add(SNAPSHOT_SIZE, newest.size_bytes, label)
                ages[label] = max(ages.get(label, 0.0), (now_ms - newest.created_at_ms) / 1000)
        if (stores := self._open_stores()) is not None:
            gathering.put(STORES_OPEN, stores.count)
            gathering.put(STORES_CLOSED, closed)
            gathering.put(STORES_MAX, min(stores.stores_max, stores.files_max // FILES_MIN))
            gathering.put(STORE_FILES, stores.files)
            gathering.put(STORES_REOPENED, stores.reopened)
        for label, age in ages.items():
            gathering.put(SNAPSHOT_AGE, age, label)
        await self._totals.keep(names, buckets, gathering.breathe)
        for label, (rows, unreadable, lookups) in self._totals.sums():
            gathering.put(ROWS_WRITTEN, rows, label)
            gathering.put(LOOKUPS, lookups, label)
            gathering.put(UNREADABLE, unreadable, label)

    async def _collect_refused(self, gathering: Gathering, tables: Sequence[StoredTable]) -> None:
        for table in tables:
            await gathering.breathe()
            label = self._totals.label(str(table.path))
            letters = table.settings.kafka_dead_letter_topic is not None
            # From 0 on: Prometheus does not see the first step of a counter that begins with 1.
            gathering.add(REFUSED, 0, label, "dead-letter" if letters else ErrorCode.INVALID_RECORD.name)
            found = self._refusals.of(table.table_id)
            for (code, dead_letter), count in () if found is None else list(found.counts.items()):
                gathering.add(REFUSED, count, label, "dead-letter" if dead_letter else code)

    async def _collect_standbys(self, gathering: Gathering) -> None:
        from headrace.tablelayer.server.bucket.standby import Standby

        names, standbys = set(), []
        for standby in list(self._standbys.values()):
            await gathering.breathe()
            definition = standby.definition if isinstance(standby, Standby) else None
            if not isinstance(standby, Standby) or definition is None:
                continue
            name = str(definition.path.whole)
            names.add(name)
            standbys.append(standby)
            self._standby_totals.count(name, standby, (standby.applied_rows, standby.answered_lookups))
            gathering.add(STANDBY_LAG, standby.lag_records, self._standby_totals.label(name))
        await self._standby_totals.keep(names, standbys, gathering.breathe)
        for label, (rows, lookups) in self._standby_totals.sums():
            gathering.put(STANDBY_ROWS, rows, label)
            gathering.put(STANDBY_LOOKUPS, lookups, label)

    async def _collect_lake(self, gathering: Gathering) -> None:
        for subject in self._subjects.without_lake():
            gathering.put(LAKE_MISSING, 1, self._totals.label(subject.name))
        now_ms = self._context.clock.time_ms()
        for subject in self._subjects.all_tiered():
            await gathering.breathe()
            progress = self._subjects.progress(subject)
            label = self._totals.label(subject.name)
            gathering.add(LAKE_LAG, progress.behind, label)
            if progress.behind_ms >= 0:
                gathering.put(LAKE_LAG_SECONDS, progress.behind_ms / 1000, label)
            gathering.add(LAKE_COMMITS, progress.commits, label)
            gathering.add(LAKE_FAILURES, progress.failures, label)
            if progress.committed_at_ms >= 0:
                gathering.put(LAKE_AGE, (now_ms - progress.committed_at_ms) / 1000, label)
