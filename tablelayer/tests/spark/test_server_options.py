"""How the data source's options say where a server is and how to be let in, and that nothing shows a password."""

from typing import Any

import pytest

from tablelayer.client import ConnectionSettings
from tablelayer.spark.builder import bootstrap_of
from tablelayer.spark.options import ReadOptions, WriteOptions, server_of, server_options

PASSWORD = "pencil of wonder"
JAAS = f'x.ScramLoginModule required username="ann" password="{PASSWORD}";'
GIVEN = {
    "bootstrap.servers": "h:1",
    "table": "db.t",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-256",
    "kafka.sasl.jaas.config": JAAS,
    "kafka.group.id": "shared with the Kafka source",
}
SETTINGS = ConnectionSettings.make(
    "h:1",
    {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": JAAS},
)


def test_options_are_those_of_sparks_kafka_source() -> None:
    for options in (GIVEN, {name.upper(): value for name, value in GIVEN.items()}):
        for parsed in (ReadOptions.parse(options), WriteOptions.parse(options)):
            assert parsed.bootstrap == SETTINGS
            assert PASSWORD not in repr(parsed)
    as_in_kafka = {"kafka.bootstrap.servers": "h:2", "table": "db.t"}
    assert ReadOptions.parse(as_in_kafka).bootstrap == ConnectionSettings("h:2")


def test_settings_go_through_options_unchanged() -> None:
    options = {**server_options(SETTINGS), "spec": "of somebody else"}
    assert server_of(options) == SETTINGS
    assert server_of({"bootstrap.servers": "h:1"}) == ConnectionSettings("h:1")


def test_errors_of_options_show_no_password() -> None:
    for wrong in ({"tabel": "x"}, {"kafka.sasl.pasword": PASSWORD}, {"limit": "many"}):
        with pytest.raises(ValueError) as caught:
            ReadOptions.parse(GIVEN | wrong)
        assert PASSWORD not in str(caught.value)


class Conf:
    def __init__(self, settings: dict[str, str]) -> None:
        self.getAll = settings

    def get(self, name: str, default: str) -> str:
        return self.getAll.get(name, default)


class Session:
    def __init__(self, settings: dict[str, str]) -> None:
        self.conf: Any = Conf(settings)


def test_the_sessions_settings_are_properties_too(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Session(
        {
            "spark.headrace.bootstrap.servers": "h:1",
            "spark.headrace.kafka.security.protocol": "SASL_SSL",
            "spark.headrace.kafka.sasl.mechanism": "SCRAM-SHA-256",
            "spark.headrace.kafka.sasl.jaas.config": JAAS,
            "spark.master": "local",
        }
    )
    assert bootstrap_of(spark, None) == SETTINGS
    assert bootstrap_of(spark, "h:2") == ConnectionSettings("h:2", SETTINGS.properties)
    other = ConnectionSettings("h:3")
    assert bootstrap_of(spark, other) is other
    monkeypatch.setenv("HEADRACE_CLIENT_SECURITY_PROTOCOL", "SSL")
    assert bootstrap_of(Session({}), "h:1").named() == {"security.protocol": "SSL"}
