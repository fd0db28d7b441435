"""The settings of a session beside those that it is given, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.spark import sessions
from headrace.tablelayer.spark.jars import SparkSetupError
from headrace.tablelayer.spark.pythons import refuse_py_files
from headrace.tablelayer.spark.sessions import needed_settings, parse_defaults, session

JARS = [Path("/cache/kafka-clients-3.9.1.jar"), Path("/cache/headrace-spark-4.1.jar")]


def test_settings_that_are_given_stay() -> None:
    given = {
        "spark.sql.session.timeZone": "Europe/Paris",
        "spark.python.daemon.module": "ours.daemon",
        "spark.sql.catalog.headrace": "another.Catalog",
    }
    assert not needed_settings(given, JARS).keys() & given.keys()
    assert given.keys() < needed_settings({}, JARS).keys()


def test_lists_have_the_given_parts_first_and_no_part_twice() -> None:
    given = {
        "spark.jars": "/opt/own.jar, /opt/kafka-clients-3.9.1.jar",
        "spark.sql.extensions": "own.Extensions",
    }
    needed = needed_settings(given, JARS)
    assert needed["spark.jars"] == "/opt/own.jar,/opt/kafka-clients-3.9.1.jar,/cache/headrace-spark-4.1.jar"
    assert needed["spark.sql.extensions"].split(",")[0] == "own.Extensions"
    assert "spark.sql.extensions" not in needed_settings(needed, JARS)
    assert "spark.jars" not in needed_settings(needed, JARS)


def test_without_the_catalogs_jar_there_is_no_catalog() -> None:
    assert "spark.sql.catalog.headrace" not in needed_settings({}, JARS[:1])
    assert "spark.sql.catalog.headrace" in needed_settings({}, []), "no jars are needed if all are there"


def test_the_file_of_defaults_is_read_as_spark_reads_it() -> None:
    text = "# a comment\n\nspark.master   spark://h:7077\nspark.a=b=c\nspark.b: d e\nspark.empty\n"
    assert parse_defaults(text) == {
        "spark.master": "spark://h:7077",
        "spark.a": "b=c",
        "spark.b": "d e",
        "spark.empty": "",
    }


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The kind of session that was started instead of one of Spark, with its arguments."""
    found: dict[str, Any] = {}

    def starting(kind: str) -> Any:
        def start(*arguments: Any) -> object:
            found.update(kind=kind, arguments=arguments)
            return object()

        return start

    for kind in ("_local", "_on_a_cluster", "_connected"):
        monkeypatch.setattr(sessions, kind, starting(kind))
    monkeypatch.setattr(sessions, "_is_running", lambda: False)
    monkeypatch.setattr("headrace.tablelayer.spark.source.register", lambda _: None)
    for name in (
        "SPARK_REMOTE",
        "SPARK_HOME",
        "SPARK_CONF_DIR",
        "PYSPARK_SUBMIT_ARGS",
        "PYSPARK_GATEWAY_PORT",
    ):
        monkeypatch.delenv(name, raising=False)
    return found


def test_a_session_without_a_master_is_local(chosen: dict[str, Any]) -> None:
    session("app", cores=3)
    assert chosen["kind"] == "_local"
    assert chosen["arguments"][1:3] == (3, "1g")


@pytest.mark.parametrize(
    ("kind", "named", "environment"),
    [
        ("_on_a_cluster", {"master": "spark://h:7077"}, {}),
        ("_on_a_cluster", {"extra": {"spark.master": "yarn"}}, {}),
        ("_on_a_cluster", {}, {"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell"}),
        ("_connected", {"master": "sc://h"}, {}),
        ("_connected", {}, {"SPARK_REMOTE": "sc://h"}),
    ],
)
def test_a_session_runs_on_the_configured_master(
    chosen: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    named: dict[str, Any],
    environment: dict[str, str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    session("app", **named)
    assert chosen["kind"] == kind
    with pytest.raises(SparkSetupError, match=r"spark\.executor\.cores"):
        session("app", cores=2, **named)


def test_the_file_of_defaults_sets_the_master_of_a_session(
    chosen: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.master spark://h:7077\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    session("app")
    assert chosen["kind"] == "_on_a_cluster"
    assert chosen["arguments"][1]["spark.master"] == "spark://h:7077"


def test_the_wheel_in_py_files_is_refused_with_the_remedy() -> None:
    refuse_py_files({"spark.submit.pyFiles": "/home/own_helpers.zip,/home/other-1.0.whl"})
    with pytest.raises(SparkSetupError, match="headrace spark env"):
        refuse_py_files({"spark.submit.pyFiles": "/home/own.zip,/home/headrace-0.1.0-py3-none-any.whl"})
