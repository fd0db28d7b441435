"""The configurations of a topic, under Kafka's names: type, default, one line of documentation, rule.

All of Apache Kafka 4.x's are declared, because clients expect DescribeConfigs to list them and bring what they have
set elsewhere. Each is honoured, or cannot matter here and says so in its documentation, or is refused where it asks for
something that would be missed: a promise that is taken and not kept would be found out too late.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from headrace.broker.configs.config_key import ConfigKey, ConfigType, at_least, between

_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)
LONG_MAX: Final = 9223372036854775807
"""What is without limit or never happens."""
_DAY_MS: Final = 86_400_000
PRODUCER_ID_EXPIRATION_MS: Final = _DAY_MS
"""The default of the broker's own `producer.id.expiration.ms`, which its logs are opened with."""
_REPLICA: Final = re.compile(r"\d+:\d+")


def _throttled(role: str, replicas: list[str]) -> str | None:
    if replicas == ["*"] or all(_REPLICA.fullmatch(replica) for replica in replicas):
        return None
    return (
        f"{role}.replication.throttled.replicas must be the literal '*' or a list of replicas in the following "
        "format: [partitionId]:[brokerId],[partitionId]:[brokerId],..."
    )


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
        str(LONG_MAX),
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
        "Largest record batch a client may send, as compressed. It may decompress to 64 MiB, or four times this value.",
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
        str(LONG_MAX),
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
        str(LONG_MAX),
        "fsync after this many records, before the last of them is acknowledged; 1 is durability=power.",
        at_least(1),
    ),
    ConfigKey("flush.ms", _LONG, str(LONG_MAX), "fsync at least this often.", at_least(0)),
    ConfigKey(
        "file.delete.delay.ms",
        _LONG,
        "60000",
        "How long the file of a deleted segment stays, under a name that ends in .deleted; less on a full disk.",
        at_least(0),
    ),
    # taken and shown, without an effect: each says why
    ConfigKey(
        "preallocate",
        _BOOLEAN,
        "false",
        "A hint to reserve the room of a segment when it is begun; not followed here: files grow as they are written.",
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        _BOOLEAN,
        "false",
        "Let a replica that is behind become leader by itself; not followed here: it is done by hand alone "
        "(kafka-leader-election).",
    ),
    *(
        ConfigKey(
            f"{role}.replication.throttled.replicas",
            _LIST,
            "",
            f"Replicas (partition:broker, or *) that are held to {role}.replication.throttled.rate of their brokers "
            "while they are not in sync.",
            partial(_throttled, role),
        )
        for role in ("leader", "follower")
    ),
    ConfigKey(
        "remote.storage.enable",
        _BOOLEAN,
        "false",
        "Copy segments that are not written any more to the broker's remote storage "
        "(remote.log.storage.system.enable), and read from there what local retention has taken. Not for compacted "
        "topics, nor for primary-key tables.",
    ),
    ConfigKey(
        "remote.log.copy.disable",
        _BOOLEAN,
        "false",
        "Copy no more segments to remote storage; what is there stays readable for as long as retention says.",
    ),
    ConfigKey(
        "remote.log.delete.on.disable",
        _BOOLEAN,
        "false",
        "When remote.storage.enable becomes false: delete what was copied, and the log begins with what is local. "
        "Without it remote.storage.enable cannot become false.",
    ),
    ConfigKey(
        "local.retention.ms",
        _LONG,
        "-2",
        "How long records of a topic with remote storage stay local as well; -2 is retention.ms.",
        at_least(-2),
    ),
    ConfigKey(
        "local.retention.bytes",
        _LONG,
        "-2",
        "How much of a partition with remote storage stays local as well; -2 is retention.bytes.",
        at_least(-2),
    ),
)

TOPIC_CONFIGS: Final[Mapping[str, ConfigKey]] = {key.name: key for key in _KEYS}
