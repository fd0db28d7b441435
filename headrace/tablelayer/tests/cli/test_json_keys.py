"""The JSON of every command that has `-o json`: programs read its keys without quoting them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headrace.tablelayer.cli.main import app
from headrace.tablelayer.client import KafkaError, OutgoingRecord, connect
from headrace.tablelayer.tests.cli.conftest import Served
from headrace.tablelayer.tests.lakes import lake_offered

CASES = """
sql -e SELECT_1_AS_a
sql -e SHOW_DATABASES
sql -e SHOW_TABLES
sql -e SHOW_TOPICS
sql -e SHOW_USERS
sql -e SHOW_GRANTS
sql -e SHOW_PARTITIONS_daily
sql -e SHOW_COLUMNS_FROM_fruit
sql -e DESCRIBE_fruit
sql -e SUMMARIZE_fruit
sql -e EXPLAIN_SELECT_id_FROM_fruit
top -n 1 --interval 0.1
doctor
restore {backups} --list
topics list
topics describe clicks
topics refused
topics produce clicks --value x --key k --header a=b
topics tail clicks
topics delete-records clicks --before 1 --dry-run
tables list
tables describe fruit
tables head fruit
tables tail fruit
tables count fruit
tables partitions daily
tables buckets fruit
tables buckets fruit --at 2024-09-19T12:00:00
tables buckets daily
tables size
tables lookup fruit 1
tables lake
tables lake fruit
groups list
groups describe readers
groups reset readers --to earliest --dry-run
configs list
configs describe topic clicks --all
configs describe broker 0 --all
users list
acls list
cluster status
cluster brokers
"""
SNAKE_CASE = re.compile(r"_?[a-z][a-z0-9]*(_[a-z0-9]+)*")
OF_USERS = {"configs", "options"}
"""Keys of objects whose own keys are names of configurations."""


def commands(of: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the commands that have an option for JSON."""
    for name, each in getattr(of, "commands", {}).items():
        yield from commands(each, (*words, name))
    if any(parameter.name == "output" for parameter in of.params):
        yield " ".join(words)


def keys(value: Any) -> Iterator[str]:
    for each in value if isinstance(value, list) else ():
        yield from keys(each)
    for key, each in value.items() if isinstance(value, dict) else ():
        yield key
        if key not in OF_USERS:
            yield from keys(each)


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(each)


@pytest.mark.slow
def test_all_json_has_keys_in_snake_case_and_values_of_its_own_types(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    sets = (
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:ANONYMOUS",
    )
    words = [word for each in sets for word in ("--set", each)]
    server = serve("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), *words).address

    def run(line: str) -> str:
        given = [each.format(backups=tmp_path / "backups") for each in line.split()]
        done = CliRunner(env={"HEADRACE_SERVER": server}).invoke(
            app, [each.replace("_", " ") if line.startswith("sql") else each for each in given]
        )
        assert done.exit_code == 0, (line, done.stderr)
        return done.stdout

    with connect(server) as connection, lake_offered(connection):
        connection.execute(
            "CREATE TABLE fruit (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)"
            " WITH ('table.datalake.enabled' = 'true', 'table.datalake.format' = 'iceberg');"
            "CREATE TABLE daily (day STRING, n INT) PARTITIONED BY (day)"
        )
        connection.table("fruit").upsert([{"id": 1, "name": "fig"}])
        connection.table("daily").append([{"day": "a", "n": 1}])
        connection.kafka.create_topic("clicks", configs={"retention.ms": "100000"})
        connection.kafka.produce("clicks", [OutgoingRecord(b"x")])
        connection.kafka.commit_offsets("readers", "clicks", {0: 0})
        with pytest.raises(KafkaError):
            connection.kafka.produce("default.fruit", [OutgoingRecord(b"{}")])
    run("acls add ann READ --topic clicks")
    run(f"backup {tmp_path / 'backups'}")
    CliRunner(env={"HEADRACE_SERVER": server}).invoke(app, ["users", "add", "ann"], input="secret\nsecret\n")
    known = set(commands(typer.main.get_command(app)))
    tried = {max((each for each in known if f"{line} ".startswith(f"{each} ")), key=len) for line in lines()}
    assert tried == known, "a command is not among the cases"
    wrong = {}
    for line in lines():
        told = [json.loads(text) for text in run(f"{line} -o json").splitlines()]
        assert told, f"{line} says nothing"
        if found := {key for key in keys(told) if not SNAKE_CASE.fullmatch(key)}:
            wrong[line] = found
        found = {"yes", "no", "SCRAM-SHA-256, SCRAM-SHA-512"} & set(texts(told))
        if found and not line.startswith("sql"):  # its columns are texts
            wrong[line] = found  # instead of true, false, and a list
    assert wrong == {}


def lines() -> list[str]:
    return CASES.strip().splitlines()
