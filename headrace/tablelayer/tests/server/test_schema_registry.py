"""Avro tables with a schema registry: its requests, the credentials, and a registry that does not answer."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest

from headrace.broker.runtime.ports import SystemThreads
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.avro.schema import AvroSchema
from headrace.tablelayer.server.kafka_view.schema_registry import SchemaRegistries
from headrace.tablelayer.tests.server.tables import TIMEOUT_MS, Table, run, tables, until
from headrace.tablelayer.tests.server.test_kafka_view import batch, consume, row

COLUMNS = "id INT, name STRING, price DECIMAL(10, 2), PRIMARY KEY (id) NOT ENFORCED"
LOCAL = {"schema.registry.allowed.hosts": "127.0.0.1", "schema.registry.request.timeout.ms": str(TIMEOUT_MS)}
WRITER = {
    "type": "record", "name": "w",
    "fields": [{"name": "name", "type": ["null", "string"]}, {"name": "id", "type": "int"}],
}  # fmt: skip


@dataclass
class Registry:
    """A small schema registry that records requests, with prepared answers."""

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    status: int = 200
    delay_seconds: float = 0.0
    message: str = "as told"
    goes_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.goes_on.set()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        time.sleep(self.delay_seconds)
        self.goes_on.wait()
        if self.status != 200:
            return self.status, {"error_code": self.status, "message": self.message}
        parts = path.strip("/").split("/")
        if method == "GET" and parts[:2] == ["schemas", "ids"]:
            found = self.schemas.get(int(parts[2]))
            return (
                (404, {"error_code": 40403, "message": "Schema not found"}) if found is None else (200, found)
            )
        assert (method, parts[0], parts[2]) == ("POST", "subjects", "versions")
        for known, each in self.schemas.items():
            if each["schema"] == body["schema"]:
                return 200, {"id": known}
        number = 100 + len(self.schemas)
        self.schemas[number] = {"schema": body["schema"], "subject": parts[1]}
        return 200, {"id": number}


@contextmanager
def registry() -> Iterator[Registry]:
    state = Registry()

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self, method: str) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            state.asked.append((method, self.path, self.headers.get("Authorization")))
            status, value = state.answer(method, self.path.removeprefix("/api"), body)
            data = json.dumps(value).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass  # who asked is gone

        def do_GET(self) -> None:
            self.handle_one("GET")

        def do_POST(self) -> None:
            self.handle_one("POST")

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/api"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def registries(url: str | None = None, clock: Clock | None = None, **config: Any) -> SchemaRegistries:
    given = {
        "schema.registry.url": url, "schema.registry.basic.auth.user.info": None,
        "schema.registry.bearer.auth.token": None, "schema.registry.request.timeout.ms": TIMEOUT_MS,
        "schema.registry.allowed.hosts": ["127.0.0.1"],
    }  # fmt: skip
    for name, value in config.items():
        given[f"schema.registry.{name.replace('_', '.')}"] = value
    return SchemaRegistries(given, clock or Clock(), SystemThreads())  # type: ignore[arg-type]


def wire(schema_id: int, *rows: dict[str, Any]) -> list[tuple[None, bytes]]:
    values: list[tuple[None, bytes]] = []
    for each in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(WRITER), each)
        values.append((None, b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()))
    return values


async def avro_table(all_tables: Any, url: str, columns: str = COLUMNS, **options: Any) -> Table:
    given = {"kafka_value-format": "avro", "kafka_avro_registry-url": url, **options}
    return await all_tables.create(columns, **given)


async def produce(table: Table, *pairs: tuple[Any, Any], **options: Any) -> Any:
    return await table.broker.produce(table.definition.path.topic, batch(*pairs, **options), partition=0)


def test_r17_avro_through_the_broker_both_ways(tmp_path: Path) -> None:
    async def work(known: Registry) -> None:
        async with tables(tmp_path, LOCAL) as all_tables:
            table = await avro_table(all_tables, known.url)
            answer = await produce(
                table, *wire(7, {"id": 1, "name": "a"}, {"id": 2, "name": None}), (b"2", None)
            )
            assert answer.error_code == 0, answer.error_message
            assert await table.state() == [row(1, "a")]
            await produce(table, *wire(7, {"id": 3, "name": "é"}))
            found = await consume(table)
            (own,) = [number for number in known.schemas if number != 7]
            assert known.schemas[own]["subject"] == "default.t-value"
            schema = fastavro.parse_schema(json.loads(known.schemas[own]["schema"]))
            values = [None if each[2] is None else each[2] for each in found]
            assert all(value is None or value[:5] == b"\0" + own.to_bytes(4, "big") for value in values)
            rows = [value and fastavro.schemaless_reader(io.BytesIO(value[5:]), schema) for value in values]
            assert rows == [row(1, "a"), row(2), None, row(3, "é")]
            assert [each[:2] for each in known.asked] == [
                ("GET", "/api/schemas/ids/7"), ("POST", "/api/subjects/default.t-value/versions"),
            ]  # fmt: skip

    with registry() as known:
        known.schemas[7] = {"schema": json.dumps(WRITER)}
        run(lambda: work(known))


def test_r17_6_bad_avro_is_named_and_a_silent_registry_is_for_later(tmp_path: Path) -> None:
    async def work(known: Registry) -> None:
        async with tables(tmp_path, LOCAL) as all_tables:
            table = await avro_table(all_tables, known.url)
            good = wire(7, {"id": 1, "name": "a"})
            for bad, reason in (
                (wire(8, {"id": 2, "name": ""})[0], "Schema not found"),
                ((None, b"{}"), "not an Avro value"),
            ):
                answer = await produce(table, *good, bad)
                assert answer.error_code == ErrorCode.INVALID_RECORD
                assert "record 1" in answer.error_message
                assert reason in answer.error_message
                assert [each.batch_index for each in answer.record_errors] == [1]
            assert await table.state() == []
            known.status = 503
            known.schemas[9] = {"schema": json.dumps(WRITER)}
            answer = await produce(table, *wire(9, {"id": 3, "name": "x"}))
            assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert (await table.broker.fetch("default.t", 0)).error_code == 0, (
                "nothing is in the log: nothing to say"
            )
            answer = await produce(table, *good)
            assert answer.error_code == 0, "the schema is known: the registry is not asked"
            assert (await table.broker.fetch("default.t", 0)).error_code == ErrorCode.REPLICA_NOT_AVAILABLE
            known.status = 200
            assert (await produce(table, *wire(9, {"id": 3, "name": "x"}))).error_code == 0
            assert [each[0] for each in await consume(table)] == [0, 1]

    with registry() as known:
        known.schemas[7] = {"schema": json.dumps(WRITER)}
        run(lambda: work(known))


async def test_a_table_with_avro_values_needs_a_registry(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        with pytest.raises(AssertionError, match=r"schema\.registry\.url"):
            await all_tables.create(COLUMNS, **{"kafka_value-format": "avro"})
        table = await all_tables.create(
            COLUMNS, **{"kafka_value-format": "avro", "kafka_avro_schema": "record"}
        )
        await table.put(("+", row(1, "a")))
        ((_, _, value, _),) = await consume(table)
        assert list(fastavro.reader(io.BytesIO(value or b""))) == [row(1, "a")]


def test_credentials_go_to_the_servers_own_registry_only() -> None:
    async def work(own: Registry, other: Registry) -> None:
        for config, wanted in (
            ({"basic_auth_user_info": "me:pass:word"}, "Basic " + base64.b64encode(b"me:pass:word").decode()),
            ({"bearer_auth_token": "abc"}, "Bearer abc"),
            ({}, None),
        ):
            asked = registries(own.url + "/", **config)
            for each in (own, other):
                found = await asked.schemas(each.url, [7])
                assert isinstance(found[7], AvroSchema)
            assert own.asked.pop() == ("GET", "/api/schemas/ids/7", wanted)
            assert other.asked.pop() == ("GET", "/api/schemas/ids/7", None)

    with registry() as own, registry() as other:
        for each in (own, other):
            each.schemas[7] = {"schema": '"string"'}
        asyncio.run(work(own, other))


def test_known_schemas_are_cached_and_concurrent_requests_are_merged() -> None:
    async def work(known: Registry) -> None:
        clock = Clock()
        asked = registries(known.url, clock)
        known.delay_seconds = 0.05
        await asyncio.gather(*(asked.schemas(known.url, [7, 8]) for _ in range(5)))
        assert sorted(path for _, path, _ in known.asked) == ["/api/schemas/ids/7", "/api/schemas/ids/8"]
        assert "Schema not found (40403)" in str((await asked.schemas(known.url, [8]))[8])
        assert len(known.asked) == 2
        known.schemas[8] = {"schema": '"string"'}
        clock.now += 60.0
        found = await asked.schemas(known.url, [7, 8])
        assert isinstance(found[8], AvroSchema)
        assert len(known.asked) == 3

    with registry() as known:
        known.schemas[7] = {"schema": '"string"'}
        asyncio.run(work(known))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"schema": "{}", "schemaType": "PROTOBUF"}, "is PROTOBUF, not Avro"),
        ({"schema": '"string"', "references": [{"name": "x"}]}, "refers to other schemas"),
        ({"schema": "nonsense"}, "not JSON"),
        ({}, "not JSON"),
    ],
)
def test_schemas_that_cannot_be_used(answer: dict[str, Any], reason: str) -> None:
    with registry() as known:
        known.schemas[7] = answer
        found = asyncio.run(registries(known.url).schemas(known.url, [7]))
        assert reason in str(found[7])


def test_a_silent_registry_times_out_without_blocking_the_loop() -> None:
    async def work(known: Registry) -> None:
        asking = asyncio.create_task(registries(known.url).schemas(known.url, [7]))
        await until(lambda: known.asked)
        for _ in range(3):
            await asyncio.sleep(0.005)
        assert not asking.done()
        with pytest.raises(KafkaError, match=r"did not answer within 0.1 s|timed out") as caught:
            await registries(known.url, request_timeout_ms=100).schemas(known.url, [7])
        assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
        known.goes_on.set()
        assert "not found" in str((await asking)[7])

    with registry() as known:
        known.goes_on.clear()
        try:
            asyncio.run(work(known))
        finally:
            known.goes_on.set()
    with pytest.raises(KafkaError, match="cannot be asked"):
        asyncio.run(registries().id_of("http://127.0.0.1:1", "s", '"string"'))


@pytest.mark.parametrize(
    ("allowed", "url", "is_asked"),
    [
        ([], "http://169.254.169.254/latest", False),
        ([], "http://own:8081", True),
        ([], "http://own:8081/other/path", True),
        ([], "http://own", False),
        ([], "https://own:8081", False),
        (["a.b"], "http://a.b", True),
        (["A.b"], "https://A.B:99", True),
        (["a.b:80"], "http://a.b/x", True),
        (["a.b:80"], "https://a.b", False),
        (["a.b:80"], "http://a.b:81", False),
        (["a.b"], "http://x.a.b", False),
        (["a.b"], "http://a.b.evil", False),
        (["a.b"], "http://a.b@evil", False),
        (["*.b.c"], "http://x.y.b.c:1", True),
        (["*.b.c"], "http://b.c", False),
        (["*.b.c"], "http://xb.c", False),
        (["*.b.c:443"], "https://x.b.c", True),
        (["*.b.c:443"], "http://x.b.c", False),
        (["[::1]"], "http://[::1]:8", True),
        (["127.0.0.1"], "http://127.0.0.2", False),
    ],
)
def test_registries_that_the_operator_names_are_asked(allowed: list[str], url: str, is_asked: bool) -> None:
    asked = registries("http://own:8081", allowed_hosts=allowed)
    assert (asked.hosts.complaint(url) is None) == is_asked


def test_no_table_has_the_server_ask_another_host(tmp_path: Path) -> None:
    async def allowed(known: Registry) -> None:
        async with tables(tmp_path, LOCAL) as all_tables:
            await avro_table(all_tables, known.url)

    async def not_allowed(known: Registry) -> None:
        async with tables(tmp_path) as all_tables:
            with pytest.raises(AssertionError, match=r"schema\.registry\.allowed\.hosts"):
                await avro_table(all_tables, known.url, name="u")
            config = {
                "table.schema": "a INT",
                "table.kafka.value-format": "avro",
                "table.kafka.avro.registry-url": known.url,
            }
            with pytest.raises(KafkaError, match=r"schema\.registry\.allowed\.hosts"):
                await all_tables.broker.context.topics.create_topic("default.v", 1, config)
            answer = await produce(await all_tables.open(), *wire(7, {"id": 1, "name": "a"}))
            assert answer.error_code == ErrorCode.INVALID_CONFIG
            assert "schema.registry.allowed.hosts" in answer.error_message
            assert known.asked == []

    with registry() as known:
        known.schemas[7] = {"schema": json.dumps(WRITER)}
        run(lambda: allowed(known))
        run(lambda: not_allowed(known))


def test_a_silent_registry_does_not_delay_another() -> None:
    """With shared threads these would wait behind requests to the silent one."""

    async def work(silent: Registry, other: Registry) -> None:
        asked = registries()
        waiting = [asyncio.create_task(asked.schemas(silent.url, [each])) for each in range(300)]
        while len(silent.asked) < 4:  # noqa: ASYNC110 - the registry is a thread
            await asyncio.sleep(0.001)
        assert isinstance((await asked.schemas(other.url, [7]))[7], AvroSchema)
        assert len(silent.asked) == 4, "a bounded number at a time"
        refused = [each for each in waiting if each.done()]
        assert len(refused) == 300 - 256
        for each in refused:
            with pytest.raises(
                KafkaError, match=r"256 requests to the schema registry .* try again"
            ) as caught:
                await each
            assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
        silent.goes_on.set()
        found = await asyncio.gather(*(each for each in waiting if each not in refused))
        assert len(found) == 256

    with registry() as silent, registry() as other:
        silent.goes_on.clear()
        for each in (silent, other):
            each.schemas[7] = {"schema": '"string"'}
        try:
            asyncio.run(work(silent, other))
        finally:
            silent.goes_on.set()


def test_a_registry_that_drips_is_given_up_and_its_socket_closed() -> None:
    closed, over = threading.Event(), threading.Event()

    class Dripping(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                self.send_response(200)
                self.end_headers()
                while not over.wait(0.01):
                    self.wfile.write(b" ")
            except OSError:
                closed.set()

        def log_message(self, *arguments: Any) -> None:
            pass

    async def work(url: str) -> None:
        asked = registries(request_timeout_ms=1000)
        # A machine that stands still for that long may give the socket no time either.
        with pytest.raises(KafkaError, match=r"did not answer within 1 s|timed out"):
            await asked.schemas(url, [7])
        (it,) = asked._registries.values()
        await until(lambda: it.is_idle, "its thread ends by itself")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Dripping)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        asyncio.run(work(f"http://127.0.0.1:{server.server_port}"))
        assert closed.wait(60)
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_text_of_a_registry_cannot_forge_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    with registry() as known:
        known.status = 500
        known.message = "no\n2026-01-01 ERROR forged \ud800 \x1b[2J" + "x" * 10_000
        with pytest.raises(KafkaError) as caught:
            asyncio.run(registries().schemas(known.url, [7]))
    for text in (caught.value.message, *(record.getMessage() for record in caplog.records)):
        assert text.isprintable()
        assert len(text) < 1000


def test_a_refusal_to_register_says_why() -> None:
    with registry() as known:
        known.status = 409
        with pytest.raises(KafkaError, match=r"as told \(409\)") as caught:
            asyncio.run(registries(known.url).id_of(known.url, "db.t-value", '"string"'))
        assert caught.value.code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("url", "config", "reason"),
    [
        (None, {"basic_auth_user_info": "a:b"}, "needs schema.registry.url; set it too"),
        ("http://r", {"basic_auth_user_info": "ab"}, "no colon"),
        ("http://r", {"basic_auth_user_info": "a:b", "bearer_auth_token": "c"}, "remove one"),
    ],
)
def test_configurations_that_contradict_each_other(
    url: str | None, config: dict[str, str], reason: str
) -> None:
    from headrace.broker.configs.config_key import ConfigError

    with pytest.raises(ConfigError, match=reason):
        registries(url, **config)
