"""The parsed topic configurations that a partition log needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from headrace.broker.configs.config_key import ConfigError, unknown_name
from headrace.broker.configs.topics import LONG_MAX, PRODUCER_ID_EXPIRATION_MS, TOPIC_CONFIGS
from headrace.broker.log.retention import RetentionLimits
from headrace.protocol.records.compression import MAX_DECOMPRESSED_BYTES

DECOMPRESSED_BYTES = 64 * 1024 * 1024
"""64 times the default of `max.message.bytes`; producers fill batches by their size before compression."""
DECOMPRESSED_RATIO = 4


def _parsed(name: str, text: str | None = None) -> Any:
    """Return the value of a topic configuration, its default if no text is given. Raises ConfigError."""
    key = TOPIC_CONFIGS.get(name)
    if key is None:
        raise unknown_name("topic", name, TOPIC_CONFIGS)
    value = key.default_value if text is None else key.parse(text)
    return tuple(value) if isinstance(value, list) else value


class LogConfig(msgspec.Struct, frozen=True):
    """Sizes in bytes, times in ms, -1 without limit. `topic_configs` declares meaning and default of each."""

    segment_bytes: int = _parsed("segment.bytes")
    segment_ms: int = _parsed("segment.ms")
    segment_index_bytes: int = _parsed("segment.index.bytes")
    index_interval_bytes: int = _parsed("index.interval.bytes")
    retention_ms: int = _parsed("retention.ms")
    retention_bytes: int = _parsed("retention.bytes")
    max_message_bytes: int = _parsed("max.message.bytes")
    message_timestamp_type: str = _parsed("message.timestamp.type")
    message_timestamp_before_max_ms: int = _parsed("message.timestamp.before.max.ms")
    message_timestamp_after_max_ms: int = _parsed("message.timestamp.after.max.ms")
    cleanup_policy: tuple[str, ...] = _parsed("cleanup.policy")
    compression_type: str = _parsed("compression.type")
    min_insync_replicas: int = _parsed("min.insync.replicas")
    durability: str = _parsed("durability")
    flush_messages: int = _parsed("flush.messages")
    flush_ms: int = _parsed("flush.ms")
    file_delete_delay_ms: int = _parsed("file.delete.delay.ms")
    segment_jitter_ms: int = _parsed("segment.jitter.ms")
    delete_retention_ms: int = _parsed("delete.retention.ms")
    min_cleanable_dirty_ratio: float = _parsed("min.cleanable.dirty.ratio")
    min_compaction_lag_ms: int = _parsed("min.compaction.lag.ms")
    max_compaction_lag_ms: int = _parsed("max.compaction.lag.ms")
    compression_gzip_level: int = _parsed("compression.gzip.level")
    compression_lz4_level: int = _parsed("compression.lz4.level")
    compression_zstd_level: int = _parsed("compression.zstd.level")
    remote_storage_enable: bool = _parsed("remote.storage.enable")
    remote_log_copy_disable: bool = _parsed("remote.log.copy.disable")
    remote_log_delete_on_disable: bool = _parsed("remote.log.delete.on.disable")
    local_retention_ms: int = _parsed("local.retention.ms")
    local_retention_bytes: int = _parsed("local.retention.bytes")
    strict_records: bool = True
    """Check all records of a client's batch before it is appended (rule B9); the broker's own `log.strict.records`."""
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS
    """Time after which a silent producer is forgotten; the broker's own `producer.id.expiration.ms`."""

    # The following fields are computed from those above; given values are ignored.
    is_compacted: bool = False
    is_log_append_time: bool = False
    needs_columns: bool = False
    """Whether the records of a client's batch have to be decoded, not only checked, to append it."""
    looks_into_batches: bool = False
    """Whether the header of a client's batch is not enough to append it."""
    decompressed_bytes_max: int = 0
    """Maximum size of a client's batch when decompressed, with the columns of its records if they are needed, in
    bytes.
    """
    flushes_by_count: bool = False
    """Whether an acknowledgement may have to wait for an fsync."""
    roll_ms: int = 0
    """Span of record time of a segment, before jitter."""

    def __post_init__(self) -> None:
        compacted = "compact" in self.cleanup_policy
        log_append_time = self.message_timestamp_type == "LogAppendTime"
        needs_columns = (
            compacted
            or self.compression_type != "producer"
            or (not log_append_time and self.message_timestamp_before_max_ms != LONG_MAX)
        )
        decompressed_max = max(DECOMPRESSED_BYTES, DECOMPRESSED_RATIO * self.max_message_bytes)
        flush_messages = 1 if self.durability == "power" else self.flush_messages
        force_setattr(self, "flush_messages", flush_messages)
        force_setattr(self, "is_compacted", compacted)
        force_setattr(self, "is_log_append_time", log_append_time)
        force_setattr(self, "needs_columns", needs_columns)
        force_setattr(self, "looks_into_batches", needs_columns or self.strict_records)
        force_setattr(self, "decompressed_bytes_max", min(decompressed_max, MAX_DECOMPRESSED_BYTES))
        force_setattr(self, "flushes_by_count", flush_messages != LONG_MAX)
        roll_ms = min(self.segment_ms, self.max_compaction_lag_ms) if compacted else self.segment_ms
        force_setattr(self, "roll_ms", roll_ms)

    @property
    def retention(self) -> RetentionLimits:
        """Limits of the whole log, none if its cleanup policy does not delete."""
        if "delete" not in self.cleanup_policy:
            return RetentionLimits(-1, -1)
        return RetentionLimits(self.retention_ms, self.retention_bytes)

    @property
    def local_retention(self) -> RetentionLimits:
        """Limits of the local part of a tiered log."""
        return RetentionLimits(
            self.retention_ms if self.local_retention_ms == -2 else self.local_retention_ms,
            self.retention_bytes if self.local_retention_bytes == -2 else self.local_retention_bytes,
        )

    @classmethod
    def parse(cls, config: Mapping[str, str]) -> LogConfig:
        """Parse topic configurations under Kafka's names; those not given have their defaults.

        Raises ConfigError for an unknown name or a value that is not accepted.
        """
        values = {name.replace(".", "_"): _parsed(name, text) for name, text in config.items()}
        result = cls(**{name: value for name, value in values.items() if name in cls.__struct_fields__})
        if result.min_compaction_lag_ms > result.max_compaction_lag_ms:
            raise ConfigError(
                f"conflict topic config setting min.compaction.lag.ms ({result.min_compaction_lag_ms}) > "
                f"max.compaction.lag.ms ({result.max_compaction_lag_ms})"
            )
        result._check_remote()
        return result

    def _check_remote(self) -> None:
        """Check Kafka's rules for local and remote retention. Raises ConfigError."""
        if not self.remote_storage_enable:
            return
        if self.is_compacted:
            raise ConfigError(
                "remote.storage.enable: a compacted topic cannot have its log in remote storage"
            )
        for unit, local, whole in (
            ("ms", self.local_retention_ms, self.retention_ms),
            ("bytes", self.local_retention_bytes, self.retention_bytes),
        ):
            if local == -2 or whole == -1:
                continue
            if local == -1 or local > whole:
                raise ConfigError(
                    f"local.retention.{unit} is {local}, and retention.{unit} is {whole}: local retention "
                    "cannot be longer than retention"
                )
