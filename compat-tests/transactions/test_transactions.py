"""Transactions with real clients and a real server: all or nothing, fencing, offsets, kills at any moment."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from foreign_clients import DEADLINE_SECONDS
from late_proxy import ADD_PARTITIONS, LateProxy

from simulator.three_brokers import REPLICAS

COPIER = Path(__file__).with_name("copier.py")
RECORDS = int(os.environ.get("HEADRACE_COPIER_RECORDS", "600"))
KILLS = int(os.environ.get("HEADRACE_COPIER_KILLS", "4"))
COPIERS = int(os.environ.get("HEADRACE_COPIERS", "1"))
SEED = int(os.environ.get("HEADRACE_COPIER_SEED", "1"))
KILL_SECONDS = float(os.environ.get("HEADRACE_COPIER_KILL_SECONDS", "0"))
DURABILITY = os.environ.get("HEADRACE_COPIER_DURABILITY", "process")
SILENCE_SECONDS = 120


def create(address, *names, **config):
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics(
        [NewTopic(name, 1, REPLICAS, config=config) for name in names]
    ).values():
        future.result(DEADLINE_SECONDS)


def read(address, topic, isolation="read_committed"):
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"reader-{topic}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values, deadline = [], time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            break
        values.append(message.value().decode())
    else:
        pytest.fail(f"the end of {topic} was not reached; {len(values)} records were")
    consumer.close()
    return values


def committed(address, group, topic):
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    (position,) = consumer.committed([TopicPartition(topic, 0)], DEADLINE_SECONDS)
    consumer.close()
    return position.offset


def transactional(address, name, **more):
    producer = Producer({"bootstrap.servers": address, "transactional.id": name, **more})
    producer.init_transactions(DEADLINE_SECONDS)
    return producer


def test_confluent_commits_aborts_and_commits_offsets(server, unique):
    source, target, group = unique("in"), unique("out"), unique("group")
    create(server.address, source, target)
    producer = transactional(server.address, unique("tx"))
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": group})
    for number in range(6):
        producer.begin_transaction()
        producer.produce(target, f"{number}", partition=0)
        positions = [TopicPartition(source, 0, number)]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), DEADLINE_SECONDS)
        if number % 2:
            producer.abort_transaction(DEADLINE_SECONDS)
        else:
            producer.commit_transaction(DEADLINE_SECONDS)
        assert committed(server.address, group, source) == number - number % 2
    consumer.close()
    assert read(server.address, target) == ["0", "2", "4"]
    assert len(read(server.address, target, "read_uncommitted")) >= 3


def test_confluent_a_new_owner_fences_the_old_one(server, unique):
    topic, name = unique("topic"), unique("tx")
    create(server.address, topic)
    old = transactional(server.address, name)
    old.begin_transaction()
    old.produce(topic, "zombie", partition=0)
    assert old.flush(DEADLINE_SECONDS) == 0
    heir = transactional(server.address, name)
    with pytest.raises(KafkaException) as error:
        old.commit_transaction(DEADLINE_SECONDS)
    assert error.value.args[0].fatal()
    heir.begin_transaction()
    heir.produce(topic, "heir", partition=0)
    heir.commit_transaction(DEADLINE_SECONDS)
    assert read(server.address, topic) == ["heir"]


def test_kafka_python(server, unique):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import KafkaProducer
        from kafka.structs import OffsetAndMetadata
        from kafka.structs import TopicPartition as Place
    topic, group = unique("topic"), unique("group")
    create(server.address, topic)
    producer = KafkaProducer(bootstrap_servers=server.address, transactional_id=unique("tx"))
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        producer.send(topic, f"{number}".encode(), partition=0)
        producer.send_offsets_to_transaction({Place(topic, 0): OffsetAndMetadata(number, "", -1)}, group)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)()
    producer.close()
    assert read(server.address, topic) == ["0", "2"]
    assert committed(server.address, group, topic) == 2


def test_aiokafka(server, unique):
    from aiokafka import AIOKafkaProducer
    from aiokafka.structs import TopicPartition as Place

    topic, group = unique("topic"), unique("group")
    create(server.address, topic)

    async def main():
        producer = AIOKafkaProducer(bootstrap_servers=server.address, transactional_id=unique("tx"))
        await producer.start()
        try:
            for number in range(4):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, f"{number}".encode(), partition=0)
                await producer.send_offsets_to_transaction({Place(topic, 0): number}, group)
                await (producer.abort_transaction if number % 2 else producer.commit_transaction)()
        finally:
            await producer.stop()

    asyncio.run(main())
    assert read(server.address, topic) == ["0", "2"]
    assert committed(server.address, group, topic) == 2


def test_a_table_takes_no_part_and_loses_nothing(server, unique):
    from headrace.tablelayer.client import connect

    name = f"t{unique('x').replace('-', '_')}"
    with connect(server.address) as connection:
        connection.execute(f"CREATE TABLE {name} (k BIGINT NOT NULL, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
        table = connection.table(f"default.{name}")
        table.upsert([{"k": 1, "v": "before"}])
        producer = transactional(server.address, unique("tx"))
        producer.begin_transaction()
        producer.produce(f"default.{name}", '{"k": 2, "v": "torn"}', partition=0)
        with pytest.raises(KafkaException) as error:
            producer.commit_transaction(DEADLINE_SECONDS)
        assert error.value.args[0].txn_requires_abort()
        assert "Policy violation" in str(error.value)
        table.upsert([{"k": 3, "v": "after"}])
        assert sorted(table.to_arrow().column("k").to_pylist()) == [1, 3]


@pytest.fixture
def late(own_server):
    """`late(keys, begins)` puts a `LateProxy` in front of the server."""
    proxies = []

    def start(keys, begins):
        own_server.kill()
        proxies.append(LateProxy(own_server.port, keys, begins))
        own_server.settings["advertised.listeners"] = f"127.0.0.1:{proxies[-1].port}"
        own_server.start()
        return proxies[-1]

    yield start
    for proxy in proxies:
        proxy.close()


@pytest.mark.one_process("a proxy holds back what goes to it")
def test_e4_version_1_partitions_added_late_do_not_tear_the_next_transaction(late, unique):
    """The client librdkafka keeps its epoch: a late request begins the next transaction, which is still whole."""
    proxy = late([ADD_PARTITIONS], ADD_PARTITIONS)
    address, topic = f"127.0.0.1:{proxy.port}", unique("topic")
    create(address, topic)
    producer = transactional(address, unique("tx"))
    expected = []
    for number in range(12):
        producer.begin_transaction()
        values = [f"{number}.{part}" for part in range(3)]
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(DEADLINE_SECONDS) == 0
        if number % 3 == 2:
            producer.abort_transaction(DEADLINE_SECONDS)
        else:
            producer.commit_transaction(DEADLINE_SECONDS)
            expected += values
    assert [key for key, _, _ in proxy.answers].count(ADD_PARTITIONS) >= 10
    assert read(address, topic) == expected


class Copier:
    """`copier.py` as a process that can be killed and started again; its printed lines are counted."""

    def __init__(self, address, name, log):
        self.command = [
            sys.executable,
            str(COPIER),
            address,
            name,
            "out",
            f"group-{name}",
            name,
            str(RECORDS),
        ]
        self.log = log
        self.start()

    def start(self):
        with self.log.open("a") as complaints:
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=complaints)
        self.lines = 0
        self.reader = threading.Thread(target=self.count, args=(self.process.stdout,))
        self.reader.start()

    def count(self, printed):
        for _ in printed:
            self.lines += 1

    def wait_for_lines(self, count):
        """Return False if it has ended before."""
        wanted, deadline = self.lines + count, time.monotonic() + SILENCE_SECONDS
        while self.lines < wanted and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        return self.lines >= wanted

    def finish(self):
        """Return the exit code; a copier that is silent for long prints where it hangs."""
        while self.process.poll() is None:
            if not self.wait_for_lines(1) and self.process.poll() is None:
                self.process.send_signal(signal.SIGUSR1)
                time.sleep(1)
                pytest.fail(f"{self.command[3]} hangs: {self.log.read_text()[-3000:]}")
        return self.process.returncode

    def end(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()


@pytest.mark.slow
@pytest.mark.timeout(240 + KILLS * (KILL_SECONDS + 20) + COPIERS * RECORDS / 50)
def test_e5_copiers_and_their_broker_are_killed_and_nothing_is_lost_or_doubled(own_server):
    """All are killed with -9 at random moments. Under read_committed their common output has each input's records,
    in order.
    """
    address, rng = own_server.address, random.Random(SEED)
    print(f"HEADRACE_COPIER_SEED={SEED} HEADRACE_COPIER_DURABILITY={DURABILITY}")
    if DURABILITY != "process":
        own_server.settings["log.durability"] = DURABILITY
        own_server.restart()
    names = ["a", "b", "c", "d"][:COPIERS]
    create(address, *names, "out")
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for name in names:
        for number in range(RECORDS):
            producer.produce(name, f"{name}{number}", partition=0)
            if number % 10_000 == 0:
                producer.flush(DEADLINE_SECONDS)
    assert producer.flush(DEADLINE_SECONDS) == 0
    del producer
    copiers, died, began = {}, 0, time.monotonic()
    try:
        for name in names:
            copiers[name] = Copier(address, name, own_server.directory / f"copier-{name}.log")
        for number in range(KILLS):
            victim = rng.choice(names)
            copiers[victim].wait_for_lines(rng.randint(1, 4))
            time.sleep(KILL_SECONDS + rng.random() * 0.05)
            if number % 2:
                own_server.restart()
            for name, copier in copiers.items():
                ended = copier.process.poll()
                died += bool(ended)
                if (name == victim and not number % 2) or ended is not None:
                    copier.end()
                    copier.start()
        for name, copier in copiers.items():
            for _ in range(4):  # it may still see the end of the last broker
                if (code := copier.finish()) == 0:
                    break
                died += 1
                copier.end()
                copier.start()
            assert code == 0, f"{name} does not come to its end"
    finally:
        for copier in copiers.values():
            copier.end()
    print(f"{time.monotonic() - began:.0f} s, {KILLS} kills, {died} copiers gave up and were started again")
    copied = read(address, "out")
    for name in names:
        assert [value for value in copied if value[0] == name] == [f"{name}{n}" for n in range(RECORDS)]
        assert committed(address, f"group-{name}", name) == RECORDS
    assert len(copied) == len(names) * RECORDS
