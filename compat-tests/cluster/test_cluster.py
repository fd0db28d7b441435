"""Three server processes and a real ZooKeeper are one cluster: for clients, through kills, and for a stopped one."""

from __future__ import annotations

import collections
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic

from headrace.tablelayer.client import ClientConfig, connect
from headrace.tablelayer.tests.serve import Serve

pytestmark = pytest.mark.xdist_group("cluster")
SESSION_MS = 2000
DEADLINE_SECONDS = 60
KILLS = int(os.environ.get("HEADRACE_KILLS", "6"))
TRANSACTIONS, RECORDS = 30, 12
EARLIEST_LOCAL = -4


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory, free_port):
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "headrace.tablelayer.cli.main", "zookeeper", "--listen", address]
    command += ["--data", str(tmp_path_factory.mktemp("zookeeper"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        readable = poll.poll(DEADLINE_SECONDS * 1000)
        assert readable
        assert "zookeeper is ready on" in process.stdout.readline()
        yield address
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, 143)


@pytest.fixture
def brokers(zookeeper, tmp_path, server_process_class):
    """Brokers by node id, in a ZooKeeper path of their own."""
    yield from _three(zookeeper, tmp_path, server_process_class)


@pytest.fixture
def tiered_brokers(zookeeper, tmp_path, server_process_class):
    """The same brokers with remote storage."""
    remote = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.directory": str(tmp_path / "remote"),
        "remote.log.manager.task.interval.ms": "100",
        "log.retention.check.interval.ms": "100",
        "log.initial.task.delay.ms": "0",
    }
    yield from _three(zookeeper, tmp_path, server_process_class, **remote)


@pytest.fixture
def third(zookeeper, tmp_path, server_process_class):
    """The third broker alone."""
    yield from (each[3] for each in _members((3,), zookeeper, tmp_path, server_process_class))


def _three(*where, **more):
    yield from _members((1, 2, 3), *where, **more)


def _members(numbers, zookeeper, tmp_path, server_process_class, **more):
    path = f"{zookeeper}/{uuid.uuid4().hex}"
    made = {}
    for number in numbers:
        (tmp_path / str(number)).mkdir()
        settings = {
            "node.id": str(number),
            "broker.rack": f"r{number}",
            "zookeeper.connect": path,
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            "offsets.topic.num.partitions": "6",
            "transaction.state.log.num.partitions": "3",
            **more,
        }
        made[number] = server_process_class(tmp_path / str(number), **settings)
    try:
        for process in made.values():
            process.start()
        yield made
    finally:
        codes = [process.stop() for process in made.values() if process.process is not None]
    assert codes == [0] * len(codes)


def eventually(holds, what):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def cluster_of(process):
    with connect(process.address, ClientConfig(delivery_timeout_ms=20_000)) as connection:
        return connection.kafka.describe_cluster()


def leaders_of(process, topic):
    with connect(process.address) as connection:
        return dict(connection.kafka.describe_topic(topic).leaders)


def alive(process):
    return {each.broker_id for each in cluster_of(process).brokers}


@pytest.mark.soak
def test_clients_use_all_brokers_whichever_they_ask_first(brokers):
    one, two, three = brokers.values()
    found = eventually(lambda: len((each := cluster_of(two)).brokers) == 3 and each, "all are alive")
    assert {each.broker_id: (each.port, each.rack) for each in found.brokers} == {
        number: (process.port, f"r{number}") for number, process in brokers.items()
    }
    admin = KafkaAdminClient(bootstrap_servers=[one.address])
    admin.create_topics([NewTopic("t", 6, -1)])
    admin.close()
    assert all(len(leaders_of(each, "t")) == 6 for each in brokers.values()), "all know it at once"
    assert sorted(leaders_of(three, "t").values()) == [1, 1, 2, 2, 3, 3]
    producer = KafkaProducer(bootstrap_servers=[two.address], acks="all")
    sent = [producer.send("t", b"%d" % number, partition=number % 6) for number in range(300)]
    assert {future.get(30).partition for future in sent} == set(range(6))
    producer.close()
    consumer = KafkaConsumer(
        "t", bootstrap_servers=[three.address], group_id="g", auto_offset_reset="earliest"
    )
    got = set()
    eventually(
        lambda: (
            got.update(int(record.value) for records in consumer.poll(200).values() for record in records)
            or len(got) == 300
        ),
        "everything is read",
    )
    consumer.commit()
    consumer.close()
    other = Consumer({"bootstrap.servers": one.address, "group.id": "g"})
    other.subscribe(["t"])
    assert other.poll(3) is None, "the group's offsets are found through any broker"
    other.close()


def test_tables_are_written_and_read_through_any_broker(brokers):
    one, two, three = brokers.values()
    eventually(lambda: len(alive(one)) == 3, "all are alive")
    with connect(one.address) as first, connect(two.address) as second, connect(three.address) as third:
        first.execute(
            "CREATE TABLE k (id INT, v STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num'='6')"
        )
        assert set(leaders_of(three, "default.k").values()) == {1, 2, 3}, "its buckets are spread"
        rows = [{"id": number, "v": f"v{number}"} for number in range(500)]
        second.table("k").upsert(rows)
        table = third.table("k")
        assert table.count() == 500
        assert [table.lookup_one({"id": number}) for number in (0, 77, 499)] == [
            rows[number] for number in (0, 77, 499)
        ]
        producer = KafkaProducer(bootstrap_servers=[one.address], acks="all", enable_idempotence=True)
        for number in range(1000):  # a Kafka client knows no buckets
            value = json.dumps({"id": number, "v": "from Kafka"}).encode()
            producer.send("default.k", value, partition=number % 2)
        producer.close()
        assert table.count() == 1000
        assert {table.lookup_one({"id": number})["v"] for number in range(0, 1000, 50)} == {"from Kafka"}


@pytest.mark.soak
def test_a_killed_broker_is_missed_and_leads_again_when_it_is_back(brokers):
    eventually(lambda: len(alive(brokers[3])) == 3, "all are alive")
    controller = cluster_of(brokers[3]).controller
    others = [number for number in brokers if number != controller]
    with connect(brokers[controller].address) as connection:
        connection.kafka.create_topic("t", partitions=3)
    producer = KafkaProducer(bootstrap_servers=[brokers[others[0]].address], acks="all")
    for partition in range(3):
        producer.send("t", b"before", partition=partition).get(30)
    (lost,) = [
        partition for partition, leader in leaders_of(brokers[others[0]], "t").items() if leader == controller
    ]
    killed_at = time.monotonic()
    brokers[controller].kill()

    def taken_over():
        found = cluster_of(brokers[others[1]])
        return found.controller in others and ("t", lost) in found.offline

    eventually(taken_over, "another is the controller, and the partition is known to have no leader")
    assert time.monotonic() - killed_at < DEADLINE_SECONDS / 2
    for partition in {0, 1, 2} - {lost}:
        producer.send("t", b"meanwhile", partition=partition).get(30)
    brokers[controller].start()
    eventually(lambda: leaders_of(brokers[others[0]], "t")[lost] == controller, "it leads again")
    producer.send("t", b"after", partition=lost).get(30)
    producer.close()
    with connect(brokers[others[0]].address) as connection:
        assert connection.kafka.offsets("t") == {0: 2, 1: 2, 2: 2}


@pytest.mark.soak
def test_transactions_over_all_brokers_are_whole_through_kills(brokers):
    """Each broker leads partitions, and each is killed in the middle of a transaction, also the coordinator."""
    eventually(lambda: len(alive(brokers[1])) == 3, "all are alive")
    with connect(brokers[1].address) as connection:
        connection.kafka.create_topic("t", partitions=6)
    addresses = ",".join(each.address for each in brokers.values())
    outcomes = {}
    restarting = []
    producer = _transactional(addresses)
    for number in range(TRANSACTIONS):
        if number % (TRANSACTIONS // 3) == 3:
            victim = brokers[number // (TRANSACTIONS // 3) + 1]
            [each.join() for each in restarting]
            restarting = [threading.Thread(target=victim.restart)]
        outcome = "FAILED"
        while outcome == "FAILED":
            attempt = f"{number}.{len(outcomes)}"
            outcome, producer = _transact(producer, addresses, attempt, restarting)
            outcomes[attempt] = outcome
    [each.join() for each in restarting]
    producer.flush(DEADLINE_SECONDS)
    counts = collections.Counter(_committed_attempts(addresses, "t", 6))
    told = {attempt: (outcome, counts[attempt]) for attempt, outcome in outcomes.items()}
    wrong = {
        attempt: (outcome, count)
        for attempt, (outcome, count) in told.items()
        if count not in {"OK": (RECORDS,), "FAILED": (0,), "UNKNOWN": (0, RECORDS)}[outcome]
    }
    assert not wrong
    assert list(outcomes.values()).count("OK") > TRANSACTIONS // 2


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_tables_with_replicas_keep_what_they_acknowledged_when_their_leaders_are_killed(brokers):
    """A client upserts and looks up all the while; each bucket's leader is killed in turn. Rows get their numbers
    once.
    """
    eventually(lambda: len(alive(brokers[1])) == 3, "all are alive")
    addresses = ",".join(each.address for each in brokers.values())
    with connect(addresses, ClientConfig(delivery_timeout_ms=120_000)) as connection:
        connection.execute(
            "CREATE TABLE t (k INT, v BIGINT, PRIMARY KEY (k) NOT ENFORCED)"
            " WITH ('bucket.num' = '3', 'table.replication.factor' = '3', 'table.merge-engine' = 'aggregation',"
            " 'fields.v.agg' = 'sum')"
        )
        connection.execute(
            "CREATE TABLE numbered (k INT, v BIGINT, n BIGINT, PRIMARY KEY (k) NOT ENFORCED)"
            " WITH ('bucket.num' = '3', 'table.replication.factor' = '3', 'auto-increment.fields' = 'n',"
            " 'table.kv.ttl' = '1 d')"
        )
        table, over, begun, acknowledged = connection.table("t"), threading.Event(), {}, {}
        numbered, made, numbers = connection.table("numbered"), [], {}
        keys, waits = 60, []

        def write():
            number = 0
            with connect(addresses, ClientConfig(delivery_timeout_ms=120_000)) as own:
                mine, others = own.table("t"), own.table("numbered")
                while not over.is_set():
                    others.upsert([{"k": number, "v": number}])
                    made.append(number)
                    key, number = number % keys, number + 1
                    begun[key] = begun.get(key, 0) + 1
                    mine.upsert([{"k": key, "v": 1}])
                    acknowledged[key] = acknowledged.get(key, 0) + 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            eventually(lambda: len(acknowledged) == keys, "every key is written")
            for kill in range(KILLS):
                bucket = kill % 3
                victim = brokers[connection.kafka.describe_topic("default.t").leaders[bucket]]
                before = dict(acknowledged)
                given = {row["k"]: row["n"] for row in numbered.lookup(made[-50:])[1].to_pylist()}
                assert all(numbers.get(key, number) == number for key, number in given.items())
                numbers |= given
                victim.kill()
                killed_at = time.monotonic()
                found, rows = table.lookup(list(before))
                waits.append(round(time.monotonic() - killed_at, 2))
                print(f"  kill {kill + 1}: {waits[-1]} s", flush=True)
                assert found.all()
                for row in rows.to_pylist():
                    assert before[row["k"]] <= row["v"] <= begun[row["k"]]
                victim.start()
                eventually(lambda: _are_all_in_sync(addresses), "the replicas of the killed one are in sync")
        finally:
            over.set()
            writer.join()
        waits.sort()
        print(
            f"{KILLS} kills of a leader; to the rows of all buckets p50 {waits[len(waits) // 2]} s, p95"
            f" {waits[len(waits) * 95 // 100]} s, longest {waits[-1]} s; {sum(acknowledged.values())} additions and"
            f" {len(made)} rows acknowledged"
        )
        rows = {row["k"]: row for row in numbered.to_arrow().to_pylist()}
        assert {key: rows[key]["v"] for key in made} == {key: key for key in made}
        assert {key: rows[key]["n"] for key in numbers} == numbers
        assert len({row["n"] for row in rows.values()}) == len(rows)
        assert {row["k"]: row["v"] for row in table.lookup(list(range(keys)))[1].to_pylist()} == acknowledged
        assert table.count() == keys


@pytest.mark.soak
def test_any_replica_answers_lookups_while_a_leader_stands_or_is_gone(brokers):
    """An answer is never staler than it states, while rows are written."""
    eventually(lambda: len(alive(brokers[1])) == 3, "all are alive")
    addresses = ",".join(each.address for each in brokers.values())
    keys, over, acknowledged = 60, threading.Event(), []
    patient = ClientConfig(delivery_timeout_ms=120_000)
    anybody = ClientConfig(
        lookup_from="any", lookup_max_staleness_ms=60_000, delivery_timeout_ms=120_000, client_rack="r1"
    )
    with connect(addresses, patient) as connection, connect(addresses, anybody) as reading:
        for name in ("t", "numbered"):
            connection.execute(
                f"CREATE TABLE {name} (k INT, v BIGINT, PRIMARY KEY (k) NOT ENFORCED)"
                " WITH ('bucket.num' = '3', 'table.replication.factor' = '3')"
            )
        table, near = connection.table("t"), reading.table("t")
        table.upsert([{"k": key, "v": 0} for key in range(keys)])
        acknowledged.append((time.monotonic(), 0))

        def write():
            with connect(addresses, patient) as own:
                mine = own.table("t")
                for number in itertools.count(1):
                    if over.is_set():
                        return
                    mine.upsert([{"k": key, "v": number} for key in range(keys)])
                    acknowledged.append((time.monotonic(), number))

        def look():
            began = time.monotonic()
            result = near.lookup(list(range(keys)))
            as_of = began - result.staleness_ms / 1000
            least = max((number for at, number in acknowledged[-10_000:] if at < as_of), default=-1)
            values = [-1 if each is None else each for each in result.rows["v"].to_pylist()]
            assert min(values) >= least, f"{result.staleness_ms} ms"
            return time.monotonic() - began, result.staleness_ms

        writer = threading.Thread(target=write)
        writer.start()
        try:
            eventually(lambda: look()[1] > 0, "replicas answer")
            for how in ("stands", "is killed"):
                quiet = [look() for _ in range(200)]
                leaders = connection.kafka.describe_topic("default.t").leaders.values()
                victim = brokers[next(leader for leader in leaders if leader != 1)]
                stopped = how == "stands"
                os.kill(victim.process.pid, signal.SIGSTOP) if stopped else victim.kill()
                looks, until = [], time.monotonic() + 2 * SESSION_MS / 1000
                while time.monotonic() < until:
                    looks.append(look())
                os.kill(victim.process.pid, signal.SIGCONT) if stopped else victim.start()
                for name, given in (("before", quiet), (f"while the leader {how}", looks)):
                    times, stale = sorted(each for each, _ in given), sorted(each for _, each in given)
                    print(
                        f"{len(given)} lookups {name}: p50 {times[len(times) // 2] * 1000:.1f} ms, longest"
                        f" {times[-1]:.2f} s; stale by {stale[len(stale) // 2]} ms, at most {stale[-1]}",
                        flush=True,
                    )
                assert how != "stands" or max(stale for _, stale in looks) >= SESSION_MS / 2
                eventually(lambda: _are_all_in_sync(addresses), "the replicas are in sync")
        finally:
            over.set()
            writer.join()


def _are_all_in_sync(addresses):
    partitions = (
        AdminClient({"bootstrap.servers": addresses}).list_topics(timeout=20).topics[topic].partitions
        for topic in ("default.t", "default.numbered")
    )
    return all(len(each.isrs) == 3 for topic in partitions for each in topic.values())


def _transactional(addresses):
    producer = Producer(
        {"bootstrap.servers": addresses, "transactional.id": "tx", "transaction.timeout.ms": 60_000}
    )
    while True:
        try:
            producer.init_transactions(DEADLINE_SECONDS)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return producer


def _transact(producer, addresses, attempt, kills):
    """Run a transaction; return its outcome, and the producer to go on with. `kills` begin in the middle of it."""
    try:
        producer.begin_transaction()
        for number in range(RECORDS):
            producer.produce("t", attempt, partition=number % 6)
            if number == RECORDS // 2:
                [each.start() for each in kills if not each.ident]
        producer.flush(DEADLINE_SECONDS)
        while True:
            try:
                producer.commit_transaction(DEADLINE_SECONDS)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return "OK", producer
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            return "UNKNOWN", _transactional(addresses)
        while True:
            try:
                producer.abort_transaction(DEADLINE_SECONDS)
            except KafkaException as failure:
                if failure.args[0].retriable():
                    continue
                return "FAILED", _transactional(addresses)
            else:
                return "FAILED", producer


def _committed_attempts(addresses, topic, partitions):
    """Return the committed attempts, by reading up to where no transaction is open."""
    consumer = Consumer(
        {
            "bootstrap.servers": addresses,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, index), DEADLINE_SECONDS)[1]
        for index in range(partitions)
    ]
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found, left = [], set(range(partitions))
    deadline = time.monotonic() + DEADLINE_SECONDS
    while left:
        assert time.monotonic() < deadline, f"partitions {left} have something that is not ended"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if not message.error():
            found.append(message.value().decode())
        elif message.offset() >= ends[message.partition()]:
            left.discard(message.partition())
    consumer.close()
    return found


@pytest.mark.soak
def test_a_process_that_was_stopped_beyond_its_session_acknowledges_nothing_before_it_is_back(brokers):
    """It first carries out the requests that were sent to it while it was stopped."""
    eventually(lambda: len(alive(brokers[1])) == 3, "all are alive")
    with connect(brokers[1].address) as connection:
        connection.kafka.create_topic("t", partitions=3)
    (own,) = [partition for partition, leader in leaders_of(brokers[2], "t").items() if leader == 3]
    producer = KafkaProducer(
        bootstrap_servers=[brokers[1].address], acks="all", retries=0, request_timeout_ms=40_000,
        delivery_timeout_ms=60_000, enable_idempotence=False, linger_ms=0,
    )  # fmt: skip
    producer.send("t", b"before", partition=own).get(30)
    os.kill(brokers[3].process.pid, signal.SIGSTOP)
    try:
        pending = producer.send("t", b"to a zombie", partition=own)
        eventually(lambda: ("t", own) in cluster_of(brokers[1]).offline, "it is missed")
    finally:
        os.kill(brokers[3].process.pid, signal.SIGCONT)
    with pytest.raises(Exception, match="NotLeader"):
        pending.get(60)
    eventually(lambda: leaders_of(brokers[2], "t")[own] == 3, "it is back")
    producer.close()
    with connect(brokers[2].address) as connection:
        eventually(lambda: connection.kafka.offsets("t")[own] == 1, "it has what it had acknowledged, alone")


def test_a_cluster_start_that_cannot_work_is_refused_in_one_sentence(
    third, zookeeper, tmp_path, server_process_class, free_port
):
    path = third.settings["zookeeper.connect"]

    def refused(number, data, address, *words):
        given = ["--data", str(data), "--listen", "127.0.0.1:0", "--zookeeper", address]
        given += ["--set", f"node.id={number}", "--set", "zookeeper.connection.timeout.ms=60000", *words]
        with Serve(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            out, err = process.communicate(timeout=90)
        assert (process.returncode, out) == (1, ""), err
        assert "Traceback" not in err
        return err

    nobody = f"127.0.0.1:{free_port()}"
    quick = ("--set", "zookeeper.connection.timeout.ms=1500")
    said = refused(9, tmp_path / "a", nobody, *quick)
    assert f"no ZooKeeper server answered at {nobody} within 1.5 s" in said
    assert "is not an address of ZooKeeper" in refused(9, tmp_path / "b", f"{nobody}//x")
    assert "must be at least 1" in refused(9, tmp_path / "c", path, "--set", "default.replication.factor=0")
    third.stop()
    data = third.directory / "data"
    assert "check the path behind the address" in refused(3, data, f"{zookeeper}/elsewhere")
    assert "belongs to broker 3, not 4; set node.id=3" in refused(4, data, path)
    assert "belongs to the cluster" in refused(
        3, data, f"{_other(server_process_class, tmp_path, zookeeper)}"
    )


def _other(server_process_class, tmp_path, zookeeper):
    """A second cluster beside the first one, which stays."""
    path = f"{zookeeper}/second"
    (tmp_path / "second").mkdir()
    other = server_process_class(tmp_path / "second", **{"node.id": "7", "zookeeper.connect": path})
    other.start()
    other.stop()
    return path


@pytest.mark.soak
def test_records_acknowledged_by_all_replicas_survive_their_leader(brokers):
    """An idempotent producer with acks=all, through a kill of the leader and a clean stop of the next one."""
    _outlives(brokers, ("kill", "stop"), {"min.insync.replicas": "2"})


@pytest.mark.soak
def test_a_remote_log_goes_on_through_the_kills_of_its_leaders(tiered_brokers):
    """The same through two kills, with records that are soon only in remote storage."""
    remote = {"remote.storage.enable": "true", "segment.bytes": "60000", "local.retention.bytes": "1"}
    remote |= {"min.insync.replicas": "2", "file.delete.delay.ms": "0"}
    found = _outlives(tiered_brokers, ("kill", "kill"), remote, value_size=500)
    with connect(tiered_brokers[1].address) as connection:
        local = connection.kafka.offsets("kept", EARLIEST_LOCAL)[0]
    assert local > len(found) // 2, f"records from {local} on are still local, of {len(found)}"


def _outlives(brokers, ends, configs, value_size=0):
    """Return the records by offset, after the leader has ended in each of these ways while records were written."""
    address = ",".join(process.address for process in brokers.values())
    with KafkaAdminClient(bootstrap_servers=address) as admin:
        admin.create_topics([NewTopic("kept", 1, 3, topic_configs=configs)])
    acknowledged, failed, over = [], [], threading.Event()

    def delivered(error, message):
        failed.append(error) if error else acknowledged.append((message.offset(), message.value()))

    def produce():
        settings = {"bootstrap.servers": address, "acks": "all", "enable.idempotence": True, "linger.ms": 2}
        settings |= {"retry.backoff.max.ms": 100, "topic.metadata.refresh.interval.ms": 500, "log_level": 0}
        producer, number = Producer(settings), 0
        while not over.is_set():
            producer.produce("kept", (b"%d " % number).ljust(value_size, b"x"), on_delivery=delivered)
            producer.poll(0.005)
            number += 1
        producer.flush(DEADLINE_SECONDS)

    def state():
        return next(iter(cluster_partitions(brokers, "kept")), {})

    def more():
        count = len(acknowledged)
        eventually(lambda: len(acknowledged) > count + 50, "the producer goes on")

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        more()
        for end in ends:
            leader = eventually(state, "it is described")["leader_id"]
            getattr(brokers[leader], end)()
            eventually(lambda gone=leader: state().get("leader_id", -1) not in (gone, -1), "another leads")
            more()
            brokers[leader].start()
            eventually(lambda: len(state().get("isr_nodes", ())) == 3, "it is in sync again")
    finally:
        over.set()
        thread.join()
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "g", "enable.partition.eof": True, "log_level": 0}
    )
    consumer.assign([TopicPartition("kept", 0, 0)])
    found = {}
    while (message := consumer.poll(DEADLINE_SECONDS)) is not None and message.error() is None:
        found[message.offset()] = message.value()
    consumer.close()
    assert failed == []
    assert [found.get(offset) for offset, _ in acknowledged] == [value for _, value in acknowledged]
    assert len(set(found.values())) == len(found), "nothing is there twice"
    return found


def cluster_partitions(brokers, topic):
    """Return the partitions as a running broker describes them."""
    for process in brokers.values():
        if process.process is not None and process.process.poll() is None:
            try:
                with KafkaAdminClient(bootstrap_servers=process.address) as admin:
                    return admin.describe_topics([topic])[0]["partitions"]
            except Exception:  # noqa: BLE001 - it starts or stops: another one is asked
                continue
    return []
