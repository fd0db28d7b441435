"""Objects that the buckets of a process share: the broker's context, memory, caches and the budget of writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

import msgspec

from headrace.broker.configs.config_key import ConfigError, ConfigKey, ConfigType, at_least
from headrace.broker.log.region import RemoteRegion
from headrace.broker.objects.files import RemoteFiles
from headrace.broker.objects.files import open_files as open_remote
from headrace.broker.runtime import open_files
from headrace.broker.runtime.disk import SystemDisk
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.options.option_types import parse_duration_ms
from headrace.tablelayer.model.table.definition import PARTITION_OF_CONFIG
from headrace.tablelayer.server.kafka_view.caches import PieceCaches
from headrace.tablelayer.server.kafka_view.refusals import Refusals
from headrace.tablelayer.server.kafka_view.schema_registry import SchemaRegistries
from headrace.tablelayer.server.limits import BLOCK_CACHE_BYTES, Limits
from headrace.tablelayer.server.merge.auto_increment import AutoIncrement
from headrace.tablelayer.server.paced import Paced

if TYPE_CHECKING:
    from headrace.broker.context import BrokerContext
    from headrace.broker.log.region import FileRegion
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.partitions.topic import TopicImage
    from headrace.broker.runtime.ports import Disk
    from headrace.tablelayer.model.rows.versions import SchemaVersions
    from headrace.tablelayer.server.catalog.catalog import Catalog
    from headrace.tablelayer.server.store.kv import KeyValueStore
    from headrace.tablelayer.server.store.open_stores import OpenStores
    from headrace.tablelayer.server.store.shared_memory import SharedMemory
    from headrace.tablelayer.server.store.snapshots import BucketSnapshots

Result = TypeVar("Result")

_TRANSCODED_AT_ONCE = 2  # the other half of the threads is for other work


def table_of(topic: TopicImage) -> UUID:
    """Return the id of the whole table, for its own topic or for a partition's."""
    table = topic.config.get(PARTITION_OF_CONFIG)
    return topic.topic_id if table is None else UUID(table)


class WriteBudget:
    """The number of bytes of writes that are queued or not stored yet (R1.6). Runs on the event loop."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0

    def reserve(self, size: int) -> None:
        """Add a write. Raises TableError(BUFFER_EXHAUSTED), which is retriable; a single write always fits."""
        if self.used and self.used + size > self.max_bytes:
            raise TableError(
                TableErrorCode.BUFFER_EXHAUSTED,
                f"{self.used} bytes of writes wait to be stored; {size} more would exceed {self.max_bytes}; "
                "try again",
            )
        self.used += size

    def release(self, size: int) -> None:
        self.used -= size


class SnapshotConfig(msgspec.Struct, frozen=True):
    """The configuration of snapshots; with `files` None, none are taken."""

    files: RemoteFiles | None
    interval_seconds: float
    kept: int

    @property
    def look_seconds(self) -> float:
        """Interval of looking for snapshots that are due: a twentieth of theirs, at most half a minute."""
        return min(self.interval_seconds / 20, 30.0)

    @classmethod
    def of(cls, context: BrokerContext) -> SnapshotConfig:
        """Return the configuration. Raises ConfigError if the directory cannot be used."""
        config = context.config
        interval = snapshot_interval_ms(config[SNAPSHOT_INTERVAL]) / 1000
        if not interval:
            return cls(None, 0.0, 0)
        location = config[SNAPSHOT_DIRECTORY] or str(context.data_dir / "extensions" / "table-snapshots")
        try:
            files = open_remote(location, context.disk, context.entropy)
            return cls(files, interval, config[SNAPSHOTS_RETAINED])
        except (ValueError, OSError) as error:
            raise ConfigError(f"{SNAPSHOT_DIRECTORY}: {error}") from error


def snapshot_interval_ms(text: str) -> int:
    """Return the interval in milliseconds; 0 means never. Raises ValueError."""
    return 0 if text.strip() == "0" else parse_duration_ms(text)


def _interval_complaint(text: str) -> str | None:
    try:
        snapshot_interval_ms(text)
    except ValueError as error:
        return f"{error}; 0 takes no snapshots"
    return None


SNAPSHOT_INTERVAL = "kv.snapshot.interval"
SNAPSHOTS_RETAINED = "kv.snapshot.num-retained"
SNAPSHOT_DIRECTORY = "kv.snapshot.directory"
SNAPSHOT_CONFIGS = (
    ConfigKey(
        SNAPSHOT_INTERVAL,
        ConfigType.STRING,
        "10 min",
        "Interval between snapshots of each bucket of a primary-key table, taken if it has changed; 0 "
        "for never.",
        _interval_complaint,
    ),
    ConfigKey(
        SNAPSHOTS_RETAINED,
        ConfigType.INT,
        "2",
        "Number of snapshots of a bucket that are kept. The bucket's log is kept from the oldest one on.",
        at_least(1),
    ),
    ConfigKey(
        SNAPSHOT_DIRECTORY,
        ConfigType.STRING,
        None,
        "Directory or URL of snapshots (file, s3, gs, abfs, hdfs, or any other that an installed fsspec "
        "supports). The default is a folder in the data directory.",
    ),
)

BLOCK_CACHE_CONFIG = ConfigKey(
    "kv.block.cache.bytes",
    ConfigType.LONG,
    str(BLOCK_CACHE_BYTES),
    "Size of the cache for the states of all primary-key tables together, in bytes. Updates and lookups "
    "of random keys in a larger state read from the disk or from the operating system's cache, and "
    "decompress.",
    at_least(1 << 20),
)


OPEN_STORES_CONFIG = ConfigKey(
    "kv.open.stores.max",
    ConfigType.INT,
    str(Limits().stores_open_max),
    "Maximum number of key-value stores of primary-key tables that are open at a time. Each one takes about seven "
    "files and a quarter of a megabyte, more while much is written to it. The least recently used ones are closed "
    "first, and opened again when they are used. At first at most 500 are open; each one that is used again soon after "
    "it was closed lets one more be open. "
    "Open stores use at most a quarter of the limit of open files, whatever this number is.",
    at_least(1),
)


async def _nothing_open(bucket: object) -> None:
    """Do nothing: no scan is open."""


async def _nothing_staged(partition: object, broker: int) -> None:
    """Do nothing: nothing is staged."""


class Due(IntEnum):
    """The time of a bucket's next maintenance, without another write."""

    NEVER = 0
    SOON = 1
    LATER = 2
    """Only a snapshot is missing, for which it is too early."""


class Tended(Protocol):
    """A bucket that needs maintenance beside its requests."""

    @property
    def name(self) -> str: ...

    def tend(self) -> Due:
        """Do the work that is due; return when more will be due."""


class KeptStore(Protocol):
    """A standby store of a bucket that another broker leads."""

    directory: Path
    keys_looked_up: int

    @property
    def store(self) -> KeyValueStore | None: ...

    def versions(self) -> SchemaVersions: ...

    async def read(
        self,
        staleness_ms_max: int,
        work: Callable[..., Result],
        *arguments: Any,
        quick: Callable[..., Result | None] | None = None,
    ) -> tuple[Result, tuple[int, int]]:
        """Return `work(store, ...)`, with its maximum staleness in milliseconds and the end offset of its changelog."""

    def read_at_once(
        self, staleness_ms_max: int, quick: Callable[..., Result | None], *arguments: Any
    ) -> tuple[Result, tuple[int, int]] | None: ...

    async def checkpoint(self, path: Path) -> None:
        """Copy the store to the new folder `path`; do nothing without a store."""

    async def release(self) -> KeyValueStore | None:
        """End, and return the store for its next owner."""

    async def close(self) -> None: ...


class Services:
    """See the module. `tiered_offset(table id, bucket)` is the lake's end offset of a bucket; None if not tiered."""

    def __init__(
        self,
        context: BrokerContext,
        limits: Limits,
        directory: Path,
        tiered_offset: Callable[[UUID, int], int | None],
        catalog: Catalog,
    ) -> None:
        self.context = context
        self.limits = limits
        self.directory = directory
        self.tiered_offset = tiered_offset
        self.catalog = catalog
        self.budget = WriteBudget(limits.buffered_bytes_max)
        self.auto_increment = AutoIncrement(context.store)
        self.pieces = PieceCaches(limits)
        self.refusals = Refusals()
        self.transcoding = asyncio.Semaphore(_TRANSCODED_AT_ONCE)
        self.snapshot_config = SnapshotConfig.of(context)
        self.registries = SchemaRegistries(context.config, context.clock, context.threads)
        self.store_disk: Disk = SystemDisk()
        """The disk of key-value stores: RocksDB uses the system's disk, whatever disk the broker uses."""
        self.give_staged: Callable[[Partition, int], Awaitable[None]] = _nothing_staged
        """Has another broker keep all staged chunks of a bucket that this broker leads."""
        self.release_scans: Callable[[object], Awaitable[None]] = _nothing_open
        """Ends the snapshot scans of a bucket whose store will be closed."""
        self.restless: dict[Tended, None] = {}
        """Buckets with writes since their last maintenance."""
        self.unsaved: dict[Tended, None] = {}
        """Buckets at rest that have changed since their last snapshot. Their number should cost little."""
        self.standbys: dict[tuple[UUID, int], KeptStore] = {}
        """Stores of buckets that other brokers lead, by table (or partition) and bucket."""
        self._background: Executor | None = None
        self._opening: Executor | None = None
        self._paced = Paced(context.clock, context.threads)
        self._memory: SharedMemory | None = None
        self._loading = False

    @property
    def staged_directory(self) -> Path:
        """The folder of staged, uncommitted rows; it has a folder for each table with such rows."""
        return self.directory / "staged"

    def has_staged(self, topic: TopicImage) -> bool:
        """Return whether anything is staged for a bucket's table."""
        return self.context.disk.is_directory(self.staged_directory / str(table_of(topic)))

    @property
    def memory(self) -> SharedMemory:
        """The memory that RocksDB's stores share, created with the first primary-key table: until then RocksDB is not
        loaded.
        """
        if self._memory is None:
            from headrace.tablelayer.server.store.shared_memory import SharedMemory

            limits = msgspec.structs.replace(
                self.limits,
                stores_open_max=self.context.config[OPEN_STORES_CONFIG.name],
                store_files_max=min(self.limits.store_files_max, open_files.share()),
            )
            self._memory = SharedMemory(
                limits,
                self.store_disk,
                self.context.clock,
                self.context.threads,
                self.context.config[BLOCK_CACHE_CONFIG.name],
            )
            open_files.SEGMENT_FILES.also(self._memory.stores.close_one)
        return self._memory

    def open_stores(self) -> OpenStores | None:
        """Return the stores that are open; None before the first primary-key table."""
        return None if self._memory is None else self._memory.stores

    async def close_idle_stores(self) -> None:
        """Close some stores that were not used for `store_idle_seconds`."""
        if self._memory is not None and self._memory.stores.count:
            await self.run(self._memory.stores.close_idle, self.limits.store_idle_seconds)

    def snapshots_of(
        self, table_id: UUID, bucket: int, *, replicated: bool = False
    ) -> BucketSnapshots | None:
        """Return a bucket's snapshots; None if snapshots are off.

        Each leader of a replicated bucket has its own snapshots, so that no broker writes where another one may still
        write.
        """
        from headrace.tablelayer.server.store.snapshots import BucketSnapshots

        config = self.snapshot_config
        if config.files is None:
            return None
        owner = self.context.identity.broker_id if replicated else None
        return BucketSnapshots(config.files, table_id, bucket, config.kept, self.store_disk, owner)

    has_put = False
    """Whether a thread has decoded a write of a table client, and so loaded the kernels for it."""

    def can_write_at_once(self) -> bool:
        """Return whether the kernels for writes on the event loop are loaded. If not, a thread begins to load them."""
        # A server without tables starts without numpy and pyarrow.
        from headrace.tablelayer.server import stored_message

        if stored_message.is_loaded():
            return True
        if not self._loading:
            self._loading = True
            self.run(stored_message.warm)  # its result is not awaited
        return False

    async def background(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run work that may take minutes, one at a time, outside of the executor that serves clients."""
        if self._background is None:
            self._background = self.context.threads.pool(1, "table-snapshots")
        return await asyncio.get_running_loop().run_in_executor(self._background, work, *arguments)

    async def open_store(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run work that opens a key-value store.

        RocksDB's binding holds the interpreter lock meanwhile, for some milliseconds. So stores are opened one at a
        time. While clients are served, pauses as long as the work precede many of them, so that thousands of stores
        leave half of the time to other work.
        """
        context = self.context
        if self._opening is None:
            self._opening = context.threads.pool(1, "table-stores")
        run = partial(self._paced.run, work) if context.metadata.is_loaded else work
        return await asyncio.get_running_loop().run_in_executor(self._opening, run, *arguments)

    async def run_on(
        self, region: FileRegion, partition: Partition, work: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Run work that reads a region of a partition's log. Remote regions are read in a thread that may wait for the
        network.

        Raises KafkaError if that fails.
        """
        if isinstance(region, RemoteRegion) and partition.remote is not None:
            return await partition.remote.run(work, *arguments)
        return await self.run(work, *arguments)

    def run(self, work: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        """Run blocking work in the broker's executor."""
        return asyncio.get_running_loop().run_in_executor(self.context.executor, work, *arguments)
