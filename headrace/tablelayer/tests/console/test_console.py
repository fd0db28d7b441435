"""The console's REST interface and its protection, over a running server."""

from __future__ import annotations

import asyncio
import datetime
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.cli.console import _plan, _query
from headrace.tablelayer.cli.main import app
from headrace.tablelayer.client import Connection, UnsupportedRequest, connect, stopping
from headrace.tablelayer.client.admin.cluster_state import OffsetRange
from headrace.tablelayer.client.admin.kafka_answers import GroupDescription, GroupListing
from headrace.tablelayer.client.admin.produce import OutgoingRecord
from headrace.tablelayer.console import tables
from headrace.tablelayer.console.access import Access
from headrace.tablelayer.console.app import SECURITY_HEADERS, make_app
from headrace.tablelayer.console.decoding import Decoder
from headrace.tablelayer.console.groups import Groups
from headrace.tablelayer.console.history import History, Look, look, rates
from headrace.tablelayer.console.registry import Registry
from headrace.tablelayer.console.rights import Rights
from headrace.tablelayer.console.ring import FILE_BYTES, SERIES_MAX, Ring
from headrace.tablelayer.console.tables import Sql, Tables
from headrace.tablelayer.console.tails import BEHIND_MAX, ROWS_MAX, TEXT_BYTES_MAX, Tail, _catch_up
from headrace.tablelayer.console.topics import Topics
from headrace.tablelayer.console.values import TEXT_MAX, plain, rows_of, text_of
from headrace.tablelayer.tests.cli.conftest import ROOT, Served

SQL = Sql(_query, _plan)
HOSTILE = "<img src=x onerror=alert(1)>\"';"


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    folder = tmp_path_factory.mktemp("console")
    config = folder / "server.properties"
    config.write_text(
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        "super.users=User:ANONYMOUS\nkv.snapshot.interval=1s\n"
    )
    served = Served("--listen", "127.0.0.1:0", "--data", str(folder / "data"), "--config", str(config))
    assert served.address, served.stop()[2]
    with connect(served.address) as made:
        made.execute(
            "CREATE TABLE fruit (id INT, name STRING, big BIGINT, PRIMARY KEY (id) NOT ENFORCED)"
            " WITH ('bucket.num' = '2');"
            "CREATE TABLE pair (a INT, b STRING, PRIMARY KEY (a, b) NOT ENFORCED);"
            "CREATE TABLE daily (day STRING, n INT) PARTITIONED BY (day)"
        )
        fruit = made.table("default.fruit")
        fruit.upsert([{"id": n, "name": HOSTILE, "big": 2**60 + n} for n in range(20)])
        fruit.upsert([{"id": 3, "name": "second", "big": 1}])
        made.table("default.daily").append([{"day": day, "n": 1} for day in "ab"])
        made.kafka.create_topic("clicks", partitions=2, configs={"retention.ms": "-1"})
        records = [
            OutgoingRecord(
                json.dumps({"n": n}).encode(), b"k%d" % n, partition=n % 2, timestamp_ms=1_000_000 + n
            )
            for n in range(40)
        ]
        made.kafka.produce("clicks", [*records, OutgoingRecord(b"\xff", None, [("h", b"v")], partition=0)])
        made.kafka.commit_offsets("my-app", "clicks", {0: 5, 1: 7})
        yield made
    assert served.stop()[0] == 0


class Client:
    """A browser without sockets."""

    def __init__(self, app: Any, connection: Connection | None = None) -> None:
        self._app = app
        self.connection = connection

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9380") as client:
                return await client.request(method, path, timeout=60, **options)

        return asyncio.run(ask())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)


def client_of(connection: Connection, access: Access | None = None, *, writes: bool = False) -> Client:
    history = History(lambda: connection)
    app = make_app(
        connection,
        SQL,
        access or Access(),
        allow_writes=writes,
        version="1",
        server="here",
        history=history,
    )
    return Client(app, connection)


@pytest.fixture
def get(connection: Connection) -> Any:
    client = client_of(connection)

    def ask(path: str, status: int = 200, **query: Any) -> Any:
        answer = client.get(path, params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    return ask


def test_topics_groups_and_brokers_are_shown(get: Any) -> None:
    topics = {each["name"]: each for each in get("/api/topics")["topics"]}
    assert (topics["clicks"]["partitions"], topics["clicks"]["table"]) == (2, None)
    for topic, table in (("default.fruit", "default.fruit"), ("default.daily.a", "default.daily")):
        assert topics[topic]["table"] == get(f"/api/topics/{topic}")["table"] == table
    partitioned = [
        get(f"/api/topics/default.{each}")["partitioned"] for each in ("fruit", "daily", "daily.a")
    ]
    assert partitioned == [False, True, False]
    assert topics["clicks"]["bytes"] > 0
    assert "__consumer_offsets" not in topics
    assert "__consumer_offsets" in {each["name"] for each in get("/api/topics", internal="true")["topics"]}
    topic = get("/api/topics/clicks")
    assert [(each["partition"], each["end_offset"]) for each in topic["partitions"]] == [(0, 21), (1, 20)]
    configs = {each["name"]: each for each in get("/api/topics/clicks/configs")["configs"]}
    assert configs["retention.ms"]["documentation"]
    groups = {each["group"]: each for each in get("/api/groups")["groups"]}
    assert (groups["my-app"]["lag"], groups["my-app"]["topics"]) == (29, ["clicks"])
    positions = get("/api/groups/my-app")["positions"]
    assert [(each["offset"], each["lag"]) for each in positions] == [(5, 16), (7, 13)]
    (broker,) = get("/api/brokers")["brokers"]
    assert broker["controller"]
    assert broker["memory_bytes"] > 0
    overview = get("/api/overview")
    assert (overview["brokers"], overview["offline"], overview["trouble"]) == (1, [], None)
    assert get("/api/lake") == {"entries": []}


def test_records_are_found_by_place_time_key_and_text(get: Any) -> None:
    def offsets(**query: Any) -> list[tuple[int, int]]:
        found = get("/api/topics/clicks/records", **query)
        return [(each["partition"], each["offset"]) for each in found.get("records", ())]

    assert offsets(partition=1, offset=17) == [(1, 17), (1, 18), (1, 19)]
    assert offsets(key="k4") == [(0, 2)]
    assert offsets(contains='"n": 7}') == [(1, 3)]
    assert offsets(timestamp=1_000_037, partition=1) == [(1, 18), (1, 19)]
    assert len(offsets(limit=7)) == 7
    assert offsets(where="json->>'$.n' = '7' OR hex(key_bytes) = '6B34'") == [(0, 2), (1, 3)]
    assert offsets(where="(json->>'$.n')::INT < 10 AND partition = 1", limit=2, newest="true") == [
        (1, 3),
        (1, 4),
    ]
    assert offsets(where="exists (FROM read_text('/etc/passwd'))", status=400) == []
    page = get("/api/topics/clicks/records", partition=0, limit=15)
    assert (page["complete"], page["next"]) == (False, {"0": 15})
    rest = get("/api/topics/clicks/records", partition=0, offset=page["next"]["0"])
    assert [each["offset"] for each in rest["records"]] == list(range(15, 21))
    assert rest["complete"]
    (newest,) = get("/api/topics/clicks/records", partition=0, newest="true", limit=1)["records"]
    assert newest["value"] == {"text": "/w==", "encoding": "base64", "size": 1}
    assert newest["headers"] == [{"name": "h", "value": {"text": "v", "encoding": "utf-8", "size": 1}}]
    assert newest["key"] is None


def test_rows_by_key_beside_their_changes(get: Any) -> None:
    table = get("/api/tables/default.fruit")
    assert (table["rows"], table["primary_key"], table["buckets"]) == (20, ["id"], 2)
    assert get("/api/tables/default.fruit/rows", key="3")["rows"] == [[3, "second", 1]]
    assert get("/api/tables/default.fruit/rows", key='{"id": 4}')["rows"] == [[4, HOSTILE, str(2**60 + 4)]]
    assert get("/api/tables/default.fruit/rows", key="99")["rows"] == []
    changes = get("/api/tables/default.fruit/changes", key="3")["changes"]
    assert [each["change"] for each in changes] == ["+U", "-U", "+I"]
    assert changes[0]["row"] == [3, "second", 1]
    assert len(get("/api/tables/default.fruit/rows", limit=5)["rows"]) == 5
    daily = get("/api/tables/default.daily")
    assert [each["name"] for each in daily["partitions"]] == ["a", "b"]


def test_the_changes_of_a_key_are_searched_in_a_bounded_part_of_the_log(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute(
        "CREATE TABLE dated (day STRING, id INT, n INT, PRIMARY KEY (day, id) NOT ENFORCED) PARTITIONED BY (day)"
    )
    table, client = connection.table("default.dated"), client_of(connection)
    for n in range(3):
        table.upsert([{"day": day, "id": 1, "n": n} for day in ("a", "b")])
    table.upsert([{"day": "a", "id": 2, "n": 9}])

    def changes(day: str) -> tuple[list[tuple[str, list[Any]]], bool]:
        answer = client.get(
            "/api/tables/default.dated/changes", params={"key": f'{{"day": "{day}", "id": 1}}'}
        ).json()
        return [(each["change"], each["row"]) for each in answer["changes"]], answer["complete"]

    whole = [
        ("+U", ["a", 1, 2]),
        ("-U", ["a", 1, 1]),
        ("+U", ["a", 1, 1]),
        ("-U", ["a", 1, 0]),
        ("+I", ["a", 1, 0]),
    ]
    assert changes("a") == (whole, True)
    assert changes("never") == ([], True)
    monkeypatch.setattr(tables, "CHANGES_LOOKED_AT_MAX", 3)
    assert changes("a") == (whole[:2], False)
    monkeypatch.setattr(tables, "CHANGES_LOOKED_AT_MAX", 100)
    monkeypatch.setattr(tables, "CHANGES_MAX", 4)
    assert changes("a") == (whole[:4], False)


def test_sql_asks_tables_and_nothing_else(connection: Connection) -> None:
    client = client_of(connection)

    def ask(query: str) -> Any:
        return client.post("/api/sql", json={"query": query})

    answer = ask("SELECT id % 2 AS odd, count(*) AS n FROM fruit GROUP BY 1 ORDER BY 1").json()
    assert [each["name"] for each in answer["columns"]] == ["odd", "n"]
    assert answer["rows"] == [[0, 10], [1, 10]]
    plan = ask("EXPLAIN SELECT * FROM fruit WHERE id = 3").json()
    assert "lookup" in plan["text"] if "text" in plan else "lookup" in json.dumps(plan["rows"])
    joined = (
        "SELECT name, count(*) FROM fruit JOIN pair ON id = a WHERE id > 3 GROUP BY name ORDER BY 2 LIMIT 5"
    )
    tree = client.post("/api/sql/plan", json={"query": joined}).json()["plan"]
    names, unread = [], [tree]
    while unread:
        names.append(unread[0]["name"])
        unread = [*unread[0]["children"], *unread[1:]]
    assert (names[:2], "hash join" in names) == (["DuckDB", "top n"], True)
    assert {"read default.fruit", "read default.pair"} < set(names), names
    simple = client.post("/api/sql/plan", json={"query": "SELECT * FROM fruit WHERE id = 3"}).json()["plan"]
    assert [(each["name"], each["details"]["way"]) for each in simple["children"]] == [
        ("read default.fruit", "lookup")
    ]
    for bad in ("DROP TABLE fruit", "SELECT f.id FROM fruit f, read_text('/etc/passwd')", "SELEC"):
        assert client.post("/api/sql/plan", json={"query": bad}).status_code == 400, bad
    for bad in (
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT f.id FROM fruit f, read_text('/etc/passwd')",
        "SELECT 1; SELECT 2",
        "SUMMARIZE SELECT * FROM read_csv('/etc/passwd')",
        "COPY fruit TO '/tmp/stolen.csv'",
        "CREATE TABLE stolen AS SELECT 1 AS id",
        "DELETE FROM fruit WHERE id = 1",
        "DROP TABLE fruit",
        "SELECT * FROM fruit, connection",
        "SELEC",
        "",
    ):
        refused = ask(bad)
        assert refused.status_code in (400, 404), bad
        assert "root:" not in refused.text
    assert connection.table("default.fruit").count() == 20


def test_mistakes_are_said_in_a_sentence(get: Any) -> None:
    for path, status, words, query in (
        ("/api/topics/none", 404, "no topic none", {}),
        ("/api/topics/none/records", 404, "no topic none", {}),
        ("/api/tables/none", 404, "none", {}),
        ("/api/groups/none", 404, "none", {}),
        ("/api/topics/clicks/records", 400, "whole number", {"limit": "x"}),
        ("/api/topics/clicks/records", 400, "1 to 500", {"limit": "0"}),
        ("/api/topics/clicks/records", 400, "no partition 9", {"partition": "9"}),
        ("/api/topics/clicks/records", 400, "an offset needs a partition", {"offset": "1"}),
        ("/api/topics/clicks", 400, "no parameter 'x'", {"x": "1"}),
        ("/api/tables/default.fruit/rows", 400, "'id'", {"key": "pear"}),
        ("/api/tables/default.pair/rows", 400, "row 0", {"key": "1"}),
        ("/api/tables/default.daily/rows", 400, "no keys", {"key": "1"}),
    ):
        assert words in get(path, status, **query)["error"], path


def test_the_console_writes_rows_and_records(connection: Connection) -> None:
    client = client_of(connection, writes=True)
    connection.kafka.create_topic("written")

    def send(method: str, path: str, body: Any) -> Any:
        answer = client.request(method, path, json=body)
        assert answer.status_code in (200, 400), answer.text
        return answer.json()

    record = {"value": {"a": 1}, "key": "k", "headers": {"h": "v"}}
    binary = {"value": "AAE=", "value_encoding": "base64"}
    answer = send("POST", "/api/topics/written/records", {"records": [record, binary]})
    assert [each["offset"] for each in answer["written"]] == [0, 1]
    records, _ = connection.kafka.read("written", {0: 0})
    assert [(each.key, each.value, each.headers) for each in records] == [
        (b"k", b'{"a":1}', (("h", b"v"),)),
        (None, b"\0\x01", ()),
    ]
    several = {"value": "", "headers": [["h", "1"], ["h", None], ["b", "/w==", "base64"]]}
    send("POST", "/api/topics/written/records", {"records": [several]})
    ((record,), _) = connection.kafka.read("written", {0: 2})
    assert (record.value, record.headers) == (b"", (("h", b"1"), ("h", None), ("b", b"\xff")))
    for wrong in ({"value": "AA==", "value_encoding": "hex"}, {"vlaue": "x"}, 7):
        assert "a record" in send("POST", "/api/topics/written/records", {"records": [wrong]})["error"]
    assert send("POST", "/api/tables/default.pair/rows", {"rows": [{"a": 1, "b": "x"}]}) == {"written": 1}
    assert (
        "no such column"
        in send("POST", "/api/tables/default.pair/rows", {"rows": [{"a": 1, "c": 1}]})["error"]
    )
    assert connection.table("default.pair").count() == 1
    assert send("DELETE", "/api/tables/default.pair/rows", {"keys": [{"a": 1, "b": "x"}]}) == {"deleted": 1}
    assert connection.table("default.pair").count() == 0
    connection.kafka.commit_offsets("other", "clicks", {0: 5})
    planned = send("POST", "/api/groups/other/reset", {"topic": "clicks", "to": "earliest", "dry_run": True})
    assert planned["set"] is False
    assert connection.kafka.describe_group("other").positions["clicks", 0] == 5
    done = send("POST", "/api/groups/other/reset", {"topic": "clicks", "to": "3"})
    assert {each["partition"]: each["after"] for each in done["offsets"]} == {0: 3, 1: 3}
    assert connection.kafka.describe_group("other").positions["clicks", 0] == 3


def test_topics_are_created_changed_and_deleted(connection: Connection) -> None:
    client = client_of(connection, writes=True)

    def send(method: str, path: str, body: Any, status: int = 200) -> Any:
        answer = client.request(method, path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    made = {"name": "made", "partitions": 2, "configs": {"retention.ms": "60000"}}
    assert send("POST", "/api/topics", made) == {"name": "made", "partitions": 2}
    change = {"set": {"max.message.bytes": "1000"}, "reset": ["retention.ms"]}
    assert send("POST", "/api/topics/made/configs", change) == {
        "set": ["max.message.bytes"], "reset": ["retention.ms"],
    }  # fmt: skip
    assert send("POST", "/api/topics/made/partitions", {"count": 3}) == {"name": "made", "partitions": 3}
    found = connection.kafka.describe_topic("made")
    assert (len(found.partitions), found.configs) == (3, {"max.message.bytes": "1000"})
    for method, path, body, status, words in (
        ("POST", "/api/topics", made, 400, "exists"),
        ("POST", "/api/topics", {"name": "x", "partitons": 1}, 400, "unknown field `partitons`"),
        ("POST", "/api/topics", {"name": "x", "partitions": True}, 400, "Expected `int | null`, got `bool`"),
        ("POST", "/api/topics", {"name": "x", "replicas": 9}, 400, "replica"),
        ("POST", "/api/topics", {"name": "x", "configs": {"no.such": "1"}}, 400, "no.such"),
        ("POST", "/api/topics/made/configs", {"set": {"retention.ms": 1}}, 400, "Expected `str`, got `int`"),
        ("POST", "/api/topics/made/configs", {}, 400, "or one of both"),
        ("POST", "/api/topics/made/partitions", {"count": 2}, 400, "2"),
        ("DELETE", "/api/topics/made", {}, 400, "missing required field `name`"),
        ("DELETE", "/api/topics/made", {"name": "mad"}, 400, "to delete this topic"),
        ("DELETE", "/api/topics/default.fruit", {"name": "default.fruit"}, 409, "DROP TABLE"),
        ("DELETE", "/api/topics/none", {"name": "none"}, 404, "none"),
    ):  # fmt: skip
        assert words in send(method, path, body, status)["error"], (path, body)
    assert send("DELETE", "/api/topics/made", {"name": "made"}) == {"name": "made"}
    assert "made" not in [each.name for each in connection.kafka.list_topics()]


def test_numbers_of_a_request_keep_their_digits(connection: Connection) -> None:
    connection.execute("CREATE TABLE exact (id BIGINT, price DECIMAL(30, 10), PRIMARY KEY (id) NOT ENFORCED)")
    client, price = client_of(connection, writes=True), "12345678901234567890.0123456789"
    answer = client.post(
        "/api/tables/default.exact/rows",
        content=f'{{"rows": [{{"id": 9007199254740993, "price": {price}}}]}}',
        headers={"content-type": "application/json"},
    )
    assert answer.json() == {"written": 1}
    (row,) = connection.table("default.exact").to_arrow().to_pylist()
    assert (row["id"], str(row["price"])) == (9007199254740993, price)
    connection.kafka.create_topic("exact")
    client.post(
        "/api/topics/exact/records",
        content=f'{{"records": [{{"value": {{"price": {price}}}}}]}}',
        headers={"content-type": "application/json"},
    )
    ((record,), _) = connection.kafka.read("exact", {0: 0})
    assert record.value == f'{{"price": {price}}}'.encode()


def test_the_state_of_buckets_and_its_snapshots_are_shown(get: Any, connection: Connection) -> None:
    deadline = time.monotonic() + 60
    while True:
        buckets = get("/api/tables/default.fruit/snapshots")["buckets"]
        if all(each["snapshots"] for each in buckets):
            break
        assert time.monotonic() < deadline, buckets
        time.sleep(0.1)
    assert [each["bucket"] for each in buckets] == [0, 1]
    assert sum(each["rows"] for each in buckets) == connection.table("default.fruit").count()
    for each in buckets:
        newest = each["snapshots"][0]
        assert (newest["rows"], newest["bytes"] > 0) == (each["rows"], True)
        assert newest["offset"] <= each["applied_offset"]
        assert abs(newest["time_ms"] - time.time() * 1000) < 3_600_000
    assert get("/api/tables/default.daily/snapshots") == {"buckets": []}
    assert "default.none" in get("/api/tables/default.none/snapshots", 404)["error"]


def test_users_and_rights_are_shown_and_changed(connection: Connection) -> None:
    client = client_of(connection, writes=True)

    def rights_of(principal: str) -> list[tuple[str, str, list[str], bool]]:
        found = client.get("/api/users").json()
        assert found["protected"] is True
        listed = [each for each in found["grants"] if each["principal"] == principal]
        return [(each["privilege"], each["on"], each["columns"], each["denied"]) for each in listed]

    assert client.post("/api/users", json={"name": "ann", "password": "one"}).json() == {
        "name": "ann",
        "made": True,
    }
    assert client.post("/api/users", json={"name": "ann", "password": "two"}).json() == {
        "name": "ann",
        "made": False,
    }
    users = {each["name"]: each["mechanisms"] for each in client.get("/api/users").json()["users"]}
    assert users["ann"] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    grant = {"principal": "ann", "privileges": ["select", "INSERT"], "on": "default.fruit"}
    assert client.post("/api/grants", json=grant).json() == {"granted": 2}
    client.post(
        "/api/grants", json={**grant, "privileges": ["SELECT"], "on": "default.pair", "columns": ["a"]}
    )
    assert sorted(rights_of("User:ann")) == [
        ("DESCRIBE", "table default.pair", [], False),
        ("INSERT, UPDATE, DELETE", "table default.fruit", [], False),
        ("SELECT", "table default.fruit", [], False),
        ("SELECT", "table default.pair", ["a"], False),
    ]
    assert client.post("/api/grants/revoke", json=grant).json() == {"revoked": 2}
    client.post(
        "/api/grants/revoke", json={**grant, "privileges": ["SELECT"], "on": "default.pair", "columns": ["a"]}
    )
    assert rights_of("User:ann") == []
    assert client.post("/api/users/delete", json={"name": "ann"}).json() == {"name": "ann"}
    assert "ann" not in [each["name"] for each in client.get("/api/users").json()["users"]]
    for path, body, said in (
        ("/api/users", {"name": "ann"}, "missing required field `password`"),
        ("/api/users/delete", {"name": "nobody"}, "nobody"),
        ("/api/grants", {**grant, "privileges": ["FLY"]}, "FLY is not a privilege"),
        ("/api/grants", {**grant, "privileges": "SELECT"}, "Expected `array`, got `str`"),
        ("/api/grants", {**grant, "on": "default", "columns": ["a"]}, "columns are of a table"),
    ):
        answer = client.post(path, json=body)
        assert (answer.status_code, said in answer.text) == (400, True), answer.text


def test_a_server_that_checks_nothing_says_so() -> None:
    class Open:
        class security:  # noqa: N801
            @staticmethod
            def grants() -> Any:
                raise KafkaError(ErrorCode.SECURITY_DISABLED, "no authorizer")

            list_users = staticmethod(list)

    assert Rights(Open()).listed() == {"protected": False, "users": [], "grants": []}  # type: ignore[arg-type]


def test_a_group_is_reset_to_a_time(connection: Connection) -> None:
    client = client_of(connection, writes=True)

    def reset(to: str) -> Any:
        body = {"topic": "clicks", "to": to, "dry_run": True}
        answer = client.post("/api/groups/my-app/reset", json=body)
        return (
            [each["after"] for each in answer.json()["offsets"]] if answer.status_code == 200 else answer.text
        )

    ends = connection.kafka.offsets("clicks")
    assert reset("1970-01-01T00:16:40") == [0, 0]
    assert reset("1970-01-01T00:16:40.010Z") == [5, 5]
    assert reset("1970-01-01T01:16:40.011+01:00") == [6, 5]
    assert reset("2100-01-01") == [ends[0], ends[1]]
    assert "earliest, latest, an offset or a time such as" in reset("yesterday")


def taken_from(tail: Tail, count: int) -> dict[str, Any]:
    """The sums of what came, until `count` came."""
    seen: dict[str, Any] = {"rows": [], "came": 0, "matched": 0, "passed_over": 0}
    deadline = time.monotonic() + 60
    while seen["came"] < count:
        assert time.monotonic() < deadline, (seen, tail.failure)
        taken = tail.take() or {}
        assert taken.pop("not_decoded", None) is None
        assert len(taken.get("rows", ())) <= ROWS_MAX
        for name, value in taken.items():
            seen[name] += value
        time.sleep(0.01)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_of_a_group_have_their_partitions(connection: Connection, get: Any, protocol: str) -> None:
    kafka = pytest.importorskip("confluent_kafka")
    consumer = kafka.Consumer(
        {"bootstrap.servers": connection.bootstrap, "group.id": protocol, "group.protocol": protocol}
    )
    consumer.subscribe(["clicks"])
    deadline = time.monotonic() + 60
    while not consumer.assignment():
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    group = get(f"/api/groups/{protocol}")
    assert group["state"] == "Stable"
    assert [each["assigned"] for each in group["members"]] == [[{"topic": "clicks", "partitions": [0, 1]}]]
    listed = {each["group"]: each["members"] for each in get("/api/groups")["groups"]}
    consumer.close()
    assert listed[protocol] == 1


def test_a_live_tail_shows_new_records(connection: Connection, get: Any) -> None:
    connection.kafka.create_topic("tailed")
    views = Topics(connection, History(lambda: connection), Decoder(Registry(None)))
    tables = Tables(connection, SQL)
    value = json.dumps({"n": 7, "long": "x" * 10_000}).encode()
    stops = [stopping.Stop() for _ in range(3)]
    every = Tail(views.tail("tailed", None, None, None, None), stops[0])
    some = Tail(views.tail("tailed", None, None, None, "json->>'$.n' = '7' AND \"offset\" > 500"), stops[1])
    changes = Tail(tables.tail("default.fruit", "id >= 1000"), stops[2])
    for each in (every, some, changes):
        each.start()
    connection.kafka.produce("tailed", [OutgoingRecord(b"first"), *[OutgoingRecord(value)] * 999])
    came = taken_from(every, 1000)
    assert (came["matched"], came["passed_over"]) == (1000, 0)
    assert [each["offset"] for each in came["rows"]][-ROWS_MAX:] == list(range(1000 - ROWS_MAX, 1000))
    newest = came["rows"][-1]["value"]
    assert (len(newest["text"]), newest["size"]) == (TEXT_BYTES_MAX, len(value))
    assert taken_from(some, 1000)["matched"] == 499
    fruit = connection.table("default.fruit")
    fruit.upsert([{"id": 1000, "name": "a", "big": 2**60}, {"id": 999, "name": "hidden", "big": 0}])
    fruit.delete([{"id": 1000}, {"id": 999}])
    found = taken_from(changes, 2)
    assert [(each["change"], each["row"]) for each in found["rows"]] == [
        ("+I", [1000, "a", str(2**60)]), ("-D", [1000, "a", str(2**60)]),
    ]  # fmt: skip
    for stop in stops:
        stop.set()
    assert _catch_up({0: 10, 1: 10}, {0: BEHIND_MAX + 10, 1: BEHIND_MAX + 11}) == BEHIND_MAX + 1 - ROWS_MAX
    for path, status, words, query in (
        ("/api/topics/none/tail", 404, "no topic none", {}),
        ("/api/topics/tailed/tail", 400, "no partition 7", {"partition": "7"}),
        ("/api/topics/tailed/tail", 400, "the condition cannot be used", {"where": "nonsense ("}),
        ("/api/topics/tailed/tail", 400, "the condition cannot be used", {"where": "read_text('/etc/passwd') = ''"}),
        ("/api/tables/default.fruit/tail", 400, "nonsense", {"where": "nonsense = 1"}),
    ):  # fmt: skip
        assert words in get(path, status, **query)["error"], path


def test_the_command_serves_until_it_is_told_to_stop(connection: Connection, tmp_path: Path) -> None:
    (tmp_path / "who.txt").write_text("ann:secret\n")
    words = ["console", "--server", connection.bootstrap, "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "headrace.tablelayer.cli.main",
            *words,
            "--basic-auth-file",
            str(tmp_path / "who.txt"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        found = re.fullmatch(r"headrace console is on (http://127\.0\.0\.1:\d+)/ \(server \S+\)\n", ready)
        assert found, ready + process.communicate(timeout=60)[1]
        assert httpx.get(f"{found.group(1)}/readyz", timeout=60).status_code == 200
        assert httpx.get(f"{found.group(1)}/api/topics", timeout=60).status_code == 401
        named = httpx.get(f"{found.group(1)}/api/about", auth=("ann", "secret"), timeout=60).json()
        assert (named["server"], named["writes"]) == (connection.bootstrap, False)
        # DuckDB's native part prints a line for each of its objects that outlives the process.
        columns = {"query": "SELECT column_name FROM information_schema.columns"}
        found_columns = httpx.post(
            f"{found.group(1)}/api/sql", json=columns, auth=("ann", "secret"), timeout=60
        )
        assert found_columns.status_code == 200
    finally:
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


def test_unsafe_or_malformed_console_options_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_CONSOLE_TOKEN", raising=False)
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "word").write_text("word")
    for words, said in (
        (["--listen", "0.0.0.0:0"], "would be open to other machines"),
        (["--listen", "nowhere"], "is not an address"),
        (["--token-file", str(tmp_path / "empty")], "is empty"),
        (["--token-file", str(tmp_path / "none")], "cannot be read"),
        (["--basic-auth-file", str(tmp_path / "word")], "USER:PASSWORD"),
    ):
        answer = CliRunner().invoke(app, ["console", "--server", "127.0.0.1:1", *words])
        assert (answer.exit_code, said in answer.stderr) == (1, True), answer.output


def test_the_console_checks_credentials_token_host_and_origin(connection: Connection) -> None:
    access = Access("ann:secret", "t0ken", frozenset({"127.0.0.1:9380"}))
    assert "secret" not in repr(access)
    client = client_of(connection, access, writes=True)
    assert client.get("/healthz").status_code == 200
    for path in ("/", "/api/topics", "/console.js", "/openapi.json"):
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert "Basic" in answer.headers["www-authenticate"]
    assert client.get("/api/topics", auth=("ann", "secret")).status_code == 200
    assert client.get("/api/topics", auth=("ann", "wrong")).status_code == 401
    assert client.get("/api/topics", headers={"authorization": "Bearer t0ken"}).status_code == 200
    assert client.get("/api/topics", headers={"authorization": "Bearer ann:secret"}).status_code == 401
    good = {"authorization": "Bearer t0ken"}
    assert client.get("/api/topics", headers={**good, "host": "evil.example"}).status_code == 421
    query = json.dumps({"query": "SELECT 1"})

    def post(**headers: str) -> int:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return client.post("/api/sql", content=query, headers={**good, **named}).status_code

    assert post(content_type="application/json") == 200
    assert post(content_type="application/json", origin="http://127.0.0.1:9380") == 200
    assert post(content_type="application/json", origin="http://evil.example") == 403
    assert post(content_type="text/plain") == 415


def test_every_answer_has_a_content_security_policy(connection: Connection) -> None:
    client = client_of(connection)
    for path in ("/", "/console.js", "/api/topics", "/api/topics/none", "/nothing", "/healthz"):
        headers = client.get(path).headers
        assert {name: headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    policy = SECURITY_HEADERS["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")


def test_the_page_has_nothing_from_elsewhere_and_nothing_inline() -> None:
    assets = Path(__file__).parents[2] / "console" / "assets"
    for path in sorted(each for each in assets.iterdir() if each.is_file()):
        text = path.read_text()
        for address in re.findall(r"https?://[^\s\"'<>)]+", text):
            assert address.startswith("http://www.w3.org/"), (path.name, address)
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert word not in text, (path.name, word)
        if path.suffix == ".html":
            assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|style=", text)
    for path in sorted((assets / "vendor").glob("*.js")):
        text = path.read_text()
        for word in (
            "eval(",
            "new Function",
            "fetch(",
            "XMLHttpRequest",
            "WebSocket",
            "sendBeacon",
            "import(",
        ):
            assert word not in text, (path.name, word)


def test_the_lag_of_a_partition_without_a_leader_is_unknown() -> None:
    kafka = SimpleNamespace(
        list_groups=lambda: [GroupListing("g", "consumer", "Empty")],
        describe_group=lambda name: GroupDescription(name, "Empty", "", [], {("t", 0): 5, ("t", 1): 5}),
        offset_ranges=lambda topics: {topics[0]: {0: OffsetRange(0, 9)}},
    )
    views = Groups(cast(Any, SimpleNamespace(kafka=kafka)))
    assert [each["lag"] for each in views.group("g")["positions"]] == [4, None]
    assert [each["lag"] for each in views.groups()["groups"]] == [None]


def test_values_lose_nothing_on_the_way_to_a_browser() -> None:
    assert plain([2**53, 2**53 + 1, -(2**60), True, float("nan"), None, b"\xff"]) == [
        2**53, str(2**53 + 1), str(-(2**60)), True, "nan", None, "/w==",
    ]  # fmt: skip
    maps = (
        pa.array([[("a", 2**60)]], pa.map_(pa.string(), pa.int64())),
        pa.array([[(1, [("b", None)])]], pa.map_(pa.int32(), pa.map_(pa.string(), pa.int32()))),
    )
    assert [rows_of(pa.table({"m": each}))["rows"] for each in maps] == [
        [[{"a": str(2**60)}]],
        [[{"1": {"b": None}}]],
    ]
    far = 3 * 253_402_300_800_000  # ms of the year 26059, which Python's datetime does not have
    clocks = pa.array([5, None], pa.time64("ns"))
    times = (
        (clocks, ["00:00:00.000000005", None]),
        (pa.array([[5, None]], pa.list_(pa.time64("ns"))), [["00:00:00.000000005", None]]),
        (
            pa.array([[("x", far)]], pa.map_(pa.string(), pa.timestamp("ms"))),
            [{"x": "+26059-12-31T00:00:00.000"}],
        ),
        (
            pa.array([{"a": far}], pa.struct([("a", pa.timestamp("ms"))])),
            [{"a": "+26059-12-31T00:00:00.000"}],
        ),
    )
    for column, values in times:
        assert rows_of(pa.table({"t": column}))["rows"] == [[each] for each in values]
    cut = text_of("é".encode() * 40_000)
    assert cut is not None
    assert (cut["encoding"], cut["size"], set(cut["text"])) == ("utf-8", 80_000, {"é"})
    odd = text_of(b"x" + "é".encode() * 40_000)
    assert odd is not None
    assert (odd["encoding"], len(odd["text"])) == ("utf-8", 32_768)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 2**53], pa.int64()),
        pa.array([1, None, 2**53 + 1], pa.int64()),
        pa.array([-(2**53) - 1, 0], pa.int64()),
        pa.array([2**64 - 1], pa.uint64()),
        pa.array([None], pa.int32()),
        pa.array([True, None]),
        pa.nulls(2),
        pa.array([1.5, None]),
        pa.array([1.5, float("nan")]),
        pa.array([float("-inf")], pa.float32()),
        pa.array(["a", None]),
        pa.array(["b", "x" * (TEXT_MAX + 1)], pa.large_string()),
        pa.array([b"\xff", None]),
        pa.array([Decimal("1.50"), None]),
        pa.array([datetime.date(2024, 2, 29)]),
        pa.array([{"a": 2**60}]),
        pa.array([[None, 2**60]]),
        pa.chunked_array([[1], [2**60]]),
        pa.chunked_array([], pa.int8()),
    ],
    ids=lambda column: str(column.type),
)
def test_a_column_is_what_its_values_are_one_by_one(column: pa.Array | pa.ChunkedArray) -> None:
    rows = rows_of(pa.table({"c": column}))["rows"]
    assert rows == [[plain(each.as_py())] for each in column]
    assert [[type(each)] for (each,) in rows] == [[type(plain(each.as_py()))] for each in column]


def looked(at: float, ends: dict[str, dict[int, int]], cpu_ms: int = 0, **more: Any) -> Look:
    return Look(at, int(at * 1000), ends, {"a": 5}, len(ends), {(0, 7): cpu_ms}, {0: 100}, **more)


def test_rates_are_of_the_last_two_looks() -> None:
    loads = ({(0, "t"): (10, 5), (1, "t"): (9, 9)}, {(0, "t"): (16, 6), (1, "t"): (1, 9), (2, "t"): (7, 7)})
    before = looked(10.0, {"a": {0: 100}, "b": {0: 50}}, loads=loads[0])
    ends = {"a": {0: 140}, "b": {0: 10}, "c": {0: 1, 1: 3}}
    after = looked(12.0, ends, 500, lags={"g/x": 7}, loads=loads[1])
    assert rates(before, after) == {"a": 20.0, "b": 5.0, "c": 2.0}
    history = History(lambda: None)  # type: ignore[arg-type, return-value]
    assert (history.rates(), history.points("cluster", "", 5000, 20_000)) == ({}, [])
    history.add(before)
    history.add(after)
    assert history.points("cluster", "", 5000, 20_000) == [
        {"time_ms": 10_000, "records_per_second": 27.0, "bytes": 5, "cpu_percent": 25.0, "memory_bytes": 100}
    ]
    assert history.points("topic", "a", 5000, 20_000) == [
        {"time_ms": 10_000, "records_per_second": 20.0, "bytes": 5}
    ]
    assert history.points("table", "t", 5000, 20_000) == [
        {"time_ms": 10_000, "lookups_per_second": 3.0, "rows_per_second": 0.5}
    ], "a broker that began again, and one that is new, count from the next look on"
    assert history.points("group", "g/x", 5000, 20_000) == [{"time_ms": 10_000, "lag": 7.0}]
    assert history.points("broker", "0", 5000, 20_000)[0]["memory_bytes"] == 100


def test_a_ring_keeps_an_hour_and_a_day_in_a_file_of_one_size(tmp_path: Path) -> None:
    file, now = tmp_path / "deep" / "ring", 1_700_000_000
    with closing(Ring(file, "here")) as ring:
        for number in range(1000):
            values = {"even": number % 2} if number == 998 else {"even": number % 2, "n": number}
            ring.put(now + number * 5, values)
        end = now + 999 * 5
        assert file.stat().st_size == FILE_BYTES < 10 << 20
        hour = ring.read(["n", "even", "none"], end - 3600, end)
        assert [row for _, row in hour[-3:]] == [[997, 1, None], [None, 0, None], [999, 1, None]]
        assert (len(hour), hour[-1][0]) == (720, end * 1000)
        day = ring.read(["n"], end - 86_400, end)
        assert len(day) == 1000 * 5 // 60 + 1
        assert day[1] == ((now // 60 + 1) * 60_000, [13.5]), "the mean of a minute"
        assert ring.read(["n"], end + 3600, end + 7200) == [], "numbers of an hour ago are not those of now"
        with pytest.raises(BlockingIOError), closing(Ring(file, "here")):
            pass
    with closing(Ring(file, "here")) as ring:
        assert ring.read(["n"], end, end) == [(end * 1000, [999])]
        ring.put(end + 5, {f"series {number}": number for number in range(SERIES_MAX)})
        last = f"series {SERIES_MAX - 1}"
        assert ring.read(["n", last], end + 5, end + 5)[0][1] == [None, SERIES_MAX - 1]
    with closing(Ring(file, "another cluster")) as ring:
        assert ring.read(["n"], end, end) == []


def test_plots_are_of_things_and_minutes(connection: Connection) -> None:
    history = History(lambda: connection)
    client = Client(
        make_app(connection, SQL, Access(), allow_writes=False, version="1", server="here", history=history)
    )
    history.add(look(connection, 1.0, int(time.time() * 1000) - 5000))
    history.add(look(connection, 6.0, int(time.time() * 1000), lags=True))
    found = {
        (of, name): client.get("/api/plots", params={"of": of, "name": name, "minutes": 15}).json()["points"]
        for of, name in (
            ("cluster", ""),
            ("topic", "clicks"),
            ("group", "my-app"),
            ("broker", "0"),
            ("topic", "none"),
        )
    }
    assert found["cluster", ""][-1]["bytes"] > found["topic", "clicks"][-1]["bytes"] > 0
    assert found["group", "my-app"][-1]["lag"] == 29
    assert found["broker", "0"][-1]["disk_free_bytes"] > 0
    assert found["topic", "none"][-1]["bytes"] is None
    for wrong in ({"of": "moon"}, {"minutes": "0"}, {"minutes": "1441"}):
        assert client.get("/api/plots", params=wrong).status_code == 400, wrong


def test_a_server_that_does_not_list_snapshots_has_a_page_all_the_same() -> None:
    class Older:
        class admin:  # noqa: N801
            @staticmethod
            def snapshots(_: str) -> Any:
                raise UnsupportedRequest("an older server")

    assert Tables(Older(), SQL).snapshots("default.t") == {"buckets": []}  # type: ignore[arg-type]
