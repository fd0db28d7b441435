"""A table behind kill -9: every acknowledged row is there, the state is kept, and the changelog is whole."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from headrace.tablelayer.client import ConnectionFailed, connect

ROWS_PER_WRITE = 500
KILLS = 1
BUCKETS = 2

pytestmark = pytest.mark.slow


def write_until(stop: threading.Event, address: str, acknowledged: list[int]) -> None:
    """Upsert ever new keys, each batch with acks=all, through all faults of the server."""
    with connect(address) as connection:
        table = connection.table("default.t")
        start = 0
        while not stop.is_set():
            keys = range(start, start + ROWS_PER_WRITE)
            table.upsert([{"k": key, "v": f"value {key}"} for key in keys])
            acknowledged.append(keys.stop)
            start = keys.stop
            stop.wait(0.02)


def is_kept(current: Path) -> bool:
    """Return whether the store with this file has written rows to another one: its manifest is written after that."""
    try:
        tables = [path.stat().st_mtime_ns for path in current.parent.glob("*.sst")]
        manifest = current.with_name(current.read_text().strip())
        return bool(tables) and manifest.stat().st_mtime_ns > min(tables)
    except FileNotFoundError:
        return False  # it is being replaced


@pytest.mark.one_process("the state in its data directory; replicas: cluster/test_cluster.py")
def test_acknowledged_rows_survive_kill_9_and_the_state_is_kept(own_server, wait_until) -> None:
    with connect(own_server.address) as connection:
        connection.execute(
            "CREATE TABLE t (k BIGINT, v STRING, PRIMARY KEY (k) NOT ENFORCED) "
            f"WITH ('bucket.num'='{BUCKETS}')"
        )
    acknowledged: list[int] = []
    stop = threading.Event()
    writer = threading.Thread(target=write_until, args=(stop, own_server.address, acknowledged))
    writer.start()
    try:
        for _ in range(KILLS):
            count = len(acknowledged)
            wait_until(lambda count=count: len(acknowledged) > count + 5, "writes to be acknowledged")
            wait_until(
                lambda: sum(map(is_kept, own_server.directory.rglob("CURRENT"))) >= BUCKETS,
                "state of each bucket to be kept",
            )
            own_server.restart()
    finally:
        stop.set()
        writer.join(60)
    assert not writer.is_alive()
    total = acknowledged[-1]
    with connect(own_server.address) as connection:
        table = connection.table("default.t")
        assert table.count() == total
        found, rows = table.lookup(list(range(total)))
        assert all(found)
        assert rows.column("v").to_pylist() == [f"value {key}" for key in range(total)]
        changes = [
            (key, change)
            for part in table.scan(start="earliest", until="latest")
            for key, change in zip(
                part.batch.column("k").to_pylist(), part.change_types.tolist(), strict=True
            )
        ]
        # No row was repeated: retries are recognised, so that every row was inserted once and never updated.
        assert sorted(changes) == [(key, 1) for key in range(total)]
    log = (own_server.directory / "data" / "headrace.log").read_text()
    kept = [int(text) for text in re.findall(r"table default\.t bucket \d+: kept (\d+) rows", log)]
    assert len(kept) >= BUCKETS * KILLS
    assert all(count > 0 for count in kept[-BUCKETS:]), log


def test_errors_of_a_killed_server_are_named(own_server) -> None:
    own_server.kill_all()
    with pytest.raises(ConnectionFailed) as failed:
        connect(own_server.address).table("default.t")
    for address in own_server.address.split(","):
        assert f"cannot connect to {address}: " in str(failed.value)
