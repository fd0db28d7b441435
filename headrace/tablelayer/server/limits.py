"""The bounds of the table extension, each with where its number comes from."""

from __future__ import annotations

import msgspec

_MIB = 1 << 20
BLOCK_CACHE_BYTES = 128 * _MIB
"""Of uncompressed blocks, for all key-value stores of a process, where nothing else is said."""


class Limits(msgspec.Struct, frozen=True):
    buffered_bytes_max: int = 256 * _MIB
    """Write batches that are queued or not yet in a key-value store, all buckets together. More than a dozen
    of the largest batches clients send, small against the memory of any server."""

    memtables_bytes_max: int = 192 * _MIB
    """All memtables together; RocksDB flushes the largest when it is exceeded, so 200 tables can be open."""

    memtable_bytes: int = 16 * _MIB
    """One memtable. Inserts into larger ones are slower (cache misses), smaller ones make more files."""

    flush_bytes: int = 32 * _MIB
    """A store is flushed to its files when so much was written: bounds what is replayed after a crash."""

    flush_seconds: float = 5.0
    """... or when so much time has passed since its last flush and something was written. A restart after a crash
    replays what was written since, a few seconds' worth; a flush of that much costs a few milliseconds."""

    replay_bytes: int = 4 * _MIB
    """Log read at once while replaying."""

    transcoded_cache_bytes: int = 64 * _MIB
    """Batches in Kafka's form, kept for the next consumer at the tail."""

    opened_cache_bytes: int = 128 * _MIB
    """Batches that Kafka consumers get piece by piece, kept for the next piece: one of the largest there are."""

    consumed_bytes_max: int = 256 * _MIB
    """Batches in Kafka's form that consumers or the cache hold. While there are more a fetch gets one piece, so that
    consumers that do not read cannot stop those that do."""

    scan_lease_seconds: float = 60.0
    """A snapshot scan that nobody continues holds files and memory for no longer."""

    scans_open_max: int = 256
    """Snapshot scans open at once; each pins files of its store."""

    scans_per_client_max: int = 128
    """... of one host, so that it takes two to fill all places."""

    scan_idle_seconds: float = 5.0
    """A scan that was not continued for so long gives way to another when places are short: readers that work on a
    piece are back much sooner, and one that is not begins again where it was."""

    snapshot_retry_seconds: float = 60.0
    """A snapshot that failed is tried again after so long, or after the interval if that is shorter."""

    past_states_max: int = 16
    """Buckets held open as they were in the past; each has files of its own."""

    past_states_per_client_max: int = 8
    """... of them scans of one host."""

    disk_free_share_min: float = 0.05
    """What readers and writers that have not committed may not take of the disk: the log needs room to go on."""

    disk_free_bytes_max: int = 1 << 30
    """... and no more than so much: a segment of the log. A share alone would keep half a terabyte of ten unused, and
    refuse on a disk that is large and well filled."""

    staged_idle_seconds: float = 900.0
    """Staged rows that nobody has added to for so long go when space is short: longer than a task of most jobs."""

    answer_bytes_max: int = 32 * _MIB
    """Rows in one answer, all buckets together; the reader asks for the rest. Twice of what clients ask for in scans,
    and a lookup of 16,384 rows of 2 kB."""

    rebuild_pause_seconds: float = 60.0
    """A store that is damaged again so soon after it was restored is not restored from the same snapshot."""

    limit_scan_rows_max: int = 100_000
    """Rows of a limit scan and bucket; larger reads are scans."""

    keys_per_lookup_max: int = 1_000_000
    """Keys of one lookup and bucket."""

    rows_expired_together: int = 10_000
    """Rows that `table.kv.ttl` ends in one batch: a few milliseconds' work between two writes."""

    lake_lease_ms: int = 60_000
    """A tiering round is lost when its worker is silent for so long."""

    lake_round_ms_max: int = 1_800_000
    """A tiering round that lasts longer is told to finish, so that other tables get their turn."""

    lake_retry_ms: int = 10_000
    """After a failed round its table is left alone for so long; after each further one twice as long."""

    lake_retry_ms_max: int = 600_000
    """The longest of these waits: what a person mended is found within ten minutes."""

    def disk_kept_free(self, total_bytes: int) -> int:
        """Bytes of a disk of so many that only the log may take."""
        return min(int(total_bytes * self.disk_free_share_min), self.disk_free_bytes_max)
