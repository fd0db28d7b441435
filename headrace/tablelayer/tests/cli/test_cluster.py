"""`headrace cluster`, and the obstacles to the adoption of a server."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.tablelayer.tests.cli.test_serve import refused
from simulator.ports import free_port


def test_a_single_server_is_a_cluster_of_one(headrace, server) -> None:
    found = headrace("cluster", "brokers", "--server", server, "--format", "json")
    (broker,) = [json.loads(line) for line in found.stdout.splitlines()]
    assert (broker["broker"], broker["address"], broker["is_controller"]) == (0, server, True)
    said = headrace("cluster", "status", "--server", server).stdout
    assert "controller: broker 0" in said
    assert "1 broker alive: 0" in said
    assert " 0 offline" in said


def test_a_member_of_a_cluster_that_cannot_be_says_why(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    words = ("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    quick = ("--set", "zookeeper.connection.timeout.ms=500")
    assert f"no ZooKeeper server answered at {nobody} within 0.5 s; is it running there?" in refused(
        *words, "--zookeeper", f"{nobody}/path", *quick
    )
    for address in (f"{nobody}/a//b", "127.0.0.1:port/a", f"127.0.0.1:70000,{nobody}/a", "/a"):
        assert f"{address!r} is not an address of ZooKeeper" in refused(
            *words, "--zookeeper", address, *quick
        )
    assert "have different values" in refused(
        *words, "--zookeeper", nobody, "--set", "zookeeper.connect=elsewhere:2181"
    )
    assert "Value must be at least 1" in refused(*words, "--set", "default.replication.factor=0")
    assert not (tmp_path / "data" / "meta.properties").exists(), "nothing was begun"


def test_a_single_server_has_nothing_to_rebalance_and_cannot_be_drained(headrace, server) -> None:
    headrace("topics", "create", "alone")
    assert "nothing has to be moved" in headrace("cluster", "rebalance", "--dry-run").stdout
    assert "broker 0 holds " in headrace("cluster", "rebalance").stdout
    refused = headrace("cluster", "drain", "0")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "without broker 0 there are 0 brokers: start another one" in refused.stderr
    unknown = headrace("cluster", "drain", "7")
    assert unknown.exit_code == 1
    assert "there is no broker 7 and it holds no replicas; alive brokers: 0" in unknown.stderr


def test_replicas_need_brokers_and_topics_that_are_there(headrace, server) -> None:
    few = headrace("cluster", "replicate", "2", "--dry-run")
    assert (few.exit_code, few.stderr) == (1, "2 replicas need as many brokers, and 1 are alive: 0\n")
    unknown = headrace("cluster", "replicate", "1", "--topic", "nosuch")
    assert (unknown.exit_code, unknown.stderr) == (1, "there is no topic nosuch\n")
    assert headrace("cluster", "replicate", "1").stdout == "nothing has to be moved\n"


def test_adoption_names_missing_options_before_it_changes_anything(headrace, tmp_path: Path) -> None:
    nowhere = headrace("cluster", "adopt", "--data", str(tmp_path / "data"))
    assert (nowhere.exit_code, nowhere.stderr) == (
        1,
        "name the new cluster's path in ZooKeeper with --zookeeper, for example 127.0.0.1:2181/headrace\n",
    )
    nobody = f"127.0.0.1:{free_port()}/path"
    quick = ("--set", "zookeeper.connection.timeout.ms=500")
    silent = headrace("cluster", "adopt", "--data", str(tmp_path), "--zookeeper", nobody, *quick)
    assert silent.exit_code == 1
    assert silent.stderr.startswith("no ZooKeeper server answered at ")
    assert list(tmp_path.iterdir()) == []
