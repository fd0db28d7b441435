"""Kafka's own tools, `headrace cluster` and consumers on racks against three brokers with replicas."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from java_tools import JavaTools
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from headrace.tablelayer.client import ClientConfig, connect

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

DEADLINE_SECONDS = 120
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RECORDS, RECORD = 3000, b"x" * 1000


@pytest.fixture(scope="module")
def java():
    return JavaTools()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory, server_process_class, free_port):
    """Brokers by node id, each on a rack of its own."""
    zookeeper = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "headrace.tablelayer.cli.main", "zookeeper", "--listen", zookeeper]
    command += ["--data", str(tmp_path_factory.mktemp("zookeeper"))]
    made = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert "zookeeper is ready on" in process.stdout.readline()
        for number in (1, 2, 3):
            made[number] = server_process_class(
                tmp_path_factory.mktemp(f"broker{number}"),
                **{
                    "node.id": str(number),
                    "broker.rack": f"r{number}",
                    "zookeeper.connect": f"{zookeeper}/cluster",
                    "offsets.topic.num.partitions": "3",
                    "replica.selector.class": RACK_AWARE,
                    "auto.leader.rebalance.enable": "false",
                },
            )
            made[number].start()
        yield made
        for server in made.values():
            server.stop()
        process.terminate()
        process.wait(30)


def addresses(brokers):
    return ",".join(each.address for each in brokers.values() if each.process is not None)


def eventually(holds, what):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return found


def replicas(brokers, topic):
    with connect(addresses(brokers).split(",")[0]) as connection:
        return {
            each.partition: each.replicas for each in connection.kafka.placements() if each.topic == topic
        }


def filled(brokers, name, assignment):
    with KafkaAdminClient(bootstrap_servers=addresses(brokers)) as admin:
        admin.create_topics([NewTopic(name, replica_assignments=assignment)])
    producer = Producer({"bootstrap.servers": addresses(brokers), "acks": "all", "linger.ms": 20})
    for number in range(RECORDS):
        producer.produce(name, b"%d " % number + RECORD, partition=number % len(assignment))
        producer.poll(0)
    assert producer.flush(DEADLINE_SECONDS) == 0


def count(brokers, name):
    with connect(addresses(brokers).split(",")[0]) as connection:
        return sum(connection.kafka.offsets(name).values())


def test_absent_brokers_are_chosen_by_hand(brokers, java):
    brokers[3].stop()
    at = ("--bootstrap-server", addresses(brokers))

    def topics(*words):
        return java.run("TopicCommand", *at, "--topic", "chosen", *words)

    try:
        topics("--create", "--replica-assignment", "3:1,2:3")
        topics("--alter", "--partitions", "3", "--replica-assignment", "1:2,2:1,3:2")
        shown = topics("--describe")
    finally:
        brokers[3].start()
    assert "Partition: 0\tLeader: 1\tReplicas: 3,1\tIsr: 1\t" in shown
    assert "Partition: 2\tLeader: 2\tReplicas: 3,2\tIsr: 2\t" in shown
    eventually(lambda: not topics("--describe", "--under-replicated-partitions").strip(), "all are in sync")
    assert replicas(brokers, "chosen") == {0: (3, 1), 1: (2, 3), 2: (3, 2)}


def test_partitions_are_reassigned_throttled_verified_and_cancelled(brokers, java, tmp_path):
    at = ("--bootstrap-server", addresses(brokers))
    filled(brokers, "moved", {0: [1, 2], 1: [2, 3], 2: [3, 1]})
    topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "moved"}]}))

    def tool(*words):
        return java.run("reassign.ReassignPartitionsCommand", *at, *words)

    proposed = tool("--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3")
    assert '"partition":2' in proposed.partition("Proposed partition reassignment configuration")[2]
    wanted = {0: [1, 3], 1: [2, 1], 2: [3, 2]}
    parts = [{"topic": "moved", "partition": each, "replicas": to} for each, to in wanted.items()]
    plan.write_text(json.dumps({"version": 1, "partitions": parts}))
    execute = ("--execute", "--reassignment-json-file", str(plan), "--throttle")
    assert "Successfully started partition reassignments" in tool(*execute, "20000")
    assert "moved-0: replicas: 1,3,2. adding: 3. removing: 2." in tool("--list")
    shown = java.run(
        "kafka.admin.ConfigCommand", *at, "--entity-type", "topics", "--entity-name", "moved", "--describe"
    )
    assert "follower.replication.throttled.replicas=0:3,1:1,2:2" in shown
    shown = java.run(
        "kafka.admin.ConfigCommand", *at, "--entity-type", "brokers", "--entity-name", "1", "--describe"
    )
    assert "leader.replication.throttled.rate=20000" in shown
    shown = java.run("TopicCommand", *at, "--describe", "--topic", "moved")
    assert [f"Adding Replicas: {each}" in shown for each in (3, 1, 2)] == [True] * 3
    assert "is still in progress" in tool("--verify", "--reassignment-json-file", str(plan))
    cancelled = tool("--cancel", "--reassignment-json-file", str(plan))
    assert "Successfully cancelled partition reassignments for: moved-0,moved-1,moved-2" in cancelled
    assert {each: set(to) for each, to in replicas(brokers, "moved").items()} == {
        0: {1, 2},
        1: {2, 3},
        2: {1, 3},
    }
    assert "Successfully started" in tool(*execute, "50000000")
    eventually(
        lambda: "in progress" not in tool("--verify", "--reassignment-json-file", str(plan)), "they are moved"
    )
    assert replicas(brokers, "moved") == {each: tuple(to) for each, to in wanted.items()}
    shown = java.run(
        "kafka.admin.ConfigCommand", *at, "--entity-type", "topics", "--entity-name", "moved", "--describe"
    )
    assert "throttled" not in shown
    assert count(brokers, "moved") == RECORDS


def test_leaders_sizes_and_states_are_told_and_elected_by_kafkas_tools(brokers, java):
    at = ("--bootstrap-server", addresses(brokers))
    filled(brokers, "told", {0: [1, 2], 1: [3, 1]})
    sizes = json.loads(java.run("LogDirsCommand", *at, "--describe", "--topic-list", "told").splitlines()[-1])
    found = [part["size"] for each in sizes["brokers"] for part in each["logDirs"][0]["partitions"]]
    assert len(found) == 4
    assert min(found) > RECORDS / 2 * len(RECORD)
    assert java.run("GetOffsetShell", *at, "--topic", "told").split() == ["told:0:1500", "told:1:1500"]
    assert "Feature: transaction.version" in java.run("FeatureCommand", *at, "describe")
    assert "Cluster ID: " in java.run("ClusterTool", "cluster-id", *at)
    listed = java.run("ClusterTool", "list-endpoints", *at)
    assert listed.count("unfenced") == 3
    default = ("--entity-type", "brokers", "--entity-default")
    java.run(
        "kafka.admin.ConfigCommand", *at, *default, "--alter", "--add-config", "log.retention.ms=86400000"
    )
    assert "log.retention.ms=86400000" in java.run("kafka.admin.ConfigCommand", *at, *default, "--describe")

    def shown(words):
        return java.run("TopicCommand", *at, "--describe", "--topic", "told", words).count("Partition:")

    brokers[1].kill()
    left = ("--bootstrap-server", addresses(brokers))
    eventually(lambda: leader(brokers, "told", 0) == 2, "another leads")
    assert [shown(f"--{kind}-partitions") for kind in ("under-replicated", "at-min-isr", "unavailable")] == [
        2,
        2,
        0,
    ]
    elect = ("LeaderElectionCommand", *left, "--topic", "told", "--partition", "0", "--election-type")
    assert "the preferred leader of told-0, is not alive" in java.try_run(*elect, "preferred").output
    with Producing(addresses(brokers)) as producer:
        producer.produce("told", b"only broker 2 has this", partition=0)
    brokers[2].kill()
    brokers[1].start()
    eventually(lambda: leader(brokers, "told", 0) == -1, "nobody who has everything is alive")
    left = ("--bootstrap-server", addresses(brokers))
    elect = ("LeaderElectionCommand", *left, "--topic", "told", "--partition", "0", "--election-type")
    assert "Successfully completed leader election (UNCLEAN)" in java.run(*elect, "unclean")
    assert leader(brokers, "told", 0) == 1
    brokers[2].start()
    whole = ("--describe", "--under-replicated-partitions", "--topic", "told")
    at = ("--bootstrap-server", addresses(brokers))
    eventually(lambda: "Partition:" not in java.run("TopicCommand", *at, *whole), "all are in sync")
    java.run("LeaderElectionCommand", *at, "--all-topic-partitions", "--election-type", "preferred")
    assert (leader(brokers, "told", 0), leader(brokers, "told", 1)) == (1, 3)


def test_a_broker_that_is_gone_for_good_is_listed_until_it_is_unregistered(brokers, java):
    at = ("--bootstrap-server", brokers[1].address)
    alive = java.try_run("ClusterTool", "unregister", "--id", "3", *at)
    assert alive.code == 1
    assert "broker 3 is alive and would register again at once: stop it first" in alive.output
    listed = ("ClusterTool", "list-endpoints", "--include-fenced-brokers", *at)
    brokers[3].stop()
    try:
        assert java.run(*listed).split().count("fenced") == 1
        assert "Broker 3 is no longer registered." in java.run("ClusterTool", "unregister", "--id", "3", *at)
        assert java.run(*listed).split().count("fenced") == 0
    finally:
        brokers[3].start()
    assert java.run(*listed).split().count("unfenced") == 3
    raised = ("FeatureCommand", *at, "upgrade", "--feature")
    assert "Feature: headrace.metadata.version" in java.run("FeatureCommand", *at, "describe")
    assert "was upgraded to 1" in java.run(*raised, "headrace.metadata.version=1")
    refused = java.try_run(*raised, "headrace.metadata.version=1000")
    assert (refused.code, "supports 1 to " in refused.output) == (1, True)


class Producing:
    """A producer; all its records are delivered at the end of the block."""

    def __init__(self, bootstrap):
        self.producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})

    def __enter__(self):
        return self.producer

    def __exit__(self, *_):
        assert self.producer.flush(DEADLINE_SECONDS) == 0


def leader(brokers, topic, partition):
    with connect(addresses(brokers).split(",")[0]) as connection:
        return connection.kafka.describe_topic(topic).leaders[partition]


def test_a_consumer_reads_from_the_broker_on_its_rack(brokers):
    filled(brokers, "near", {0: [1, 2, 3]})
    fetched = []

    def sent(text):
        shown = json.loads(text)["brokers"].values()
        fetched.append({each["nodeid"]: each["req"].get("Fetch", 0) for each in shown if each["nodeid"] > 0})

    consumer = Consumer(
        {
            "bootstrap.servers": addresses(brokers),
            "group.id": "near",
            "client.rack": "r3",
            "statistics.interval.ms": 200,
            "stats_cb": sent,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition("near", 0, 0)])
    read = 0
    deadline = time.monotonic() + DEADLINE_SECONDS
    with Producing(addresses(brokers)) as producer:
        while read < RECORDS + 200 or fetched[-1].get(3, 0) < 20:
            assert time.monotonic() < deadline, (read, fetched[-1:])
            if read >= RECORDS and read < RECORDS + 200:
                producer.produce("near", b"more", partition=0)
                producer.poll(0)
            message = consumer.poll(0.2)
            read += message is not None and message.error() is None
    consumer.close()
    assert fetched[-1][3] > 5 * fetched[-1].get(1, 0), "the leader is asked once and then left alone"


def test_a_broker_is_drained_and_given_partitions_again(brokers):
    filled(brokers, "spread", {0: [3, 1], 1: [3, 2], 2: [1, 3]})
    server = ("--server", brokers[1].address)

    def headrace(*words):
        command = [sys.executable, "-m", "headrace.tablelayer.cli.main", "cluster", *words, *server]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with connect(brokers[1].address) as connection:
        stuck = [each for each in connection.kafka.placements() if len(each.replicas) == 3]
        lowered = [type(each)(each.topic, each.partition, each.replicas[:2]) for each in stuck]
        assert connection.kafka.move_partitions(lowered) == {}
        eventually(lambda: not connection.kafka.moving_partitions(), "two replicas are enough")
    assert "spread-0: 3,1 -> " in headrace("drain", "3", "--dry-run")
    assert "broker 3 holds no replicas any more" in headrace("drain", "3")
    with connect(brokers[1].address) as connection:
        assert not any(3 in each.replicas for each in connection.kafka.placements())
    data = brokers[3].directory / "data"
    eventually(lambda: not list(data.glob("spread-*")), "its files are gone")
    assert "replicas to copy" in headrace("rebalance", "--dry-run")
    headrace("rebalance")
    with connect(brokers[2].address) as connection:
        held = [each for placement in connection.kafka.placements() for each in placement.replicas]
        counts = [held.count(number) for number in (1, 2, 3)]
    assert max(counts) - min(counts) <= 1
    assert count(brokers, "spread") == RECORDS


@pytest.mark.soak
def test_a_follower_that_is_the_only_replica_and_then_follows_again_loses_nothing(brokers):
    """Three replicas become one that did not lead, then another one, then both, one of which is killed."""
    filled(brokers, "alone", {0: [1, 2, 3]})
    config = ClientConfig(delivery_timeout_ms=DEADLINE_SECONDS * 1000)
    with connect(addresses(brokers), config) as connection:
        connection.execute(
            "CREATE TABLE kept (k INT, n BIGINT, PRIMARY KEY (k) NOT ENFORCED)"
            " WITH ('bucket.num' = '1', 'table.replication.factor' = '3', 'auto-increment.fields' = 'n')"
        )
        table = connection.table("kept")
        moving = ("alone", "default.kept")

        def is_held_by(*held):
            topics = AdminClient({"bootstrap.servers": addresses(brokers)}).list_topics(timeout=30).topics
            return all(
                set(part.replicas) == set(part.isrs) == {*held}
                for topic in moving
                for part in topics[topic].partitions.values()
            )

        for key, held in enumerate([(2,), (3,), (3, 2)]):
            table.upsert([{"k": key}])
            placed = [each for each in connection.kafka.placements() if each.topic in moving]
            assert not connection.kafka.move_partitions(
                [type(each)(each.topic, each.partition, held) for each in placed]
            )
            eventually(lambda held=held: is_held_by(*held), f"{held} hold what was moved")
        table.upsert([{"k": 3}])
        brokers[3].kill()
        try:
            found, rows = table.lookup(list(range(4)))
            assert found.all()
            assert len(set(rows["n"].to_pylist())) == 4
            assert count({2: brokers[2]}, "alone") == RECORDS
        finally:
            brokers[3].start()
        eventually(lambda: is_held_by(3, 2), "the killed one is in sync")
