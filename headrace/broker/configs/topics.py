"""The configurations of a topic, under Kafka's names: type, default, one line of documentation, rule.

All of Apache Kafka 4.x's are declared, because clients expect DescribeConfigs to list them and bring the values that
they have set elsewhere. A configuration is honoured; or it cannot matter here, and its documentation says so; or it is
refused if its value asks for something that would be missed. A promise that was accepted and not kept would be found
too late.
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
"""Value that means "without limit" or "never"."""
_DAY_MS: Final = 86_400_000
PRODUCER_ID_EXPIRATION_MS: Final = _DAY_MS
"""Default of the broker's own `producer.id.expiration.ms`, with which its logs are opened."""
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


_KEYS: Final = (
    ConfigKey(
        "cleanup.policy",
        _LIST,
        "delete",
        "Treatment of old records: delete (by age and size), compact (the last one of each key stays), both, "
        "or empty: all stay.",
        choices=("compact", "delete"),
    ),
    ConfigKey(
        "compression.type",
        _STRING,
        "producer",
        "Codec of the batches in the log; producer keeps them as they were sent.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    ConfigKey(
        "compression.gzip.level",
        _INT,
        "-1",
        "Compression level if compression.type is gzip; -1 is the codec's default.",
        _levels(1, 9, -1),
    ),
    ConfigKey(
        "compression.lz4.level", _INT, "9", "Compression level if compression.type is lz4.", _levels(1, 17)
    ),
    ConfigKey(
        "compression.zstd.level",
        _INT,
        "3",
        "Compression level if compression.type is zstd.",
        _levels(-131072, 22),
    ),
    ConfigKey(
        "delete.retention.ms",
        _LONG,
        str(_DAY_MS),
        "Compaction: time that a tombstone stays after it was first cleaned, in milliseconds.",
        at_least(0),
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        _DOUBLE,
        "0.5",
        "Compaction: share of the log's bytes that must be new since the last cleaning before the next one.",
        between(0, 1),
    ),
    ConfigKey(
        "min.compaction.lag.ms",
        _LONG,
        "0",
        "Compaction: shortest time that a record stays uncompacted, in milliseconds.",
        at_least(0),
    ),
    ConfigKey(
        "max.compaction.lag.ms",
        _LONG,
        str(LONG_MAX),
        "Compaction: longest time that a record stays uncompacted, in milliseconds; segments are closed no "
        "later than that.",
        at_least(1),
    ),
    ConfigKey(
        "retention.ms",
        _LONG,
        str(7 * _DAY_MS),
        "Time that records are kept, in milliseconds; -1: for ever.",
        at_least(-1),
    ),
    ConfigKey(
        "retention.bytes",
        _LONG,
        "-1",
        "Maximum size of a partition in bytes; -1: without limit.",
        at_least(-1),
    ),
    ConfigKey(
        "segment.bytes",
        _INT,
        "1073741824",
        "Size at which a segment file is closed and a new one begun, in bytes.",
        at_least(14),
    ),
    ConfigKey(
        "segment.ms",
        _LONG,
        str(7 * _DAY_MS),
        "Span of record time after which a new segment begins, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "segment.jitter.ms",
        _LONG,
        "0",
        "Maximum random time that is subtracted from segment.ms, in milliseconds, differently for each "
        "segment.",
        at_least(0),
    ),
    ConfigKey(
        "segment.index.bytes",
        _INT,
        "10485760",
        "Maximum size of the index file of a segment, in bytes.",
        at_least(4),
    ),
    ConfigKey(
        "index.interval.bytes",
        _INT,
        "4096",
        "Number of log bytes between two entries of the offset index.",
        at_least(0),
    ),
    ConfigKey(
        "max.message.bytes",
        _INT,
        "1048588",
        "Maximum size of a record batch as the client sends it, compressed, in bytes. It may decompress to "
        "64 MiB, or four times this value.",
        at_least(0),
    ),
    ConfigKey(
        "message.timestamp.type",
        _STRING,
        "CreateTime",
        "Source of the timestamps of records: CreateTime, the producer's clock, or LogAppendTime, the "
        "broker's on arrival.",
        choices=("CreateTime", "LogAppendTime"),
    ),
    ConfigKey(
        "message.timestamp.before.max.ms",
        _LONG,
        str(LONG_MAX),
        "Maximum time that a producer's timestamp may be before the broker's time, in milliseconds.",
        at_least(0),
    ),
    ConfigKey(
        "message.timestamp.after.max.ms",
        _LONG,
        "3600000",
        "Maximum time that a producer's timestamp may be after the broker's time, in milliseconds.",
        at_least(0),
    ),
    ConfigKey(
        "min.insync.replicas",
        _INT,
        "1",
        "Minimum number of in-sync replicas that have a write with acks=all before it is acknowledged.",
        at_least(1),
    ),
    ConfigKey(
        "durability",
        _STRING,
        "process",
        "Failure that acknowledged records survive: the end of the process, or also a power failure. For "
        "power, writes are fsynced, many at a time, before they are acknowledged or read; the same as "
        "flush.messages=1. Not one of Apache Kafka's.",
        choices=("process", "power"),
    ),
    ConfigKey(
        "flush.messages",
        _LONG,
        str(LONG_MAX),
        "Number of records after which the log is fsynced, before the last of them is acknowledged; 1 is "
        "durability=power.",
        at_least(1),
    ),
    ConfigKey(
        "flush.ms", _LONG, str(LONG_MAX), "Longest time between two fsyncs, in milliseconds.", at_least(0)
    ),
    ConfigKey(
        "file.delete.delay.ms",
        _LONG,
        "60000",
        "Time that the file of a deleted segment stays, under a name that ends in .deleted, in "
        "milliseconds; shorter on a full disk.",
        at_least(0),
    ),
    # accepted and shown, without an effect: each says why
    ConfigKey(
        "preallocate",
        _BOOLEAN,
        "false",
        "Hint to reserve the space of a segment when it is begun. No effect here: files grow as they are "
        "written.",
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        _BOOLEAN,
        "false",
        "Let a replica that is not in sync become leader automatically. No effect here: an operator does it "
        "(kafka-leader-election).",
    ),
    *(
        ConfigKey(
            f"{role}.replication.throttled.replicas",
            _LIST,
            "",
            f"Replicas (partition:broker, or *) that {role}.replication.throttled.rate of their brokers "
            "limits while they are not in sync.",
            partial(_throttled, role),
        )
        for role in ("leader", "follower")
    ),
    ConfigKey(
        "remote.storage.enable",
        _BOOLEAN,
        "false",
        "Copy closed segments to the broker's remote storage (remote.log.storage.system.enable), and read "
        "from there what local retention has deleted. Not for compacted topics, nor for primary-key tables.",
    ),
    ConfigKey(
        "remote.log.copy.disable",
        _BOOLEAN,
        "false",
        "Stop copying segments to remote storage; those already there stay readable for as long as "
        "retention says.",
    ),
    ConfigKey(
        "remote.log.delete.on.disable",
        _BOOLEAN,
        "false",
        "When remote.storage.enable becomes false, delete the copies in remote storage; the log then begins "
        "with the local segments. Without this, remote.storage.enable cannot become false.",
    ),
    ConfigKey(
        "local.retention.ms",
        _LONG,
        "-2",
        "Time that records of a topic with remote storage also stay local, in milliseconds; -2: as "
        "retention.ms.",
        at_least(-2),
    ),
    ConfigKey(
        "local.retention.bytes",
        _LONG,
        "-2",
        "Maximum local size of a partition with remote storage, in bytes; -2: as retention.bytes.",
        at_least(-2),
    ),
)

TOPIC_CONFIGS: Final[Mapping[str, ConfigKey]] = {key.name: key for key in _KEYS}
