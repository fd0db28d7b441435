"""Debezium's connectors of PostgreSQL and MariaDB: a row that they write is the same row in a table.

This holds in every mode of writing times, decimals and deletes, with and without the schema around the record. The
records go into plain topics first. `headrace tables create --from-topic` creates the tables of those with schemas, and
the records are then copied into the tables' topics byte for byte. With `HEADRACE_RECORD_EVENTS` naming a folder they
are written there too: some of MariaDB's are read by `headrace/tablelayer/tests/server/test_recorded_events.py`.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from apps.connect_worker import RUNNING, Worker, jars
from apps.loads import Attempt, until
from apps.mariadb import DATABASE, PASSWORD, USER, MariaDb, packages

from examples import server as processes
from examples.cdc import postgres
from examples.cdc.postgres import Postgres
from headrace import connect

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
VERSION = "3.4.0.Final"
TIMES = ("adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds")
DECIMALS = ("precise", "string", "double")
TOMBSTONES = ("drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone")
"""The values of `delete.tombstone.handling.mode` of `ExtractNewRecordState`."""

COLUMNS = {
    "postgres": "id int PRIMARY KEY, d date, t time(6), at timestamp(3), exact timestamp(6), seen timestamptz(6),"
    " price numeric(10, 2), note text",
    "mariadb": "id int PRIMARY KEY, d date, t time(6), at datetime(3), exact datetime(6), seen timestamp(6) NULL,"
    " price decimal(10, 2), note text",
}
TABLE = (
    "id INT, d DATE, t TIME(6), at TIMESTAMP(3), exact TIMESTAMP(6), seen TIMESTAMP_LTZ(6),"
    " price DECIMAL(10, 2), note STRING, PRIMARY KEY (id) NOT ENFORCED"
)
ROWS = """
INSERT INTO moments VALUES
  (1, '2024-02-29', '12:34:56.789000', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.789000', {seen}, 12.34, 'one'),
  (2, '1969-12-31', '00:00:00', '1970-01-01 00:00:00', '2000-01-01 00:00:00', {seen}, -0.50, ''),
  (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
  (4, '2023-01-01', '23:59:59.999000', '2023-01-01 00:00:00.001', '2023-01-01 00:00:00.001000', {seen}, 0, 'gone');
"""
CHANGES = """
UPDATE moments SET note = 'second', d = '2038-01-19', price = 99999999.99 WHERE id = 1;
UPDATE moments SET at = '2024-03-01 01:02:03.004' WHERE id = 3;
DELETE FROM moments WHERE id = 4;
INSERT INTO moments (id, note) VALUES (5, 'five');
"""
SEEN = datetime.datetime(2024, 9, 19, 10, 0, 0, 123000, tzinfo=datetime.UTC)


def wanted() -> dict[int, dict[str, Any]]:
    """Return the rows of the source after all changes."""
    names = ("id", "d", "t", "at", "exact", "seen", "price", "note")
    date, time, moment = datetime.date, datetime.time, datetime.datetime
    rows = (
        (1, date(2038, 1, 19), time(12, 34, 56, 789000), moment(2024, 2, 29, 12, 34, 56, 789000),
         moment(2024, 2, 29, 12, 34, 56, 789000), SEEN, Decimal("99999999.99"), "second"),
        (2, date(1969, 12, 31), time(0), moment(1970, 1, 1), moment(2000, 1, 1), SEEN, Decimal("-0.50"), ""),
        (3, None, None, moment(2024, 3, 1, 1, 2, 3, 4000), None, None, None, None),
        (5, *[None] * 6, "five"),
    )  # fmt: skip
    return {int(row[0]): dict(zip(names, row, strict=True)) for row in rows}


@dataclass(frozen=True)
class Source:
    """A database whose changes are captured."""

    name: str
    settings: Callable[[str], Mapping[str, str]]
    sql: Callable[[str], str]
    seen: str

    @property
    def topic(self) -> str:
        return {"postgres": "public.moments", "mariadb": "shop.moments"}[self.name]


@pytest.fixture
def postgres_source() -> Iterator[Source]:
    server = Postgres.in_temporary_folder(max_replication_slots="40", max_wal_senders="40")
    try:
        server.start()

        def settings(name: str) -> Mapping[str, str]:
            return {
                "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
                "plugin.name": "pgoutput",
                "database.hostname": "127.0.0.1",
                "database.port": str(server.port),
                "database.user": postgres.USER,
                "database.password": "trusted",
                "database.dbname": postgres.DATABASE,
                "slot.name": name.replace("-", "_"),
                "schema.include.list": "public",
            }

        server.sql("CREATE PUBLICATION dbz_publication FOR ALL TABLES")
        yield Source("postgres", settings, server.sql, "'2024-09-19 12:00:00.123+02'")
    finally:
        server.stop()


@pytest.fixture
def mariadb_source(tmp_path: Path, attempt: Attempt) -> Iterator[Source]:
    server = MariaDb(tmp_path / "mariadb", packages())
    try:
        server.start()
        numbers = iter(range(1000, 2000))

        def settings(name: str) -> Mapping[str, str]:
            return {
                "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
                "database.hostname": "127.0.0.1",
                "database.port": str(server.port),
                "database.user": USER,
                "database.password": PASSWORD,
                "database.server.id": str(next(numbers)),
                "database.include.list": DATABASE,
                "schema.history.internal.kafka.topic": f"history-{name}",
            }

        yield Source("mariadb", settings, server.sql, "'2024-09-19 10:00:00.123'")
    finally:
        server.stop()


def connectors(source: Source, server: str) -> dict[str, dict[str, str]]:
    """The connectors by name, which is the prefix of the topic."""
    made: dict[str, dict[str, str]] = {}

    def add(name: str, **more: str) -> None:
        named = {each.replace("_", "."): value for each, value in more.items()}
        made[name] = {**source.settings(name), "topic.prefix": name, **named}
        if source.name == "mariadb":
            made[name]["schema.history.internal.kafka.bootstrap.servers"] = server

    for mode in TIMES if source.name == "postgres" else TIMES[1:]:  # MariaDB's has no plain `adaptive`
        add(f"schemas-{mode}", time_precision_mode=mode)
        add(f"bare-{mode}", time_precision_mode=mode, value_converter_schemas_enable="false")
    for mode in DECIMALS[1:]:
        add(f"decimals-{mode}", decimal_handling_mode=mode)
        add(f"baredecimals-{mode}", decimal_handling_mode=mode, value_converter_schemas_enable="false")
    for mode in TOMBSTONES:
        for schemas in ("true", "false"):
            add(
                f"flat-{mode}-{schemas}",
                transforms="flat",
                transforms_flat_type="io.debezium.transforms.ExtractNewRecordState",
                transforms_flat_delete_tombstone_handling_mode=mode,
                transforms_flat_add_fields="op",
                value_converter_schemas_enable=schemas,
            )
    for config in made.values():
        if "value.converter.schemas.enable" in config:
            config["value.converter"] = "org.apache.kafka.connect.json.JsonConverter"
    return made


def records(address: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "copying", "enable.auto.commit": False})
    try:
        found = consumer.list_topics(topic, timeout=30).topics[topic]
        if found.error is not None:
            return []
        end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]
        consumer.assign([TopicPartition(topic, 0, 0)])
        given: list[tuple[bytes | None, bytes | None]] = []
        while len(given) < end:
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None, message.error()
            given.append((message.key(), message.value()))
        return given
    finally:
        consumer.close()


def copy(address: str, topic: str, given: list[tuple[bytes | None, bytes | None]]) -> None:
    from confluent_kafka import Producer

    failures: list[str] = []
    producer = Producer({"bootstrap.servers": address, "linger.ms": 50})
    for key, value in given:
        producer.produce(
            topic, value, key, on_delivery=lambda error, _: error and failures.append(str(error))
        )
    assert producer.flush(300) == 0, f"{topic} does not take all records in time"
    assert not failures, f"{topic}: {failures[0]}"


def last_key(given: list[tuple[bytes | None, bytes | None]]) -> Any:
    for key, value in reversed(given):
        if key is not None and value is not None:
            found = json.loads(key)
            return found.get("payload", found)["id"]
    return None


@pytest.mark.parametrize("name", ["postgres", "mariadb"])
def test_a_row_is_a_row_in_every_mode_of_a_connector(
    name: str, own_server, tmp_path: Path, attempt: Attempt, request: pytest.FixtureRequest
) -> None:
    title = {"postgres": "Debezium for PostgreSQL", "mariadb": "Debezium for MariaDB"}[name]
    what = "every mode of times, decimals and deletes, with schemas and without; tables made from its topics"
    with attempt(title, VERSION, what):
        source: Source = request.getfixturevalue(f"{name}_source")
        source.sql(f"CREATE TABLE moments ({COLUMNS[name]});" + ROWS.format(seen=source.seen))
        configs = connectors(source, own_server.address)
        worker = Worker(
            tmp_path / "connect",
            own_server.address,
            jars(("io.debezium", f"debezium-connector-{name}", VERSION)),
            heap="1200M",
        )
        worker.start()
        try:
            for connector, config in configs.items():
                worker.put(connector, config)

            def snapshots() -> bool:
                for connector in configs:
                    state = worker.state(connector)
                    assert state in ("", RUNNING, "UNASSIGNED"), f"{connector}: {state[:3000]}"
                return all(
                    len(records(own_server.address, f"{each}.{source.topic}")) >= 4 for each in configs
                )

            until(snapshots, "snapshots", worker.said)
            source.sql(CHANGES)

            def changes() -> bool:
                return all(
                    last_key(records(own_server.address, f"{each}.{source.topic}")) == 5 for each in configs
                )

            until(changes, "changes", worker.said)
        finally:
            worker.stop()
        folder = os.environ.get("HEADRACE_RECORD_EVENTS")
        unlike: dict[str, Any] = {}
        for connector in configs:
            topic = f"{connector}.{source.topic}"
            given = records(own_server.address, topic)
            if folder:
                record(Path(folder) / f"{name}-{connector}.jsonl", given)
            try:
                table = make_table(own_server.address, connector, topic)
                copy(own_server.address, f"default.{table}", given)
                found = rows(own_server.address, table)
                expected = wanted()
                if "-drop-" in connector:
                    found.pop(4, None)
                if found != expected:
                    keys = found.keys() | expected.keys()
                    unlike[connector] = {
                        key: found.get(key) for key in keys if found.get(key) != expected.get(key)
                    }
            except (AssertionError, processes.StepFailedError) as error:
                unlike[connector] = str(error)[:600]
        assert not unlike, json.dumps(unlike, indent=1, default=str)


KINDS = """
CREATE TABLE kinds (
  id int unsigned PRIMARY KEY, big bigint, tiny tinyint(1), small smallint, f float, dbl double, price decimal(20, 6),
  c char(3), v varchar(20), body mediumtext, e enum('s', 'm', 'l'), tags set('a', 'b', 'c'), doc json, bits bit(12),
  flag bit(1), born year, photo blob, fixed binary(4), day date, t time, at datetime, seen timestamp NULL
);
INSERT INTO kinds VALUES
  (4000000000, 9223372036854775807, 1, -32768, 1.5, 0.1, -12345678901234.567890, 'abc', 'ü "quoted"', 'long', 'm',
   'a,c', '{"x": [1, null]}', b'101100001111', b'1', 2024, x'00ff', x'01020304', '2024-02-29', '12:34:56',
   '2024-02-29 12:34:56', '2024-02-29 12:34:56'),
  (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
   NULL, NULL),
  (3, 0, 0, 0, 0, 0, 0, '', '', '', 's', '', '[]', b'0', b'0', 1901, '', x'00000000', '1000-01-01', '00:00:00',
   '1970-01-01 00:00:00', '2001-01-01 00:00:00');
"""
MORE_KINDS = """
UPDATE kinds SET e = 'l', doc = NULL, price = 0.000001 WHERE id = 4000000000;
UPDATE kinds SET id = 20 WHERE id = 2;
DELETE FROM kinds WHERE id = 3;
INSERT INTO kinds (id, v) VALUES (5, 'five');
"""


def test_every_kind_of_column_that_mariadb_has(mariadb_source: Source, own_server, tmp_path: Path) -> None:
    mariadb_source.sql(KINDS)
    folder, connector = tmp_path / "connect", ("io.debezium", "debezium-connector-mariadb", VERSION)
    worker = Worker(folder, own_server.address, jars(connector))
    worker.start()
    topic = "kinds.shop.kinds"
    try:
        config = {**mariadb_source.settings("kinds"), "topic.prefix": "kinds"}
        worker.put("kinds", {**config, "schema.history.internal.kafka.bootstrap.servers": own_server.address})
        until(lambda: len(records(own_server.address, topic)) >= 3, "the snapshot", worker.said)
        mariadb_source.sql(MORE_KINDS)
        until(lambda: last_key(records(own_server.address, topic)) == 5, "the changes", worker.said)
    finally:
        worker.stop()
    given = records(own_server.address, topic)
    if os.environ.get("HEADRACE_RECORD_EVENTS"):
        record(Path(os.environ["HEADRACE_RECORD_EVENTS"]) / "mariadb-kinds.jsonl", given)
    processes.run("tables", "create", "default.kinds", "--from-topic", topic, "--server", own_server.address)
    copy(own_server.address, "default.kinds", given)
    found = rows(own_server.address, "kinds")
    assert set(found) == {4_000_000_000, 20, 5}
    assert set(found[20].values()) == {None, 20}
    assert {name: value for name, value in found[4_000_000_000].items() if name not in ("price", "seen")} == {
        "id": 4_000_000_000, "big": 9223372036854775807, "tiny": 1, "small": -32768, "f": 1.5, "dbl": 0.1, "c": "abc",
        "v": 'ü "quoted"', "body": "long", "e": "l", "tags": "a,c", "doc": None, "bits": b"\x0f\x0b", "flag": True,
        "born": 2024, "photo": b"\x00\xff", "fixed": b"\x01\x02\x03\x04", "day": datetime.date(2024, 2, 29),
        "t": datetime.time(12, 34, 56), "at": datetime.datetime(2024, 2, 29, 12, 34, 56),
    }  # fmt: skip


def make_table(address: str, connector: str, topic: str) -> str:
    """Create the table for a connector's records: from its topic if they have schemas, else from a statement."""
    table = connector.replace("-", "_")
    kind, _, mode = connector.partition("-")
    if kind in ("schemas", "decimals") or mode.endswith("-true"):
        processes.run("tables", "create", f"default.{table}", "--from-topic", topic, "--server", address)
        return table
    options = {"bare": {"time-precision-mode": mode}, "baredecimals": {}, "flat": {}}[kind]
    given = {f"table.kafka.debezium.{name}": value for name, value in options.items()}
    if kind != "flat":
        given["table.kafka.value-format"] = "debezium-json"
    else:
        given |= {
            "table.kafka.debezium.time-precision-mode": "adaptive",
            "table.kafka.debezium.decimal-handling-mode": "precise",
        }
    words = ", ".join(f"'{name}' = '{value}'" for name, value in given.items())
    with connect(address) as connection:
        connection.execute(f"CREATE TABLE {table} ({TABLE}) WITH ({words})")
    return table


def rows(address: str, table: str) -> dict[int, dict[str, Any]]:
    """Return the rows of a table, with values in the types of the others: a connector may have a coarser or a finer
    one.
    """
    with connect(address) as connection:
        found = connection.table(table).to_arrow().to_pylist()
    return {
        row["id"]: {name: plain(name, value) for name, value in row.items() if name != "__op"}
        for row in found
    }


def plain(name: str, value: Any) -> Any:
    if name == "price" and value is not None:
        return Decimal(str(value)).quantize(Decimal("0.01"))
    return value


def record(path: Path, given: list[tuple[bytes | None, bytes | None]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [[None if each is None else each.decode() for each in pair] for pair in given]
    path.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in texts))
