"""A cluster is backed up under load, with kills, restored to one server, and grows again."""

from __future__ import annotations

import collections
import functools
import json
import os
import random
import re
import subprocess
import sys
import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.tablelayer.client import connect
from simulator.three_brokers import NUMBERS, settings_of
from simulator.zookeeper import running_zookeeper

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

DEADLINE_SECONDS = 120
ROUNDS = int(os.environ.get("HEADRACE_BACKUPS", "3"))
PARTITIONS = 6
KEYS = 50


def eventually(holds, what):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def headrace(*words):
    command = [sys.executable, "-m", "headrace.tablelayer.cli.main", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def done(*words, code=0):
    with headrace(*words) as process:
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == code, (words, out, err)
    return out, err


@pytest.fixture
def zookeeper(tmp_path):
    with running_zookeeper(tmp_path / "zookeeper") as running:
        yield running.address


@pytest.fixture
def brokers(zookeeper, tmp_path, server_process_class):
    made = {}
    for number in NUMBERS:
        (tmp_path / str(number)).mkdir()
        settings = {**settings_of(number, f"{zookeeper}/old"), "log.segment.bytes": "200000"}
        made[number] = server_process_class(tmp_path / str(number), **settings)
    try:
        for process in made.values():
            process.start()
        yield made
    finally:
        for process in made.values():
            process.kill()


class Load:
    """Writers that go on through kills; each notes what was acknowledged."""

    def __init__(self, addresses):
        self.addresses = addresses
        self.errors = []
        self._over = threading.Event()
        self.records = collections.defaultdict(dict)
        """Values of `plain` by partition and offset."""
        self.transactions = {f"tx{number}": 0 for number in range(3)}
        """Committed transactions by writer."""
        self.rows = self.lines = 0
        works = [self._plain, self._table, self._log, self._commit]
        works += [functools.partial(self._transact, name) for name in self.transactions]
        self._threads = [threading.Thread(target=self._guarded, args=(each,), daemon=True) for each in works]

    def _guarded(self, work):
        try:
            work()
        except BaseException as error:
            self.errors.append(error)
            raise

    def start(self):
        for each in self._threads:
            each.start()

    def stop(self):
        self._over.set()
        for each in self._threads:
            each.join(DEADLINE_SECONDS)
        assert not self.errors
        assert not any(each.is_alive() for each in self._threads)

    def wait_for_more(self):
        before = self.progress()
        eventually(
            lambda: self.errors or all(new > old for old, new in zip(before, self.progress(), strict=True)),
            "nothing is written",
        )
        assert not self.errors

    def progress(self):
        return [sum(map(len, self.records.values())), self.rows, self.lines, *self.transactions.values()]

    def _plain(self):
        producer = Producer({"bootstrap.servers": self.addresses, "acks": "all", "enable.idempotence": True})
        number = 0

        def delivered(error, message):
            if error is None:
                self.records[message.partition()][message.offset()] = message.value()

        while not self._over.is_set():
            for _ in range(20):
                producer.produce(
                    "plain", b"%d" % number, partition=number % PARTITIONS, on_delivery=delivered
                )
                number += 1
            producer.flush(DEADLINE_SECONDS)

    def _table(self):
        with connect(self.addresses) as connection:
            table = connection.table("fruit")
            while not self._over.is_set():
                table.upsert([{"id": self.rows % KEYS, "name": f"n{self.rows}"}])
                self.rows += 1

    def _log(self):
        with connect(self.addresses) as connection:
            table = connection.table("lines")
            while not self._over.is_set():
                table.append([{"id": self.lines}])
                self.lines += 1
                time.sleep(0.01)

    def _transact(self, name):
        producer = Producer({"bootstrap.servers": self.addresses, "transactional.id": name})
        tried(lambda: producer.init_transactions(DEADLINE_SECONDS))
        while not self._over.is_set():
            value = b"%s %d" % (name.encode(), self.transactions[name] + 1)
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce("t", value, partition=partition)
            tried(lambda: producer.commit_transaction(DEADLINE_SECONDS))
            self.transactions[name] += 1

    def _commit(self):
        consumer = consumer_of(self.addresses, "readers")
        consumer.subscribe(["plain"])
        while not self._over.is_set():
            if consumer.consume(100, 0.5):
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException as error:
                    if not error.args[0].retriable():
                        print(f"a commit failed: {error}")  # a rebalance after a kill
        consumer.close()


def tried(work):
    while True:
        try:
            return work()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def consumer_of(addresses, group):
    return Consumer(
        {
            "bootstrap.servers": addresses,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": group == "checker",
        }
    )


def everything(addresses, topic, partitions):
    """Return the values by partition and offset, as a read_committed consumer sees them."""
    consumer = consumer_of(addresses, "checker")
    places = [TopicPartition(topic, index, 0) for index in range(partitions)]
    ends = {each.partition: consumer.get_watermark_offsets(each, DEADLINE_SECONDS)[1] for each in places}
    consumer.assign(places)
    found, left = collections.defaultdict(dict), set(range(partitions))
    deadline = time.monotonic() + DEADLINE_SECONDS
    while left:
        assert time.monotonic() < deadline, f"partitions {left} of {topic} have something that is not ended"
        for message in consumer.consume(1000, 1.0):
            if not message.error():
                found[message.partition()][message.offset()] = message.value()
            elif message.offset() >= ends[message.partition()]:
                left.discard(message.partition())
    consumer.close()
    return found, ends


def test_a_cluster_under_load_and_kills_is_backed_up_restored_and_grows_again(
    brokers, zookeeper, tmp_path, server_process_class
):
    rng = random.Random(int(os.environ.get("HEADRACE_SEED", "1")))
    target = str(tmp_path / "backups")
    addresses = ",".join(each.address for each in brokers.values())
    admin = AdminClient({"bootstrap.servers": addresses})
    topics = [NewTopic(name, PARTITIONS, 3) for name in ("plain", "t")]
    [each.result() for each in admin.create_topics(topics).values()]
    with connect(addresses) as connection:
        connection.execute(
            "CREATE TABLE fruit (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num' = '3')"
        )
        connection.execute("CREATE TABLE lines (id INT) WITH ('bucket.num' = '2')")
    load = Load(addresses)
    load.start()
    load.wait_for_more()
    said, known = collections.Counter(), {}

    def backed_up(during=lambda _: None):
        """Return whether a backup was made; `during` gets its process."""
        progress = load.progress(), {key: dict(each) for key, each in load.records.items()}
        with headrace("backup", target, "--server", addresses) as process:
            during(process)
            out, err = process.communicate(timeout=DEADLINE_SECONDS)
        said[process.returncode, err.partition("backup ")[0][-60:]] += 1
        if not process.returncode:
            known[re.search(r"-([0-9a-f]{32})\.json", out).group(1)] = progress
        return not process.returncode

    def kill_a_broker(_):
        time.sleep(rng.uniform(0.3, 1.0) * seconds)
        victim = brokers[rng.choice(NUMBERS)]
        victim.kill()
        time.sleep(rng.uniform(0.0, 2.0))
        victim.start()

    def kill_the_command(process):
        time.sleep(rng.uniform(0.3, 1.0) * seconds)
        process.kill()

    for _ in range(ROUNDS):
        eventually(backed_up, "a killed backup never ends")
        began = time.monotonic()
        assert backed_up(), said
        seconds = time.monotonic() - began
        backed_up(kill_a_broker)
        load.wait_for_more()
        eventually(backed_up, "there is no backup after the kill of a broker")
        backed_up(kill_the_command)
        load.wait_for_more()
    eventually(backed_up, "a killed backup never ends")
    load.wait_for_more()
    load.stop()
    for each in brokers.values():
        each.kill()
    print(*said.items(), sep="\n")
    listed = [json.loads(line) for line in done("restore", target, "--list", "-o", "json")[0].splitlines()]
    assert {each["backup"] for each in listed} >= set(known)
    for number, each in enumerate(listed[:-1]):
        folder = tmp_path / f"restored{number}"
        folder.mkdir()
        done("restore", target, "--data", str(folder / "data"), "--as-of", each["time"])
        server = server_process_class(folder).start()
        try:
            whole(server.address, load, *known.get(each["backup"], ([0] * len(load.progress()), {})))
        finally:
            server.kill()
    progress, records = known[listed[-1]["backup"]]
    restored = tmp_path / "restored"
    restored.mkdir()
    out, _ = done("restore", target, "--data", str(restored / "data"))
    assert "It was a cluster" in out
    alone = server_process_class(restored).start()
    try:
        plain = whole(alone.address, load, progress, records)
        with connect(alone.address) as connection:
            connection.table("fruit").upsert([{"id": 1, "name": "more"}])
        assert alone.stop() == 0
        done("cluster", "adopt", "--data", str(restored / "data"), "--zookeeper", f"{zookeeper}/new")
        first = server_process_class(restored, **{"zookeeper.connect": f"{zookeeper}/new"}).start()
        (tmp_path / "second").mkdir()
        more = {"zookeeper.connect": f"{zookeeper}/new", "node.id": "1"}
        second = server_process_class(tmp_path / "second", **more).start()
        try:
            eventually(lambda: brokers_of(first) == {0, 1}, "the second one is alive")
            done("cluster", "replicate", "2", "--server", first.address)
            done("cluster", "health", "--wait", "--server", first.address)
            first.kill()
            eventually(lambda: brokers_of(second) == {1}, "the first one is gone")
            found, _ = everything(second.address, "plain", PARTITIONS)
            assert found == plain
            with connect(second.address) as connection:
                assert {"id": 1, "name": "more"} in connection.table("fruit").to_arrow().to_pylist()
        finally:
            first.kill()
            second.kill()
    finally:
        alone.kill()


def brokers_of(process):
    with connect(process.address) as connection:
        return {each.broker_id for each in connection.kafka.describe_cluster().brokers}


def whole(address, load, progress, records):
    """Check a restored server, which has at least this; return the records of `plain`."""
    _, rows, lines, *transactions = progress
    for name in load.transactions:  # what was open is aborted
        producer = Producer({"bootstrap.servers": address, "transactional.id": name})
        tried(lambda producer=producer: producer.init_transactions(DEADLINE_SECONDS))
    plain, ends = everything(address, "plain", PARTITIONS)
    for partition, known in records.items():
        for offset, value in known.items():
            assert plain[partition].get(offset) == value, f"plain-{partition} lost {offset}"
    for partition, found in plain.items():
        later = load.records[partition]
        assert all(later.get(offset, value) == value for offset, value in found.items())
    decided, _ = everything(address, "t", PARTITIONS)
    for name, count in zip(load.transactions, transactions, strict=True):
        mine = [
            sorted(
                int(value.split()[1])
                for value in decided[index].values()
                if value.split()[0].decode() == name
            )
            for index in range(PARTITIONS)
        ]
        assert mine == [list(range(1, len(mine[0]) + 1))] * PARTITIONS, "a transaction is torn"
        assert len(mine[0]) >= count, "a committed transaction is lost"
    with connect(address) as connection:
        for (topic, partition), offset in connection.kafka.describe_group("readers").positions.items():
            assert topic == "plain"
            assert offset <= ends[partition]
        changes, _ = everything(address, "default.fruit", 3)
        state = {}
        for each in changes.values():
            for _, value in sorted(each.items()):
                row = json.loads(value)
                state[row["id"]] = row["name"]
        found = {row["id"]: row["name"] for row in connection.table("fruit").to_arrow().to_pylist()}
        assert found == state
        assert sum(map(len, changes.values())) >= rows
        there = {row["id"] for row in connection.table("lines").to_arrow().to_pylist()}
        assert there >= set(range(lines))
        connection.kafka.commit_offsets("other", "plain", {0: ends[0]})
    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    producer.produce("plain", b"more", partition=0)
    assert not producer.flush(DEADLINE_SECONDS)
    plain[0][ends[0]] = b"more"
    return plain
