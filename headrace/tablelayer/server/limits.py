"""The limits of the table extension, with the reasons for their values."""

from __future__ import annotations

import msgspec

_MIB = 1 << 20
BLOCK_CACHE_BYTES = 128 * _MIB
"""Default size of the cache of uncompressed blocks, for all key-value stores of a process."""


class Limits(msgspec.Struct, frozen=True):
    buffered_bytes_max: int = 256 * _MIB
    """Maximum size of write batches that are queued or not yet in a key-value store, all buckets together: more than a
    dozen of the largest batches that clients send, and small for any server's memory."""

    memtables_bytes_max: int = 192 * _MIB
    """Maximum size of all memtables; RocksDB flushes the largest when it is exceeded, so 200 tables can be open."""

    memtable_bytes: int = 16 * _MIB
    """Size of one memtable. Inserts into larger ones are slower (cache misses); smaller ones make more files."""

    flush_bytes: int = 32 * _MIB
    """Number of written bytes after which a store is flushed: limits the replay after a crash."""

    flush_seconds: float = 5.0
    """Time since the last flush after which a store with new writes is flushed. A restart after a crash replays at most
    a few seconds of writes; a flush of that much costs a few milliseconds."""

    stores_open_max: int = 1000
    """Maximum number of stores that are open at a time: each takes a quarter of a megabyte however few rows it has."""

    store_files_max: int = 1 << 20
    """Maximum number of files of open stores; `services` lowers it to their share of RLIMIT_NOFILE."""

    store_idle_seconds: float = 120.0
    """Time after which a store that was not used is closed. The next use opens it again, in some milliseconds."""

    replay_bytes: int = 4 * _MIB
    """Number of bytes of the log that one replay step reads."""

    transcoded_cache_bytes: int = 64 * _MIB
    """Size of the cache of batches in Kafka's form, for the next consumer at the end of the log."""

    opened_cache_bytes: int = 128 * _MIB
    """Size of the cache of batches that Kafka consumers read in pieces, for the next piece: one of the largest batches.
    """

    consumed_bytes_max: int = 256 * _MIB
    """Maximum size of batches in Kafka's form that consumers or the cache hold. Above it a fetch gets one piece, so
    that consumers that do not read cannot block others."""

    scan_lease_seconds: float = 60.0
    """Time after which an abandoned snapshot scan releases its files and memory."""

    scans_open_max: int = 256
    """Maximum number of open snapshot scans; each pins files of its store."""

    scans_per_client_max: int = 128
    """Maximum number of open snapshot scans of one host, so that one host cannot take all places."""

    scan_idle_seconds: float = 5.0
    """Idle time after which a scan may be replaced when places are short. Readers that process a piece return much
    sooner, and a replaced reader resumes where it was."""

    snapshot_retry_seconds: float = 60.0
    """Time until a failed snapshot is tried again; the snapshot interval if that is shorter."""

    past_states_max: int = 16
    """Maximum number of buckets held open in a past state; each has its own files."""

    past_states_per_client_max: int = 8
    """Maximum number of past states for scans of one host."""

    disk_free_share_min: float = 0.05
    """Share of the disk that readers and uncommitted writers may not use: the log needs space to go on."""

    disk_free_bytes_max: int = 1 << 30
    """Maximum of that reserve: a segment of the log. A share alone would keep half a terabyte of ten unused, and would
    refuse work on a large, well-filled disk."""

    staged_idle_seconds: float = 900.0
    """Idle time after which staged rows may be dropped when space is short: longer than a task of most jobs."""

    answer_bytes_max: int = 32 * _MIB
    """Maximum size of the rows in one answer, all buckets together; the reader asks for the rest. It is twice what
    clients ask for in scans, and a lookup of 16,384 rows of 2 kB."""

    rebuild_pause_seconds: float = 60.0
    """A store that is damaged within this time after it was restored is not restored from the same snapshot again."""

    limit_scan_rows_max: int = 100_000
    """Maximum number of rows of a limit scan per bucket; larger reads are scans."""

    keys_per_lookup_max: int = 1_000_000
    """Maximum number of keys of one lookup per bucket."""

    rows_expired_together: int = 10_000
    """Number of rows that `table.kv.ttl` expires in one batch: a few milliseconds of work between two writes."""

    lake_lease_ms: int = 60_000
    """Time after which the round of a silent worker is lost."""

    lake_round_ms_max: int = 1_800_000
    """Time after which a round is told to finish, so that other tables get their turn."""

    lake_retry_ms: int = 10_000
    """Delay of a table after a failed round; it doubles with each further failure."""

    lake_retry_ms_max: int = 600_000
    """Maximum of these delays: a repaired fault is noticed within ten minutes."""

    def disk_kept_free(self, total_bytes: int) -> int:
        """Return how many bytes of a disk of `total_bytes` only the log may use."""
        return min(int(total_bytes * self.disk_free_share_min), self.disk_free_bytes_max)
