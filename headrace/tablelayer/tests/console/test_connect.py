"""The console beside Apache Kafka's own Connect, whose connectors run against Headrace. Fetches its jars once."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.kafka_peer import connect_jars
from bench.maven import java
from headrace.tablelayer.client import Connection, connect
from headrace.tablelayer.client.admin.produce import OutgoingRecord
from headrace.tablelayer.console.access import Access
from headrace.tablelayer.console.app import make_app
from headrace.tablelayer.console.rest import Rest
from headrace.tablelayer.tests.cli.conftest import Served
from headrace.tablelayer.tests.console.test_console import SQL, Client
from simulator.ports import free_port

pytestmark = pytest.mark.soak
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Connection]:
    served = Served("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    with connect(served.address) as connection:
        connection.kafka.create_topic("clicks", partitions=1)
        connection.kafka.produce("clicks", [OutgoingRecord(b"one"), OutgoingRecord(b"two")])
        yield connection
    assert served.stop()[0] == 0


@pytest.fixture
def client(server: Connection, tmp_path: Path) -> Iterator[Client]:
    port = free_port()
    converter = "org.apache.kafka.connect.storage.StringConverter"
    (tmp_path / "worker.properties").write_text(
        f"bootstrap.servers={server.bootstrap}\nkey.converter={converter}\nvalue.converter={converter}\n"
        f"offset.storage.file.filename={tmp_path}/offsets\nlisteners=http://127.0.0.1:{port}\n"
        "consumer.auto.offset.reset=earliest\n"
    )
    for name, file in (("good", "out.txt"), ("bad", "no/such/folder/out.txt")):
        (tmp_path / f"{name}.properties").write_text(
            f"name={name}\nconnector.class={SINK}\ntasks.max=1\ntopics=clicks\nfile={tmp_path}/{file}\n"
        )
    files = [str(tmp_path / f"{name}.properties") for name in ("worker", "good", "bad")]
    options = ["-Xmx256M", "-cp", f"{connect_jars()}/*"]
    with (tmp_path / "connect.out").open("w") as out:
        process = subprocess.Popen(
            [java(), *options, "org.apache.kafka.connect.cli.ConnectStandalone", *files],
            stdout=out,
            stderr=out,
        )
        rest = Rest("Kafka Connect", f"http://127.0.0.1:{port}")
        yield Client(
            make_app(server, SQL, Access(), allow_writes=True, version="1", server="here", kafka_connect=rest)
        )
        process.terminate()
        process.wait(60)


def eventually(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 120
    while not (value := found()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)
    return value


def test_connectors_of_kafka_connect(server: Connection, client: Client, tmp_path: Path) -> None:
    def states() -> dict[str, list[str]]:
        answer = client.get("/api/connectors")
        listed = answer.json()["connectors"] if answer.status_code == 200 else []
        return {each["name"]: [each["state"], *(task["state"] for task in each["tasks"])] for each in listed}

    wanted = {"good": ["RUNNING", "RUNNING"], "bad": ["RUNNING", "FAILED"]}
    eventually(lambda: states() == wanted)
    assert client.get("/api/connectors").json()["version"] == "4.3.1"
    eventually(lambda: (tmp_path / "out.txt").exists() and (tmp_path / "out.txt").read_text() == "one\ntwo\n")
    bad = client.get("/api/connectors/bad").json()
    assert "no/such/folder" in bad["tasks"][0]["trace"]
    assert eventually(lambda: client.get("/api/connectors/good").json()["topics"]) == ["clicks"]
    (tmp_path / "no/such/folder").mkdir(parents=True)
    assert client.post("/api/connectors/bad/restart", json={"task": 0}).status_code == 200
    eventually(lambda: states() == {**wanted, "bad": ["RUNNING", "RUNNING"]})
    body = {"tasks": True, "failed": True}
    assert client.post("/api/connectors/good/restart", json=body).status_code == 200
    assert client.get("/api/connectors/none").status_code == 404
    groups = {each["group"] for each in client.get("/api/groups").json()["groups"]}
    assert {"connect-good", "connect-bad"} <= groups
