"""Listeners as Kafka's configurations name them."""

from __future__ import annotations

import pytest

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.listeners import Listener, SecurityProtocol

LISTEN = ("127.0.0.1", 9092)


def listeners(**explicit: str) -> list[tuple[str, str, str, int, tuple[str, int] | None]]:
    config = BrokerConfig({name.replace("_", "."): text for name, text in explicit.items()})
    return [
        (each.name, each.protocol, each.host, each.port, each.advertised) for each in config.listeners(LISTEN)
    ]


def test_without_a_configuration_there_is_the_one_of_the_command_line() -> None:
    assert BrokerConfig().listeners(LISTEN) == (
        Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT, "127.0.0.1", 9092),
    )
    assert listeners(advertised_listeners="kafka.example:9092") == [
        ("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092, ("kafka.example", 9092))
    ]


def test_several_with_names_of_their_own_each_with_its_address() -> None:
    assert listeners(
        listeners="INTERNAL://:9092,external://0.0.0.0:9093,SASL_SSL://[::1]:9094",
        listener_security_protocol_map="INTERNAL:PLAINTEXT,EXTERNAL:SSL,SASL_SSL:SASL_SSL",
        advertised_listeners="INTERNAL://broker-0.local:9092,EXTERNAL://kafka.example:443",
        inter_broker_listener_name="INTERNAL",
    ) == [
        ("INTERNAL", "PLAINTEXT", "", 9092, ("broker-0.local", 9092)),
        ("EXTERNAL", "SSL", "0.0.0.0", 9093, ("kafka.example", 443)),
        ("SASL_SSL", "SASL_SSL", "::1", 9094, None),
    ]


def test_the_file_of_a_broker_that_is_its_own_controller_opens_no_listener_for_controllers() -> None:
    assert listeners(
        listeners="PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        controller_listener_names="CONTROLLER",
        advertised_listeners="PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        listener_security_protocol_map="CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    ) == [("PLAINTEXT", "PLAINTEXT", "localhost", 9092, ("localhost", 9092))]


@pytest.mark.parametrize(
    ("explicit", "words"),
    [
        ({"listeners": "A://:1"}, "No security protocol defined for listener A"),
        ({"listeners": "SSL://:1,SSL://:2"}, "must have a different name; SSL is named twice"),
        ({"listeners": "SSL://h:1,PLAINTEXT://h:1"}, "SSL and PLAINTEXT have the same address"),
        ({"listeners": "h:1"}, "write NAME://host:port"),
        ({"listeners": "SSL://h:70000"}, "is not an address"),
        (
            {"listeners": "CONTROLLER://h:1", "controller.listener.names": "CONTROLLER"},
            "no listener for clients",
        ),
        ({"listener.security.protocol.map": "A:TLS"}, "'A:TLS' is not NAME:PROTOCOL"),
        ({"advertised.listeners": "SSL://h:1"}, "names SSL, which is not in listeners; it has PLAINTEXT"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "an address that clients can connect to"),
        (
            {"listeners": "SSL://h:1,PLAINTEXT://h:2", "advertised.listeners": "h:1"},
            "the listener of each address",
        ),
        ({"inter.broker.listener.name": "SSL"}, "which is not in listeners"),
        (
            {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
            "Only one of inter.broker.listener.name and security.inter.broker.protocol",
        ),
    ],
)
def test_contradicting_listener_settings_are_refused_with_the_reason(explicit, words) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(explicit)
    assert words in str(refused.value)


def test_a_configuration_may_be_for_one_listener_alone() -> None:
    names = {"listener.security.protocol.map": "EXTERNAL:SSL,INTERNAL:SSL"}
    config = BrokerConfig(
        {**names, "ssl.client.auth": "none", "listener.name.external.ssl.client.auth": "required"}
    )
    assert config.of_listener("EXTERNAL", "ssl.client.auth") == "required"
    assert config.of_listener("INTERNAL", "ssl.client.auth") == "none"
    assert config.is_set_for("EXTERNAL", "ssl.client.auth")
    assert not config.is_set_for("INTERNAL", "ssl.client.auth")
    for name, value, words in (
        (
            "listener.name.external.ssl.client.auth",
            "maybe",
            "String must be one of: none, requested, required",
        ),
        ("listener.name.external.ssl.client.outh", "none", "did you mean"),
        ("listener.name.external.", "none", "Unknown broker config name"),
        (
            "listener.name.externel.ssl.client.auth",
            "none",
            r"Unknown listener in the config name listener.name.externel.ssl.client.auth; "
            r"did you mean listener.name.external.\*\?",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            BrokerConfig({**names, name: value})
