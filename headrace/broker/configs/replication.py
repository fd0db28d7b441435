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
    return f"Classes of Java cannot be plugged in; {RACK_AWARE} and {_LEADER} are what is offered"


REPLICATION_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    ConfigKey(
        "default.replication.factor",
        _INT,
        "1",
        "Replicas of a partition of a topic, or of a table's bucket, that is made without saying how many.",
        between(1, 32_767),
    ),
    *(
        ConfigKey(
            f"{name}.replication.factor",
            _SHORT,
            "3",
            f"Replicas of a partition of {topic}, fixed at its creation: at most as many as there are brokers then.",
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
        "How many replicas of __transaction_state must be in sync, at most as many as it has; fixed at its creation.",
        at_least(1),
    ),
    ConfigKey(
        "replica.lag.time.max.ms",
        _LONG,
        "30000",
        "A replica that has not had everything for so long is not in sync any more.",
        at_least(1),
    ),
    ConfigKey(
        "replica.fetch.wait.max.ms",
        _INT,
        "500",
        "How long a leader may wait for records before it answers a follower.",
        at_least(1),
    ),
    ConfigKey("replica.fetch.min.bytes", _INT, "1", "How much a leader waits for so long.", at_least(0)),
    ConfigKey(
        "replica.fetch.max.bytes",
        _INT,
        "1048576",
        "How much of one partition a follower fetches at a time; a larger batch comes whole.",
        at_least(0),
    ),
    ConfigKey(
        "replica.fetch.response.max.bytes",
        _INT,
        "10485760",
        "How much of all partitions a follower fetches at a time; a larger batch comes whole.",
        at_least(0),
    ),
    *(
        ConfigKey(
            f"{role}.replication.throttled.rate",
            _LONG,
            str(2**63 - 1),
            f"How many bytes a second this broker {copies} of replicas that are not in sync and that "
            f"{role}.replication.throttled.replicas of their topics names.",
            at_least(1),
            dynamic=True,
        )
        for role, copies in (("leader", "sends to followers"), ("follower", "fetches as a follower"))
    ),
    ConfigKey(
        "replica.selector.class",
        ConfigType.STRING,
        None,
        "Which replica a consumer reads from: the leader, or with "
        "org.apache.kafka.common.replica.RackAwareReplicaSelector one that is in sync on the consumer's rack "
        "(client.rack) where there is one.",
        _check_selector,
    ),
    ConfigKey(
        "controlled.shutdown.enable",
        _BOOLEAN,
        "true",
        "Others lead what this broker leads before it stops.",
    ),
    ConfigKey(
        "auto.leader.rebalance.enable",
        _BOOLEAN,
        "true",
        "Partitions are led by the first of their replicas again when that is in sync.",
    ),
    ConfigKey(
        "leader.imbalance.check.interval.seconds",
        _LONG,
        "300",
        "How often is looked at which partitions are not led by the first of their replicas.",
        at_least(1),
    ),
)
