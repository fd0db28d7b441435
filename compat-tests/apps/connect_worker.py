"""Kafka Connect as a distributed worker, whose connectors, offsets and states are in topics of the server."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.kafka_peer import KAFKA_VERSION
from bench.maven import fetch, java
from examples.server import free_port
from simulator.three_brokers import REPLICAS

LOG4J_VERSION = "2.25.1"
READY_SECONDS = 180.0
RUNNING = "RUNNING"
_RUNTIME = [
    *(
        ("org.apache.kafka", name, KAFKA_VERSION)
        for name in ("connect-runtime", "connect-json", "connect-transforms", "connect-file")
    ),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
    ("org.apache.logging.log4j", "log4j-core", LOG4J_VERSION),
]


def jars(*plugins: tuple[str, str, str]) -> Path:
    """Return the folder with Connect and these connectors, fetched once."""
    name = "-".join(
        ["connect", KAFKA_VERSION, "file", *(f"{artifact}-{version}" for _, artifact, version in plugins)]
    )
    _, artifact, version = plugins[0] if plugins else _RUNTIME[0]
    return fetch(name, [*_RUNTIME, *plugins], f"{artifact}-{version}.jar")


@dataclass
class Worker:
    """One distributed worker."""

    folder: Path
    bootstrap: str
    classpath: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    heap: str = "512M"
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; return when it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port(0)
        json_converter = "org.apache.kafka.connect.json.JsonConverter"
        storage = {
            f"{what}.storage.{name}": value
            for what in ("config", "offset", "status")
            for name, value in (("topic", f"connect-{what}"), ("replication.factor", str(REPLICAS)))
        }
        given = {
            "bootstrap.servers": self.bootstrap,
            "group.id": "connect",
            "key.converter": json_converter,
            "value.converter": json_converter,
            **storage,
            "offset.storage.partitions": "3",
            "offset.flush.interval.ms": "1000",
            "listeners": f"http://127.0.0.1:{self.port}",
            "plugin.discovery": "only_scan",
            "scheduled.rebalance.max.delay.ms": "1000",
            **self.settings,
        }
        properties = self.folder / "worker.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        self.process = run_java(self.folder, self.classpath, main, [str(properties)], self.heap)
        deadline = time.monotonic() + READY_SECONDS
        while self._ask("/") is None:
            alive = self.process.poll() is None and time.monotonic() < deadline
            assert alive, f"Connect does not start:\n{self.said()[-4000:]}"
            time.sleep(0.5)

    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def put(self, name: str, config: Mapping[str, str]) -> None:
        """Create a connector. While the worker joins its group it refuses, and is asked again."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                self._send(f"/connectors/{name}/config", config)
                return
            except urllib.error.HTTPError as error:
                said = error.read().decode(errors="replace")
                if error.code not in (409, 500) or time.monotonic() > deadline:
                    raise AssertionError(f"connector {name}: {error.code} {said[:1500]}") from None
            except OSError:
                assert time.monotonic() < deadline, self.said()[-4000:]
            time.sleep(1)

    def state(self, name: str) -> str:
        """Return RUNNING, or why the connector's task does not run; empty while that is unknown."""
        status = self._ask(f"/connectors/{name}/status")
        if status is None or not status["tasks"]:
            return "" if status is None else str(status["connector"].get("trace", ""))
        task = status["tasks"][0]
        return str(task.get("trace", task["state"]))

    def _ask(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None

    def _send(self, path: str, body: Mapping[str, str]) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body).encode(),
            method="PUT",
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=120).close()

    def stop(self) -> None:
        if self.process is not None:
            stop(self.process)


def run_java(
    folder: Path, classpath: Path, main: str, words: Sequence[str], heap: str, *options: str
) -> subprocess.Popen[bytes]:
    """Start a Java program whose output goes to `folder / "log"`, also that of log4j 2."""
    logging = folder / "log4j2.properties"
    logging.write_text(
        "rootLogger.level=INFO\nrootLogger.appenderRef.out.ref=out\nappender.out.type=Console\n"
        "appender.out.name=out\nappender.out.layout.type=PatternLayout\n"
        "appender.out.layout.pattern=%d{HH:mm:ss} %p %c{1} %m%n\n"
    )
    command = [java(), f"-Xmx{heap}", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={logging}", *options]
    command += ["-cp", f"{classpath}/*", main, *words]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and kill it after a while."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
