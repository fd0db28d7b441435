"""Broker configurations that change at run time, and those of groups: accepted, shown, stored, applied."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from headrace.broker.configs.broker_config import BROKER_CONFIGS
from headrace.broker.configs.config_key import ConfigType
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.alter_configs import AlterableConfig as ReplacedConfig
from headrace.protocol.messages.alter_configs import AlterConfigsRequest
from headrace.protocol.messages.alter_configs import AlterConfigsResource as ReplacedResource
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from simulator.direct import direct_broker

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
OF_TOPIC, OF_BROKER, OF_ALL, STATIC, DEFAULT, OF_GROUP = 1, 2, 3, 4, 5, 8


async def alter(broker, kind, name, *operations, **options):
    configs = [AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in operations]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    response = await broker.send(IncrementalAlterConfigsRequest(resources=[resource], **options))
    return response.responses[0].error_code, response.responses[0].error_message


async def change(broker, name, **values):
    """Set configurations of the broker, or delete those that are None; they must be accepted."""
    operations = [
        (key.replace("_", "."), DELETE if value is None else SET, value) for key, value in values.items()
    ]
    assert await alter(broker, BROKER, name, *operations) == (0, None)


async def described(broker, kind, name):
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    response = await broker.send(DescribeConfigsRequest(resources=[resource], include_synonyms=True))
    assert response.results[0].error_code == 0
    return {entry.name: entry for entry in response.results[0].configs}


async def source(broker, kind, name, config):
    entry = (await described(broker, kind, name))[config]
    return entry.value, entry.config_source


@asynccontextmanager
async def with_log(tmp_path, config=None):
    """A broker with the topic "t", and the log of its only partition."""
    async with direct_broker(tmp_path, config) as broker:
        if broker.context.metadata.topic("t") is None:
            await broker.create_topic("t")
        await broker.produce("t", [b"x"])
        yield broker, broker.context.replicas.partition("t", 0).log


async def test_a_change_counts_at_once_is_shown_with_its_source_and_survives_a_restart(tmp_path):
    static = {"log.retention.hours": "1", "message.max.bytes": "5000"}
    async with with_log(tmp_path, static) as (broker, log):
        assert (log.config.retention_ms, log.config.max_message_bytes) == (3_600_000, 5000)
        assert await source(broker, TOPIC, "t", "retention.ms") == ("3600000", STATIC)
        hours = (await described(broker, TOPIC, "t"))["retention.ms"].synonyms[0]
        assert (hours.name, hours.value, hours.source) == ("log.retention.hours", "1", STATIC)
        await change(broker, "", log_retention_ms="7000", message_max_bytes="6000")
        assert (log.config.retention_ms, log.config.max_message_bytes) == (7000, 6000)
        await change(broker, "0", log_retention_ms="8000")
        assert log.config.retention_ms == 8000
        assert await source(broker, TOPIC, "t", "retention.ms") == ("8000", OF_BROKER)
        assert await source(broker, TOPIC, "t", "max.message.bytes") == ("6000", OF_ALL)
        await broker.create_topic("own", retention_ms="9000")
        assert await source(broker, TOPIC, "own", "retention.ms") == ("9000", OF_TOPIC)
        assert (await broker.produce("t", [b"x" * 6000])).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await broker.produce("t", [b"x" * 5500])).error_code == 0
    async with with_log(tmp_path, static) as (broker, log):
        assert (log.config.retention_ms, log.config.max_message_bytes) == (8000, 6000)
        entries = await described(broker, BROKER, "0")
        retention = entries["log.retention.ms"]
        assert [(s.value, s.source) for s in retention.synonyms] == [
            ("8000", OF_BROKER),
            ("7000", OF_ALL),
        ], "where it is not set is no synonym"
        sizes = [(s.value, s.source) for s in entries["message.max.bytes"].synonyms]
        assert sizes == [("6000", OF_ALL), ("5000", STATIC), ("1048588", DEFAULT)]
        of_all = (await described(broker, BROKER, ""))["log.retention.ms"]
        assert of_all.config_source == OF_ALL
        await change(broker, "0", log_retention_ms=None)
        assert log.config.retention_ms == 7000
        await change(broker, "", log_retention_ms=None, message_max_bytes=None)
        assert (log.config.retention_ms, log.config.max_message_bytes) == (3_600_000, 5000)
    async with with_log(tmp_path) as (broker, log):
        assert (log.config.retention_ms, log.config.max_message_bytes) == (604_800_000, 1_048_588)


async def test_every_dynamic_configuration_is_taken_and_every_other_one_refused_with_the_reason(tmp_path):
    async with with_log(tmp_path) as (broker, _):
        entries = await described(broker, BROKER, "0")
        for key in (key for key in BROKER_CONFIGS if not key.name.endswith("*")):
            assert entries[key.name].read_only is not key.dynamic
            value = "5" if key.default is None else key.default
            code, message = await alter(broker, BROKER, "0", (key.name, SET, value))
            if key.dynamic:
                assert (code, message) == (0, None), key.name
                shown = None if key.type == ConfigType.PASSWORD else value
                assert await source(broker, BROKER, "0", key.name) == (shown, OF_BROKER)
            else:
                assert code == ErrorCode.INVALID_REQUEST, key.name
                assert key.name in message
                assert "set it when you start it" in message
            assert await alter(broker, BROKER, "0", (key.name, DELETE, None)) == (0, None)
        assert {key.name for key in BROKER_CONFIGS if key.dynamic} >= {
            "log.retention.ms", "log.retention.bytes", "log.cleaner.backoff.ms", "log.cleanup.policy",
            "log.cleaner.dedupe.buffer.size", "log.cleaner.io.max.bytes.per.second", "message.max.bytes",
            "log.cleaner.delete.retention.ms", "producer.id.expiration.ms", "max.connections",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "operation", "code", "words"),
    [
        ("0", ("log.retention.ms", SET, "soon"), ErrorCode.INVALID_CONFIG, "Not a number of type LONG"),
        ("", ("log.retention.mss", SET, "1"), ErrorCode.INVALID_CONFIG, "log.retention.ms"),
        ("", ("log.cleaner.threads", SET, "2"), ErrorCode.INVALID_CONFIG, "no more than 1"),
        ("", ("log.preallocate", SET, "maybe"), ErrorCode.INVALID_CONFIG, "either true or false"),
        ("0", ("log.cleaner.min.compaction.lag.ms", SET, "6"), ErrorCode.INVALID_CONFIG, "topic lagging"),
        ("9", ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 0"),
        (
            "0",
            ("log.retention.ms", APPEND, "1"),
            ErrorCode.INVALID_CONFIG,
            "Can't APPEND to key log.retention.ms",
        ),
    ],
)
async def test_a_refused_configuration_changes_nothing(tmp_path, name, operation, code, words):
    async with with_log(tmp_path) as (broker, log):
        await broker.create_topic("lagging", max_compaction_lag_ms="5")
        before = log.config
        answer, message = await alter(broker, BROKER, name, ("log.roll.ms", SET, "77"), operation)
        assert (answer, words in message) == (code, True), message
        assert log.config == before
        assert await source(broker, BROKER, "0", "log.roll.ms") == (None, DEFAULT)
    async with with_log(tmp_path) as (_, log):
        assert log.config == before


async def test_lists_dry_runs_and_replacement(tmp_path):
    async with with_log(tmp_path) as (broker, log):
        assert await alter(broker, BROKER, "", ("log.retention.ms", SET, "1"), validate_only=True) == (
            0,
            None,
        )
        assert log.config.retention_ms == 604_800_000
        assert await alter(broker, BROKER, "0", ("leader.replication.throttled.rate", DELETE, None)) == (
            0,
            None,
        )
        await alter(broker, BROKER, "", ("log.cleanup.policy", APPEND, "compact"))
        assert log.config.cleanup_policy == ("delete", "compact")
        await alter(broker, BROKER, "", ("log.cleanup.policy", SUBTRACT, "compact"))
        assert log.config.cleanup_policy == ("delete",)
        await change(broker, "0", log_retention_ms="5", log_roll_ms="6")
        replaced = [ReplacedConfig(name="log.roll.ms", value="7")]
        resource = ReplacedResource(resource_type=BROKER, resource_name="0", configs=replaced)
        answer = await broker.send(AlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == 0
        assert (log.config.retention_ms, log.config.segment_ms) == (604_800_000, 7)


async def test_configurations_that_are_not_topic_defaults_take_effect(tmp_path):
    async with with_log(tmp_path) as (broker, log):
        await change(broker, "0", max_connections="3", producer_id_expiration_ms="60000")
        assert broker.broker.network._slots.max_of_all == 3
        assert log.config.producer_id_expiration_ms == 60_000
        await change(broker, "", log_cleaner_backoff_ms="10")
        assert broker.context.config["log.cleaner.backoff.ms"] == 10
        internal = broker.context.metadata.topic_configs
        await change(broker, "", log_retention_ms="5")
        await broker.context.topics.create_topic("__consumer_offsets", 1)
        image = broker.context.metadata.topic("__consumer_offsets")
        assert internal.log_config(image).retention_ms == -1, "journals are not cut by age"
        assert await source(broker, TOPIC, image.name, "retention.ms") == ("-1", DEFAULT)


async def test_configurations_of_a_group_hold_for_its_members_and_survive_a_restart(tmp_path):
    session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"

    async def told(broker, group):
        """Return the heartbeat interval that a new member of the consumer protocol is given."""
        for _ in range(6000):
            request = ConsumerGroupHeartbeatRequest(
                group_id=group,
                member_id=str(broker.context.entropy.uuid()),
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=["t"],
                topic_partitions=[],
            )
            answer = await broker.send(request)
            if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                assert answer.error_code == 0
                return answer.heartbeat_interval_ms
            await asyncio.sleep(0.01)
        return None

    static = {"group.consumer.session.timeout.ms": "46000"}
    async with direct_broker(tmp_path, static) as broker:
        await broker.create_topic("t")
        assert await source(broker, GROUP, "g", session) == ("46000", STATIC)
        assert await source(broker, GROUP, "g", interval) == ("5000", DEFAULT)
        assert await told(broker, "g") == 5000
        assert await alter(broker, GROUP, "g", (session, SET, "50000"), (interval, SET, "7000")) == (
            0,
            None,
        )
        assert await source(broker, GROUP, "g", session) == ("50000", OF_GROUP)
        assert (await told(broker, "g"), await told(broker, "other")) == (7000, 5000)
        for bad in [(session, SET, "44999"), (session, SET, "60001"), (interval, SET, "15001")]:
            code, message = await alter(broker, GROUP, "g", bad)
            assert code == ErrorCode.INVALID_CONFIG
            assert bad[0] in message
        code, message = await alter(broker, GROUP, "g", ("consumer.sesion.timeout.ms", SET, "1"))
        assert (code, session in message) == (ErrorCode.INVALID_CONFIG, True)
        assert (await alter(broker, GROUP, "", (session, SET, "50000")))[0] == ErrorCode.INVALID_REQUEST
    async with direct_broker(tmp_path, static) as broker:
        assert await told(broker, "g") == 7000
        assert await alter(broker, GROUP, "g", (interval, DELETE, None)) == (0, None)
        assert await told(broker, "g") == 5000
        assert await source(broker, GROUP, "g", session) == ("50000", OF_GROUP)
