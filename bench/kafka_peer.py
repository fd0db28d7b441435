"""Apache Kafka from its published jars, as one KRaft node, to compare with.

`python -m bench.kafka_peer` fetches the jars (once) and prints their folder. `HEADRACE_KAFKA_JARS` names a folder to
use instead.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.maven import fetch, java
from bench.processes import Server, start
from simulator.ports import free_port

KAFKA_VERSION = "4.3.1"
CLUSTER_ID = "aGVhZHJhY2UtYmVuY2gtMQ"
JVM_OPTIONS = [
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]

ARTIFACTS = [
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.1"),
    ("org.apache.logging.log4j", "log4j-core", "2.25.1"),
]

CONNECT = ("org.apache.kafka", "connect-runtime")
"""Left out of the broker with its web server: nearly as many jars as all the rest."""


def jars() -> Path:
    """Return the folder with the jars of the broker and of its tools; fetched on the first call (44 MB)."""
    named = os.environ.get("HEADRACE_KAFKA_JARS")
    return (
        Path(named)
        if named
        else fetch(f"kafka-{KAFKA_VERSION}", ARTIFACTS, f"kafka_2.13-{KAFKA_VERSION}.jar", without=[CONNECT])
    )


def connect_jars() -> Path:
    """Return the folder with the jars of Kafka Connect and its connectors of files; fetched on the first call."""
    artifacts = [
        (*CONNECT, KAFKA_VERSION),
        ("org.apache.kafka", "connect-file", KAFKA_VERSION),
        *(each for each in ARTIFACTS if "log4j" in each[0]),
    ]
    return fetch(f"kafka-connect-{KAFKA_VERSION}", artifacts, f"connect-runtime-{KAFKA_VERSION}.jar")


def tiering_jars() -> Path:
    """Return the folder of Kafka's own test storage for the remote log, a directory; fetched on the first call."""
    test = ("org.apache.kafka", "kafka-storage", KAFKA_VERSION, "test")
    return fetch(
        f"kafka-{KAFKA_VERSION}-tiering", [test], f"kafka-storage-{KAFKA_VERSION}-test.jar", needs=False
    )


def _java(folder: Path, *options: str) -> list[str]:
    """Run Java with the broker's classes, and its log in `folder`."""
    logging = folder / "log4j2.yaml"
    logging.write_text(
        f"""Configuration:
  Appenders:
    File: {{name: F, fileName: "{folder}/server.log", PatternLayout: {{pattern: "[%d] %p %m (%c)%n"}}}}
  Loggers:
    Root: {{level: INFO, AppenderRef: {{ref: F}}}}
"""
    )
    return [java(), *options, f"-Dlog4j2.configurationFile={logging}", "-cp", f"{jars()}/*"]


def format_folder(folder: Path, *words: str) -> None:
    """Format the log directory of `server.properties` in `folder`, `folder`/data, if it is new."""
    if not (folder / "data" / "meta.properties").exists():
        command = [*_java(folder, "-Xmx256M"), "kafka.tools.StorageTool", "format", *words, "-t", CLUSTER_ID]
        subprocess.run([*command, "-c", str(folder / "server.properties")], check=True, capture_output=True)


def server_command(folder: Path) -> list[str]:
    """Return the command that starts a broker by `server.properties` in `folder`."""
    return [*_java(folder, *JVM_OPTIONS), "kafka.Kafka", str(folder / "server.properties")]


def start_kafka(
    folder: Path, tls: Mapping[str, str] | None = None, settings: Mapping[str, str] | None = None
) -> Server:
    """Format `folder` if it is new, and start Kafka in it with the options of its own start script.

    `tls`: the configurations of a second listener, with TLS. `settings`: other configurations.
    """
    port, controller_port, tls_port = free_port(), free_port(), free_port()
    more = "" if tls is None else f",SSL://127.0.0.1:{tls_port}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.properties").write_text(
        f"""process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port}{more},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{more},CONTROLLER://127.0.0.1:{controller_port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
log.dirs={folder}/data
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
        + "".join(f"{name}={value}\n" for name, value in {**(tls or {}), **(settings or {})}.items())
    )
    format_folder(folder, "--standalone")
    server = start(
        "Apache Kafka",
        server_command(folder),
        port,
        folder / "kafka.out",
    )
    server.tls_port = 0 if tls is None else tls_port
    return server


if __name__ == "__main__":
    print(jars())
