"""Kafka's command-line tools against a server, with an administrator's commands and their output.

The quick tests take the versions that Java chooses and a consumer with a fetch session; the whole tour of the tools (a
minute and a half) is for `make soak`.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from java_tools import NEEDED, JavaTools

from simulator.three_brokers import NODE_IDS, REPLICAS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), NEEDED]

# APIs that Java 4.3 must report as usable, at its own highest version.
USABLE = {
    "Produce": 13, "Fetch": 18, "ListOffsets": 11, "Metadata": 13, "OffsetCommit": 10, "OffsetFetch": 10,
    "FindCoordinator": 6, "JoinGroup": 9, "Heartbeat": 4, "LeaveGroup": 5, "SyncGroup": 5, "DescribeGroups": 6,
    "ListGroups": 5, "ApiVersions": 4, "CreateTopics": 7, "DeleteTopics": 6, "DeleteRecords": 2,
    "OffsetForLeaderEpoch": 4, "DescribeConfigs": 4, "AlterConfigs": 2, "DescribeLogDirs": 5,
    "CreatePartitions": 3, "DeleteGroups": 2, "ElectLeaders": 2, "IncrementalAlterConfigs": 1,
    "AlterPartitionReassignments": 1, "ListPartitionReassignments": 0, "OffsetDelete": 0,
    "DescribeClientQuotas": 1, "DescribeCluster": 2, "ListConfigResources": 1, "DescribeTopicPartitions": 0,
    "AlterReplicaLogDirs": 2, "DescribeAcls": 3, "CreateAcls": 3, "DeleteAcls": 3, "SaslHandshake": 1,
    "SaslAuthenticate": 2, "DescribeDelegationToken": 3, "DescribeUserScramCredentials": 0, "AlterClientQuotas": 1,
    "AlterUserScramCredentials": 0,
}  # fmt: skip
NEVER = [
    "DescribeQuorum",
    "PushTelemetry",
]


@pytest.fixture(scope="module")
def java():
    return JavaTools()


@pytest.fixture
def topic(server, unique):
    """A topic of three partitions with 300 records."""
    name = unique("java")
    admin = AdminClient({"bootstrap.servers": server.address})
    admin.create_topics([NewTopic(name, 3, REPLICAS)])[name].result(60)
    producer = Producer({"bootstrap.servers": server.address})
    for number in range(300):
        producer.produce(name, b"x" * 100, partition=number % 3)
    assert producer.flush(60) == 0
    return name


def test_java_finds_its_own_newest_versions_usable(server, java) -> None:
    printed = java.run("BrokerApiVersionsCommand", "--bootstrap-server", server.address)
    usable = {
        name: int(version) for name, version in re.findall(r"(\w+)\(\d+\): .*\[usable: (\d+)\]", printed)
    }
    assert {name: usable.get(name) for name in USABLE} == USABLE
    for name in NEVER:
        assert re.search(rf"\t{name}\(\d+\): UNSUPPORTED", printed), name


class FetchRecorder:
    """A relay in front of the server that notes (session id, epoch) of every Fetch 17 and newer."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.fetches: list[tuple[int, int]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            self._open += [client, server]
            threading.Thread(target=self._relay, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._relay, args=(server, client, False), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, requests: bool) -> None:
        pending = b""
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
                if not requests:
                    continue
                pending += data
                while len(pending) >= 4 and len(pending) >= 4 + struct.unpack_from(">i", pending)[0]:
                    (size,) = struct.unpack_from(">i", pending)
                    self._note(pending[4 : 4 + size])
                    pending = pending[4 + size :]
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _note(self, frame: bytes) -> None:
        key, version, _, client_id = struct.unpack_from(">hhih", frame)
        if key == 1 and version >= 15:
            position = 10 + max(client_id, 0) + 1  # no tagged fields in the header
            self.fetches.append(struct.unpack_from(">ii", frame, position + 13))

    def close(self) -> None:
        self._listener.close()
        for each in self._open:
            each.close()


@pytest.mark.one_process("a recorder stands before it")
def test_a_java_consumer_reads_everything_through_a_fetch_session(own_server, java) -> None:
    """The server tells clients to come through the relay, so that their requests can be recorded."""
    own_server.kill()
    recorder = FetchRecorder(own_server.port)
    own_server.settings["advertised.listeners"] = f"127.0.0.1:{recorder.port}"
    own_server.start()
    try:
        address = f"127.0.0.1:{recorder.port}"
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("t", 6, REPLICAS)])["t"].result(60)
        producer = Producer({"bootstrap.servers": address})
        for number in range(6000):
            producer.produce("t", b"y" * 500, partition=number % 6)
        assert producer.flush(60) == 0
        printed = java.run(
            "ConsumerPerformance", "--bootstrap-server", address, "--topic", "t", "--num-records", "6000",
            "--group", "g", "--timeout", "60000", "--fetch-size", "20000",
        )  # fmt: skip
        read = int(printed.strip().splitlines()[-1].split(",")[4])
        assert read == 6000
        incremental = [epoch for session_id, epoch in recorder.fetches if session_id and epoch > 0]
        assert len(incremental) >= 3, recorder.fetches
        assert incremental == sorted(incremental)  # one session, never refused
        assert sum(epoch == 0 for _, epoch in recorder.fetches) == 1
    finally:
        recorder.close()


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_tour_of_the_tools(server, java, topic, unique, tmp_path) -> None:
    at, broker = ["--bootstrap-server", server.address], str(NODE_IDS[0])

    def write(name: str, content: object) -> str:
        path = tmp_path / name
        path.write_text(json.dumps(content))
        return str(path)

    # kafka-topics
    made = unique("made")
    java.run("TopicCommand", *at, "--create", "--topic", made, "--partitions", "2")
    assert java.try_run("TopicCommand", *at, "--create", "--topic", made).code != 0
    java.run("TopicCommand", *at, "--alter", "--topic", made, "--partitions", "4")
    described = java.run("TopicCommand", *at, "--describe", "--topic", made)
    assert len(re.findall(r"Leader: \d", described)) == 4
    assert made in java.run("TopicCommand", *at, "--list")
    java.run("TopicCommand", *at, "--delete", "--topic", made)
    assert made not in java.run("TopicCommand", *at, "--list")

    # kafka-configs
    configs = "kafka.admin.ConfigCommand"
    java.run(configs, *at, "--alter", "--topic", topic, "--add-config", "retention.ms=86400000")
    assert "retention.ms=86400000" in java.run(configs, *at, "--describe", "--topic", topic)
    assert f"topic {topic} are" in java.run(configs, *at, "--describe", "--entity-type", "topics")
    java.run(configs, *at, "--alter", "--topic", topic, "--delete-config", "retention.ms")
    assert "retention.ms" not in java.run(configs, *at, "--describe", "--topic", topic)
    assert "num.partitions=1" in java.run(configs, *at, "--describe", "--all", "--broker", broker)
    for entity in ("clients", "ips", "client-metrics", "groups"):
        java.run(configs, *at, "--describe", "--entity-type", entity)
    group = unique("configured")
    of_group = [*at, "--entity-type", "groups", "--entity-name", group]
    timeout = "consumer.session.timeout.ms=50000"
    java.run(configs, *of_group, "--alter", "--add-config", timeout)
    assert timeout in java.run(configs, *of_group, "--describe")
    refused = java.try_run(configs, *of_group, "--alter", "--add-config", "consumer.session.timeout.ms=1")
    assert "group.consumer.min.session.timeout.ms" in refused.output
    java.run(configs, *of_group, "--alter", "--delete-config", "consumer.session.timeout.ms")
    assert timeout not in java.run(configs, *of_group, "--describe")
    every, one = [*at, "--entity-type", "brokers", "--entity-default"], [*at, "--broker", broker]
    java.run(configs, *every, "--alter", "--add-config", "log.cleaner.backoff.ms=14000")
    java.run(configs, *one, "--alter", "--add-config", "log.cleaner.backoff.ms=13000")
    printed = java.run(configs, *one, "--describe")
    assert "log.cleaner.backoff.ms=13000" in printed
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.cleaner.backoff.ms=14000" in printed
    assert "log.cleaner.backoff.ms" in java.run(configs, *every, "--describe")
    refused = java.try_run(configs, *one, "--alter", "--add-config", "num.partitions=3")
    assert "Cannot update these configs dynamically: [num.partitions]" in refused.output
    for where in (one, every):
        java.run(configs, *where, "--alter", "--delete-config", "log.cleaner.backoff.ms")
    assert "log.cleaner.backoff.ms" not in java.run(configs, *every, "--describe")
    client = ("--entity-type", "clients", "--entity-name", "x")
    user = ("--entity-type", "users", "--entity-name", "ann")
    anybody = ("--entity-type", "users", "--entity-default")
    address = ("--entity-type", "ips", "--entity-name", "10.9.9.9")
    java.run(configs, *at, *client, "--alter", "--add-config", "producer_byte_rate=1,consumer_byte_rate=2")
    java.run(configs, *at, *user, *client, "--alter", "--add-config", "controller_mutation_rate=5")
    java.run(configs, *at, *anybody, "--alter", "--add-config", "request_percentage=200")
    java.run(configs, *at, *address, "--alter", "--add-config", "connection_creation_rate=3")
    printed = java.run(configs, *at, *client, "--describe")
    assert "client-id 'x' are consumer_byte_rate=2.0, producer_byte_rate=1.0" in printed
    printed = java.run(configs, *at, "--entity-type", "users", "--describe")
    assert "the default user-principal are request_percentage=200.0" in printed
    assert "ip '10.9.9.9' are connection_creation_rate=3.0" in java.run(configs, *at, *address, "--describe")
    refused = java.try_run(configs, *at, *client, "--alter", "--add-config", "producer_byte_rate=-1")
    assert refused.code != 0
    assert "a quota must be greater than 0" in refused.output
    java.run(configs, *at, *client, "--alter", "--delete-config", "producer_byte_rate,consumer_byte_rate")
    assert "producer_byte_rate" not in java.run(configs, *at, *client, "--describe")
    java.run(configs, *at, *user, *client, "--alter", "--delete-config", "controller_mutation_rate")
    java.run(configs, *at, *anybody, "--alter", "--delete-config", "request_percentage")

    # kafka-get-offsets, kafka-delete-records
    def offsets(time: str) -> dict[int, int]:
        printed = java.run("GetOffsetShell", *at, "--topic", topic, "--time", time)
        return {int(part): int(offset) for part, offset in re.findall(rf"{topic}:(\d+):(\d+)", printed)}

    assert offsets("latest") == {0: 100, 1: 100, 2: 100}
    assert set(offsets("max-timestamp")) == {0, 1, 2}
    to_delete = {"version": 1, "partitions": [{"topic": topic, "partition": 1, "offset": 40}]}
    printed = java.run("DeleteRecordsCommand", *at, "--offset-json-file", write("delete.json", to_delete))
    assert "low_watermark: 40" in printed
    assert offsets("earliest") == offsets("earliest-local") == {0: 0, 1: 40, 2: 0}
    for nothing in ("latest-tiered", "earliest-pending-upload"):
        assert offsets(nothing) == {}

    # kafka-log-dirs
    printed = java.run("LogDirsCommand", *at, "--describe", "--topic-list", topic)
    holders = json.loads(printed[printed.index('{"') :].splitlines()[0])["brokers"]
    assert {each["broker"] for each in holders} == set(NODE_IDS)
    for holder in holders:
        (directory,) = holder["logDirs"]
        assert directory["error"] is None
        assert {part["partition"] for part in directory["partitions"]} == {
            f"{topic}-{index}" for index in range(3)
        }
        assert all(part["size"] > 10_000 for part in directory["partitions"])

    # kafka-leader-election
    elect = ["LeaderElectionCommand", *at, "--election-type"]
    already = java.run(*elect, "preferred", "--topic", topic, "--partition", "0")
    assert "already elected" in already
    java.run(*elect, "preferred", "--all-topic-partitions")
    assert (
        "The topic 'no-such' does not exist."
        in java.try_run(*elect, "unclean", "--topic", "no-such", "--partition", "0").output
    )

    # kafka-reassign-partitions
    reassign = ["reassign.ReassignPartitionsCommand", *at]
    assert "No partition reassignments found" in java.run(*reassign, "--list")

    def assignment(name: str, replicas: list[int]) -> str:
        moved = {"topic": topic, "partition": 0, "replicas": replicas}
        return write(name, {"version": 1, "partitions": [moved]})

    described = AdminClient({"bootstrap.servers": server.address}).list_topics(topic, timeout=60)
    same = assignment("same.json", described.topics[topic].partitions[0].replicas)
    assert "Successfully started" in java.run(*reassign, "--execute", "--reassignment-json-file", same)
    assert "is completed" in java.run(*reassign, "--verify", "--reassignment-json-file", same)
    other = assignment("other.json", [NODE_IDS[-1] + 1])
    assert java.try_run(*reassign, "--execute", "--reassignment-json-file", other).code != 0

    # kafka-cluster
    assert "Cluster ID: " in java.run("ClusterTool", "cluster-id", *at)
    assert str(server.port) in java.run("ClusterTool", "list-endpoints", *at)

    # kafka-consumer-groups
    group = unique("group")
    java.run(
        "ConsumerPerformance", *at, "--topic", topic, "--num-records", "260", "--group", group,
        "--timeout", "60000",
    )  # fmt: skip
    groups = ["consumer.group.ConsumerGroupCommand", *at]
    assert group in java.run(*groups, "--list")
    assert group in java.run("GroupsCommand", *at, "--list")
    printed = java.run(*groups, "--describe", "--group", group)
    assert [int(offset) for offset in re.findall(rf"{group} +{topic} +\d+ +(\d+)", printed)] == [100] * 3
    printed = java.run(
        *groups, "--group", group, "--topic", topic, "--reset-offsets", "--to-earliest", "--execute"
    )
    found = re.findall(rf"{group} +{topic} +(\d+) +(\d+)", printed)  # in no fixed order
    assert sorted(found) == [("0", "0"), ("1", "40"), ("2", "0")]
    assert printed.count(group) >= 3
    java.run(*groups, "--group", group, "--delete-offsets", "--topic", topic)
    java.run(*groups, "--delete", "--group", group)
    assert group not in java.run(*groups, "--list")
