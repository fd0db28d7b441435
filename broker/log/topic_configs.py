"""The configurations of a topic, under Kafka's names: type, default, one line of documentation, rule.

Each of them is honoured. Kafka's names for features that are not offered are declared too, because clients
expect DescribeConfigs to list them, but nothing except the default is accepted: a topic that asked for
compaction and silently did not get it would lose nothing today and trust later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.config_key import ConfigKey, ConfigType, at_least

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
    return lambda value: None if value == default else f"{feature} is not offered; leave it at {default}"


def _only_delete(value: list[str]) -> str | None:
    if value == ["delete"]:
        return None
    return "log compaction is not offered, delete is (a primary-key table keeps the last row of a key)"


_KEYS: Final = (
    ConfigKey("cleanup.policy", _LIST, "delete", "What becomes of old segments: delete.", _only_delete),
    ConfigKey(
        "compression.type",
        _STRING,
        "producer",
        "How batches are kept: producer, as they were sent.",
        _only("producer", "recompression by the broker"),
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
        "segment.jitter.ms", _LONG, "0", "Random part taken off segment.ms.", _only(0, "segment jitter")
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
        "flush.messages",
        _LONG,
        str(_LONG_MAX),
        "fsync after this many records; 1 acknowledges nothing that a power cut could take.",
        at_least(1),
    ),
    ConfigKey("flush.ms", _LONG, str(_LONG_MAX), "fsync at least this often.", at_least(0)),
    # known to Kafka, not offered here
    ConfigKey("preallocate", _BOOLEAN, "false", "Preallocate segment files.", _only(False, "preallocation")),
    ConfigKey(
        "file.delete.delay.ms",
        _LONG,
        "60000",
        "How long a deleted segment stays on disk; here readers keep it open and no delay is needed.",
        at_least(0),
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        _BOOLEAN,
        "false",
        "Let a replica that is behind become leader.",
        _only(False, "unclean leader election"),
    ),
    ConfigKey("remote.storage.enable", _BOOLEAN, "false", "Tiered storage.", _only(False, "tiered storage")),
    ConfigKey(
        "delete.retention.ms",
        _LONG,
        str(_DAY_MS),
        "Compaction: age of tombstones.",
        _only(_DAY_MS, "compaction"),
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio", _DOUBLE, "0.5", "Compaction: when it starts.", _only(0.5, "compaction")
    ),
    ConfigKey("min.compaction.lag.ms", _LONG, "0", "Compaction: shortest wait.", _only(0, "compaction")),
    ConfigKey(
        "max.compaction.lag.ms",
        _LONG,
        str(_LONG_MAX),
        "Compaction: longest wait.",
        _only(_LONG_MAX, "compaction"),
    ),
    ConfigKey("compression.gzip.level", _INT, "-1", "Recompression: level.", _only(-1, "recompression")),
    ConfigKey("compression.lz4.level", _INT, "9", "Recompression: level.", _only(9, "recompression")),
    ConfigKey("compression.zstd.level", _INT, "3", "Recompression: level.", _only(3, "recompression")),
)

TOPIC_CONFIGS: Final[Mapping[str, ConfigKey]] = {key.name: key for key in _KEYS}
