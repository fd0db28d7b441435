"""Kafka Connect as a distributed worker with its offsets and connectors in topics of the server.

A source is exactly once through two `kill -9` of the server, a sink reads a table, and a transactional source onto a
table gets a clear error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from apps.connect_worker import RUNNING, Worker, jars
from apps.loads import Attempt, consumed, until

from bench.kafka_peer import KAFKA_VERSION
from headrace import connect

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
LINES = 15_000
FILE = "org.apache.kafka.connect.file.FileStream"
TEXT = "org.apache.kafka.connect.storage.StringConverter"


@pytest.fixture
def worker(own_server, tmp_path: Path) -> Iterator[Worker]:
    made = Worker(
        tmp_path / "connect",
        own_server.address,
        jars(),
        {"exactly.once.source.support": "enabled"},
    )
    made.start()
    yield made
    made.stop()


def test_connect_distributed_through_kills(
    own_server, worker: Worker, tmp_path: Path, attempt: Attempt
) -> None:
    what = "distributed; a source exactly once and a sink of a table, the server killed twice"
    with attempt("Kafka Connect", KAFKA_VERSION, what):
        server = own_server
        with connect(server.address) as connection:
            connection.kafka.create_topic("lines", partitions=1)
            connection.execute(
                "CREATE TABLE items (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)"
                " WITH ('bucket.num' = '2')"
            )
        source, target = tmp_path / "source.txt", tmp_path / "target.txt"
        source.touch()
        worker.put(
            "lines",
            {
                "connector.class": FILE + "SourceConnector",
                "file": str(source),
                "topic": "lines",
                "batch.size": "200",
                "exactly.once.support": "required",
                "value.converter": TEXT,
            },
        )
        worker.put(
            "items",
            {
                "connector.class": FILE + "SinkConnector",
                "file": str(target),
                "topics": "default.items",
                "key.converter": TEXT,
                "value.converter": TEXT,
            },
        )
        parts = [range(k * LINES // 3, (k + 1) * LINES // 3) for k in range(3)]
        for number, part in enumerate(parts):
            with source.open("a") as file:
                file.writelines(f"line {n}\n" for n in part)
            with connect(server.address) as connection:
                connection.table("items").upsert([{"id": n, "name": f"item {n}"} for n in part])
            until(lambda part=part: len(consumed(server.address, "lines")) > part.start, "lines", worker.said)
            if number < 2:
                server.kill()
                server.start()
        wanted = [f"line {n}".encode() for n in range(LINES)]
        until(lambda: len(consumed(server.address, "lines")) >= LINES, "all lines", worker.said)
        assert consumed(server.address, "lines") == wanted

        def written() -> set[int]:
            complete = target.read_text().split("\n")[:-1]
            return {json.loads(line)["id"] for line in complete}

        until(lambda: written() == set(range(LINES)), "all rows of the table", worker.said)
        assert worker.state("lines") == worker.state("items") == RUNNING


def test_a_transactional_source_onto_a_table_is_told_why_not(
    own_server, worker: Worker, tmp_path: Path
) -> None:
    with connect(own_server.address) as connection:
        connection.execute("CREATE TABLE refused (line STRING, PRIMARY KEY (line) NOT ENFORCED)")
    (tmp_path / "source.txt").write_text("one\ntwo\n")
    worker.put(
        "refused",
        {
            "connector.class": FILE + "SourceConnector",
            "file": str(tmp_path / "source.txt"),
            "topic": "default.refused",
            "transforms": "row",
            "transforms.row.type": "org.apache.kafka.connect.transforms.HoistField$Value",
            "transforms.row.field": "line",
            "value.converter.schemas.enable": "false",
        },
    )
    said = until(
        lambda: worker.state("refused") not in ("", RUNNING) and worker.state("refused"), "a failure"
    )
    assert "default.refused is a table, and tables take no part in transactions" in said, said
    with connect(own_server.address) as connection:
        assert connection.table("refused").count() == 0
