"""Small stand-ins for other programs: Confluent's schema registry and Kafka Connect, by their REST interfaces."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit


class Program:
    """Answers requests by `answer` (method, parts of the path, query), and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str | None]] = []
        self.url = ""

    def answer(self, method: str, parts: list[str], query: dict[str, str]) -> tuple[int, Any]:
        raise NotImplementedError


AnyProgram = TypeVar("AnyProgram", bound=Program)


@contextmanager
def served(program: AnyProgram) -> Iterator[AnyProgram]:
    class Handler(BaseHTTPRequestHandler):
        def handle_one(self, method: str) -> None:
            place = urlsplit(self.path)
            program.asked.append((method, self.path, self.headers.get("Authorization")))
            parts = [unquote(each) for each in place.path.strip("/").split("/")]
            status, value = program.answer(
                method, parts, {name: each[-1] for name, each in parse_qs(place.query).items()}
            )
            data = value if isinstance(value, bytes) else b"" if value is None else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self.handle_one("GET")

        def do_POST(self) -> None:
            self.handle_one("POST")

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    program.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield program
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class SchemaRegistry(Program):
    """Schemas by id; each is version 1 of its subject unless it says another one."""

    def __init__(self) -> None:
        super().__init__()
        self.schemas: dict[int, dict[str, Any]] = {}
        self.serialized: dict[int, str] = {}

    def answer(self, method: str, parts: list[str], query: dict[str, str]) -> tuple[int, Any]:
        match parts:
            case ["schemas", "ids", number]:
                found = self.schemas.get(int(number))
                if found is None:
                    return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
                shown = {key: value for key, value in found.items() if key not in ("subject", "version")}
                if query.get("format") == "serialized" and int(number) in self.serialized:
                    shown["schema"] = self.serialized[int(number)]
                return 200, shown
            case ["subjects"]:
                return 200, sorted({each["subject"] for each in self.schemas.values()})
            case ["subjects", subject, "versions", *rest]:
                versions = {
                    each.get("version", 1): {**each, "id": number}
                    for number, each in self.schemas.items()
                    if each["subject"] == subject
                }
                if not versions:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                if not rest:
                    return 200, sorted(versions)
                number = max(versions) if rest[0] == "latest" else int(rest[0])
                found = versions.get(number)
                if found is None:
                    return 404, {"error_code": 40402, "message": f"Version {number} not found."}
                if query.get("format") == "serialized" and found["id"] in self.serialized:
                    found = {**found, "schema": self.serialized[found["id"]]}
                return 200, {"version": number, **found}
            case ["config"] | ["config", _]:
                return 200, {"compatibilityLevel": "BACKWARD"}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


class KafkaConnect(Program):
    """Two connectors, one of which has a failed task until it is restarted."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = True

    def answer(self, method: str, parts: list[str], query: dict[str, str]) -> tuple[int, Any]:
        worker = {"state": "RUNNING", "worker_id": "127.0.0.1:8083"}
        task = {
            **worker,
            "id": 1,
            **({"state": "FAILED", "trace": "java.lang.Error: <b>no</b>\n\tat X"} if self.failed else {}),
        }
        config = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "tasks.max": "2", "topics": "clicks", "connection.password": "secret", "key.converter": "x.StringConverter",
        }  # fmt: skip
        status = {
            "name": "files/out",
            "connector": worker,
            "tasks": [{**worker, "id": 0}, task],
            "type": "sink",
        }
        info = {"name": "files/out", "config": config, "tasks": [], "type": "sink"}
        paused = {"name": "lake", "connector": {**worker, "state": "PAUSED"}, "tasks": [], "type": "source"}
        match method, parts:
            case "GET", [""]:
                return 200, {"version": "4.3.1", "commit": "x", "kafka_cluster_id": "y"}
            case "GET", ["connectors"]:
                other = {"status": paused, "info": {**info, "name": "lake", "type": "source"}}
                return 200, {"files/out": {"status": status, "info": info}, "lake": other}
            case "GET", ["connectors", "files/out", *rest]:
                answers = {(): info, ("status",): status, ("topics",): {"files/out": {"topics": ["clicks"]}}}
                return 200, answers[tuple(rest)]
            case "POST", ["connectors", "files/out", *rest] if rest[-1] == "restart":
                self.failed = self.failed and rest == ["tasks", "0", "restart"]
                return 204, None
        return 404, {"error_code": 404, "message": f"Connector {parts[-1]} not found"}
