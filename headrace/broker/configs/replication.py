"""Configurations of replication, under Kafka's names."""

from __future__ import annotations

from typing import Final

from headrace.broker.configs.config_key import ConfigKey, ConfigType, at_least, between

_INT, _LONG, _SHORT, _BOOLEAN = ConfigType.INT, ConfigType.LONG, ConfigType.SHORT, ConfigType.BOOLEAN

RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_LEADER: Final = "org.apache.kafka.common.replica.LeaderSelector"


def _check_selector(name: str) -> str | None:
    if name in (RACK_AWARE, _LEADER):
        return None
    return f"Java classes cannot be plugged in; use {RACK_AWARE} or {_LEADER}"


REPLICATION_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    ConfigKey(
        "default.replication.factor",
        _INT,
        "1",
        "Number of replicas of the partitions of a topic, or of a table's buckets, if the creation does not "
        "name one.",
        between(1, 32_767),
    ),
    *(
        ConfigKey(
            f"{name}.replication.factor",
            _SHORT,
            "3",
            f"Number of replicas of a partition of {topic}, fixed at its creation: at most the number of "
            "brokers then.",
            between(1, 32_767),
        )
        for name, topic in (
            ("offsets.topic", "__consumer_offsets"),
            ("transaction.state.log", "__transaction_state"),
        )
    ),
    ConfigKey(
        "transaction.state.log.min.isr",
        _INT,
        "2",
        "Number of replicas of __transaction_state that must be in sync, at most as many as it has; fixed "
        "at its creation.",
        at_least(1),
    ),
    ConfigKey(
        "replica.lag.time.max.ms",
        _LONG,
        "30000",
        "Time after which a replica that has not caught up with the leader is not in sync any more, in "
        "milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "replica.fetch.wait.max.ms",
        _INT,
        "500",
        "Maximum time that a leader waits for records before it answers a follower's fetch, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "replica.fetch.min.bytes",
        _INT,
        "1",
        "Minimum number of bytes before the leader answers a follower's fetch, within "
        "replica.fetch.wait.max.ms.",
        at_least(0),
    ),
    ConfigKey(
        "replica.fetch.max.bytes",
        _INT,
        "1048576",
        "Maximum number of bytes of one partition that a follower fetches at a time; a larger batch comes "
        "whole.",
        at_least(0),
    ),
    ConfigKey(
        "replica.fetch.response.max.bytes",
        _INT,
        "10485760",
        "Maximum number of bytes of all partitions that a follower fetches at a time; a larger batch comes "
        "whole.",
        at_least(0),
    ),
    *(
        ConfigKey(
            f"{role}.replication.throttled.rate",
            _LONG,
            str(2**63 - 1),
            f"Maximum number of bytes a second that this broker {copies}, of replicas that are not in sync "
            f"and that {role}.replication.throttled.replicas of their topics names.",
            at_least(1),
            dynamic=True,
        )
        for role, copies in (("leader", "sends to followers"), ("follower", "fetches as a follower"))
    ),
    ConfigKey(
        "replica.selector.class",
        ConfigType.STRING,
        None,
        "Class that selects the replica a consumer reads from. Not set: the leader. "
        "org.apache.kafka.common.replica.RackAwareReplicaSelector: a replica that is in sync on the "
        "consumer's rack (client.rack), if there is one.",
        _check_selector,
    ),
    ConfigKey(
        "controlled.shutdown.enable",
        _BOOLEAN,
        "true",
        "Move the leadership of partitions to other brokers before this broker stops.",
    ),
    ConfigKey(
        "auto.leader.rebalance.enable",
        _BOOLEAN,
        "true",
        "Give the leadership of a partition back to the first of its replicas when that is in sync again.",
    ),
    ConfigKey(
        "leader.imbalance.check.interval.seconds",
        _LONG,
        "300",
        "Interval between checks for partitions whose leader is not the first of their replicas, in seconds.",
        at_least(1),
    ),
)
