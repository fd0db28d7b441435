"""The options of each of several processes: ids, folders, ports that never meet, and what cannot be combined."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.broker.cluster.processes import ProcessesRoot, folder_of
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.partitions.data_dir import lock_directory
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import SystemEntropy
from headrace.tablelayer.cli import doctor
from headrace.tablelayer.cli.options import LogFormat
from headrace.tablelayer.cli.process_plan import ONE_REPLICA, ProcessOptions, plan_processes

TWO = "A://127.0.0.1:9092,B://127.0.0.1:{}"
MAP = {"listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT", "inter.broker.listener.name": "A"}


def plan(
    sets: dict[str, str] | None = None,
    count: int = 3,
    listen: tuple[str, int] = ("127.0.0.1", 9092),
    metrics: str | None = None,
) -> list[ProcessOptions]:
    return plan_processes(
        count,
        listen,
        Path("data"),
        sets or {},
        None,
        BrokerConfig(sets or {}),
        metrics=metrics,
        log_format=LogFormat.TEXT,
        verbose=False,
    )


def test_process_number_i_has_the_first_ones_id_and_ports_plus_i() -> None:
    planned = plan({"node.id": "5", "num.partitions": "4"}, metrics="127.0.0.1:9308")
    assert [each.broker_id for each in planned] == [5, 6, 7]
    assert [each.sets["node.id"] for each in planned] == ["5", "6", "7"]
    assert [each.data for each in planned] == ["data/broker-5", "data/broker-6", "data/broker-7"]
    assert [each.listen for each in planned] == ["127.0.0.1:9092", "127.0.0.1:9093", "127.0.0.1:9094"]
    assert [each.metrics for each in planned] == ["127.0.0.1:9308", "127.0.0.1:9309", "127.0.0.1:9310"]
    assert all(each.sets["num.partitions"] == "4" and "listeners" not in each.sets for each in planned)
    assert plan(listen=("::1", 9092))[1].listen == "[::1]:9093"


def test_every_listener_and_its_advertised_address_get_the_next_port() -> None:
    told = "A://kafka.example:19092,B://10.0.0.1:0"
    planned = plan({"listeners": TWO.format(9192), "advertised.listeners": told, **MAP})
    assert planned[0].listen is None
    assert planned[2].sets["listeners"] == "A://127.0.0.1:9094,B://127.0.0.1:9194"
    assert planned[2].sets["advertised.listeners"] == "A://kafka.example:19094,B://10.0.0.1:0"
    only = plan({"advertised.listeners": "kafka.example:19092"})
    assert only[1].sets["advertised.listeners"] == "PLAINTEXT://kafka.example:19093"


def test_internal_topics_have_one_replica_unless_the_configuration_says_otherwise() -> None:
    assert plan()[0].sets.items() >= ONE_REPLICA.items()
    chosen = plan({"offsets.topic.replication.factor": "2"})[0].sets
    assert chosen["offsets.topic.replication.factor"] == "2"
    assert chosen["transaction.state.log.replication.factor"] == "1"


@pytest.mark.parametrize(
    ("sets", "more", "said"),
    [
        ({"zookeeper.connect": "127.0.0.1:2181"}, {}, "--processes and zookeeper.connect exclude each other"),
        ({"zookeeper.session.timeout.ms": "6000"}, {}, "zookeeper.session.timeout.ms exclude"),
        ({}, {"listen": ("127.0.0.1", 0)}, "port 0 cannot be used"),
        ({}, {"metrics": "127.0.0.1:0"}, "port 0 cannot be used"),
        ({}, {"metrics": "127.0.0.1:9094"}, "would both have port 9094"),
        ({}, {"metrics": "127.0.0.1:9090"}, "would both have port 9092"),
        ({}, {"listen": ("127.0.0.1", 65534)}, "would have port 65536"),
        ({"listeners": TWO.format(9094), **MAP}, {}, "A and B would both have port 9094: .* 3 or more apart"),
    ],
)
def test_settings_that_contradict_processes_are_refused(
    sets: dict[str, str], more: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(sets, **more)  # type: ignore[arg-type]


def test_ports_that_just_do_not_meet_are_planned() -> None:
    assert plan({"listeners": TWO.format(9095), **MAP}, metrics="127.0.0.1:9089")


async def test_the_doctor_finds_the_processes_that_use_the_directory(tmp_path: Path) -> None:
    def found() -> doctor.Finding:
        running = doctor.Running({os.getpid(): "127.0.0.1:9092"})
        (finding,) = [each for each in doctor.data_directory(tmp_path, running) if "in use" in each.what]
        return finding

    root = await ProcessesRoot.open(tmp_path, 0, 2, SystemDisk(), SystemEntropy())
    assert found().what == f"in use by process {os.getpid()}, the server at 127.0.0.1:9092"
    folder = folder_of(tmp_path, 1)
    folder.mkdir()
    lock = lock_directory(SystemDisk(), folder)
    (folder / ".lock").write_text("1")
    assert (found().verdict, found().what) == (doctor.Verdict.WARNING, "in use by process 1")
    lock.release()
    await root.close()
