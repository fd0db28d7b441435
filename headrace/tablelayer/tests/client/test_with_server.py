"""The client and the real server together."""

import asyncio
import datetime as dt
import decimal
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.net.reply import CloseConnection
from headrace.tablelayer.client import (
    ChangeType,
    ClientConfig,
    DataError,
    KafkaError,
    TableError,
    TableErrorCode,
    TableRef,
    connect,
    connect_async,
)
from headrace.tablelayer.server.api.write import WriteHandlers

ROOT = Path(__file__).resolve().parents[4]
FRUIT = "(id INT, name STRING, price DOUBLE, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num' = '3')"
EVENTS = "(id BIGINT NOT NULL, text STRING) WITH ('bucket.num' = '2')"


def changes(batch):
    short = [ChangeType(change).short for change in batch.change_types]
    return list(zip(short, batch.offsets.tolist(), batch.batch.to_pylist(), strict=True))


def replay(state, batch):
    for change, row in zip(batch.change_types, batch.batch.to_pylist(), strict=True):
        if change in (ChangeType.INSERT, ChangeType.UPDATE_AFTER):
            state[row["id"]] = row
        elif change == ChangeType.DELETE:
            del state[row["id"]]
    return state


# -- databases and tables ------------------------------------------------------------------------------------------


def test_databases_and_tables_are_made_listed_and_dropped(connection):
    admin = connection.admin
    admin.create_database("zoo")
    with pytest.raises(TableError) as caught:
        admin.create_database("zoo")
    assert caught.value.code is TableErrorCode.DATABASE_EXISTS
    admin.create_database("zoo", if_not_exists=True)
    connection.execute(
        "CREATE TABLE zoo.animals (id INT, PRIMARY KEY (id) NOT ENFORCED); CREATE TABLE zoo.visits (n INT)"
    )
    assert admin.list_tables("zoo") == ["animals", "visits"]
    assert {"default", "zoo"} <= set(admin.list_databases())
    definition = admin.describe_table("zoo.animals")
    assert definition.table_id is not None
    assert definition.schema.primary_key == ("id",)
    with pytest.raises(TableError) as caught:
        admin.drop_database("zoo")
    assert caught.value.code is TableErrorCode.DATABASE_NOT_EMPTY
    admin.drop_database("zoo", cascade=True)
    for attempt in (lambda: connection.table("zoo.animals"), lambda: admin.list_tables("zoo")):
        with pytest.raises(TableError) as caught:
            attempt()
        assert caught.value.code in (TableErrorCode.TABLE_NOT_FOUND, TableErrorCode.DATABASE_NOT_FOUND)
    assert not admin.table_exists("zoo.animals")


def test_execute_takes_definitions_only_and_points_at_mistakes(connection):
    with pytest.raises(TableError, match="not Insert"):
        connection.execute("CREATE TABLE never (id INT); INSERT INTO never VALUES (1)")
    assert not connection.admin.table_exists("never")
    with pytest.raises(TableError, match=r"(?s)line 1, column 19: .*\^"):
        connection.execute("CREATE TABLE a (b WRONG)")


# -- primary-key tables --------------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["upsert", "delete", "partial"]),
            st.lists(st.tuples(st.integers(0, 12), st.text("abc", max_size=3)), max_size=6),
        ),
        max_size=8,
    )
)
def test_random_writes_are_read_back_by_lookups_and_scans(connection, operations):
    name = f"prop{time.monotonic_ns()}"
    connection.execute(f"CREATE TABLE {name} {FRUIT}")
    table, model = connection.table(name), {}
    for operation, rows in operations:
        if operation == "upsert":
            table.upsert([{"id": k, "name": v, "price": float(k)} for k, v in rows])
            model.update({k: {"id": k, "name": v, "price": float(k)} for k, v in rows})
        elif operation == "delete":
            table.delete([k for k, _ in rows])
            for k, _ in rows:
                model.pop(k, None)
        else:
            table.partial([{"id": k, "name": v} for k, v in rows], ["id", "name"])
            for k, v in rows:
                model[k] = {"id": k, "name": v, "price": model.get(k, {}).get("price")}
    expected = [model[k] for k in sorted(model)]
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == expected
    assert sorted(table.limit(100).to_pylist(), key=lambda row: row["id"]) == expected
    assert table.count() == len(model)
    found, looked_up = table.lookup(list(range(13)))
    assert found.tolist() == [k in model for k in range(13)]
    assert [row for row, there in zip(looked_up.to_pylist(), found, strict=True) if there] == expected
    for start in ("full", "earliest"):
        state = {}
        for batch in table.scan(start=start, until="latest"):
            replay(state, batch)
        assert state == model
    connection.admin.drop_table(name)


def test_lookup_keeps_the_keys_order_over_buckets_and_requests(connection, make_table):
    table = make_table(FRUIT)
    ids = np.random.default_rng(1).permutation(40_000).astype(np.int32)
    table.upsert(pa.table({"id": ids, "name": pa.array(ids.astype(str)), "price": ids / 2}))
    keys = np.arange(0, 80_000, 2, dtype=np.int32)[::-1]
    found, rows = table.lookup(pa.table({"id": keys}), columns=["price", "id"])
    assert (found == (keys < 40_000)).all()
    assert rows.column_names == ["price", "id"]
    there = rows.filter(pa.array(found))
    assert there.column("id").to_pylist() == keys[found].tolist()
    assert there.column("price").to_pylist() == (keys[found] / 2).tolist()
    assert rows.filter(pa.array(~found)).column("id").null_count == (~found).sum()
    assert table.lookup_one(7) == {"id": 7, "name": "7", "price": 3.5}
    assert table.lookup_one({"id": 7}, columns=["name"]) == {"name": "7"}
    assert table.lookup_one(99_999) is None
    assert table.count() == 40_000
    assert len(table.lookup([]).found) == 0


def test_the_documentations_changelog(make_table):
    """semantics.md R2."""
    table = make_table("(shop INT, id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    table.upsert([{"id": 1, "shop": 2, "name": "apple"}])
    table.upsert([{"id": 1, "shop": 4, "name": "banana"}])
    result = table.delete([1])
    assert result.end_offsets == {0: 4}
    seen = [c for batch in table.scan(start="earliest", until="latest") for c in changes(batch)]
    apple, banana = {"shop": 2, "id": 1, "name": "apple"}, {"shop": 4, "id": 1, "name": "banana"}
    assert seen == [("+I", 0, apple), ("-U", 1, apple), ("+U", 2, banana), ("-D", 3, banana)]


def test_a_change_whose_answer_is_lost_is_counted_as_the_first_time(server_address, make_table, monkeypatch):
    """The server closes the connection instead of answering, so the client sends the same batch again."""
    table = make_table(FRUIT)
    put, answers = WriteHandlers._put, []

    async def put_and_hang_up(handlers, context, request):
        answers.append(await put(handlers, context, request))
        if len(answers) % 2:
            raise CloseConnection("the answer is lost")
        return answers[-1]

    with connect(server_address, ClientConfig(retry_backoff_ms=1)) as connection:
        name = str(table.path)
        connection.sql(f"INSERT INTO {name} VALUES (1, 'apple', 1.0)")
        monkeypatch.setattr(WriteHandlers, "_put", put_and_hang_up)
        statements = [
            f"INSERT INTO {name} VALUES (2, 'pear', 2.0)",
            f"UPDATE {name} SET price = 3 WHERE id = 1",
            f"UPDATE {name} SET price = 3 WHERE id = 9",
            f"DELETE FROM {name} WHERE id = 1",
            f"DELETE FROM {name} WHERE id = 1",
        ]
        assert [connection.sql(each).row_count for each in statements] == [1, 1, 0, 1, 0]
    assert len(answers) == 2 * len(statements)
    assert answers[::2] == answers[1::2]
    assert table.to_arrow().to_pylist() == [{"id": 2, "name": "pear", "price": 2.0}]


def test_prefix_lookup(make_table):
    table = make_table(
        "(a INT, b STRING, v BIGINT, PRIMARY KEY (a, b) NOT ENFORCED) WITH ('bucket.num' = '4', 'bucket.key' = 'a')"
    )
    table.upsert([{"a": a, "b": b, "v": a * 10} for a in range(20) for b in "zyx"[: a % 4]])
    assert table.prefix_lookup({"a": 7}).to_pylist() == [{"a": 7, "b": b, "v": 70} for b in "xyz"]
    assert table.prefix_lookup({"a": 8}).num_rows == 0
    owners, rows = table.prefix_lookup_grouped([{"a": a} for a in (5, 100, 3, 6)], columns=["b", "a"])
    assert owners.tolist() == [0, 2, 2, 2, 3, 3]
    assert rows.to_pylist() == [
        {"b": b, "a": a} for a, letters in ((5, "z"), (3, "xyz"), (6, "yz")) for b in letters
    ]
    with pytest.raises(DataError, match="column 'a' is missing"):
        table.prefix_lookup({"b": "x"})


def test_partial_updates_leave_other_columns_alone(make_table):
    """semantics.md R6: two writers of disjoint columns, at the same time."""
    table = make_table("(id INT, a STRING, b BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    first = threading.Thread(
        target=lambda: [table.partial([{"id": i, "a": f"a{i}"}], ["id", "a"]) for i in range(30)]
    )
    first.start()
    for i in range(30):
        table.partial(pa.table({"b": [i], "id": [i]}), columns=["b", "id"])
    first.join()
    rows = sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])
    assert rows == [{"id": i, "a": f"a{i}", "b": i} for i in range(30)]
    table.delete([3], columns=["a"])
    assert table.lookup_one(3) == {"id": 3, "a": None, "b": 3}
    table.delete([3], columns=["b"])
    assert table.lookup_one(3) is None, "nothing but the key was left"
    with pytest.raises(TableError) as caught:
        table.partial([{"a": "x"}], ["a"])
    assert caught.value.code is TableErrorCode.INVALID_TARGET_COLUMNS


def test_kinds_of_tables_are_checked_before_anything_is_sent(make_table):
    log, fruit = make_table(EVENTS), make_table(FRUIT)
    for attempt in (
        lambda: log.upsert([{"id": 1}]),
        lambda: log.lookup([{"id": 1}]),
        lambda: log.delete([1]),
        lambda: log.partial([{"id": 1}], ["id"]),
    ):
        with pytest.raises(TableError, match="log table") as caught:
            attempt()
        assert caught.value.code is TableErrorCode.NOT_A_PRIMARY_KEY_TABLE
    with pytest.raises(TableError, match="primary key") as caught:
        fruit.append([{"id": 1}])
    assert caught.value.code is TableErrorCode.NOT_A_LOG_TABLE
    with pytest.raises(TableError, match="does not allow prefix lookups"):
        fruit.prefix_lookup({"id": 1})
    with pytest.raises(TableError, match="there is no column 'colour'"):
        fruit.to_arrow(["colour"])


# -- log tables and scans ------------------------------------------------------------------------------------------


def test_log_table_rows_have_consecutive_offsets_and_all_types(make_table):
    table = make_table(
        "(b BOOLEAN, t TINYINT, s SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, c CHAR(3), str STRING, "
        "dec DECIMAL(15,2), day DATE, tm TIME(3), ts TIMESTAMP(6), ltz TIMESTAMP_LTZ(3), bin BINARY(2), raw BYTES)"
    )
    row = {
        "b": True, "t": -1, "s": 300, "i": 70_000, "l": 2**40, "f": 1.5, "d": 0.1, "c": "abc", "str": "ü",
        "dec": decimal.Decimal("-12.34"), "day": dt.date(2024, 9, 19), "tm": dt.time(1, 2, 3, 4_000),
        "ts": dt.datetime(2024, 9, 19, 1, 2, 3, 4), "ltz": dt.datetime(2024, 9, 19, 1, tzinfo=dt.UTC),
        "bin": b"xy", "raw": b"\0\xff",
    }  # fmt: skip
    nothing = dict.fromkeys(row)
    before = int(time.time() * 1000)
    assert table.append([row, nothing, row]).end_offsets == {0: 3}
    table.append(pd.DataFrame({"l": [5, 6]}))
    batches = list(table.scan(start="earliest", until="latest"))
    assert [b.offsets.tolist() for b in batches] == [[0, 1, 2], [3, 4]]
    assert [change for batch in batches for change in batch.change_types] == [ChangeType.APPEND] * 5
    assert batches[0].batch.to_pylist() == [row, nothing, row]
    assert before <= batches[0].timestamp_ms <= time.time() * 1000
    assert table.to_arrow(["str", "l"]).to_pylist() == [
        {"str": "ü", "l": 2**40}, {"str": None, "l": None}, {"str": "ü", "l": 2**40},
        {"str": None, "l": 5}, {"str": None, "l": 6},
    ]  # fmt: skip
    assert table.limit(1).num_rows == 1
    assert table.count() == 5


def test_large_appends_are_spread_over_buckets_and_read_back_whole(make_table):
    table = make_table("(id BIGINT NOT NULL, text STRING) WITH ('bucket.num' = '4')")
    count = 120_000
    data = pa.table(
        {"id": np.arange(count), "text": pa.array([f"text {i % 977} of this row" for i in range(count)])}
    )
    result = table.append(data)
    assert result.row_count == count
    assert sum(result.end_offsets.values()) == count
    assert len(result.end_offsets) >= 2
    assert table.to_arrow(["id"]).column("id").to_numpy().sum() == count * (count - 1) // 2
    by_bucket = {}
    for batch in table.scan(columns=["id"], until="latest"):
        assert batch.batch.schema.names == ["id"]
        expected = by_bucket.get(batch.bucket, 0)
        assert batch.offsets.tolist() == list(range(expected, expected + batch.row_count))
        by_bucket[batch.bucket] = expected + batch.row_count
    assert by_bucket == result.end_offsets


def test_open_handles_use_the_buckets_that_a_table_gets(server_address, make_table):
    """Writers, scans that follow, and reads of a handle that was opened before."""
    quick = ClientConfig(partition_discovery_ms=50, no_key_assigner="round_robin")
    table, got = make_table(EVENTS), []
    with connect(server_address, quick) as connection:
        writing, reading, idle = (connection.table(table.path) for _ in range(3))
        writing.append([{"id": n} for n in range(10)])
        with reading.scan(["id"], start="earliest", poll_timeout=20.0) as following:
            got += next(following).batch["id"].to_pylist()
            connection.execute(f"ALTER TABLE {table.path} SET ('bucket.num' = '4')")
            time.sleep(0.1)
            ends = writing.append([{"id": n} for n in range(10, 50)]).end_offsets
            assert set(ends) == {0, 1, 2, 3}
            while len(got) < 50:
                got += next(following).batch["id"].to_pylist()
            assert set(following.positions) == {0, 1, 2, 3}
        with idle.scan(start="earliest", until="latest") as scan:
            assert sum(batch.row_count for batch in scan) == 50
    assert sorted(got) == list(range(50))
    assert table.count() == table.to_arrow().num_rows == 50
    assert table.offsets("latest") == ends
    assert table.limit(100).num_rows == 50
    with pytest.raises(ValueError, match="has no bucket 7: it has buckets 0 to 3"):
        next(iter(table.scan(start={7: 0})))


def test_bounds_positions_and_seek(make_table):
    table = make_table("(id BIGINT NOT NULL, text STRING)")
    for start in range(0, 50, 10):
        table.append([{"id": i, "text": "x"} for i in range(start, start + 10)])

    def ids(**bounds):
        return [
            i for batch in table.scan(columns=["id"], **bounds) for i in batch.batch.column("id").to_pylist()
        ]

    assert ids(start={0: 13}, until={0: 27}) == list(range(13, 27))
    assert ids(start="latest", until="latest") == []
    assert ids(start={0: 50}, poll_timeout=0.05) == []
    assert ids(start="latest", poll_timeout=0.05) == []
    with table.scan(start="earliest") as scan:
        next(scan)
        assert scan.positions == {0: 10}
        scan.seek({0: 45})
        assert next(scan).offsets.tolist() == [45, 46, 47, 48, 49]
        assert scan.positions == {0: 50}
        scan.seek({0: 5})
        assert next(scan).offsets.tolist() == [5, 6, 7, 8, 9]
    with pytest.raises(KafkaError, match="has no offset 77: it begins at 0 and ends at 50"):
        ids(start={0: 77}, until={0: 99})
    with pytest.raises(ValueError, match="has no bucket 3"):
        ids(buckets=[3])
    with pytest.raises(ValueError, match="not a position in a log"):
        ids(start="somewhere")


def test_offsets_by_time(make_table):
    table = make_table("(id BIGINT NOT NULL, text STRING)")
    table.append([{"id": 1}])
    time.sleep(0.02)
    between = int(time.time() * 1000)
    time.sleep(0.02)
    table.append([{"id": 2}, {"id": 3}])
    assert table.offsets("earliest") == {0: 0}
    assert table.offsets("latest") == {0: 3}
    assert table.offsets(between) == {0: 1}
    assert table.offsets(0) == {0: 0}
    assert table.offsets(between + 10_000_000) == {0: 3}, "nothing so late: the end"
    assert [b.batch.column("id").to_pylist() for b in table.scan(start=between, until="latest")] == [[2, 3]]


def test_full_then_incremental_has_no_gap_and_no_overlap(make_table):
    """semantics.md R14, with a writer that never stops."""
    table = make_table(FRUIT)
    table.upsert([{"id": i, "name": "old", "price": 0.0} for i in range(500)])
    stop = threading.Event()

    def write():
        rounds = 0
        while not stop.is_set():
            rounds += 1
            table.upsert(
                [{"id": i, "name": f"round {rounds}", "price": float(i)} for i in range(rounds % 7, 600, 7)]
            )
            table.delete([rounds % 500])

    writer = threading.Thread(target=write)
    writer.start()
    state, snapshot_rows, bounds = {}, 0, None
    try:
        with table.scan(start="full") as scan:
            for batch in scan:
                replay(state, batch)
                snapshot_rows += batch.row_count if batch.from_snapshot else 0
                if bounds is None and len(scan.positions) == 3 and snapshot_rows > 400:
                    stop.set()
                    writer.join()
                    bounds = table.offsets("latest")
                if bounds is not None and scan.positions == bounds:
                    break
    finally:
        stop.set()
        writer.join()
    assert state == {row["id"]: row for row in table.to_arrow().to_pylist()}


def test_following_a_table_sees_writes_at_once(server_address, make_table):
    """The write wakes it: the server would hold the request for ten minutes."""
    table = make_table(FRUIT)
    seen = []

    def follow():
        with (
            connect(server_address, ClientConfig(scan_max_wait_ms=600_000)) as patient,
            patient.table(table.path).scan(start={0: 0, 1: 0, 2: 0}) as scan,
        ):
            while sum(batch.row_count for batch in seen) < 4:
                seen.append(next(scan))

    follower = threading.Thread(target=follow)
    follower.start()
    time.sleep(0.2)
    table.upsert([{"id": i, "name": "a", "price": 1.0} for i in range(3)])
    table.upsert([{"id": 3}])
    follower.join(timeout=100)
    assert not follower.is_alive()
    assert sorted(i for batch in seen for i in batch.batch.column("id").to_pylist()) == [0, 1, 2, 3]


def test_committed_positions_are_a_kafka_groups(connection, make_table):
    table = make_table(EVENTS)
    table.append([{"id": i} for i in range(10)])
    assert table.committed("readers") == {}
    with table.scan(start="earliest", until="latest") as scan:
        for _ in scan:
            pass
        table.commit("readers", scan.positions)
    assert table.committed("readers") == table.offsets("latest")
    described = connection.kafka.describe_group("readers")
    assert {(table.path.topic, bucket): end for bucket, end in table.offsets("latest").items()}.items() <= (
        described.positions.items()
    )
    table.append([{"id": 10}])
    ids = [
        i
        for b in table.scan(start=table.committed("readers"), until="latest")
        for i in b.batch.column("id").to_pylist()
    ]
    assert ids == [10]


def test_the_kafka_view_has_the_same_rows_at_the_same_offsets(connection, make_table):
    """semantics.md R17.4."""
    table = make_table(EVENTS)
    table.append([{"id": i, "text": f"t{i}"} for i in range(5)])
    records, after = connection.kafka.read(table.path.topic, table.offsets("earliest"))
    scanned = {
        (batch.bucket, offset): row
        for batch in table.scan(until="latest")
        for offset, row in zip(batch.offsets.tolist(), batch.batch.to_pylist(), strict=True)
    }
    import json

    assert {(r.partition, r.offset): json.loads(r.value) for r in records} == scanned
    assert after == table.offsets("latest")


# -- connections ---------------------------------------------------------------------------------------------------


async def test_the_asynchronous_client_is_the_same(server_address, make_table):
    table_name = str(make_table(FRUIT).path)
    async with await connect_async(server_address) as connection:
        table = await connection.table(table_name)
        await asyncio.gather(*(table.upsert([{"id": i, "name": "x", "price": None}]) for i in range(50)))
        assert await table.count() == 50
        assert await table.lookup_one(3) == {"id": 3, "name": "x", "price": None}
        async with table.scan(until="latest") as scan:
            assert sum([batch.row_count async for batch in scan]) == 50


def test_a_reference_travels_to_other_processes(server_address, make_table):
    table = make_table(FRUIT.replace("'3'", "'1'"))
    table.upsert([{"id": 1, "name": "apple", "price": None}])
    reference = pickle.dumps(TableRef(server_address, str(table.path)))
    elsewhere = (
        "import pickle, sys; reference = pickle.load(sys.stdin.buffer)\n"
        "with reference.connect() as connection: print(connection.table(reference.path).lookup_one(1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", elsewhere], input=reference, capture_output=True, cwd=ROOT, check=True
    )
    assert done.stdout.decode().strip() == "{'id': 1, 'name': 'apple', 'price': None}"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on
def test_a_connection_from_before_a_fork_says_so(connection, make_table):
    """Spark forks its Python workers: a parent's connection there must not hang."""
    table = make_table(FRUIT)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            table.count()
        except RuntimeError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert "before a fork: make a new one in each process" in pipe.read()


def test_a_closed_connection_says_so(server_address, make_table):
    name = str(make_table(FRUIT).path)
    connection = connect(server_address)
    table = connection.table(name)
    connection.close()
    connection.close()
    with pytest.raises(RuntimeError, match="the connection is closed"):
        table.count()


def test_a_dropped_table_is_not_waited_for(connection):
    connection.execute(f"CREATE TABLE gone {FRUIT}")
    tables = [connection.table("gone") for _ in range(2)]
    tables[0].upsert([{"id": 1}])
    connection.admin.drop_table("gone")
    retries = connection.metrics().retries
    for table in tables:
        for method, arguments in (
            (table.upsert, ([{"id": 1, "name": "x", "price": None}],)),
            (table.lookup_one, (1,)),
            (table.count, ()),
            (table.scan(until="latest").__next__, ()),
        ):
            with pytest.raises(TableError) as caught:
                method(*arguments)
            assert caught.value.code is TableErrorCode.TABLE_NOT_FOUND
    assert connection.metrics().retries == retries
    connection.execute(f"CREATE TABLE gone {FRUIT}")
    with pytest.raises(TableError) as caught:
        tables[0].upsert([{"id": 1}])
    assert caught.value.code is TableErrorCode.TABLE_NOT_FOUND, (
        "another table of the same name is another table"
    )
    assert connection.table("gone").count() == 0
    connection.admin.drop_table("gone")


# -- filters -------------------------------------------------------------------------------------------------------


def test_filters_of_scans_counts_and_limits(make_table):
    table = make_table("(id BIGINT NOT NULL, name STRING, price DECIMAL(10, 2), day DATE)")
    day = dt.date(2024, 1, 1)
    for first in range(0, 6000, 1000):
        table.append(
            [
                {"id": n, "name": None if n % 3 else f"name {n}", "price": decimal.Decimal(n) / 4,
                 "day": day + dt.timedelta(n)}
                for n in range(first, first + 1000)
            ]
        )  # fmt: skip
    wanted = {
        "id >= 2500 AND id < 2503": [2500, 2501, 2502],
        "name LIKE 'name 599%' AND price > 1499.00": [5997],
        "day = DATE '2024-01-08' OR id IN (1, 5999)": [1, 7, 5999],
        "id > 99999999999999": [],
    }
    for condition, ids in wanted.items():
        found = list(table.scan(["name"], until="latest", filter=condition))
        assert [offset for batch in found for offset in batch.offsets.tolist()] == ids
        assert all(batch.batch.schema.names == ["name"] for batch in found)
        assert table.count(condition) == len(ids)
        assert table.limit(2, ["id"], condition).column("id").to_pylist() == ids[-2:]
        assert table.to_arrow(["id"], condition).column("id").to_pylist() == ids
    with table.scan(start={0: 1}, until={0: 2502}, filter="id >= 2500") as scan:
        assert [offset for batch in scan for offset in batch.offsets.tolist()] == [2500, 2501]
        assert scan.positions == {0: 2502}


def test_a_filtered_scan_follows_new_rows(make_table):
    table = make_table("(id BIGINT NOT NULL)")
    table.append([{"id": n} for n in range(10)])
    with table.scan(filter="id = 77 OR id = 3") as scan:
        assert next(scan).offsets.tolist() == [3]
        table.append([{"id": 50}])
        table.append([{"id": 77}])
        assert next(scan).offsets.tolist() == [11]
        assert scan.positions == {0: 12}


def test_filters_of_key_tables_see_the_state_and_every_change(make_table):
    table = make_table(FRUIT)
    table.upsert([{"id": n, "name": f"fruit {n}", "price": n / 2} for n in range(20)])
    table.upsert([{"id": 5, "name": "other", "price": 100.0}, {"id": 6, "name": "fruit 6", "price": 0.0}])
    expensive = "price >= 8"
    assert sorted(table.to_arrow(["id"], expensive).column("id").to_pylist()) == [5, 16, 17, 18, 19]
    assert table.count(expensive) == 5
    assert table.count("name LIKE 'fruit%' AND id < 7") == 6
    seen = []
    for batch in table.scan(start="earliest", until="latest", filter="id = 5 AND price > 50"):
        seen += [change[0] for change in changes(batch)]
    assert seen == ["+U"]


@pytest.mark.parametrize("wanted", ["length(name) > 3", "nope = 1", "id = 'x'", "id >", 7])
def test_filters_that_cannot_be_said_are_refused(make_table, wanted):
    table = make_table(FRUIT)
    with pytest.raises(TableError) as caught:
        table.count(wanted)
    assert caught.value.code is TableErrorCode.INVALID_FILTER


def test_filters_of_partitioned_tables_go_to_every_partition(make_table):
    table = make_table("(day STRING NOT NULL, id INT, v STRING) PARTITIONED BY (day)")
    table.append([{"day": f"d{n % 3}", "id": n, "v": f"v{n % 2}"} for n in range(30)])
    assert table.count("id < 10 AND v = 'v1'") == 5
    found = table.to_arrow(["id"], "day = 'd1' AND id > 20")
    assert sorted(found.column("id").to_pylist()) == [22, 25, 28]
    scanned = [row["id"] for batch in table.scan(until="latest", filter="id IN (4, 17)") for row in
               batch.batch.to_pylist()]  # fmt: skip
    assert sorted(scanned) == [4, 17]
    assert table.limit(5, ["id"], "id = 7").column("id").to_pylist() == [7]
    with pytest.raises(TableError):
        table.count("nope = 1")


def test_extremes_over_buckets_and_partitions(make_table):
    log = make_table("(id BIGINT, note STRING) WITH ('bucket.num' = '3')")
    assert log.extremes(["id"]).rows.to_pylist() == [{"id": None}] * 2
    log.append([{"id": i, "note": None if i % 2 else f"n{i}"} for i in range(5000)])
    found = log.extremes(["note", "id"])
    assert found.rows.column_names == ["note", "id"]
    assert (found.minimum("id"), found.maximum("id"), found.minimum("note")) == (0, 4999, "n0")
    assert (found.row_count, found.value_counts) == (5000, {"id": 5000, "note": 2500})
    assert log.extremes(["id"], "id BETWEEN 10 AND 20").maximum("id") == 20
    daily = make_table("(day STRING, n INT, PRIMARY KEY (day, n) NOT ENFORCED) PARTITIONED BY (day)")
    assert daily.extremes(["n"]).maximum("n") is None
    daily.upsert([{"day": d, "n": n} for d, n in (("a", 1), ("b", -7), ("c", 9))])
    assert daily.extremes(["n", "day"]).rows.to_pylist() == [{"n": -7, "day": "a"}, {"n": 9, "day": "c"}]
    assert daily.only({"day": "b"}).extremes(["n"]).maximum("n") == -7
    with pytest.raises(TableError, match="nothing"):
        log.extremes(["nothing"])
