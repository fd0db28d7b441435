from __future__ import annotations

import uuid

import pytest

from headrace.broker.configs.broker_config import BROKER_CONFIGS, BrokerConfig
from headrace.broker.configs.config_key import ConfigError, ConfigKey, ConfigType
from headrace.broker.configs.listeners import parse_listener
from headrace.broker.metadata.topic_config import TopicConfigs
from headrace.broker.partitions.topic import TopicImage


def test_every_declared_default_is_legal_and_documented() -> None:
    config = BrokerConfig()
    for key in BROKER_CONFIGS:
        assert key.doc.endswith(".")
        if not key.name.endswith("*"):
            assert config[key.name] == key.default_value
    assert len({key.name for key in BROKER_CONFIGS}) == len(BROKER_CONFIGS)


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(
        ConfigError, match=r"Unknown broker config name: num.partition; did you mean 'num.partitions'"
    ):
        BrokerConfig({"num.partition": "3"})
    with pytest.raises(ConfigError, match=r": qqqqqqqqqq$"):
        BrokerConfig({"qqqqqqqqqq": "3"})


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("num.partitions", "0", "at least 1"),
        ("num.partitions", "many", "Not a number of type INT"),
        ("num.partitions", "99999999999", "Not a number of type INT"),
        ("auto.create.topics.enable", "yes", "either true or false"),
        ("advertised.listeners", "nowhere", "host:port"),
    ],
)
def test_an_illegal_value_is_named(name, text, problem) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        BrokerConfig({name: text})
    assert name in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("explicit", "words"),
    [
        (
            {"group.consumer.session.timeout.ms": "1000"},
            r"group.consumer.session.timeout.ms must be greater than or equal to "
            r"group.consumer.min.session.timeout.ms; they are 1000 and 45000",
        ),
        ({"group.consumer.session.timeout.ms": "60001"}, "less than or equal to group.consumer.max.session"),
        ({"group.consumer.heartbeat.interval.ms": "4999"}, "or equal to group.consumer.min.heartbeat"),
        ({"group.consumer.heartbeat.interval.ms": "15001"}, "or equal to group.consumer.max.heartbeat"),
        ({"group.consumer.max.session.timeout.ms": "44999"}, "must be"),
        ({"group.min.session.timeout.ms": "1800001"}, "group.max.session.timeout.ms must be greater"),
        (
            {
                "group.consumer.min.session.timeout.ms": "1000",
                "group.consumer.session.timeout.ms": "5000",
            },
            "must be greater than group.consumer.heartbeat.interval.ms; they are 5000 and 5000",
        ),
    ],
)
def test_group_timeouts_keep_to_their_own_bounds(explicit, words) -> None:
    with pytest.raises(ConfigError, match=words):
        BrokerConfig(explicit)


def test_an_extension_declares_its_own() -> None:
    key = ConfigKey("datalake.warehouse", ConfigType.STRING, None, "Where.")
    assert BrokerConfig({"datalake.warehouse": "/x"}, [key])["datalake.warehouse"] == "/x"
    with pytest.raises(ConfigError):
        BrokerConfig({"datalake.warehouse": "/x"})


def test_files_in_both_formats_and_sets_on_top(tmp_path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("# comment\n\nnum.partitions = 3\nlog.retention.hours=1\n")
    toml = tmp_path / "server.toml"
    toml.write_text('num.partitions = 3\n"log.retention.hours" = 1\nauto.create.topics.enable = false\n')
    for file in (properties, toml):
        config = BrokerConfig.load({"log.retention.hours": "2"}, file)
        assert (config["num.partitions"], config["log.retention.hours"]) == (3, 2)
    assert BrokerConfig.load({}, toml)["auto.create.topics.enable"] is False
    properties.write_text("nonsense\n")
    with pytest.raises(ConfigError, match="line 1"):
        BrokerConfig.load({}, properties)
    with pytest.raises(ConfigError, match="cannot be read"):
        BrokerConfig.load({}, tmp_path / "missing")


@pytest.mark.parametrize(
    ("explicit", "expected"),
    [
        ({}, {}),
        ({"log.retention.hours": "2"}, {"retention.ms": "7200000"}),
        ({"log.retention.hours": "2", "log.retention.minutes": "5"}, {"retention.ms": "300000"}),
        ({"log.retention.minutes": "5", "log.retention.ms": "9"}, {"retention.ms": "9"}),
        ({"log.retention.hours": "-1"}, {"retention.ms": "-1"}),
        (
            {"log.roll.hours": "1", "log.segment.bytes": "1000"},
            {"segment.ms": "3600000", "segment.bytes": "1000"},
        ),
        ({"message.max.bytes": "77"}, {"max.message.bytes": "77"}),
    ],
)
def test_broker_configurations_are_the_defaults_of_topics(explicit, expected) -> None:
    assert BrokerConfig(explicit).topic_defaults() == expected


def test_a_topics_own_configuration_goes_before_the_brokers_and_journals_are_never_cut_by_age() -> None:
    configs = TopicConfigs({"retention.ms": "5", "segment.bytes": "1000"})

    def of(internal: bool = False, **config: str) -> tuple[int, int]:
        named = {name.replace("_", "."): value for name, value in config.items()}
        parsed = configs.log_config(TopicImage("t", uuid.uuid4(), 1, named, internal))
        return parsed.retention_ms, parsed.segment_bytes

    assert of() == (5, 1000)
    assert of(retention_ms="7") == (7, 1000)
    assert of(internal=True) == (-1, 1000)
    assert of(internal=True, retention_ms="7", segment_bytes="2000") == (7, 2000)
    configs.defaults_changed({"retention.ms": "6"}, 60_000)
    assert of() == (6, 1 << 30)


def test_topics_with_equal_configurations_share_one_object() -> None:
    """Each partition keeps it; it takes a third of a kilobyte."""
    configs = TopicConfigs({}, [ConfigKey("table.schema", ConfigType.STRING, None, "A schema.")])

    def of(**config: str) -> object:
        named = {name.replace("_", "."): value for name, value in config.items()}
        return configs.log_config(TopicImage(str(uuid.uuid4()), uuid.uuid4(), 1, named))

    assert of(table_schema="a") is of(table_schema="b") is of()
    assert of(retention_ms="7") is of(retention_ms="7") is not of()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("PLAINTEXT://kafka.example:1", ("kafka.example", 1)),
        ("[::1]:0", ("::1", 0)),
    ],
)
def test_listeners(text, expected) -> None:
    assert parse_listener(text) == expected


def test_a_key_with_a_star_declares_every_name_that_begins_so() -> None:
    family = ConfigKey("lake.*", ConfigType.STRING, None, "Properties of the lake.")
    config = BrokerConfig({"lake.uri": "http://x"}, [family])
    assert config["lake.uri"] == "http://x"
    assert config.explicit == {"lake.uri": "http://x"}
    assert "lake.*" not in config.keys
    assert config.layers("lake.uri")[0][0] == "http://x"
    with pytest.raises(ConfigError, match="Unknown broker config name: lakes"):
        BrokerConfig({"lakes": "1"}, [family])
