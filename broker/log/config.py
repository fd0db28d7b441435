"""What a partition log needs to know of its topic's configuration, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.config_key import unknown_name
from broker.log.topic_configs import TOPIC_CONFIGS


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
    flush_messages: int = 9223372036854775807
    flush_ms: int = 9223372036854775807

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
            field = name.replace(".", "_")
            if field in cls.__dataclass_fields__:
                values[field] = tuple(value) if isinstance(value, list) else value
        return cls(**values)

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"
