"""The output of `headrace tables lake` while a worker has a round, after it failed, and when it is done."""

import json
import threading

import pytest

from headrace.tablelayer.client import connect
from headrace.tablelayer.lake.coordinator import Heartbeats, ServerCoordinator
from headrace.tablelayer.lake.tiering_job import KEPT_OUT, run_tiering
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.tests.lakes import lake_offered


@pytest.fixture
def connection(server):
    with connect(server) as connection:
        with lake_offered(connection):
            connection.execute(
                "CREATE TABLE tiered (id INT, PRIMARY KEY (id) NOT ENFORCED)"
                " WITH ('table.datalake.enabled'='true', 'bucket.num'='2', 'table.datalake.freshness'='1 h')"
            )
        yield connection
        connection.admin.drop_table("tiered")


def shown(headrace):
    result = headrace("tables", "lake", "--format", "json")
    assert result.exit_code == 0, result.output
    (row,) = [json.loads(line) for line in result.stdout.splitlines()]
    return row


def test_rounds_are_visible_from_grant_to_commit(headrace, connection):
    path = TablePath("default", "tiered")
    table = connection.table("tiered")
    coordinator = ServerCoordinator(connection, "worker 1")
    assert coordinator.begin(path, force=False) is None  # nothing to do
    table.upsert([{"id": n} for n in range(10)])
    assert shown(headrace)["behind"] == 10
    assert shown(headrace)["state"] == "due"
    granted = coordinator.begin(None, force=False)
    assert granted.path == path
    assert ServerCoordinator(connection, "worker 2").begin(path, force=True) is None
    coordinator.heartbeat(granted, 4, "writing")
    assert shown(headrace)["state"].startswith("worker 1: writing, 4 changes so far")

    # A failure puts the table off, but not for a worker that insists.
    coordinator.release(granted, "no space left")
    row = shown(headrace)
    assert row["state"].startswith("failed 1 times, again in ")
    assert row["state"].endswith(": no space left")
    assert coordinator.begin(None, force=False) is None
    granted = coordinator.begin(path, force=True)
    with pytest.raises(TableError, match="is over"):
        coordinator.heartbeat(type(granted)(path, granted.table_id, granted.epoch - 1, 1))

    # Asked to finish: the worker hears it with its next heartbeat.
    quick = type(granted)(path, granted.table_id, granted.epoch, 150)
    with Heartbeats(coordinator, quick) as beats:
        assert "ends after its present piece" in headrace("tables", "lake", "tiered", "--finish").stdout
        assert beats.finish.wait(60)
    ends = table.offsets("latest")
    coordinator.commit(granted, 77, ends)
    coordinator.release(granted)
    row = shown(headrace)
    assert (row["snapshot"], row["behind"], row["state"]) == (77, 0, "up to date")
    table.upsert([{"id": 11}])
    assert shown(headrace)["state"] == "fresh enough"
    (told,) = [
        json.loads(line) for line in headrace("tables", "lake", "tiered", "-o", "json").stdout.splitlines()
    ]
    assert told["table"] == "default.tiered"
    assert {"bucket", "tiered", "log_end", "behind"} == told["buckets"][0].keys()
    detail = headrace("tables", "lake", "tiered")
    assert "snapshot: 77" in detail.stdout
    assert "no round is running" in headrace("tables", "lake", "tiered", "--finish").stdout
    refused = headrace("tables", "lake", "--finish")
    assert refused.exit_code != 0
    assert "needs a table" in refused.output


def test_two_workers_never_have_the_same_table(connection):
    """Many ask at once, over the wire."""
    connection.table("tiered").upsert([{"id": 1}])
    granted, lock = [], threading.Lock()

    def ask(number):
        got = ServerCoordinator(connection, f"w{number}").begin(None, force=False)
        with lock:
            granted.append(got)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = [each for each in granted if each is not None]
    assert len(held) == 1
    ServerCoordinator(connection, "any").release(held[0])
    assert ServerCoordinator(connection, "next").begin(None, force=False).epoch == held[0].epoch + 1


def test_a_run_that_another_tierer_kept_out_says_so(connection):
    connection.table("tiered").upsert([{"id": 1}])
    granted = ServerCoordinator(connection, "another").begin(TablePath("default", "tiered"), force=True)
    said = []
    assert run_tiering(connection.bootstrap, tables=["default.tiered"], report=said.append) == KEPT_OUT == 3
    assert said[0] == "default.tiered: another tiering job has this table"
    assert said[1].startswith("nothing was tiered: another tiering job holds every selected table")
    said.clear()
    both = ["default.tiered", "default.absent"]
    assert run_tiering(connection.bootstrap, tables=both, report=said.append) == 1
    ServerCoordinator(connection, "another").release(granted)
