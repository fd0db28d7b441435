"""`headrace tables create --from-topic`: tables for what connectors and other programs have written."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import Result

from headrace.tablelayer.cli import backfill as backfilling
from headrace.tablelayer.cli.backfill import backfill
from headrace.tablelayer.cli.connect import COPYING_PATIENCE_MS
from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.client import RequestTimeout, connect


def field(name: str, kind: str, meaning: str | None = None, **more: Any) -> dict[str, Any]:
    return {"field": name, "type": kind, "optional": True, **({"name": meaning} if meaning else {}), **more}


FIELDS = [
    field("id", "int64", optional=False),
    field("name", "string", optional=False),
    field("price", "bytes", "org.apache.kafka.connect.data.Decimal",
          parameters={"scale": "2", "connect.decimal.precision": "12"}),
    field("weight", "struct", "io.debezium.data.VariableScaleDecimal"),
    field("made", "int64", "io.debezium.time.Timestamp"),
    field("changed", "int64", "io.debezium.time.MicroTimestamp"),
    field("seen", "string", "io.debezium.time.ZonedTimestamp"),
    field("since", "int32", "io.debezium.time.Date"),
    field("due", "int64", "io.debezium.time.MicroTime"),
    field("tags", "array", items={"type": "string", "optional": True}),
    field("profile", "string", "io.debezium.data.Json"),
    field("scan", "bytes"),
    field("score", "double"),
    field("is_open", "boolean"),
]  # fmt: skip
COLUMNS = """  id BIGINT NOT NULL,
  name STRING NOT NULL,
  price DECIMAL(12, 2),
  weight DECIMAL(38, 18),
  made TIMESTAMP(3),
  changed TIMESTAMP(6),
  seen TIMESTAMP_LTZ(6),
  since DATE,
  due TIME(6),
  tags ARRAY<STRING>,
  profile STRING,
  scan BYTES,
  score DOUBLE,
  is_open BOOLEAN,
  PRIMARY KEY (id) NOT ENFORCED"""


def struct(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields), "optional": True, **more}


def write(server: str, topic: str, *records: tuple[Any, Any]) -> None:
    producer = Producer({"bootstrap.servers": server})
    for key, value in records:
        producer.produce(
            topic, None if value is None else json.dumps(value), None if key is None else json.dumps(key)
        )
    assert producer.flush(100) == 0


KEY = {"schema": struct(FIELDS[0]), "payload": {"id": 7}}


@pytest.mark.parametrize("flat", [False, True])
def test_a_table_is_made_from_the_schema_of_a_connectors_records(
    server: str, headrace: Callable[..., Result], flat: bool
) -> None:
    topic, name = ("flat.public.t", "made.flat") if flat else ("cdc.public.t", "made.enveloped")
    row = {"id": 7, "name": "x", "made": 1_700_000_000_123, "price": "BNI=", "tags": ["a"]}
    value = {"schema": struct(*FIELDS), "payload": row}
    if not flat:
        schema = struct(
            struct(*FIELDS, field="before"), struct(*FIELDS, field="after"), field("op", "string")
        )
        value = {"schema": schema, "payload": {"before": None, "after": row, "op": "c"}}
    write(server, topic, (KEY, value), (KEY, None))
    headrace("sql", "-e", "CREATE DATABASE IF NOT EXISTS made")
    words = ("tables", "create", name, "--from-topic", topic, "--buckets", "2")
    shown = headrace(*words, "--print")
    assert shown.exit_code == 0, shown.stderr
    assert COLUMNS in shown.stdout
    with connect(server) as connection:
        assert name.split(".")[1] not in connection.admin.list_tables("made")
        assert headrace(*words).exit_code == 0
        write(server, name, (KEY, value))
        (found,) = connection.table(name).to_arrow().to_pylist()
        assert (found["id"], str(found["price"]), str(found["made"])) == (
            7,
            "12.34",
            "2023-11-14 22:13:20.123000",
        )


def test_a_table_is_made_from_what_is_in_the_records(server: str, headrace: Callable[..., Result]) -> None:
    rows = [
        {
            "id": 1,
            "at": None,
            "n": 1,
            "x": 1,
            "ok": True,
            "o": {"a": 1},
            "mixed": 1,
            "none": None,
            "l": [1, None],
            "e": [],
            "z": "2024-09-19T12:00:00Z",
            "m": "2024-09-19 12:00:00",
            "d": "2024-09-19",
            "u": "2024-09-19",
        },
        {
            "id": 2,
            "at": "2024",
            "n": 2,
            "x": 1.5,
            "ok": False,
            "o": [1],
            "mixed": "a",
            "l": [1.5],
            "deep": [[1]],
            "z": "2024-09-19T12:00:00.123456789+02:00",
            "m": None,
            "d": "2024-09-20",
            "u": "2024-09-19T12:00:00Z",
        },
    ]
    write(server, "plainly", *((None, row) for row in rows), (None, "no row"))
    made = headrace("tables", "create", "default.plainly_t", "--from-topic", "plainly", "--primary-key", "id")
    assert made.exit_code == 0, made.stderr
    for line in (
        "id BIGINT NOT NULL", "at STRING", "n BIGINT", "x DOUBLE", "ok BOOLEAN", "o STRING", "mixed STRING",
        "l ARRAY<DOUBLE>", "e STRING", "z TIMESTAMP_LTZ(9)", "m TIMESTAMP(6)", "d DATE", "u STRING", "deep STRING",
    ):  # fmt: skip
        assert f"  {line},\n" in made.stdout
    assert "none" not in made.stdout
    assert "the records of plainly are not in it" in made.stderr
    refused = headrace(
        "tables", "create", "default.other", "--from-topic", "plainly", "--primary-key", "nothing"
    )
    assert refused.exit_code == 1
    assert "no field 'nothing' for the primary key; their fields are id, at" in refused.stderr
    write(server, "raw", (None, "text"), (None, 5))
    refused = headrace("tables", "create", "default.other", "--from-topic", "raw")
    assert "none of its records has a row in JSON" in refused.stderr


def test_the_records_of_the_topic_are_copied_into_the_table(
    server: str, headrace: Callable[..., Result]
) -> None:
    rows = [
        ({"id": n}, {"id": n, "at": "2024-09-19T12:00:00.000001Z", "tags": ["a", str(n)]}) for n in range(7)
    ]
    write(server, "fillings", *rows, ({"id": 3}, None), ({"id": 4}, {"id": 4, "tags": ["new"]}))
    words = ("tables", "create", "default.filled", "--from-topic", "fillings", "--buckets", "3", "--backfill")
    done = headrace(*words)
    assert done.exit_code == 0, done.stderr
    assert done.stderr == "9 records of fillings copied\n"
    with connect(server) as connection:
        found = {row["id"]: row["tags"] for row in connection.table("default.filled").to_arrow().to_pylist()}
    assert found == {n: ["new"] if n == 4 else ["a", str(n)] for n in range(7) if n != 3}


def test_a_record_that_does_not_fit_ends_the_copy_or_is_counted(
    server: str, headrace: Callable[..., Result]
) -> None:
    write(server, "unfit", *(({"id": n}, {"id": n}) for n in range(20)))
    with connect(server) as connection:  # records that are not among the samples
        connection.execute("CREATE TABLE default.strict (id INT, PRIMARY KEY (id) NOT ENFORCED)")
        write(server, "unfit", ({"id": "x"}, {"id": "x"}), ({"id": 30}, {"id": 30}))
        with pytest.raises(CommandError, match=r"record 0:20 of unfit does not fit default.strict: .*'x'"):
            backfill(connection, "unfit", "default.strict")
        assert connection.table("default.strict").count() == 20
        copied = backfill(connection, "unfit", "default.strict", skip_refused=True)
        assert (copied.written, copied.refused) == (21, 1)
        assert connection.table("default.strict").count() == 21
    refused = headrace("tables", "create", "default.s", "--from-topic", "unfit", "--skip-refused")
    assert refused.stderr == "--skip-refused is for --backfill and --follow\n"


class Losing:
    """The administration of topics, whose server is lost after one batch."""

    def __init__(self, kafka: Any, error: BaseException) -> None:
        self._kafka, self._error, self._is_lost = kafka, error, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kafka, name)

    def produce(self, *arguments: Any) -> None:
        if self._is_lost:
            raise self._error
        self._kafka.produce(*arguments)
        self._is_lost = True


def test_a_copy_has_time_for_a_busy_server_and_tells_how_far_it_came(
    server: str,
    headrace: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(server, "lost", *(({"id": n}, {"id": n}) for n in range(5)))
    seen = []

    def copied(connection: Any, *_: Any, **__: Any) -> backfilling.Copied:
        seen.append(connection.config.delivery_timeout_ms)
        return backfilling.Copied()

    with monkeypatch.context() as patched:
        patched.setattr(backfilling, "backfill", copied)
        words = ("tables", "create", "default.lost_t", "--from-topic", "lost", "--backfill")
        assert headrace(*words).exit_code == 0
    assert seen == [COPYING_PATIENCE_MS]
    monkeypatch.setattr(backfilling, "_BATCH_RECORDS", 2)
    with connect(server) as connection:
        late = RequestTimeout("no answer")
        with pytest.raises(RequestTimeout) as lost:
            backfill(SimpleNamespace(kafka=Losing(connection.kafka, late)), "lost", "default.lost_t")
        assert lost.value.__notes__ == ["2 records of lost were copied before"]
        with pytest.raises(KeyboardInterrupt):
            ended = Losing(connection.kafka, KeyboardInterrupt())
            backfill(SimpleNamespace(kafka=ended), "lost", "default.lost_t")
    assert capsys.readouterr().err == "2 records of lost copied\n"


def test_a_topic_that_shall_become_a_table_in_place_is_copied_instead(
    headrace: Callable[..., Result],
) -> None:
    adopted = headrace("tables", "adopt", "orders")
    assert (adopted.exit_code, adopted.stdout) == (1, "")
    assert adopted.stderr.splitlines()[1:] == [
        "  headrace tables create DATABASE.TABLE --from-topic orders --backfill --follow"
    ]


def test_tables_are_made_for_all_topics_of_a_pattern(server: str, headrace: Callable[..., Result]) -> None:
    for name in ("a", "b"):
        write(
            server,
            f"cdc.many.{name}",
            (KEY, {"schema": struct(*FIELDS[:2]), "payload": {"id": 7, "name": "x"}}),
        )
    words = ("tables", "create", "--from-topics", "cdc.many.*")
    shown = headrace(*words, "--print")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.count("CREATE TABLE many.") == 2
    made = headrace(*words, "--buckets", "3", "--backfill")
    assert made.exit_code == 0, made.stderr
    with connect(server) as connection:
        assert sorted(connection.admin.list_tables("many")) == ["a", "b"]
        assert connection.table("many.a").definition.bucket_count == 3
        assert [row["name"] for row in connection.table("many.b").to_arrow().to_pylist()] == ["x"]
    again = headrace(*words)
    assert again.exit_code == 1
    assert "no table was created\ncdc.many.a: table many.a exists already\ncdc.many.b: " in again.stderr
    other = headrace("tables", "create", "other", "--from-topics", "cdc.many.?")
    assert other.exit_code == 0, other.stderr
    assert "CREATE TABLE other.a (" in other.stdout
    assert (
        "no topic matches 'cdc.none.*'" in headrace("tables", "create", "--from-topics", "cdc.none.*").stderr
    )
    for wrong in (("tables", "create", "x.y"), ("tables", "create", "--from-topic", "cdc.many.a")):
        assert headrace(*wrong).exit_code == 1
