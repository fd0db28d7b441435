"""Two consumers share a group; they join, leave and are killed; offsets survive a kill of the broker."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from simulator.three_brokers import REPLICAS

CLIENTS = ["confluent", "kafka-python", "aiokafka"]
MOSTLY_IN_SOAK = ["confluent", *(pytest.param(each, marks=pytest.mark.soak) for each in CLIENTS[1:])]
VARIANTS = ["confluent-consumer", "confluent-cooperative", "kafka-python-cooperative"]
PARTITIONS = {0, 1, 2, 3}
SESSION_BEYOND_A_RESTART_MS = 60_000


class Member:
    """A consumer process and its output."""

    def __init__(self, client, server, group, topic, instance=None, session_ms=1_500):
        script = Path(__file__).with_name("consumer.py")
        command = [sys.executable, str(script), client, server.address, group, topic]
        with (server.directory / "members.log").open("a") as complaints:
            self.process = subprocess.Popen(
                [*command, *([instance] if instance else [])],
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                env={**os.environ, "SESSION_MS": str(session_ms)},
            )
        self.lines = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line.split())

    @property
    def assignment(self):
        """The partitions of the last rebalance, None before the first."""
        for words in reversed(list(self.lines)):
            if words[0] == "assigned":
                return set() if words[1] == "none" else {int(number) for number in words[1].split(",")}
        return None

    @property
    def got(self):
        return [(int(words[1]), int(words[2]), words[3]) for words in list(self.lines) if words[0] == "got"]

    @property
    def commits(self):
        return sum(words[0] == "committed" for words in list(self.lines))

    def leave(self):
        self.process.terminate()
        self.process.wait(60)

    def kill(self):
        self.process.kill()
        self.process.wait(60)

    def end(self):
        self.reader.join(60)
        self.process.stdout.close()


@pytest.fixture
def members():
    started = []

    def start(*arguments, **options):
        started.append(Member(*arguments, **options))
        return started[-1]

    yield start
    for member in started:
        if member.process.poll() is None:
            member.kill()
        member.end()


def create(server, topic):
    admin = AdminClient({"bootstrap.servers": server.address})
    admin.create_topics([NewTopic(topic, len(PARTITIONS), REPLICAS)])[topic].result(30)
    return admin


def produce(server, topic, values):
    producer = Producer({"bootstrap.servers": server.address})
    for index, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=index % len(PARTITIONS))
    assert producer.flush(60) == 0


def committed(server, group, topic):
    """Return offsets by partition; None if the coordinator does not answer, which says nothing about the offsets."""
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": group})
    try:
        wanted = [TopicPartition(topic, partition) for partition in sorted(PARTITIONS)]
        return {part.partition: part.offset for part in consumer.committed(wanted, timeout=10)}
    except KafkaException:
        return None
    finally:
        consumer.close()


def share(first, second):
    a, b = first.assignment, second.assignment
    return a and b and not (a & b) and a | b == PARTITIONS


@pytest.mark.parametrize("client", CLIENTS + VARIANTS)
def test_members_join_leave_and_die(server, unique, members, wait_until, client):
    topic, group = unique("topic"), unique("group")
    admin = create(server, topic)
    produce(server, topic, [f"a{index}" for index in range(40)])

    first = members(client, server, group, topic)
    wait_until(lambda: first.assignment == PARTITIONS, "the only member to have everything")
    second = members(client, server, group, topic)
    wait_until(lambda: share(first, second), "two members to share")

    def state():
        described = admin.describe_consumer_groups([group])[group].result(30)
        return described.state, len(described.members)

    # A cooperative member joins once more after it has revoked a partition.
    wait_until(lambda: state() == (ConsumerGroupState.STABLE, 2), "the group to be stable")
    second.leave()
    wait_until(lambda: first.assignment == PARTITIONS, "the member that stays to have everything again")
    third = members(client, server, group, topic)
    wait_until(lambda: share(first, third), "a new member to get its part")
    third.kill()
    wait_until(lambda: first.assignment == PARTITIONS, "the survivor to take over from the dead")

    produce(server, topic, [f"b{index}" for index in range(40)])
    expected = {f"{letter}{index}" for letter in "ab" for index in range(40)}
    everybody = [first, second, third]
    wait_until(
        lambda: {value for member in everybody for _, _, value in member.got} == expected,
        "every record to be seen",
    )
    wait_until(
        lambda: committed(server, group, topic) == dict.fromkeys(PARTITIONS, 20),
        "every position to be committed",
    )
    first.leave()
    wait_until(lambda: state() == (ConsumerGroupState.EMPTY, 0), "the last member to have left")
    deleted = admin.delete_consumer_groups([group])
    assert deleted[group].result(30) is None


def test_three_kinds_of_clients_in_one_group(server, unique, members, wait_until):
    """All know the range assignor; the leader's bytes must reach each of them unchanged."""
    topic, group = unique("topic"), unique("group")
    create(server, topic)
    everybody = [members(client, server, group, topic) for client in CLIENTS]

    def shared():
        parts = [member.assignment for member in everybody]
        return all(parts) and sum(len(part) for part in parts) == 4 and set().union(*parts) == PARTITIONS

    wait_until(shared, "three clients to share four partitions")


@pytest.mark.parametrize("client", CLIENTS)
def test_static_member_comes_back_to_its_partitions(server, unique, members, wait_until, client):
    topic, group = unique("topic"), unique("group")
    admin = create(server, topic)
    # A member that comes back is in time: after the end of its session it would have lost its partitions.
    first = members(client, server, group, topic, instance="one", session_ms=SESSION_BEYOND_A_RESTART_MS)
    second = members(client, server, group, topic, instance="two", session_ms=SESSION_BEYOND_A_RESTART_MS)
    wait_until(lambda: share(first, second), "two static members to share")
    rebalances = sum(words[0] == "assigned" for words in list(first.lines))
    kept = second.assignment
    second.kill()
    again = members(client, server, group, topic, instance="two", session_ms=SESSION_BEYOND_A_RESTART_MS)
    wait_until(lambda: again.assignment == kept, "the static member to get its partitions back")
    described = admin.describe_consumer_groups([group])[group].result(30)
    assert {member.group_instance_id for member in described.members} == {"one", "two"}
    assert sum(words[0] == "assigned" for words in list(first.lines)) == rebalances


@pytest.mark.parametrize("client", [*MOSTLY_IN_SOAK, "confluent-consumer"])
def test_positions_survive_kill_9_of_the_broker(own_server, unique, members, wait_until, client):
    topic, group = unique("topic"), unique("group")
    own_server.settings["group.consumer.session.timeout.ms"] = str(SESSION_BEYOND_A_RESTART_MS)
    own_server.restart()
    create(own_server, topic)
    produce(own_server, topic, [f"a{index}" for index in range(40)])
    # The session must outlast the restart: otherwise a member may read records again that it could not commit.
    member = members(client, own_server, group, topic, session_ms=SESSION_BEYOND_A_RESTART_MS)
    wait_until(lambda: len(member.got) == 40, "the first records")
    wait_until(
        lambda: committed(own_server, group, topic) == dict.fromkeys(PARTITIONS, 10), "the first positions"
    )
    own_server.restart()
    assert wait_until(lambda: committed(own_server, group, topic), "positions") == dict.fromkeys(
        PARTITIONS, 10
    )
    produce(own_server, topic, [f"b{index}" for index in range(40)])
    wait_until(lambda: len(member.got) >= 80, "the member to go on after the restart")
    values = [value for _, _, value in member.got]
    assert len(values) == len(set(values)) == 80, "nothing twice, nothing lost"


@pytest.mark.parametrize("client", [*MOSTLY_IN_SOAK, "confluent-consumer", "confluent-cooperative"])
def test_kill_9_of_the_broker_in_a_rebalance(own_server, unique, members, wait_until, client):
    """Members come while the broker dies: in the end everything has one owner, and nothing is lost."""
    topic, group = unique("topic"), unique("group")
    create(own_server, topic)
    produce(own_server, topic, [f"a{index}" for index in range(20)])
    first = members(client, own_server, group, topic, session_ms=6_000)
    wait_until(lambda: first.assignment == PARTITIONS, "the first member to have everything")
    second = members(client, own_server, group, topic, session_ms=6_000)
    wait_until(lambda: first.assignment != PARTITIONS, "the rebalance to begin")
    own_server.restart()
    wait_until(lambda: share(first, second), "both to share after the restart", seconds=60)
    produce(own_server, topic, [f"b{index}" for index in range(20)])
    expected = {f"{letter}{index}" for letter in "ab" for index in range(20)}
    wait_until(
        lambda: {value for member in (first, second) for _, _, value in member.got} == expected,
        "every record to be seen",
    )


def test_static_member_of_the_consumer_protocol_restarts_without_a_rebalance(
    own_server, unique, members, wait_until
):
    own_server.settings["group.consumer.session.timeout.ms"] = str(SESSION_BEYOND_A_RESTART_MS)
    own_server.restart()
    topic, group = unique("topic"), unique("group")
    create(own_server, topic)
    first = members("confluent-consumer", own_server, group, topic, instance="one")
    second = members("confluent-consumer", own_server, group, topic, instance="two")
    wait_until(lambda: share(first, second), "two static members to share")
    said, kept = len(first.lines), second.assignment
    second.leave()
    again = members("confluent-consumer", own_server, group, topic, instance="two")
    wait_until(lambda: again.assignment == kept, "the static member to get its partitions back")
    assert len(first.lines) == said, "the other member was disturbed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "client", ["confluent", pytest.param("confluent-cooperative", marks=pytest.mark.soak)]
)
def test_members_change_to_the_consumer_protocol_one_by_one_and_back(
    own_server, unique, members, wait_until, client
):
    """Members of the consumer protocol replace a running group of classic members, and the other way round.

    Each is replaced as by an upgrade of an application: the new one joins, the old one leaves. The broker is killed in
    between, with members of both protocols in the group. No record is left out.
    """
    server, topic, group = own_server, unique("topic"), unique("group")
    admin = create(server, topic)
    stop, sent = threading.Event(), []

    def keep_producing():
        # The offsets are compared with the sent records: a record must not be there twice when the broker is killed.
        producer = Producer({"bootstrap.servers": server.address, "enable.idempotence": True})
        while not stop.wait(0.02):
            sent.append(f"v{len(sent)}")
            producer.produce(topic, sent[-1].encode(), partition=len(sent) % len(PARTITIONS))
            producer.poll(0)
        assert producer.flush(30) == 0

    def shared(*everybody):
        parts = [member.assignment for member in everybody]
        return all(parts) and sum(map(len, parts)) == 4 and set().union(*parts) == PARTITIONS

    def kind():
        listed = admin.list_consumer_groups().result(30).valid
        return next((str(one.type).rpartition(".")[2] for one in listed if one.group_id == group), None)

    def is_seen():
        seen = {value for member in everybody for _, _, value in member.got}
        return set(sent) <= seen

    old = [members(client, server, group, topic) for _ in range(2)]
    wait_until(lambda: shared(*old), "two classic members to share")
    assert kind() == "CLASSIC"
    producing = threading.Thread(target=keep_producing)
    producing.start()
    try:
        new = [members("confluent-consumer", server, group, topic)]
        wait_until(
            lambda: shared(*old, *new), "a member of the consumer protocol to get its part", seconds=60
        )
        wait_until(lambda: kind() == "CONSUMER", "the group to be of the other protocol")
        server.kill()
        server.restart()
        wait_until(lambda: shared(*old, *new), "the three to share after a kill", seconds=60)
        old[0].leave()
        new.append(members("confluent-consumer", server, group, topic))
        wait_until(lambda: shared(old[1], *new), "the second to come over", seconds=60)
        old[1].leave()
        wait_until(lambda: shared(*new), "the new ones to share", seconds=60)

        back = [members(client, server, group, topic)]
        wait_until(lambda: shared(*back, *new), "a classic member to join", seconds=60)
        new[0].leave()
        wait_until(lambda: shared(back[0], new[1]), "one of each to share", seconds=60)
        new[1].leave()
        wait_until(lambda: shared(*back), "the classic member to have everything", seconds=60)
        wait_until(lambda: kind() == "CLASSIC", "the group to be given back")
    finally:
        stop.set()
        producing.join(60)
    everybody = [*old, *new, *back]
    wait_until(is_seen, "every record to be seen", seconds=60)
    counts = [sum(index % 4 == (partition - 1) % 4 for index in range(len(sent))) for partition in range(4)]
    wait_until(
        lambda: committed(server, group, topic) == dict(enumerate(counts)), "every position to be committed"
    )
