"""The consumer group protocol (KIP-848) as Java's consumer and Kafka's own tools see it.

Kafka's published jars are fetched on the first run (`python -m bench.kafka_peer`); Java is needed.
"""

from __future__ import annotations

import re
import subprocess

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from java_tools import NEEDED, virtual_machine

from bench.kafka_peer import jars
from bench.maven import java
from simulator.three_brokers import REPLICAS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), NEEDED]


@pytest.fixture(scope="session")
def tool():
    """`tool(CLASS, ARGUMENT...)` starts one of Kafka's command-line tools."""
    folder = jars()

    def start(name: str, *arguments: str) -> subprocess.Popen[str]:
        command = [java(), *virtual_machine(), "-cp", f"{folder}/*"]
        return subprocess.Popen(
            [*command, f"org.apache.kafka.tools.{name}", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    return start


def said_by(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=120)
    return output


def table(text: str) -> list[list[str]]:
    """Return the rows of a tool's table below its heading; none if it says that there is no group."""
    rows = [line.split() for line in text.splitlines() if line.strip()]
    start = next((index for index, row in enumerate(rows) if row[0] == "GROUP"), len(rows))
    return rows[start + 1 :]


@pytest.mark.soak
def test_javas_consumer_and_kafkas_tools(own_server, tool, wait_until):
    admin = AdminClient({"bootstrap.servers": own_server.address})
    for topic in ("java-a", "java-b", "other"):
        admin.create_topics([NewTopic(topic, 2, REPLICAS)])[topic].result(10)
    producer = Producer({"bootstrap.servers": own_server.address})
    for number in range(40):
        producer.produce("java-a" if number % 2 else "java-b", str(number), partition=number // 2 % 2)
    assert producer.flush(20) == 0
    where = ("--bootstrap-server", own_server.address)
    consumer = tool(
        "consumer.ConsoleConsumer", *where, "--include", "java-.*", "--group", "java", "--from-beginning",
        "--command-property", "group.protocol=consumer", "--max-messages", "60",
    )  # fmt: skip
    described = ("consumer.group.ConsumerGroupCommand", *where, "--describe", "--group", "java")

    def all_committed():
        rows = table(said_by(tool(*described)))
        return rows if len(rows) == 4 and all(row[5] == "0" for row in rows) else None

    rows = wait_until(all_committed, "Java's consumer to commit the end of four partitions", seconds=60)
    assert {(row[1], row[2], row[3]) for row in rows} == {
        (topic, index, "10") for topic in ("java-a", "java-b") for index in ("0", "1")
    }
    members = table(said_by(tool(*described, "--members", "--verbose")))
    assert [row[4] for row in members] == ["4"], members
    state = table(said_by(tool(*described, "--state")))
    assert state[0][-3:] == ["uniform", "Stable", "1"]
    listed = said_by(tool("GroupsCommand", *where, "--list", "--group-type", "consumer"))
    assert re.search(r"^java\s+Consumer\s+consumer", listed, re.MULTILINE), listed

    for number in range(20):
        producer.produce("java-a", f"late {number}", partition=0)
    assert producer.flush(20) == 0
    assert len(said_by(consumer).splitlines()) == 60
    assert table(said_by(tool(*described, "--state")))[0][-2:] == ["Empty", "0"]
    assert "java" in said_by(
        tool("consumer.group.ConsumerGroupCommand", *where, "--delete", "--group", "java")
    )
    assert not admin.list_consumer_groups().result(10).valid


@pytest.mark.one_process("the files in its data directory")
def test_kafka_reads_the_journal_of_a_group(own_server, tool, wait_until):
    """Kafka's dump tool decodes every kind of record that a group of this protocol writes."""
    own_server.settings["group.consumer.session.timeout.ms"] = "60000"
    own_server.restart()
    admin = AdminClient({"bootstrap.servers": own_server.address})
    admin.create_topics([NewTopic("journalled", 2, REPLICAS)])["journalled"].result(10)
    consumer = Consumer(
        {"bootstrap.servers": own_server.address, "group.id": "g", "group.protocol": "consumer"}
    )
    consumer.subscribe(["journalled"])
    wait_until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2, "an assignment")
    consumer.commit(offsets=[TopicPartition("journalled", 0, 5)], asynchronous=False)
    consumer.close()
    assert own_server.stop() == 0
    logs = own_server.directory.glob("data/**/__consumer_offsets-*/*.log")
    files = ",".join(str(path) for path in logs if path.stat().st_size)
    dumped = said_by(tool("DumpLogSegments", "--offsets-decoder", "--files", files))
    kinds = {int(kind) for kind in re.findall(r'"type":"(\d+)"', dumped)}
    assert {1, 3, 5, 6, 7, 8} <= kinds, dumped[-3000:]
    assert re.search(r'"assignedPartitions":\[\{"topicId":"[^"]+","partitions":\[0,1\]', dumped), dumped[
        -3000:
    ]
    assert "error" not in dumped.lower()
