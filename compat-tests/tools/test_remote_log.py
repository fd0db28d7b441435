"""The remote log on an S3 server: Kafka's clients read remote records, its tools show their place, and faults of
the store lose nothing.
"""

from __future__ import annotations

import os
import shutil

import pytest
from confluent_kafka import Producer
from faulty_s3 import BUCKET, FaultyS3
from object_stores import STORES
from remote_clients import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    PATIENCE_SECONDS,
    SETTINGS,
    TOPIC,
    consume,
    copied_positions,
    headrace,
    is_local_gone,
    positions,
    produce,
    read_some,
)

from headrace.broker.objects.files import open_files
from headrace.tablelayer.client import connect


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch):
    made = FaultyS3()
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    yield made
    made.stop()


@pytest.fixture
def tiered_server(store, tmp_path, make_server):
    process = make_server(tmp_path, **SETTINGS).start()
    yield process
    process.kill_all()


def segments(store: FaultyS3) -> list[str]:
    return [name for name in store.names() if name.endswith(".segment")]


def records(store: FaultyS3) -> list[str]:
    """Return all files but the cluster's metadata."""
    return [name for name in store.names() if "/cluster/" not in name]


def test_clients_read_from_the_beginning_what_is_only_in_remote_storage(
    store, tiered_server, unique, wait_until
):
    address, topic = tiered_server.address, unique("tiered")
    with connect(address) as connection:
        connection.kafka.create_topic(topic, partitions=1, configs=TOPIC)
        produce(address, topic, 0, 600)
        wait_until(lambda: is_local_gone(connection, topic), "copies", PATIENCE_SECONDS)
        assert connection.kafka.offsets(topic, EARLIEST) == {0: 0}
        local = connection.kafka.offsets(topic, EARLIEST_LOCAL)[0]  # asked for first: both grow
        assert connection.kafka.offsets(topic, LATEST_TIERED)[0] >= local - 1 >= 299
        assert consume(address, topic, unique("group"), 600) == list(range(600))
        connection.kafka.delete_topic(topic)
        wait_until(lambda: not records(store), "an empty bucket", PATIENCE_SECONDS)


@pytest.mark.timeout(300)
def test_a_new_machine_that_has_the_bucket_alone_serves_what_is_there(
    store, tmp_path, unique, wait_until, server_process_class
):
    """After kill -9 and without a data directory, topics, log tables and primary-key tables are served and go on."""
    topic, log_table, keyed = unique("tiered"), "default.clicks", "default.people"
    options = ", ".join(f"'{name}' = '{value}'" for name, value in TOPIC.items())
    settings = {
        **SETTINGS,
        "kv.snapshot.directory": f"s3://{BUCKET}/snapshots",
        "kv.snapshot.interval": "1 s",
    }
    old = server_process_class(tmp_path / "old", **settings)
    old.directory.mkdir()
    old.start()
    try:
        with connect(old.address) as connection:
            connection.kafka.create_topic(topic, partitions=2, configs=TOPIC)
            produce(old.address, topic, 0, 600)
            connection.sql(f"CREATE TABLE {log_table} (id BIGINT, text STRING) WITH ({options})")
            connection.sql(
                f"CREATE TABLE {keyed} (id BIGINT NOT NULL, text STRING, PRIMARY KEY (id) NOT ENFORCED) "
                f"WITH ({options}, 'bucket.num' = '2')"
            )
            for first in range(0, 400, 20):
                rows = [{"id": at, "text": os.urandom(2000).hex()} for at in range(first, first + 20)]
                connection.table(log_table).append(rows)
                connection.table(keyed).upsert([{**row, "id": row["id"] % 50} for row in rows])
            wait_until(lambda: is_local_gone(connection, topic), "copies", PATIENCE_SECONDS)
            wait_until(lambda: is_local_gone(connection, log_table, 0.8), "copies", PATIENCE_SECONDS)

            def is_state_copied() -> bool:
                tiered, ends = (connection.kafka.offsets(keyed, time) for time in (LATEST_TIERED, LATEST))
                return all(tiered[each] == ends[each] - 1 for each in ends)

            wait_until(is_state_copied, "a snapshot and what it goes on from", PATIENCE_SECONDS)
            rows = sorted(connection.table(keyed).to_arrow().to_pylist(), key=lambda row: row["id"])
            assert len(rows) == 50
            groups = {protocol: unique(protocol) for protocol in ("classic", "consumer")}
            read = {
                protocol: read_some(old.address, topic, group, 100, protocol)
                for protocol, group in groups.items()
            }
            everything = unique("everything")
            read_some(old.address, topic, everything, 600, "classic")
            there = {group: positions(old.address, group) for group in (*groups.values(), everything)}
            wait_until(
                lambda: copied_positions(f"s3://{BUCKET}/remote", there) == there,
                "copies of positions",
                PATIENCE_SECONDS,
            )
            tiered = connection.kafka.offsets(topic, LATEST_TIERED)
        old.kill()
        shutil.rmtree(old.directory)

        said = headrace(
            "restore", "--from-remote", f"s3://{BUCKET}/remote", "--data", tmp_path / "new" / "data"
        )
        assert "remote storage has records of 3 topics" in said
        assert "positions of 3 consumer groups" in said
        assert "2 of them were beyond the end of the restored log" in said
        new = server_process_class(tmp_path / "new", **settings).start()
        try:
            with connect(new.address) as connection:
                count = sum(offset + 1 for offset in tiered.values())
                assert count > 300
                assert connection.kafka.offsets(topic) == {each: last + 1 for each, last in tiered.items()}
                found = consume(new.address, topic, unique("group"), count)
                assert len(set(found)) == count
                ends = {(topic, each): last + 1 for each, last in tiered.items()}
                assert positions(new.address, everything) == ends
                for protocol, group in groups.items():
                    assert positions(new.address, group) == there[group]
                    rest = read_some(new.address, topic, group, count - 100, protocol)
                    assert not rest & read[protocol], "committed records were read again"
                    assert positions(new.address, group) == ends
                read = connection.table(log_table).to_arrow().column("id").to_pylist()
                assert read == list(range(len(read)))
                assert len(read) > 300
                there = connection.table(keyed).to_arrow().to_pylist()
                assert sorted(there, key=lambda row: row["id"]) == rows
                connection.table(keyed).upsert([{"id": 1, "text": "after"}])
                assert connection.table(keyed).lookup_one({"id": 1})["text"] == "after"
                produce(new.address, topic, 600, 100)
                assert len(consume(new.address, topic, unique("group"), count + 100)) == count + 100
            assert "Traceback" not in new.log()
        finally:
            new.kill()
    finally:
        old.kill()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_store_that_fails_loses_nothing_and_kafkas_tool_says_where_records_are(
    store, tiered_server, unique, wait_until
):
    from java_tools import JavaTools

    address, topic, plain = tiered_server.address, unique("tiered"), unique("plain")
    with connect(address) as connection:
        connection.kafka.create_topic(topic, partitions=2, configs=TOPIC)
        connection.kafka.create_topic(plain, partitions=1)
        count = 0
        for mode in ("500", "slow", "lost"):
            store.mode = mode
            produce(address, topic, count, 600)
            count += 600
            wait_until(lambda: is_local_gone(connection, topic), "copies", PATIENCE_SECONDS)
            assert sorted(consume(address, topic, unique("group"), count)) == list(range(count)), mode
        store.mode = "denied"
        tiered_server.restart()
        produce(address, topic, count, 100)
        produce(address, plain, 0, 100)
        count += 100
        assert consume(address, plain, unique("group"), 100) == list(range(100))
        asked = store.requests
        wait_until(lambda: store.requests > asked + 5, "attempts", PATIENCE_SECONDS)
        store.mode = "well"
        assert sorted(consume(address, topic, unique("group"), count)) == list(range(count))
        wait_until(lambda: is_local_gone(connection, topic, 0.9), "copies", PATIENCE_SECONDS)
        tool = JavaTools()
        for time in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED):
            said = tool.run(
                "GetOffsetShell", "--bootstrap-server", address, "--topic", topic, "--time", str(time)
            )
            ours = connection.kafka.offsets(topic, time)
            assert sorted(said.split()) == sorted(f"{topic}:{each}:{offset}" for each, offset in ours.items())
        tiered_server.restart()
        wait_until(
            lambda: len(segments(store)) <= count * 510 // 30_000 + 4, "no leftovers", PATIENCE_SECONDS
        )
        assert sorted(consume(address, topic, unique("group"), count)) == list(range(count))
        connection.kafka.delete_topic(topic)
        wait_until(lambda: not records(store), "an empty bucket", PATIENCE_SECONDS)
    assert "Traceback" not in tiered_server.log()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", STORES)
def test_a_store_of_its_own_is_written_read_and_gone_on_from(
    kind, tmp_path, unique, wait_until, free_port, server_process_class, monkeypatch
):
    made = STORES[kind](tmp_path / "store", free_port())
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    topic = unique("tiered")
    settings = {**SETTINGS, "remote.log.storage.directory": f"{made.url}/remote"}
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old = server_process_class(tmp_path / "old", **settings).start()
    try:
        with connect(old.address) as connection:
            connection.kafka.create_topic(topic, partitions=1, configs={**TOPIC, "segment.bytes": "12000000"})
            producer = Producer({"bootstrap.servers": old.address, "compression.type": "none"})
            for number in range(4000):  # segments of several parts
                producer.produce(topic, b"%06d" % number + os.urandom(10_000))
                producer.poll(0)
            assert producer.flush(60) == 0
            wait_until(lambda: is_local_gone(connection, topic, 0.6), "copies", PATIENCE_SECONDS)
            assert consume(old.address, topic, unique("group"), 4000) == list(range(4000))
            tiered = connection.kafka.offsets(topic, LATEST_TIERED)[0] + 1
        old.kill()
        shutil.rmtree(old.directory)
        headrace("restore", "--from-remote", f"{made.url}/remote", "--data", tmp_path / "new" / "data")
        new = server_process_class(tmp_path / "new", **settings).start()
        try:
            assert consume(new.address, topic, unique("group"), tiered) == list(range(tiered))
            with connect(new.address) as connection:
                connection.kafka.delete_topic(topic)
            files = open_files(f"{made.url}/remote")
            wait_until(
                lambda: all(name.startswith("cluster/") for name in files.names("")), "an empty bucket", 60
            )
        finally:
            new.kill()
    finally:
        old.kill()
        made.stop()
