"""Programs that keep their state in a cluster or monitor it: Apicurio Registry and kafkatop."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from apps.connect_worker import stop
from apps.environments import python_of
from apps.loads import Attempt, produce, until
from apps.programs import maven_file

from bench.maven import java
from examples.server import free_port
from headrace import connect

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
APICURIO, KAFKATOP = "3.0.9", "1.16"


@contextmanager
def registry(folder: Path, program: Path, server: str) -> Iterator[str]:
    """Run Apicurio Registry with its store in topics of the server; return its address."""
    port = free_port(0)
    settings = {
        "apicurio.storage.kind": "kafkasql",
        "apicurio.kafkasql.bootstrap.servers": server,
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": str(port),
    }
    options = [f"-D{name}={value}" for name, value in settings.items()]
    with (folder / "registry.log").open("ab") as said:
        process = subprocess.Popen(
            [java(), "-Xmx512M", *options, "-jar", str(program)],
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    address = f"http://127.0.0.1:{port}/apis/ccompat/v7"

    def log() -> str:
        return f"{process.poll()} {(folder / 'registry.log').read_text(errors='replace')}"

    def answers() -> bool:
        assert process.poll() is None, log()[-4000:]
        try:
            return ask(f"{address}/subjects") is not None
        except OSError:
            return False

    try:
        until(answers, "the registry", log)
        yield address
    finally:
        stop(process)


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def schema(number: int) -> str:
    fields = [
        {"name": "id", "type": "long"},
        {"name": f"field{number}", "type": ["null", "string"], "default": None},
    ]
    return json.dumps({"type": "record", "name": "row", "fields": fields})


def test_apicurio_keeps_its_store_in_topics_through_kills(
    own_server, tmp_path: Path, attempt: Attempt
) -> None:
    with attempt(
        "Apicurio Registry", APICURIO, "its store in topics, the server killed twice, then started again"
    ):
        packed = maven_file("io.apicurio", "apicurio-registry-app", APICURIO, "all", "tar.gz")
        subprocess.run(["tar", "-xzf", str(packed), "-C", str(tmp_path)], check=True)
        program = next(tmp_path.rglob("*runner.jar"), None) or next(tmp_path.rglob("quarkus-run.jar"))
        ids: dict[str, int] = {}
        with registry(tmp_path, program, own_server.address) as address:
            for number in range(30):
                if number in (10, 20):
                    own_server.kill()
                    own_server.start()
                subject = f"s{number}-value"

                def registered(subject: str = subject, number: int = number) -> int:
                    try:
                        answer = ask(f"{address}/subjects/{subject}/versions", {"schema": schema(number)})
                    except urllib.error.HTTPError:
                        return 0  # it gives up while the server is away; a client tries again
                    return int(answer["id"])

                ids[subject] = until(registered, f"schema {number}")
        assert len(set(ids.values())) == 30
        with registry(tmp_path, program, own_server.address) as address:
            until(lambda: set(ask(f"{address}/subjects")) == set(ids), "all subjects")
            for number, (subject, identity) in enumerate(ids.items()):
                found = ask(f"{address}/subjects/{subject}/versions/latest")
                assert (found["id"], json.loads(found["schema"])) == (identity, json.loads(schema(number)))


def test_kafkatop_sees_topics_tables_and_what_groups_lag_behind(
    own_server, tmp_path: Path, attempt: Attempt
) -> None:
    with attempt("kafkatop", KAFKATOP, "topics, a table, and a group's lag"):
        program = python_of("kafkatop", (f"kafkatop=={KAFKATOP}",)).parent / "kafkatop"
        with connect(own_server.address) as connection:
            connection.kafka.create_topic("clicks", partitions=2)
            connection.execute("CREATE TABLE items (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
            connection.table("items").upsert([{"id": n} for n in range(10)])
            connection.kafka.commit_offsets("readers", "default.items", {0: 4})
        produce(own_server.address, "clicks", ((None, n) for n in range(20)))

        def shown(*words: str) -> str:
            command = [
                str(program),
                "--kafka-broker",
                own_server.address,
                "--text",
                "--poll-period",
                "1",
                *words,
            ]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
            )
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
            return done.stdout

        topics = shown("--topicinfo", "--all")
        assert "clicks" in topics
        assert "default.items" in topics
        summary = shown("--summary-json", "--all")
        lag = json.loads(summary)["readers"]["topics"]["default.items"]
        assert lag == {"partitions": 1, "lag_max": 6, "lag_min": 6}
