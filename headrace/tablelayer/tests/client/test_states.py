"""States and past states, read by the client: ranges, time travel, and scans that survive faults (R14)."""

import datetime as dt
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from headrace.tablelayer.client import ChangeType, DataError, TableError, TableErrorCode, connect
from headrace.tablelayer.client.errors import ConnectionLost
from headrace.tablelayer.model.messages import ScanSnapshotRequest
from headrace.tablelayer.tests.serve import Serve
from simulator.ports import free_port

ROOT = Path(__file__).resolve().parents[4]
ORDERS = "(customer INT, number INT, note STRING, PRIMARY KEY (customer, number) NOT ENFORCED)"
FRUIT = "(id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num' = '3')"


@pytest.mark.parametrize("buckets", [1, 3])
def test_a_range_scan_gives_the_rows_between_two_keys_in_key_order(make_table, buckets):
    table = make_table(f"{ORDERS} WITH ('bucket.num' = '{buckets}')")
    table.upsert([{"customer": c, "number": n, "note": f"{c}/{n}"} for c in range(10) for n in range(5)])

    def keys(*args, **options):
        rows = table.range_scan(*args, columns=["number", "customer"], **options).to_pylist()
        assert all(list(row) == ["number", "customer"] for row in rows)
        return [(row["customer"], row["number"]) for row in rows]

    assert keys(3, 5) == [(c, n) for c in (3, 4) for n in range(5)]
    assert keys({"customer": 7}, {"customer": 7}, include_upper=True) == [(7, n) for n in range(5)]
    assert keys({"customer": 7, "number": 3}, {"customer": 8, "number": 0}) == [(7, 3), (7, 4)]
    assert keys({"customer": 7, "number": 3}, 8, include_lower=False, include_upper=True)[:2] == [
        (7, 4),
        (8, 0),
    ]
    assert keys(None, 1, limit=3) == [(0, 0), (0, 1), (0, 2)]
    assert keys(9) == [(9, n) for n in range(5)]
    assert keys(5, 3) == []
    assert len(table.range_scan()) == 50
    with pytest.raises(DataError, match="first columns of the primary key"):
        table.range_scan({"number": 1})
    with pytest.raises(ValueError, match="limit"):
        table.range_scan(limit=-1)


def test_r14_a_table_is_read_as_it_was_at_offsets_and_times(make_table):
    table = make_table(FRUIT)
    moments = []
    for number in range(3):
        table.upsert([{"id": n, "name": f"{number}"} for n in range(number, number + 5)])
        table.delete([number])
        rows = sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])
        moments.append((table.offsets("latest"), time.time_ns() // 1_000_000, rows))
        time.sleep(0.01)

    def read(moment):
        return sorted(table.to_arrow(as_of=moment).to_pylist(), key=lambda row: row["id"])

    for offsets, at_ms, rows in moments:
        assert read(offsets) == rows
        assert read(at_ms) == rows
        assert read(dt.datetime.fromtimestamp((at_ms + 1) / 1000, dt.UTC)) == rows
        assert table.range_scan(2, 4, as_of=at_ms).to_pylist() == [row for row in rows if 2 <= row["id"] < 4]
    assert read(0) == []
    # From a moment on: its state, and every change since.
    offsets, _, rows = moments[1]
    state = {}
    with table.scan(as_of=offsets, until="latest") as scan:
        for batch in scan:
            for change, row in zip(batch.change_types, batch.batch.to_pylist(), strict=True):
                if change in (ChangeType.INSERT, ChangeType.UPDATE_AFTER):
                    state[row["id"]] = row
                elif change == ChangeType.DELETE:
                    del state[row["id"]]
    assert [state[key] for key in sorted(state)] == moments[-1][2]
    with pytest.raises(TableError, match="ends at") as caught:
        read(dict.fromkeys(range(3), 1_000_000))
    assert caught.value.code is TableErrorCode.OUTSIDE_RETENTION
    with pytest.raises(ValueError, match=r"bucket .* is missing"):
        read({0: 1})


def test_a_log_table_is_read_up_to_a_moment(make_table):
    table = make_table("(n INT)")
    table.append([{"n": 1}, {"n": 2}])
    at_ms = time.time_ns() // 1_000_000
    time.sleep(0.01)
    table.append([{"n": 3}])
    assert table.to_arrow(as_of=at_ms).to_pylist() == [{"n": 1}, {"n": 2}]
    with pytest.raises(ValueError, match="primary-key"):
        table.scan(as_of=at_ms)


def test_r14_answers_that_are_lost_and_scans_that_are_forgotten_make_neither_gap_nor_overlap(
    make_table, monkeypatch
):
    table = make_table("(id INT, text STRING, PRIMARY KEY (id) NOT ENFORCED)")
    text = "".join(random.Random(1).choices("abcdefgh", k=100))
    table.upsert([{"id": n, "text": text} for n in range(20_000)])
    cluster = table._inner._open.cluster
    send, rng, forgotten = cluster.send, random.Random(2), []
    monkeypatch.setattr("headrace.tablelayer.client.read.state._PIECE_BYTES", 100_000)

    async def unreliable(request, response, **options):
        if not isinstance(request, ScanSnapshotRequest) or request.close:
            return await send(request, response, **options)
        chance = rng.random()
        if chance < 0.1:
            raise ConnectionLost("before it was sent")
        answer = await send(request, response, **options)
        if chance < 0.3:
            raise ConnectionLost("after it was sent")
        if chance < 0.5:
            close = ScanSnapshotRequest(
                table_id=request.table_id, bucket=0, scan_id=answer.scan_id, close=True
            )
            await send(close, response, **options)
            forgotten.append(answer.scan_id)
        return answer

    monkeypatch.setattr(cluster, "send", unreliable)
    seen, state = [], {}
    written = False
    with table.scan(until=None) as scan:
        for batch in scan:
            if batch.from_snapshot:
                seen += batch.batch.column("id").to_pylist()
                if len(seen) < 20_000 and rng.random() < 0.2:
                    table.upsert([{"id": n, "text": "changed"} for n in rng.sample(range(20_100), 10)])
                    table.delete([rng.randrange(20_000)])
            for change, row in zip(batch.change_types, batch.batch.to_pylist(), strict=True):
                if change in (ChangeType.INSERT, ChangeType.UPDATE_AFTER):
                    state[row["id"]] = row
                elif change == ChangeType.DELETE:
                    del state[row["id"]]
            if len(seen) >= 20_000:
                if not written:  # something comes behind the state in any case
                    table.upsert([{"id": 20_200, "text": "last"}])
                    written = True
                elif scan.positions == table.offsets("latest"):
                    break
    assert seen == list(range(20_000))
    assert len(forgotten) > 3
    monkeypatch.setattr(cluster, "send", send)
    assert [state[key] for key in sorted(state)] == table.to_arrow().to_pylist()


def serve(data, port):
    server = Serve(["--data", str(data), "--listen", f"127.0.0.1:{port}"], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert b"ready" in server.stdout.readline()
    return server


@pytest.mark.slow
def test_r14_a_scan_goes_on_at_its_moment_over_a_kill_of_the_server(tmp_path):
    port = free_port()
    server = serve(tmp_path, port)
    try:
        with connect(f"127.0.0.1:{port}") as connection:
            connection.execute("CREATE TABLE t (id INT, text STRING, PRIMARY KEY (id) NOT ENFORCED)")
            table = connection.table("t")
            text = "".join(random.Random(1).choices("abcdefgh", k=1000))
            for start in range(0, 20_000, 5_000):
                table.upsert([{"id": n, "text": text} for n in range(start, start + 5_000)])
            ids, pieces = [], 0
            for rows, offset in table.snapshot(0, ["id"]):
                assert offset == 20_000
                ids += rows.column("id").to_pylist()
                pieces += 1
                if pieces == 2:
                    table.delete([{"id": n} for n in range(0, 20_000, 3)])
                    server.send_signal(signal.SIGKILL)
                    server.communicate()
                    server = serve(tmp_path, port)
            assert pieces > 3
            assert ids == list(range(20_000))
            assert table.count() == 20_000 - len(range(0, 20_000, 3))
    finally:
        server.kill()
        server.communicate()


def test_a_connection_is_closed_without_a_word_while_reads_are_left_early(server_address, make_table, caplog):
    table = make_table(FRUIT)
    table.upsert([{"id": n, "name": "x" * 5000} for n in range(5000)])
    connection = connect(server_address)
    mine = connection.table(table.path)
    left = [mine.batches(), mine.snapshot(0), mine.scan(), mine.scan(until="latest")]
    for each in left:
        next(each)
    connection.close()
    assert caplog.text == ""
    for each in left:
        each.close()


def test_a_read_of_a_table_that_is_gone_is_left_without_a_word(connection, server_address, caplog):
    connection.execute(f"CREATE TABLE leaving {FRUIT}")
    table = connection.table("leaving")
    table.upsert([{"id": n, "name": "x" * 5000} for n in range(5000)])
    with connect(server_address) as other:
        left = other.table("leaving").batches()
        next(left)
        connection.admin.drop_table("leaving")
        left.close()
    assert caplog.text == ""
