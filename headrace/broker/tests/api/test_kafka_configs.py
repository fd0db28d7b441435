"""Kafka's broker configurations without an effect here: known by name, and shown with their source and true value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.broker.api.configs import _describe_broker
from headrace.broker.configs.broker_config import BROKER_CONFIGS, BrokerConfig
from headrace.broker.configs.config_key import ConfigError, ConfigKey, ConfigType
from headrace.broker.configs.kafka import KAFKA_CONFIGS
from headrace.broker.tests.api.test_broker_configs import (
    BROKER,
    DELETE,
    OF_ALL,
    OF_BROKER,
    SET,
    STATIC,
    alter,
    described,
)
from headrace.protocol.errors import ErrorCode
from simulator.direct import direct_broker


async def test_every_broker_configuration_of_kafka_is_listed(tmp_path) -> None:
    """The names that Kafka 4.3.1 answers to DescribeConfigs of a broker."""
    async with direct_broker(tmp_path) as broker:
        entries = await described(broker, BROKER, "0")
        names = json.loads((Path(__file__).parent / "kafka_broker_configs.json").read_text())
        assert len(names) == 340
        assert not set(names).difference(entries)
        for name, (kind, dynamic) in names.items():
            if name not in {key.name for key in BROKER_CONFIGS}:
                entry = entries[name]
                changes = dynamic and name not in ("listeners", "listener.security.protocol.map")
                assert (ConfigType(entry.config_type).name, not entry.read_only) == (kind, changes), name
                assert entry.is_sensitive == (kind == "PASSWORD")


def test_each_is_documented_and_its_default_is_taken() -> None:
    assert len({key.name for key in (*KAFKA_CONFIGS, *BROKER_CONFIGS)}) == len(KAFKA_CONFIGS) + len(
        BROKER_CONFIGS
    )
    defaults = {key.name: key.default for key in KAFKA_CONFIGS if key.default is not None}
    config = BrokerConfig(defaults)
    for key in KAFKA_CONFIGS:
        assert key.doc.endswith(".")
        assert config[key.name] == key.default_value


def test_a_kafka_server_file_is_accepted_where_ignoring_it_is_harmless(tmp_path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        """process.roles=broker,controller
controller.quorum.bootstrap.servers=localhost:9093
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=16
offsets.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.min.isr=1
replica.lag.time.max.ms=10000
"""
    )
    config = BrokerConfig.load(file=file)
    assert config.layers("num.io.threads") == [("16", STATIC), ("8", 5)]


KRAFT = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
socket.send.buffer.bytes=102400
log.dirs=/tmp/kraft-combined-logs
num.partitions=4
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=3
metric.reporters=com.example.Reporter
remote.log.storage.system.enable=true
confluent.support.metrics.enable=true
log.retention.hour=7
"""


def test_a_whole_file_of_kafka_s_is_taken_with_one_report_of_what_is_not_used(tmp_path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(KRAFT)
    config = BrokerConfig.load({"num.network.threads": "4"}, file)
    assert (config["num.partitions"], config["node.id"], len(config.listeners(("127.0.0.1", 1)))) == (4, 1, 1)
    assert [each.split(":")[0] for each in config.unused] == [
        "process.roles", "controller.quorum.bootstrap.servers", "controller.listener.names", "log.dirs",
        "share.coordinator.state.topic.replication.factor", "metric.reporters",
        "confluent.support.metrics.enable", "log.retention.hour",
    ]  # fmt: skip
    reasons = "\n".join(config.unused)
    assert "log.dirs: Data directory; set it with --data on the command line" in reasons
    assert (
        "log.retention.hour: not a configuration of a broker; did you mean 'log.retention.hours'?" in reasons
    )
    assert BrokerConfig.load({}, None).unused == ()
    file.write_text("broker.id=7\n")
    assert BrokerConfig.load({}, file)["node.id"] == 7
    assert BrokerConfig.load({"node.id": "8"}, file)["node.id"] == 8


def test_unsupported_necessary_configurations_are_refused_together(tmp_path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        KRAFT + "authorizer.class.name=com.example.Ranger\nnum.io.threads=many\nsasl.jaas.config=hunter2\n"
    )
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.load({}, file)
    lines = str(refused.value).splitlines()
    assert lines[0] == f"{file} cannot be used:"
    for line, name in zip(
        lines[1:], ("authorizer.class.name", "num.io.threads", "sasl.jaas.config"), strict=True
    ):
        assert name in line
    assert "hunter2" not in str(refused.value)
    toml = tmp_path / "server.toml"
    toml.write_text("num.partition = 3\nnum.io.thread = 4\n")
    with pytest.raises(ConfigError, match=r"(?s)num.partition; did you mean .*num.io.thread; did you mean"):
        BrokerConfig.load({}, toml)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("share.coordinator.state.topic.replication.factor", "3", "there are no share groups. Leave it at 1"),
        ("sasl.kerberos.service.name", "kafka", "Not offered"),
        ("authorizer.class.name", "com.example.Ranger", "allow everything to all users"),
        (
            "listener.security.protocol.map",
            "A:PLAINTEXT,B:TLS",
            "'B:TLS' is not NAME:PROTOCOL; the protocols are",
        ),
        ("create.topic.policy.class.name", "com.example.Policy", "its default (not set)"),
        ("queued.max.request.bytes", "10", "Leave it at -1"),
        ("group.coordinator.rebalance.protocols", "classic", "Leave it at 'classic,consumer'"),
        ("log.dirs", "/var/lib/kafka", "--data"),
        ("num.io.threads", "many", "Not a number of type INT"),
    ],
)
def test_a_configuration_that_would_be_missed_is_refused_with_the_reason(name, value, words) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig({name: value})
    assert f"Invalid value {value} for configuration {name}" in str(refused.value)
    assert words in str(refused.value)


def test_a_secret_is_not_repeated_by_the_refusal() -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig({"sasl.jaas.config": "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_a_secret_is_described_as_set_without_its_value() -> None:
    key = ConfigKey("catalog.token", ConfigType.PASSWORD, None, "A secret.")
    entries = _describe_broker(BrokerConfig({"catalog.token": "hunter2"}, [key]), for_all=False)
    (entry,) = (entry for entry in entries if entry.name == "catalog.token")
    assert (entry.value, entry.is_sensitive, entry.config_source) == (None, True, STATIC)
    assert [(each.value, each.source) for each in entry.synonyms] == [(None, STATIC)]


async def test_ignored_configurations_are_altered_and_kept_as_in_kafka(tmp_path) -> None:
    async with direct_broker(tmp_path, {"num.network.threads": "4"}) as broker:
        assert await alter(broker, BROKER, "0", ("num.io.threads", SET, "12")) == (0, None)
        assert await alter(broker, BROKER, "", ("leader.replication.throttled.rate", SET, "1000")) == (
            0,
            None,
        )
        code, message = await alter(broker, BROKER, "0", ("default.replication.factor", SET, "1"))
        assert code == ErrorCode.INVALID_REQUEST
        assert message.startswith("Cannot update these configs dynamically: [default.replication.factor]")
        code, message = await alter(broker, BROKER, "0", ("sasl.jaas.config", SET, "hunter2"))
        assert code == ErrorCode.INVALID_CONFIG
        assert "hunter2" not in message
    async with direct_broker(tmp_path, {"num.network.threads": "4"}) as broker:
        entries = await described(broker, BROKER, "0")
        assert (entries["num.io.threads"].value, entries["num.io.threads"].config_source) == (
            "12",
            OF_BROKER,
        )
        rate = entries["leader.replication.throttled.rate"]
        assert (rate.value, rate.config_source) == ("1000", OF_ALL)
        threads = entries["num.network.threads"]
        assert [(each.name, each.value, each.source) for each in threads.synonyms] == [
            ("num.network.threads", "4", STATIC),
            ("num.network.threads", "3", 5),
        ]
        assert await alter(broker, BROKER, "0", ("num.io.threads", DELETE, None)) == (0, None)


@pytest.mark.parametrize("name", ["0", ""])
async def test_listeners_and_directories_are_described_with_their_real_values(tmp_path, name) -> None:
    async with direct_broker(tmp_path) as broker:
        entries = await described(broker, BROKER, name)
        shown = {key: entries[key].value for key in ("listeners", "log.dirs", "broker.id", "log.dir")}
        assert shown == {
            "listeners": f"PLAINTEXT://127.0.0.1:{broker.broker.port}",
            "log.dirs": str(tmp_path),
            "broker.id": "0",
            "log.dir": None,
        }
        if name:
            assert entries["listeners"].config_source == STATIC
        assert entries["default.replication.factor"].value == "1"
