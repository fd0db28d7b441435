"""The objects that all key-value stores of a process share."""

from __future__ import annotations

from typing import Any, Final

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DataBlockIndexType,
    DBCompressionType,
    Options,
    WriteBufferManager,
)

from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import Clock, Disk, SystemClock, SystemThreads, Threads
from headrace.tablelayer.server.limits import BLOCK_CACHE_BYTES, Limits
from headrace.tablelayer.server.store.file_cache import FileCache
from headrace.tablelayer.server.store.first_rows import Remembered
from headrace.tablelayer.server.store.open_stores import OpenStores
from headrace.tablelayer.server.store.prefix_tables import KEPT_BYTES_MAX, KeptTable
from headrace.tablelayer.server.store.table_index import INDEXES_BYTES_MAX, TableIndex

_BLOOM_BITS = 10  # 1 % of the lookups of absent keys read a block
_BLOCK_BYTES = 16 << 10  # batches of sorted keys meet in blocks of this size
_BLOCK_HASH_RATIO = 0.75  # RocksDB's own advice
_MEMTABLE_BYTES_MIN = 512 << 10
_SMALL_MEMTABLE_BYTES = 1 << 20
_MEMTABLE_BLOOM_RATIO = 0.02  # share of a memtable: 320 KiB of 16 MiB, enough for 250,000 keys
_ARENA_BLOCK_BYTES_MAX = 256 << 10
_FILE_BUFFER_BYTES = 16 << 10
"""Size of the buffer of a file that is written. An open store has two such files, the manifest and a write-ahead log;
RocksDB's default takes 64 KiB for each."""
FILES_MERGED: Final = 4
"""Number of flushed files from which they are merged with all other rows of a store."""


class SharedMemory:
    """The objects that all stores of a process share: the block cache, the memtable budget, and the ports.

    Without ports the system's own are used. `disk` is RocksDB's disk.
    """

    def __init__(
        self,
        limits: Limits,
        disk: Disk | None = None,
        clock: Clock | None = None,
        threads: Threads | None = None,
        block_cache_bytes: int = BLOCK_CACHE_BYTES,
    ) -> None:
        self.limits = limits
        self.disk: Disk = disk or SystemDisk()
        self.clock: Clock = clock or SystemClock()
        self.threads: Threads = threads or SystemThreads()
        self.cache = Cache(block_cache_bytes)
        self.memtables = WriteBufferManager(limits.memtables_bytes_max, False)
        self.helper = self.threads.pool(1, "table-reads")
        self.stores = OpenStores(self.clock, limits.store_files_max, limits.stores_open_max)
        self.first_rows = Remembered()
        self.indexes: FileCache[TableIndex] = FileCache(INDEXES_BYTES_MAX)
        self.kept: FileCache[KeptTable] = FileCache(KEPT_BYTES_MAX)

    def memtable_bytes(self, stores: int) -> int:
        """Return the size of the memtable of one of `stores` stores that are written to together: at most its share,
        because the Bloom filter and the first block are allocated at once.
        """
        memtable_bytes = max(_MEMTABLE_BYTES_MIN, self.limits.memtables_bytes_max // stores)
        return min(memtable_bytes, self.limits.memtable_bytes)

    def grown(self, stores: int, files_merged: int = FILES_MERGED) -> dict[str, str]:
        """Return the options that a store changes when much is written to it."""
        memtable_bytes = self.memtable_bytes(stores)
        block_bytes = min(_ARENA_BLOCK_BYTES_MAX, memtable_bytes // 16)
        return {
            "write_buffer_size": str(memtable_bytes),
            "arena_block_size": str(block_bytes),
            **files_merged_from(files_merged),
        }

    def options(self, stores: int = 1) -> Any:
        """Return the options for one of `stores` stores that are written to together.

        A memtable is small at first (`grown`): a large one takes 0.3 MB without a row.
        """
        memtable_bytes = min(_SMALL_MEMTABLE_BYTES, self.memtable_bytes(stores))
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(memtable_bytes)
        options.set_arena_block_size(memtable_bytes // 128)
        options.set_table_cache_num_shard_bits(0)
        options.set_write_buffer_manager(self.memtables)
        options.set_memtable_prefix_bloom_ratio(_MEMTABLE_BLOOM_RATIO)
        options.set_memtable_whole_key_filtering(True)
        options.set_writable_file_max_buffer_size(_FILE_BUFFER_BYTES)
        options.set_max_background_jobs(2)
        options.set_max_file_opening_threads(1)  # RocksDB starts them all, even for no file
        options.set_level_zero_file_num_compaction_trigger(FILES_MERGED)
        none, lz4 = DBCompressionType.none(), DBCompressionType.lz4()
        options.set_compression_per_level([none, none, lz4, lz4, lz4, lz4, lz4])
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(1 << 20)
        options.set_stats_dump_period_sec(0)
        blocks = BlockBasedOptions()
        blocks.set_bloom_filter(_BLOOM_BITS, False)
        blocks.set_block_cache(self.cache)
        blocks.set_format_version(5)
        blocks.set_block_size(_BLOCK_BYTES)
        blocks.set_data_block_index_type(
            DataBlockIndexType.binary_and_hash()
        )  # takes a tenth less time for a present key
        blocks.set_data_block_hash_ratio(_BLOCK_HASH_RATIO)
        options.set_block_based_table_factory(blocks)
        return options


def files_merged_from(count: int) -> dict[str, str]:
    """Return the option of an open store that merges its flushed files when there are `count` of them."""
    return {"level0_file_num_compaction_trigger": str(count)}
