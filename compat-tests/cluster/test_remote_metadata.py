"""A cluster that has lost all machines, and its bucket: a single machine has the copied data, and becomes the first
of a new cluster.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from faulty_s3 import BUCKET, FaultyS3
from remote_clients import (
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
from headrace.broker.remote.cluster_copy import clusters, read_newest
from headrace.tablelayer.client import connect

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture
def zookeeper(tmp_path, free_port):
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "headrace.tablelayer.cli.main", "zookeeper", "--listen", address]
    command += ["--data", str(tmp_path / "zookeeper")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert "zookeeper is ready on" in process.stdout.readline()
        yield address
        process.terminate()
        process.wait(30)


@pytest.fixture(params=["folder", "s3", "s3 that fails"])
def bucket(request, tmp_path, monkeypatch):
    """Return the URL of a store that outlives the machines, and a function that ends its faults."""
    if request.param == "folder":
        yield f"file://{tmp_path}/bucket", lambda: None
        return
    store = FaultyS3()
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    if request.param == "s3 that fails":
        store.mode = "lost"
    yield f"s3://{BUCKET}", lambda: setattr(store, "mode", "well")
    store.stop()


def test_a_new_machine_restores_a_cluster_from_remote_storage(
    bucket,
    zookeeper,
    tmp_path,
    unique,
    wait_until,
    server_process_class,
):
    bucket, mend = bucket
    topic, log_table, keyed = unique("tiered"), "default.clicks", "default.people"
    options = ", ".join(f"'{name}' = '{value}'" for name, value in TOPIC.items())
    path = f"{zookeeper}/{uuid.uuid4().hex}"
    settings = {
        **SETTINGS,
        "remote.log.storage.directory": f"{bucket}/remote",
        "kv.snapshot.directory": f"{bucket}/snapshots",
        "kv.snapshot.interval": "1 s",
        "offsets.topic.num.partitions": "6",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
    }
    machines = {}
    for number in (1, 2, 3):
        (tmp_path / str(number)).mkdir()
        machines[number] = server_process_class(
            tmp_path / str(number),
            **settings,
            **{
                "node.id": str(number),
                "zookeeper.connect": path,
                "default.replication.factor": "3",
                "min.insync.replicas": "2",
            },
        )
    new = None
    try:
        for each in machines.values():
            each.start()
        address = ",".join(each.address for each in machines.values())
        admin = AdminClient({"bootstrap.servers": address})
        with connect(address) as connection:
            connection.kafka.create_topic(topic, partitions=2, configs={**TOPIC, "min.insync.replicas": "2"})
            produce(address, topic, 0, 600)
            connection.sql(f"CREATE TABLE {log_table} (id BIGINT, text STRING) WITH ({options})")
            connection.sql(
                f"CREATE TABLE {keyed} (id BIGINT NOT NULL, text STRING, PRIMARY KEY (id) NOT ENFORCED) "
                f"WITH ({options}, 'bucket.num' = '2')"
            )
            for first in range(0, 400, 20):
                rows = [{"id": at, "text": os.urandom(2000).hex()} for at in range(first, first + 20)]
                connection.table(log_table).append(rows)
                connection.table(keyed).upsert([{**row, "id": row["id"] % 50} for row in rows])
            grant = AclBinding(
                ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ann", "*", AclOperation.READ,
                AclPermissionType.ALLOW,
            )  # fmt: skip
            [each.result(PATIENCE_SECONDS) for each in admin.create_acls([grant]).values()]
            wait_until(lambda: is_local_gone(connection, topic), "copies", PATIENCE_SECONDS)
            wait_until(lambda: is_local_gone(connection, log_table, 0.8), "copies", PATIENCE_SECONDS)

            def is_state_copied() -> bool:
                tiered, ends = (connection.kafka.offsets(keyed, time) for time in (LATEST_TIERED, LATEST))
                return all(tiered[each] == ends[each] - 1 for each in ends)

            wait_until(is_state_copied, "a snapshot and what it goes on from", PATIENCE_SECONDS)
            rows = sorted(connection.table(keyed).to_arrow().to_pylist(), key=lambda row: row["id"])
            groups = {protocol: unique(protocol) for protocol in ("classic", "consumer")}
            read = {
                protocol: read_some(address, topic, group, 100, protocol)
                for protocol, group in groups.items()
            }
            there = {group: positions(address, group) for group in groups.values()}
            mend()
            wait_until(
                lambda: copied_positions(f"{bucket}/remote", there) == there, "positions", PATIENCE_SECONDS
            )
            tiered = connection.kafka.offsets(topic, LATEST_TIERED)
        for each in machines.values():
            each.kill()
            shutil.rmtree(each.directory)

        (tmp_path / "new").mkdir()
        said = headrace("restore", "--from-remote", f"{bucket}/remote", "--data", tmp_path / "new" / "data")
        assert "It was a cluster. It is now broker 0 alone" in said, said
        assert f"is now 1: {topic}" in said, said
        assert "positions of 2 consumer groups" in said, said
        new = server_process_class(tmp_path / "new", **settings).start()
        count = sum(offset + 1 for offset in tiered.values())
        ends = {(topic, each): last + 1 for each, last in tiered.items()}

        def look(address: str) -> None:
            with connect(address) as connection:
                count = sum(connection.kafka.offsets(topic, LATEST).values())
                assert len(set(consume(address, topic, unique("group"), count))) == count
                there = connection.table(keyed).to_arrow().to_pylist()
                assert sorted(there, key=lambda row: row["id"]) == rows
                read = connection.table(log_table).to_arrow().column("id").to_pylist()
                assert read == list(range(len(read)))
                assert len(read) > 300

        look(new.address)
        for protocol, group in groups.items():
            assert positions(new.address, group) == there[group]
            assert not read_some(new.address, topic, group, count - 100, protocol) & read[protocol]
            assert positions(new.address, group) == ends
        admin = AdminClient({"bootstrap.servers": new.address})
        everything = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        assert grant in admin.describe_acls(everything).result(PATIENCE_SECONDS)
        asked = admin.describe_configs([ConfigResource("TOPIC", topic)])
        (configs,) = (each.result(PATIENCE_SECONDS) for each in asked.values())
        assert configs["segment.bytes"].value == TOPIC["segment.bytes"]
        produce(new.address, topic, 600, 100)
        assert "Traceback" not in new.log()

        assert new.stop() == 0
        path = f"{zookeeper}/{uuid.uuid4().hex}"
        said = headrace("cluster", "adopt", "--data", tmp_path / "new" / "data", "--zookeeper", path)
        assert "it is broker 0 of cluster" in said, said
        new = server_process_class(tmp_path / "new", **settings, **{"zookeeper.connect": path}).start()
        look(new.address)
        for group in groups.values():
            assert positions(new.address, group) == ends
        files = open_files(f"{bucket}/remote")
        (cluster_id,) = clusters(files)
        wait_until(
            lambda: read_newest(files, cluster_id).controller_epoch >= 0, "metadata of the new cluster", 60
        )
        assert new.stop() == 0
    finally:
        for each in (*machines.values(), new):
            if each is not None and each.process is not None:
                each.kill()
