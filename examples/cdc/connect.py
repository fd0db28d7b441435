"""Kafka Connect with Debezium's PostgreSQL connector, from their published jars, as one process."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.kafka_peer import KAFKA_VERSION
from bench.maven import fetch, java
from examples.server import free_port
from examples.stage import StepFailedError

DEBEZIUM_VERSION = "3.4.0.Final"
LOG4J_VERSION = "2.25.1"
READY_SECONDS = 120.0

_ARTIFACTS = [
    *(("org.apache.kafka", name, KAFKA_VERSION) for name in ("connect-runtime", "connect-json", "connect-transforms")),
    ("io.debezium", "debezium-connector-postgres", DEBEZIUM_VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
    ("org.apache.logging.log4j", "log4j-core", LOG4J_VERSION),
]  # fmt: skip


def jars() -> Path:
    """The folder of the jars, fetched once."""
    name = f"connect-{KAFKA_VERSION}-debezium-{DEBEZIUM_VERSION}"
    return fetch(name, _ARTIFACTS, f"debezium-connector-postgres-{DEBEZIUM_VERSION}.jar")


@dataclass
class Connect:
    """A standalone worker; its offsets are in a file of its folder."""

    folder: Path
    bootstrap: str
    connectors: Mapping[str, Mapping[str, str]]
    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the worker with its connectors. Raises StepFailedError when it does not answer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port(8083)
        worker = {
            "bootstrap.servers": self.bootstrap,
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "offset.flush.interval.ms": "1000",
            "listeners": f"http://127.0.0.1:{self.port}",
            "plugin.discovery": "only_scan",
            **self.settings,
        }
        properties = self.folder / "worker.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in worker.items()))
        files = []
        for name, config in self.connectors.items():
            files.append(self.folder / f"{name}.properties")
            files[-1].write_text(
                "".join(f"{key}={value}\n" for key, value in {"name": name, **config}.items())
            )
        logging = self.folder / "log4j2.properties"
        logging.write_text(
            "rootLogger.level=INFO\nrootLogger.appenderRef.out.ref=out\nappender.out.type=Console\n"
            "appender.out.name=out\nappender.out.layout.type=PatternLayout\n"
            "appender.out.layout.pattern=%d{HH:mm:ss} %p %c{1} %m%n\n"
        )
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    java(), "-Xmx512M", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={logging}", "-cp",
                    f"{jars()}/*", "org.apache.kafka.connect.cli.ConnectStandalone", str(properties),
                    *map(str, files),
                ],
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        deadline = time.monotonic() + READY_SECONDS
        while True:
            states = self.states()
            if states and all(state == "RUNNING" for state in states.values()):
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise StepFailedError(f"Connect does not run: {states or self.said()[-2000:]}")
            time.sleep(0.5)

    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def states(self) -> dict[str, str]:
        """Return RUNNING or the error of each connector; empty while the worker does not answer."""
        try:
            found = {}
            for name in self.connectors:
                status: Any = self._ask(f"/connectors/{name}/status")
                tasks = status["tasks"] or [{"state": status["connector"]["state"]}]
                found[name] = tasks[0].get("trace", tasks[0]["state"])
        except OSError:
            return {}
        return found

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.load(answer)

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
