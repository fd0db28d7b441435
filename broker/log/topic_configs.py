"""The configurations of a topic, under Kafka's names: type, default, one line of documentation, rule.

All of Apache Kafka 4.x's are declared, because clients expect DescribeConfigs to list them. Each is honoured, or
nothing except its default is accepted: a configuration that is taken and not followed would be found out too late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.config_key import ConfigKey, ConfigType, at_least, between

_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)
_LONG_MAX: Final = 9223372036854775807
_DAY_MS: Final = 86_400_000


def _only(default: Any, feature: str) -> Callable[[Any], str | None]:
    return lambda value: (
        None if value == default else f"{feature} is not offered; leave it at {_text(default)}"
    )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "''" if value == [] else str(value)


def _levels(low: int, high: int, *also: int) -> Callable[[Any], str | None]:
    text = f"it must be from {low} to {high}" + "".join(f", or {value}" for value in also)
    return lambda value: None if low <= value <= high or value in also else text


def _some_policy(value: list[str]) -> str | None:
    return None if value else "it must be delete, compact or both"


_KEYS: Final = (
    ConfigKey(
        "cleanup.policy",
        _LIST,
        "delete",
        "What becomes of old records: delete (by age and size), compact (the last one of each key stays), or both.",
        _some_policy,
        choices=("compact", "delete"),
    ),
    ConfigKey(
        "compression.type",
        _STRING,
        "producer",
        "The codec that batches are kept in; producer keeps them as they were sent.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    ConfigKey(
        "compression.gzip.level",
        _INT,
        "-1",
        "Level if compression.type is gzip; -1 is the codec's default.",
        _levels(1, 9, -1),
    ),
    ConfigKey("compression.lz4.level", _INT, "9", "Level if compression.type is lz4.", _levels(1, 17)),
    ConfigKey(
        "compression.zstd.level", _INT, "3", "Level if compression.type is zstd.", _levels(-131072, 22)
    ),
    ConfigKey(
        "delete.retention.ms",
        _LONG,
        str(_DAY_MS),
        "Compaction: how long a tombstone stays after it was first cleaned.",
        at_least(0),
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        _DOUBLE,
        "0.5",
        "Compaction: the part of the log's bytes that must be new since the last cleaning for the next.",
        between(0, 1),
    ),
    ConfigKey(
        "min.compaction.lag.ms", _LONG, "0", "Compaction: how long a record stays as it is.", at_least(0)
    ),
    ConfigKey(
        "max.compaction.lag.ms",
        _LONG,
        str(_LONG_MAX),
        "Compaction: how long a record may wait for it; segments are closed no later than that.",
        at_least(1),
    ),
    ConfigKey(
        "retention.ms", _LONG, str(7 * _DAY_MS), "How long records are kept; -1 for ever.", at_least(-1)
    ),
    ConfigKey(
        "retention.bytes", _LONG, "-1", "How large a partition may grow; -1 without limit.", at_least(-1)
    ),
    ConfigKey(
        "segment.bytes",
        _INT,
        "1073741824",
        "Size at which a segment file is closed and a new one begun.",
        at_least(14),
    ),
    ConfigKey(
        "segment.ms",
        _LONG,
        str(7 * _DAY_MS),
        "Span of record time after which a new segment begins.",
        at_least(1),
    ),
    ConfigKey(
        "segment.jitter.ms",
        _LONG,
        "0",
        "At most so much is taken off segment.ms, differently for each segment.",
        at_least(0),
    ),
    ConfigKey("segment.index.bytes", _INT, "10485760", "Largest index file of a segment.", at_least(4)),
    ConfigKey(
        "index.interval.bytes",
        _INT,
        "4096",
        "Log bytes between two entries of the offset index.",
        at_least(0),
    ),
    ConfigKey(
        "max.message.bytes",
        _INT,
        "1048588",
        "Largest record batch a client may send, as compressed.",
        at_least(0),
    ),
    ConfigKey(
        "message.timestamp.type",
        _STRING,
        "CreateTime",
        "Whose clock stamps records: the producer's, or the broker's on arrival.",
        choices=("CreateTime", "LogAppendTime"),
    ),
    ConfigKey(
        "message.timestamp.before.max.ms",
        _LONG,
        str(_LONG_MAX),
        "How far before the broker's time a producer's stamp may lie.",
        at_least(0),
    ),
    ConfigKey(
        "message.timestamp.after.max.ms",
        _LONG,
        "3600000",
        "How far after the broker's time a producer's stamp may lie.",
        at_least(0),
    ),
    ConfigKey(
        "min.insync.replicas",
        _INT,
        "1",
        "Replicas that must have an acks=all write to acknowledge it.",
        at_least(1),
    ),
    ConfigKey(
        "durability",
        _STRING,
        "process",
        "What an acknowledged record survives: the death of the process, or of the power too (it is fsynced, many "
        "at a time, before it is acknowledged or read; the same as flush.messages=1). Not one of Apache Kafka's.",
        choices=("process", "power"),
    ),
    ConfigKey(
        "flush.messages",
        _LONG,
        str(_LONG_MAX),
        "fsync after this many records, before the last of them is acknowledged; 1 is durability=power.",
        at_least(1),
    ),
    ConfigKey("flush.ms", _LONG, str(_LONG_MAX), "fsync at least this often.", at_least(0)),
    # known to Kafka, not offered here
    ConfigKey("preallocate", _BOOLEAN, "false", "Preallocate segment files.", _only(False, "preallocation")),
    ConfigKey(
        "file.delete.delay.ms",
        _LONG,
        "60000",
        "How long a deleted segment stays on disk; here it goes at once, and those who read it still can.",
        _only(60_000, "a delay of deletions (readers keep what they read)"),
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        _BOOLEAN,
        "false",
        "Let a replica that is behind become leader.",
        _only(False, "unclean leader election"),
    ),
    *(
        ConfigKey(
            f"{role}.replication.throttled.replicas",
            _LIST,
            "",
            "Replicas whose replication is throttled.",
            _only([], "throttling of replication"),
        )
        for role in ("leader", "follower")
    ),
    *(
        ConfigKey(name, _BOOLEAN, "false", f"Tiered storage: {what}.", _only(False, "tiered storage"))
        for name, what in (
            ("remote.storage.enable", "keep old segments in remote storage"),
            ("remote.log.copy.disable", "copy no more segments"),
            ("remote.log.delete.on.disable", "delete what was copied when it is switched off"),
        )
    ),
    *(
        ConfigKey(
            name, _LONG, "-2", "Tiered storage: retention of what is local.", _only(-2, "tiered storage")
        )
        for name in ("local.retention.ms", "local.retention.bytes")
    ),
)

TOPIC_CONFIGS: Final[Mapping[str, ConfigKey]] = {key.name: key for key in _KEYS}
