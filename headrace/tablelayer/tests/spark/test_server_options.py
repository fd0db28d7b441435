"""The data source's options for a server's address and credentials, and that no output shows a password."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle

from headrace.tablelayer.client import ConnectionSettings
from headrace.tablelayer.spark.builder import TableBuilder, bootstrap_of, conf_options
from headrace.tablelayer.spark.options import (
    ReadOptions,
    WriteOptions,
    names_server,
    server_of,
    server_options,
)
from headrace.tablelayer.spark.source import HeadraceDataSource

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


def test_options_of_spark_and_other_sources_are_ignored() -> None:
    foreign = {
        "queryName": "named", "provider": "headrace", "owner": "ann", "option.table": "stored.t", "mergeSchema": "true",
        "option.kafka.group.id": "g", "checkpointLocation": "/tmp/x", "subscribe": "topic", "path": "/warehouse/t",
    }  # fmt: skip
    for parsed in (ReadOptions.parse(GIVEN | foreign), WriteOptions.parse(GIVEN | foreign)):
        assert (parsed.table, parsed.bootstrap) == ("db.t", SETTINGS)
    stored = {"option.table": "db.t", "option.bootstrap.servers": "h:1", "option.mode": "upsert"}
    assert ReadOptions.parse(stored).mode == "upsert"
    assert WriteOptions.parse(stored).table == "db.t"


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("colums", "columns"), ("tables", "table"), ("starting_offset", "startingOffsets"), ("dbtable", "table"),
        ("maxFilesPerTrigger", "maxOffsetsPerTrigger"), ("option.Modes", "mode"),
    ],
)  # fmt: skip
def test_a_misspelled_option_is_refused_with_the_right_name(slip: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"unknown option {slip}: did you mean {meant}"):
        ReadOptions.parse(GIVEN | {slip: "x"})


def test_the_argument_of_load_may_be_the_table() -> None:
    assert ReadOptions.parse({"bootstrap.servers": "h:1", "path": "db.t"}).table == "db.t"
    changes = ReadOptions.parse({"bootstrap.servers": "h:1", "path": "db.t$changelog"})
    assert (changes.table, changes.mode) == ("db.t", "changelog")
    upserts = ReadOptions.parse({"bootstrap.servers": "h:1", "path": "db.t$changelog", "mode": "upsert"})
    assert (upserts.table, upserts.mode) == ("db.t", "upsert")
    earlier = ReadOptions.parse({"bootstrap.servers": "h:1", "path": "db.t$lake", "snapshot": "7"})
    assert (earlier.view, earlier.snapshot) == ("lake", 7)
    lake = ReadOptions.parse({"bootstrap.servers": "h:1", "path": "db.t$LAKE", "columns": "a", "limit": "3"})
    assert (lake.table, lake.view, lake.columns, lake.limit) == ("db.t", "lake", ("a",), 3)
    files = ReadOptions.parse({"bootstrap.servers": "h:1", "table": "db.t$lake$files"})
    assert (files.table, files.view, files.metadata) == ("db.t", "lake", "files")
    for wrong, said in (
        ({"path": "file:/warehouse/hr"}, "'table' is missing.*CREATE TEMPORARY VIEW"),
        ({"path": "db.t$lakes"}, r"the views of db.t are \$changelog, \$lake, and the lake's own tables"),
        ({"path": "db.t$lake$"}, r"the views of db.t are"),
        ({"path": "db.t$lake$changelog"}, r"the views of db.t are"),
        (
            {"path": "db.t$lake", "startingOffsets": "earliest"},
            "'startingOffsets' applies to the log of db.t",
        ),
        ({"path": "db.t$lake$snapshots", "where": '["=", "a", 1]'}, "'where' applies to the log of db.t"),
        ({"path": "db.t$lake$snapshots", "snapshot": "7"}, "'snapshot' applies to the log of db.t"),
        ({"path": "db.t", "snapshot": "7"}, r"'snapshot' applies only to the lake of db.t, db.t\$lake"),
        ({"path": "db.t$changelog", "mode": "current"}, "leave mode 'current' out"),
    ):
        with pytest.raises(ValueError, match=said):
            ReadOptions.parse({"bootstrap.servers": "h:1", **wrong})


def test_a_server_that_no_option_names_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The catalog's requests are read by `server_of`, the data source's options by `parse`, calls by `bootstrap_of`."""
    table, silent = {"table": "db.t"}, Session({})

    def places() -> set[str]:
        read, write = ReadOptions.parse(table).bootstrap, WriteOptions.parse(table).bootstrap
        return {str(each) for each in (read, write, server_of({}), bootstrap_of(silent, None))}

    assert places() == {"127.0.0.1:9092"}
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=h:7\n")
    monkeypatch.setenv("HEADRACE_CONFIG", str(file))
    assert places() == {"h:7"}
    monkeypatch.setenv("HEADRACE_SERVER", "h:8")
    assert places() == {"h:8"}
    assert str(bootstrap_of(Session({"spark.headrace.bootstrap.servers": "h:9"}), None)) == "h:9"
    assert ReadOptions.parse({**table, "kafka.bootstrap.servers": "h:1"}).bootstrap.bootstrap == "h:1"


def test_a_sessions_server_is_used_when_no_option_names_one() -> None:
    session = Session(
        {"spark.headrace.bootstrap.servers": "h:3", "spark.headrace.kafka.security.protocol": "SSL"}
    )
    defaults = conf_options(session)
    assert ConnectionSettings.make("h:3", {"security.protocol": "SSL"}) == server_of(defaults)
    assert conf_options(Session({})) == {}
    for name in ("bootstrapServers", "kafka.bootstrap.servers", "option.bootstrap.servers"):
        assert names_server({name: "h:1", "table": "db.t"})
    assert not names_server({"table": "db.t", "kafka.group.id": "g"})


IN_ANOTHER_PYTHON = """
import pickle, sys
sys.path[:0] = {folders}
sys.modules["headrace"] = None
source = pickle.loads(sys.stdin.buffer.read())
assert source.name() == "headrace" and source.defaults == {{"bootstrap.servers": "h:4"}}
try:
    source({{"table": "db.t"}}).schema()
except RuntimeError as error:
    print(error)
"""


def test_a_worker_without_headrace_names_the_setting() -> None:
    """Spark sends the class as cloudpickle writes it; here to a Python that has no such package."""
    folders = [str(Path(pyspark.__file__).parents[1])]
    before, HeadraceDataSource.defaults = HeadraceDataSource.defaults, {"bootstrap.servers": "h:4"}
    try:
        sent = cloudpickle.dumps(HeadraceDataSource)
    finally:
        HeadraceDataSource.defaults = before
    program = IN_ANOTHER_PYTHON.format(folders=folders)
    done = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    said = done.stdout.decode()
    assert "has no module 'headrace" in said
    assert f"set PYSPARK_PYTHON={sys.executable}" in said


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

    def get(self, name: str, default: str | None) -> str | None:
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


@pytest.mark.parametrize("read", [lambda built: built.as_of(1), lambda built: built.changelog()])
def test_a_view_of_the_lake_has_neither_changes_nor_offsets(read):
    built = TableBuilder(None, ConnectionSettings.make("127.0.0.1:1"), "default.t$lake$files")
    with pytest.raises(ValueError, match="neither changes nor offsets: read an older snapshot by"):
        read(built).to_df()
