"""What a partition log needs to know of its topic's configuration, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.config_key import ConfigError, unknown_name
from broker.log.topic_configs import TOPIC_CONFIGS
from protocol.records.compression import MAX_DECOMPRESSED_BYTES

_UNBOUNDED = 9223372036854775807
PRODUCER_ID_EXPIRATION_MS = 86_400_000
DECOMPRESSED_BYTES = 64 * 1024 * 1024
"""64 times the default of `max.message.bytes`; producers fill batches by what they take before compression."""
DECOMPRESSED_RATIO = 4


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Sizes in bytes, times in ms, -1 without limit. The meaning of each is in `topic_configs`."""

    segment_bytes: int = 1073741824
    segment_ms: int = 604800000
    segment_index_bytes: int = 10485760
    index_interval_bytes: int = 4096
    retention_ms: int = 604800000
    retention_bytes: int = -1
    max_message_bytes: int = 1048588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = 9223372036854775807
    message_timestamp_after_max_ms: int = 3600000
    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_type: str = "producer"
    min_insync_replicas: int = 1
    durability: str = "process"
    flush_messages: int = 9223372036854775807
    flush_ms: int = 9223372036854775807
    file_delete_delay_ms: int = 60_000
    segment_jitter_ms: int = 0
    delete_retention_ms: int = 86_400_000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 9223372036854775807
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    strict_records: bool = True
    """Look into every batch of a client before it is appended (rule B9); the broker's own `log.strict.records`."""
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS
    """How long a silent producer is remembered; the broker's own `producer.id.expiration.ms`."""
    is_compacted: bool = field(init=False)
    looks_into_batches: bool = field(init=False)
    """Whether the header of a client's batch is not enough to append it."""
    needs_columns: bool = field(init=False)
    """Whether its records have to be decoded for that, rather than checked."""
    decompressed_bytes_max: int = field(init=False)
    """What a client's batch may decompress to, with the columns of its records where they are needed."""
    flushes_by_count: bool = field(init=False)
    """Whether an acknowledgement may have to wait for an fsync."""
    roll_ms: int = field(init=False)
    """Span of record time of a segment, before jitter."""

    def __post_init__(self) -> None:
        compacted = "compact" in self.cleanup_policy
        needs_columns = (
            compacted
            or self.compression_type != "producer"
            or (not self.is_log_append_time and self.message_timestamp_before_max_ms != _UNBOUNDED)
        )
        roll_ms = min(self.segment_ms, self.max_compaction_lag_ms) if compacted else self.segment_ms
        object.__setattr__(self, "is_compacted", compacted)
        object.__setattr__(self, "needs_columns", needs_columns)
        object.__setattr__(self, "looks_into_batches", needs_columns or self.strict_records)
        decompressed_max = max(DECOMPRESSED_BYTES, DECOMPRESSED_RATIO * self.max_message_bytes)
        object.__setattr__(self, "decompressed_bytes_max", min(decompressed_max, MAX_DECOMPRESSED_BYTES))
        object.__setattr__(self, "roll_ms", roll_ms)
        if self.durability == "power":
            object.__setattr__(self, "flush_messages", 1)
        object.__setattr__(self, "flushes_by_count", self.flush_messages != _UNBOUNDED)

    @classmethod
    def parse(cls, config: Mapping[str, str]) -> LogConfig:
        """From topic configurations under Kafka's names; those not given have their defaults.

        Raises ConfigError for an unknown name or a value that is not accepted.
        """
        values: dict[str, Any] = {}
        for name, text in config.items():
            key = TOPIC_CONFIGS.get(name)
            if key is None:
                raise unknown_name("topic", name, TOPIC_CONFIGS)
            value = key.parse(text)
            field_name = name.replace(".", "_")
            if field_name in cls.__dataclass_fields__:
                values[field_name] = tuple(value) if isinstance(value, list) else value
        result = cls(**values)
        if result.min_compaction_lag_ms > result.max_compaction_lag_ms:
            raise ConfigError(
                f"conflict topic config setting min.compaction.lag.ms ({result.min_compaction_lag_ms}) > "
                f"max.compaction.lag.ms ({result.max_compaction_lag_ms})"
            )
        return result

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"
