"""Apache Kafka from its published jars, as one KRaft node: the peer that we measure against.

`python -m bench.kafka_peer` fetches the jars (once) and prints the folder they are in. `HEADRACE_KAFKA_JARS` names a
folder to use instead.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.maven import fetch, java
from bench.processes import Server, free_port, start

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


def jars() -> Path:
    """The folder with the broker's jars; fetched on the first call (44 MB)."""
    named = os.environ.get("HEADRACE_KAFKA_JARS")
    return (
        Path(named)
        if named
        else fetch(f"kafka-{KAFKA_VERSION}", ARTIFACTS, f"kafka_2.13-{KAFKA_VERSION}.jar")
    )


def start_kafka(folder: Path, tls: Mapping[str, str] | None = None) -> Server:
    """Format `folder` if it is new and start Kafka in it with the options of its own start script.

    `tls`: the configurations of a second listener, with TLS.
    """
    port, controller_port, tls_port = free_port(), free_port(), free_port()
    more = "" if tls is None else f",SSL://127.0.0.1:{tls_port}"
    data = folder / "data"
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
log.dirs={data}
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
        + "".join(f"{name}={value}\n" for name, value in (tls or {}).items())
    )
    (folder / "log4j2.yaml").write_text(
        f"""Configuration:
  Appenders:
    File: {{name: F, fileName: "{folder}/server.log", PatternLayout: {{pattern: "[%d] %p %m (%c)%n"}}}}
  Loggers:
    Root: {{level: INFO, AppenderRef: {{ref: F}}}}
"""
    )
    classpath = ["-cp", f"{jars()}/*"]
    logging = f"-Dlog4j2.configurationFile={folder}/log4j2.yaml"
    properties = str(folder / "server.properties")
    if not (data / "meta.properties").exists():
        tool = [java(), "-Xmx256M", logging, *classpath, "kafka.tools.StorageTool"]
        subprocess.run(
            [*tool, "format", "--standalone", "-t", CLUSTER_ID, "-c", properties],
            check=True,
            capture_output=True,
        )
    server = start(
        "Apache Kafka",
        [java(), *JVM_OPTIONS, logging, *classpath, "kafka.Kafka", properties],
        port,
        folder / "kafka.out",
    )
    server.tls_port = 0 if tls is None else tls_port
    return server


if __name__ == "__main__":
    print(jars())
