"""A single server with clients of all kinds becomes the first of three brokers, and then is killed."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.admin import NewTopic as New
from java_tools import JavaTools

from headrace.tablelayer.client import ClientConfig, connect

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

DEADLINE_SECONDS = 120
RECORDS, COMMITTED, ROWS = 3000, 1000, 2000


@pytest.fixture
def zookeeper(tmp_path, free_port):
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "headrace.tablelayer.cli.main", "zookeeper", "--listen", address]
    command += ["--data", str(tmp_path / "zookeeper")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        assert poll.poll(DEADLINE_SECONDS * 1000)
        assert "zookeeper is ready on" in process.stdout.readline()
        yield address
        process.terminate()
        process.wait(30)


def eventually(holds, what):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return found


def adopt(server, zookeeper, *more):
    command = [
        sys.executable,
        "-m",
        "headrace.tablelayer.cli.main",
        "cluster",
        "adopt",
        "--zookeeper",
        zookeeper,
    ]
    command += ["--data", str(server.directory / "data"), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)


def fill(address):
    admin = AdminClient({"bootstrap.servers": address})
    [each.result() for each in admin.create_topics([New("t", 3, 1)]).values()]
    grant = AclBinding(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:ann",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    [each.result() for each in admin.create_acls([grant]).values()]
    producer = Producer({"bootstrap.servers": address, "transactional.id": "x"})
    producer.init_transactions(DEADLINE_SECONDS)
    producer.begin_transaction()
    for number in range(RECORDS):
        producer.produce("t", b"%d" % number, partition=number % 3)
    producer.commit_transaction(DEADLINE_SECONDS)
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["t"])
    read = 0
    while read < COMMITTED:
        message = consumer.poll(DEADLINE_SECONDS)
        assert message is not None
        assert message.error() is None
        read += 1
    consumer.commit(asynchronous=False)
    consumer.close()
    with connect(address) as connection:
        connection.execute(
            "CREATE TABLE k (id INT, v STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num'='3')"
        )
        connection.table("k").upsert([{"id": number, "v": f"v{number}"} for number in range(ROWS)])
        connection.execute("CREATE TABLE l (id INT) WITH ('bucket.num'='2')")
        connection.table("l").append([{"id": number} for number in range(ROWS)])
        connection.execute(
            "CREATE TABLE n (id STRING, n BIGINT, PRIMARY KEY (id) NOT ENFORCED)"
            " WITH ('bucket.num'='1', 'auto-increment.fields'='n')"
        )
        connection.table("n").partial([{"id": "a"}, {"id": "b"}], ["id"])


def committed(consumer, places):
    """Return committed offsets; None while the coordinator is being found."""
    try:
        return [max(0, each.offset) for each in consumer.committed(places, DEADLINE_SECONDS)]
    except KafkaException as error:
        if error.args[0].code() in (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS):
            return None
        raise


def look(addresses):
    """Return all that clients can see of the data that `fill` has written."""
    consumer = Consumer(
        {
            "bootstrap.servers": addresses,
            "group.id": "g",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    places = [TopicPartition("t", index) for index in range(3)]
    positions = eventually(lambda: committed(consumer, places), "the group has a coordinator")
    consumer.assign([TopicPartition("t", index, 0) for index in range(3)])
    values, ended = [], 0
    while ended < 3:
        message = consumer.poll(DEADLINE_SECONDS)
        assert message is not None
        ended += message.error() is not None
        if message.error() is None:
            values.append(int(message.value()))
    consumer.close()
    every = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    admin = AdminClient({"bootstrap.servers": addresses})
    acls = admin.describe_acls(every).result(DEADLINE_SECONDS)
    with connect(addresses, ClientConfig(delivery_timeout_ms=DEADLINE_SECONDS * 1000)) as connection:
        table = connection.table("k")
        numbered = connection.table("n")
        return (
            sum(positions),
            sorted(values),
            [(each.name, each.principal) for each in acls],
            table.count(),
            [table.lookup_one({"id": number}) for number in (0, 1, ROWS - 1)],
            connection.table("l").count(),
            [numbered.lookup_one({"id": key}) for key in ("a", "b")],
        )


def test_a_server_alone_becomes_the_first_of_three_and_nothing_is_lost_when_it_is_killed(
    tmp_path, zookeeper, server_process_class
):
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "2",
        "zookeeper.session.timeout.ms": "2000",
        "auto.leader.rebalance.enable": "false",
    }
    servers = {}
    for number in (1, 2, 3):
        (tmp_path / str(number)).mkdir()
        servers[number] = server_process_class(tmp_path / str(number), **{**settings, "node.id": str(number)})
    try:
        servers[1].start()
        fill(servers[1].address)
        before = look(servers[1].address)
        assert before[0] == COMMITTED
        assert before[1] == list(range(RECORDS))
        path = f"{zookeeper}/adopted"
        running = adopt(servers[1], path)
        assert (running.returncode, running.stdout) == (1, "")
        assert "is in use by another broker" in running.stderr
        servers[1].kill()
        assert "nothing was changed" in adopt(servers[1], path, "--dry-run").stdout
        assert adopt(servers[1], path).returncode == 0
        again = adopt(servers[1], path)
        assert again.returncode == 0
        assert "already" in again.stdout
        for number, server in servers.items():
            server.settings["zookeeper.connect"] = path
            server.start()
            assert look(servers[number].address) == before
        with connect(servers[2].address) as connection:
            placements = connection.kafka.placements()
        plan = {
            "version": 1,
            "partitions": [
                {"topic": each.topic, "partition": each.partition, "replicas": [1, 2, 3]}
                for each in placements
            ],
        }
        assert {"__consumer_offsets", "__transaction_state"} < {each.topic for each in placements}
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        at = (
            "--bootstrap-server",
            servers[2].address,
            "--reassignment-json-file",
            str(tmp_path / "plan.json"),
        )
        java = JavaTools()
        java.run("reassign.ReassignPartitionsCommand", *at, "--execute")
        verify = ("reassign.ReassignPartitionsCommand", *at, "--verify")
        eventually(lambda: "in progress" not in java.run(*verify), "all have three replicas")
        servers[1].kill()
        left = f"{servers[2].address},{servers[3].address}"
        assert look(left) == before
        with connect(left, ClientConfig(delivery_timeout_ms=DEADLINE_SECONDS * 1000)) as connection:
            connection.table("n").partial([{"id": "c"}], ["id"])
            assert connection.table("n").lookup_one({"id": "c"})["n"] > 2, "no number is given twice"
        servers[1].start()
        eventually(lambda: in_sync(left), "it is in sync again")
    finally:
        codes = [server.stop() for server in servers.values()]
    assert codes == [0, 0, 0]


def in_sync(addresses):
    with connect(addresses.split(",")[0]) as connection:
        return not connection.kafka.describe_cluster().under_replicated
