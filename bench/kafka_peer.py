"""Apache Kafka from its published jars, as one KRaft node: the peer that we measure against.

`python -m bench.kafka_peer` fetches the jars (once) and prints the folder they are in. The resolver is the Ivy that
pyspark carries, so Java is all that is needed. `HEADRACE_KAFKA_JARS` names a folder to use instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

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

IVY_SETTINGS = """<ivysettings><settings defaultResolver="central"/><resolvers>
<ibiblio name="central" m2compatible="true"{root}/></resolvers></ivysettings>
"""
IVY_MODULE = f"""<ivy-module version="2.0"><info organisation="headrace" module="kafka-peer"/>
<configurations><conf name="default"/></configurations><dependencies>
<dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}" conf="default->runtime,master"/>
<dependency org="org.apache.kafka" name="kafka-tools" rev="{KAFKA_VERSION}" conf="default->runtime,master"/>
<dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.25.1" conf="default->runtime,master"/>
<dependency org="org.apache.logging.log4j" name="log4j-core" rev="2.25.1" conf="default->runtime,master"/>
</dependencies></ivy-module>
"""


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def jars() -> Path:
    """The folder with the broker's jars; fetched on the first call (44 MB)."""
    named = os.environ.get("HEADRACE_KAFKA_JARS")
    if named:
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    folder = cache / f"kafka-{KAFKA_VERSION}"
    if (folder / ".complete").exists():
        return folder
    import pyspark

    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mirror = os.environ.get("HEADRACE_MAVEN_ROOT")
    (folder / "ivysettings.xml").write_text(IVY_SETTINGS.format(root=f' root="{mirror}"' if mirror else ""))
    (folder / "ivy.xml").write_text(IVY_MODULE)
    command = [java(), "-jar", str(ivy), "-settings", "ivysettings.xml", "-ivy", "ivy.xml"]
    command += ["-cache", str(cache / "ivy"), "-retrieve", "[artifact]-[revision].[ext]"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not list(folder.glob(f"kafka_2.13-{KAFKA_VERSION}.jar")):
        raise RuntimeError(
            f"Kafka's jars could not be fetched:\n{result.stdout[-2000:]}{result.stderr[-2000:]}"
        )
    (folder / ".complete").touch()
    return folder


def start_kafka(folder: Path) -> Server:
    """Format `folder` if it is new and start Kafka in it with the options of its own start script."""
    port, controller_port = free_port(), free_port()
    data = folder / "data"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.properties").write_text(
        f"""process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
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
    return start(
        "Apache Kafka",
        [java(), *JVM_OPTIONS, logging, *classpath, "kafka.Kafka", properties],
        port,
        folder / "kafka.out",
    )


if __name__ == "__main__":
    print(jars())
