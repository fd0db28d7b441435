"""Three real processes and a real ZooKeeper under faults: the checkers find no error, and each fault is healed.

No acknowledged record is lost, doubled or torn, groups never go back, lookups are linearizable, the logs of all
replicas are equal, and after each fault the cluster is whole again.

export HEADRACE_NEMESIS_SEED=7 HEADRACE_NEMESIS_RUNS=1 HEADRACE_NEMESIS_SECONDS=300 HEADRACE_NEMESIS_FAULTS=STOPS,KILLS
    pytest -s -m soak compat-tests/cluster/test_nemesis.py::test_nemesis
"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from ensemble_faults import ENSEMBLE, TABLE
from fault_load import Load, create_topic
from nemesis import (
    FLIPS,
    FULL,
    KILLS,
    NODES,
    PARTITIONS,
    STOPS,
    STORE,
    TICK_MS,
    Cluster,
    Nemesis,
    kill_a_leader,
    part_a_leader_from_the_store,
)
from table_load import TableLoad
from waits import Chronicle, Waits, report

from headrace.tablelayer.client import ClientConfig, connect
from simulator.histories import check_log, read_segment, told
from simulator.zookeeper import ZooKeeperEnsemble

SEED = int(os.environ.get("HEADRACE_NEMESIS_SEED", "1"))
SECONDS = float(os.environ.get("HEADRACE_NEMESIS_SECONDS", "1000"))
RUNS = int(os.environ.get("HEADRACE_NEMESIS_RUNS", "20"))
KINDS = {"KILLS": KILLS, "STOPS": STOPS, "PARTITIONS": PARTITIONS, "STORE": STORE, "FLIPS": FLIPS}
CHOSEN = [
    fault
    for kind in os.environ.get("HEADRACE_NEMESIS_FAULTS", ",".join(KINDS)).split(",")
    for fault in KINDS[kind]
]


def run(
    folder,
    server_process_class,
    seed,
    faults,
    *,
    pause=(1.0, 4.0),
    rate=1.0,
    patience_seconds=60,
    prepare=lambda cluster: None,
    options="",
    are_logs_whole=True,
    **settings,
) -> None:
    """Run a cluster under `faults`, one after the other; `rate` is that of the load.

    `patience_seconds` is the time for each step. `prepare` is called before the start; `options` are those of the
    table, `settings` those of the brokers.
    """
    cluster = Cluster(folder, server_process_class, **settings)
    prepare(cluster)
    with cluster:
        cluster.patience_seconds = patience_seconds
        create_topic(cluster.addresses, "plain", replicas=3, **{"segment.bytes": "1000000"})
        create_topic(cluster.addresses, "tx", replicas=3)
        waits = Waits()
        load = Load(
            cluster.addresses,
            plain="plain",
            transactional="tx",
            members=2,
            seed=seed,
            pause_seconds=0.004 / rate,
            waits=waits,
        )
        table = TableLoad(
            cluster.addresses, TABLE, seed=seed, pause_seconds=0.03 / rate, options=options, waits=waits
        )
        nemesis = Nemesis(cluster, seed, ("plain", "tx", TABLE), pause)
        chronicle = Chronicle(cluster.addresses, ("plain", TABLE))
        nemesis.tell = chronicle.tell
        try:
            with chronicle, load, table:
                load.wait_for_more(50, patience_seconds)
                table.wait_for_more(20, patience_seconds)
                for fault in faults:
                    nemesis.go(fault)
                    load.wait_for_more(50, patience_seconds)
                    table.wait_for_more(20, patience_seconds)
        except BaseException as error:
            error.add_note(f"seed {seed}: {'; '.join(nemesis.done)}")
            raise
        problems = [*load.problems(), *table.final_problems()]
        print(
            f"seed {seed}: {len(nemesis.done)} faults; {load.figures()}, the longest wait {load.longest_wait:.1f} s;"
            f" {table.figures()}; {len(problems)} problems\n{report(waits, chronicle)}",
            flush=True,
        )
        cluster.wait_whole()
        cluster.stop()
        if are_logs_whole:
            problems += log_problems(folder)
    assert not problems, f"seed {seed}: {'; '.join(nemesis.done)}\n{told(problems)}"


def log_problems(folder) -> list[str]:
    """Check C3 and R2: the log of each partition is whole, and the same on every broker."""
    problems = []
    for topic in ("plain", "tx", TABLE):
        for path in sorted((folder / "1" / "data").glob(f"{topic}-*")):
            if path.name.endswith("-stray"):
                continue  # a damaged log that was copied again
            logs = []
            for number in NODES:
                segments = sorted((folder / str(number) / "data" / path.name).glob("*.log"))
                logs.append(b"".join(segment.read_bytes() for segment in segments))
                for segment in segments:
                    problems += [f"{segment}: {each}" for each in check_log(*read_segment(segment))]
            if len(set(logs)) > 1:
                problems.append(f"{path.name} has {[len(log) for log in logs]} bytes, and they differ")
    return problems


def drawn(seed, kinds, seconds):
    """Yield faults of these kinds, in rounds of all, until the time is over."""
    dice, ends = random.Random(seed), time.monotonic() + seconds
    while True:
        for fault in dice.sample(kinds, len(kinds)):
            if time.monotonic() > ends:
                return
            yield fault


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("cluster")
def test_nothing_is_lost_by_two_faults(tmp_path, server_process_class):
    """The simulator of a cluster has these and others; here the processes and the ensemble are real ones."""
    faults = [kill_a_leader, part_a_leader_from_the_store]
    run(tmp_path, server_process_class, SEED, faults, pause=(0.1, 0.5), rate=0.2, patience_seconds=150)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_nemesis(tmp_path, server_process_class):
    for seed in range(SEED, SEED + RUNS):
        run(tmp_path / str(seed), server_process_class, seed, drawn(seed, CHOSEN, SECONDS))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_an_ensemble_that_loses_its_quorum_now_and_then_loses_nothing(tmp_path, server_process_class):
    """Three ZooKeepers. Without two of them no write is acknowledged after the leases have ended, and clients get
    errors; brokers come back by themselves.
    """
    ensemble = ZooKeeperEnsemble(tmp_path / "ensemble", tick_ms=TICK_MS)
    faults = drawn(SEED, ENSEMBLE, SECONDS)
    run(tmp_path / "nodes", server_process_class, SEED, faults, patience_seconds=120, zookeeper=ensemble)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_disk_that_is_full_now_and_then_loses_nothing(tmp_path, server_process_class):
    """One broker is on a small file system of its own, which needs root to mount."""

    def prepare(cluster):
        assert cluster.mount(random.Random(SEED).choice(NODES), 256), "mounting a tmpfs takes root"

    faults = drawn(SEED, [*FULL, kill_a_leader], SECONDS)
    run(tmp_path, server_process_class, SEED, faults, prepare=prepare, rate=0.5)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_tables_and_topics_with_replicas_and_a_remote_log_lose_nothing(tmp_path, server_process_class):
    """Records in remote storage are removed from the brokers' disks while brokers are killed and stopped."""
    remote = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.directory": str(tmp_path / "remote"),
        "remote.log.manager.task.interval.ms": "500",
    }
    options = "'remote.storage.enable' = 'true', 'segment.bytes' = '4000', 'local.retention.bytes' = '8000'"
    faults = drawn(SEED, [*KILLS, *STOPS, part_a_leader_from_the_store], SECONDS)
    run(
        tmp_path / "nodes",
        server_process_class,
        SEED,
        faults,
        options=options,
        are_logs_whole=False,
        **remote,
    )
    assert list((tmp_path / "remote").rglob("*")), "something was copied"


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_leader_that_was_stopped_beyond_its_session_shows_nothing_old(tmp_path, server_process_class):
    """A lookup that waited for it all the while is the first request that it finds."""
    with Cluster(tmp_path, server_process_class) as cluster:
        patient = connect(cluster.addresses, ClientConfig(request_timeout_ms=100_000))
        other = connect(cluster.addresses, ClientConfig(request_timeout_ms=3_000))
        with patient, other, ThreadPoolExecutor(1) as pool:
            patient.execute(
                "CREATE TABLE z (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED)"
                " WITH ('bucket.num' = '1', 'table.replication.factor' = '3')"
            )
            table = patient.table("z")
            table.upsert([{"k": 1, "v": 1}])
            assert table.lookup_one({"k": 1})["v"] == 1
            cluster.wait_whole()
            nemesis = Nemesis(cluster, SEED, ("default.z",))
            with nemesis.stopped(nemesis.leader()):
                other.table("z").upsert([{"k": 1, "v": 2}])
                looked = pool.submit(table.lookup_one, {"k": 1})
                with pytest.raises(TimeoutError):
                    looked.result(2)
            assert looked.result(100)["v"] == 2
            cluster.wait_whole()
