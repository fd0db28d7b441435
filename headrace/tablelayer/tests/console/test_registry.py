"""The console beside a real schema registry, Apicurio's with Confluent's interface. Fetches it once (142 MB)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from bench.registry_peer import INTERFACE, start_registry
from headrace.tablelayer.client import connect
from headrace.tablelayer.console.access import Access
from headrace.tablelayer.console.app import make_app
from headrace.tablelayer.console.rest import Rest
from headrace.tablelayer.tests.cli.conftest import Served
from headrace.tablelayer.tests.console.test_console import SQL, Client
from headrace.tablelayer.tests.console.test_decoding import avro, framed

pytestmark = pytest.mark.soak
TOWN = {"type": "record", "name": "Town", "namespace": "geo", "fields": [{"name": "name", "type": "string"}]}
TRIP = {"type": "record", "name": "Trip", "fields": [{"name": "to", "type": "geo.Town"}]}
ORDER = 'syntax = "proto3"; package shop; message Order { string name = 1; int32 count = 2; }'


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    server = start_registry(tmp_path)
    yield f"http://{server.address}/{INTERFACE}"
    server.process.terminate()
    server.process.wait(60)


def test_a_real_registry(url: str, tmp_path: Path) -> None:
    def register(subject: str, schema: str, kind: str = "AVRO", references: Any = ()) -> int:
        body = {"schema": schema, "schemaType": kind, "references": list(references)}
        answer = httpx.post(f"{url}/subjects/{subject}/versions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["id"])

    refers = {"name": "geo.Town", "subject": "town", "version": 1}
    ids = [
        register("town", json.dumps(TOWN)),
        register("trip", json.dumps(TRIP), references=[refers]),
        register("order", ORDER, "PROTOBUF"),
        register("note", '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}', "JSON"),
    ]
    whole = {**TRIP, "fields": [{"name": "to", "type": TOWN}]}
    values = [
        avro(TOWN, {"name": "Oslo"}),
        avro(whole, {"to": {"name": "Rome"}}),
        b"\0\x0a\x03pen\x10\x07",
        b'{"a": 1}',
    ]
    served = Served("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    with connect(served.address) as connection:
        connection.kafka.create_topic("mixed", partitions=1)
        producer = Producer({"bootstrap.servers": served.address})
        for number, value in zip([*ids, 999], [*values, b"x"], strict=True):
            producer.produce("mixed", framed(number, value))
        assert producer.flush(60) == 0
        client = Client(
            make_app(
                connection, SQL, Access(), allow_writes=False, version="1", server="here",
                schema_registry=Rest("the schema registry", url),
            )
        )  # fmt: skip
        records = client.get("/api/topics/mixed/records").json()["records"]
        found = [each["value"]["decoded"] for each in records]
        assert [(each["format"], json.loads(each["text"])) for each in found[:4]] == [
            ("Avro", {"name": "Oslo"}),
            ("Avro", {"to": {"name": "Rome"}}),
            ("Protobuf", {"1": "pen", "2": 7}),
            ("JSON Schema", {"a": 1}),
        ]
        assert found[2]["note"].startswith("fields by number"), "Apicurio gives no descriptors"
        assert "404" in found[4]["error"]
        listed = client.get("/api/schemas").json()
        assert (listed["subjects"], listed["compatibility"]) == (["note", "order", "town", "trip"], "NONE")
        trip = client.get("/api/schemas/trip").json()
        assert (trip["versions"], trip["references"]) == ([1], [refers])
    assert served.stop()[0] == 0
