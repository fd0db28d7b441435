"""A partitioned table as a whole, over real sockets: writes find their partitions, reads ask all of them."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.tablelayer.client import ClientConfig, Connection, DataError, connect
from headrace.tablelayer.client.connection import connect_async
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.errors import TableError, TableErrorCode

_names = itertools.count()
PK = "(dt STRING, id INT, v BIGINT, PRIMARY KEY (dt, id) NOT ENFORCED) PARTITIONED BY (dt) WITH ('bucket.num'='2')"
LOG = "(dt STRING, id INT) PARTITIONED BY (dt) WITH ('bucket.num'='2')"


@pytest.fixture
def new(connection: Connection) -> Iterator[Callable[[str], Any]]:
    made = []

    def make(text: str) -> Any:
        name = f"parts{next(_names)}"
        connection.execute(f"CREATE TABLE {name} {text}")
        made.append(name)
        return connection.table(name)

    yield make
    for name in made:
        connection.admin.drop_table(name, if_exists=True)


def rows_of(table: Any) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in table.to_arrow().to_pylist()}


def code_of(work: Callable[[], Any]) -> TableErrorCode:
    with pytest.raises(TableError) as caught:
        work()
    return caught.value.code


def test_r18_1_rows_go_to_the_partitions_that_their_values_name(new: Any, connection: Connection) -> None:
    table = new(PK)
    given = [{"dt": f"d{n % 3}", "id": n, "v": n * 10} for n in range(30)]
    result = table.upsert(given)
    assert set(result.partition_end_offsets) == {"d0", "d1", "d2"}
    assert result.row_count == 30
    assert [each.name for each in table.partitions()] == ["d0", "d1", "d2"]
    assert table.count() == 30
    assert rows_of(table) == {tuple(row.values()) for row in given}
    one = connection.table(f"{table.path}.d1")
    assert rows_of(one) == {tuple(row.values()) for row in given if row["dt"] == "d1"}
    assert rows_of(table.only({"dt": "d2"})) == {tuple(r.values()) for r in given if r["dt"] == "d2"}
    assert table.only({"dt": "d2"}).count() == 10
    assert table.limit(25).num_rows == 25
    assert table.limit(3, ["v", "dt"]).column_names == ["v", "dt"]


def test_lookups_answer_in_the_order_of_the_keys(new: Any) -> None:
    table = new(PK)
    table.upsert([{"dt": f"d{n % 3}", "id": n, "v": n} for n in range(30)])
    keys = [{"dt": f"d{n % 4}", "id": n} for n in reversed(range(40))]
    found, rows = table.lookup(keys, ["v", "id"])
    expected = [n % 4 == n % 3 and n < 30 for n in reversed(range(40))]
    assert found.tolist() == expected
    wanted = [n if hit else None for n, hit in zip(reversed(range(40)), expected, strict=True)]
    assert rows.column("v").to_pylist() == wanted
    assert rows.column_names == ["v", "id"]
    assert table.lookup_one({"dt": "no.such", "id": 1}) is None
    none = table.arrow_schema.empty_table()
    assert table.lookup(none)[1].num_rows == 0


@pytest.mark.parametrize("key", ["dt, a, b", "a, dt, b", "a, b, dt"])
def test_prefix_lookups_need_the_partition_and_the_bucket_key(new: Any, key: str) -> None:
    table = new(
        f"(a INT, dt DATE, b INT, PRIMARY KEY ({key}) NOT ENFORCED) PARTITIONED BY (dt) "
        "WITH ('bucket.key'='a','bucket.num'='3')"
    )
    given = [{"a": a, "dt": f"2024-01-0{d}", "b": b} for a in range(4) for d in (1, 2) for b in range(3)]
    table.upsert(given)
    prefixes = [{"a": 2, "dt": "2024-01-02"}, {"a": 9, "dt": "2024-01-01"}, {"a": 1, "dt": "2024-01-01"}]
    owners, rows = table.prefix_lookup_grouped(prefixes)
    assert owners.tolist() == [0, 0, 0, 2, 2, 2]
    assert rows.column("a").to_pylist() == [2] * 3 + [1] * 3
    assert sorted(rows.column("b").to_pylist()) == [0, 0, 1, 1, 2, 2]
    assert [each.name for each in table.partitions()] == ["2024-01-01", "2024-01-02"]


def test_partial_updates_deletes_and_insert_if_absent(new: Any) -> None:
    table = new("(p INT, id INT, a INT, b INT, PRIMARY KEY (id, p) NOT ENFORCED) PARTITIONED BY (p)")
    table.upsert([{"p": p, "id": 1, "a": 1, "b": 1} for p in (1, 2)])
    table.partial([{"p": 1, "id": 1, "a": 7}], ["p", "id", "a"])
    table.delete([{"p": 2, "id": 1}, {"p": 5, "id": 1}])
    table.delete([])
    assert len(table.lookup([]).found) == 0
    assert rows_of(table) == {(1, 1, 7, 1)}
    assert [each.name for each in table.partitions()] == ["1", "2"], "a delete makes no partition"
    found, _ = table.lookup([{"p": 3, "id": 4}], insert_if_absent=True)
    assert found.tolist() == [True]
    assert table.count() == 2


def test_several_partition_columns_and_types(new: Any, connection: Connection) -> None:
    table = new("(d DATE, ok BOOLEAN, n BIGINT, s STRING) PARTITIONED BY (d, ok, n)")
    table.append(
        [
            {"d": "2024-02-29", "ok": True, "n": -5, "s": "x"},
            {"d": "2024-03-01", "ok": False, "n": 7, "s": "y"},
        ]
    )
    assert [each.values for each in table.partitions()] == [
        ("2024-02-29", "true", "-5"),
        ("2024-03-01", "false", "7"),
    ]
    assert table.only({"d": "2024-02-29"}).to_arrow().column("s").to_pylist() == ["x"]
    listed = connection.admin.list_partitions(table.path, {"ok": False})
    assert [each.name for each in listed] == ["2024-03-01.false.7"]


@pytest.mark.parametrize("value", ["a.b", "", "__x", "a b", "é", "x" * 201])
def test_r18_1_values_that_cannot_name_a_partition_refuse_the_write(new: Any, value: str) -> None:
    table = new(LOG)
    with pytest.raises(DataError, match="row 1, column 'dt'"):
        table.append([{"dt": "good", "id": 1}, {"dt": value, "id": 2}])
    with pytest.raises(DataError, match="row 1, column 'dt'"):
        table.append([{"dt": "good", "id": 1}, {"id": 2}])
    assert table.partitions() == []


def test_partitions_are_added_shown_and_dropped_by_statements(new: Any, connection: Connection) -> None:
    table = new(LOG)
    connection.execute(
        f"ALTER TABLE {table.path} ADD PARTITION (dt='a'); ALTER TABLE {table.path} ADD PARTITION (dt='b')"
    )
    path = table.path
    assert (
        code_of(lambda: connection.execute(f"ALTER TABLE {path} ADD PARTITION (dt='a')"))
        is TableErrorCode.PARTITION_EXISTS
    )
    connection.execute(f"ALTER TABLE {path} ADD IF NOT EXISTS PARTITION (dt='a')")
    table.append([{"dt": "a", "id": 1}])
    connection.execute(f"ALTER TABLE {path} DROP PARTITION (dt='a')")
    assert (
        code_of(lambda: connection.execute(f"ALTER TABLE {path} DROP PARTITION (dt='a')"))
        is TableErrorCode.PARTITION_NOT_FOUND
    )
    connection.execute(f"ALTER TABLE {path} DROP IF EXISTS PARTITION (dt='a')")
    assert table.count() == 0
    assert [each.name for each in table.partitions()] == ["b"]
    table.append([{"dt": "a", "id": 2}])
    assert rows_of(table) == {("a", 2)}, "a name that comes again is a new partition"
    for spec in ("(x='a')", "(dt='a', id=1)"):
        assert (
            code_of(lambda s=spec: connection.execute(f"ALTER TABLE {path} ADD PARTITION {s}"))
            is TableErrorCode.INVALID_PARTITION
        )
    plain = new("(id INT)")
    assert code_of(lambda: plain.partitions()) is TableErrorCode.NOT_PARTITIONED
    assert (
        code_of(lambda: connection.execute(f"ALTER TABLE {plain.path} ADD PARTITION (id=1)"))
        is TableErrorCode.NOT_PARTITIONED
    )


def test_without_dynamic_partitions_a_write_needs_one_that_exists(server_address: str, new: Any) -> None:
    table = new(LOG)
    with connect(server_address, ClientConfig(dynamic_create_partition=False)) as strict:
        same = strict.table(table.path)
        assert code_of(lambda: same.append([{"dt": "x", "id": 1}])) is TableErrorCode.PARTITION_NOT_FOUND
        strict.admin.add_partition(table.path, {"dt": "x"})
        same.append([{"dt": "x", "id": 1}])
    assert rows_of(table) == {("x", 1)}


def test_rows_of_another_partition_are_refused_by_the_server(new: Any, connection: Connection) -> None:
    for text in (LOG, PK):
        table = new(text)
        rows = [{"dt": "a", "id": 1}, {"dt": "b", "id": 2}]
        (table.append if text is LOG else table.upsert)(rows)
        one = connection.table(f"{table.path}.a")
        write = one.append if text is LOG else one.upsert
        with pytest.raises(TableError, match="does not belong to partition a"):
            write([{"dt": "b", "id": 3}])
        assert table.count() == 2


def test_r18_5_an_alter_reaches_all_partitions(new: Any, connection: Connection) -> None:
    table = new(PK)
    table.upsert([{"dt": "a", "id": 1, "v": 1}, {"dt": "b", "id": 1, "v": 2}])
    connection.execute(
        f"ALTER TABLE {table.path} ADD w INT DEFAULT 5; ALTER TABLE {table.path} RENAME dt TO day"
    )
    table.refresh()
    table.upsert([{"day": "b", "id": 2, "v": 3, "w": 9}, {"day": "c", "id": 3, "v": 4}])
    assert rows_of(table) == {("a", 1, 1, 5), ("b", 1, 2, 5), ("b", 2, 3, 9), ("c", 3, 4, 5)}
    assert table.lookup_one({"day": "a", "id": 1}) == {"day": "a", "id": 1, "v": 1, "w": 5}
    for text in ("DROP day", "MODIFY day INT"):
        with pytest.raises(TableError):
            connection.execute(f"ALTER TABLE {table.path} {text}")
    with pytest.raises(TableError, match="is a partition"):
        connection.admin.drop_table(f"{table.path}.a")


def test_dropping_the_table_drops_its_partitions(new: Any, connection: Connection) -> None:
    table = new(PK)
    table.upsert([{"dt": "a", "id": 1, "v": 1}])
    assert table.path.table in connection.admin.list_tables("default")
    assert not any("." in name for name in connection.admin.list_tables("default"))
    connection.admin.drop_table(table.path)
    assert not [t for t in connection.kafka.list_topics() if t.name.startswith(str(table.path))]
    assert code_of(lambda: table.upsert([{"dt": "a", "id": 1, "v": 1}])) is TableErrorCode.TABLE_NOT_FOUND


def test_a_scan_to_the_end_reads_every_partition(new: Any) -> None:
    for text in (LOG, PK):
        table = new(text)
        write = table.append if text is LOG else table.upsert
        write([{"dt": f"d{n % 12}", "id": n} for n in range(60)])
        seen = []
        with table.scan(until="latest") as scan:
            for batch in scan:
                assert set(batch.batch.column("dt").to_pylist()) == {batch.partition}
                seen += batch.batch.column("id").to_pylist()
            positions = scan.partition_positions
        assert sorted(seen) == list(range(60))
        assert positions == table.partition_offsets("latest")
        write([{"dt": "d1", "id": 100}, {"dt": "new", "id": 101}])
        with table.scan(start=positions, until="latest") as scan:
            assert sorted(i for b in scan for i in b.batch.column("id").to_pylist()) == [100, 101]
        table.commit("readers", positions)
        assert table.partition_committed("readers") == positions


async def test_a_write_goes_on_when_its_partition_is_found_to_be_another_one_meanwhile(
    server_address: str, new: Any
) -> None:
    """Another call's listing closes the partition's writer, with a batch of this one's in it."""
    name = str(new(PK).path)
    async with await connect_async(server_address) as connection, asyncio.timeout(100):
        table = await connection.table(name)
        await table.upsert([{"dt": "a", "id": 1, "v": 1}])
        parts = table._open.parts
        part = parts._known["a"]
        put, forgetting = part.writer._enqueue, []

        def enqueue(batch: Any) -> None:
            put(batch)
            forgetting.append(asyncio.ensure_future(parts.forget(part)))

        part.writer._enqueue = enqueue
        await connection.admin.drop_partition(name, {"dt": "a"})
        await table.upsert([{"dt": "a", "id": 2, "v": 2}])
        assert forgetting
        assert (await table.to_arrow()).to_pylist() == [{"dt": "a", "id": 2, "v": 2}]


async def test_r18_3_an_endless_scan_sees_new_partitions_and_ends_dropped_ones(
    server_address: str, new: Any
) -> None:
    """No row twice, none missing, whatever comes and goes; and names that come again are new."""
    name = str(new(PK).path)
    config = ClientConfig(partition_discovery_ms=50)
    async with await connect_async(server_address, config) as connection, asyncio.timeout(100):
        table = await connection.table(name)
        await table.upsert([{"dt": "a", "id": 1, "v": 1}])
        seen: list[tuple[str, int, int]] = []

        async def until(count: int) -> None:
            while len(seen) < count:
                batch = await anext(scan)
                for change, row in zip(batch.change_types, batch.batch.to_pylist(), strict=True):
                    if change != ChangeType.UPDATE_BEFORE:
                        seen.append((row["dt"], row["id"], row["v"]))

        async with table.scan() as scan:
            await until(1)
            await table.upsert([{"dt": "b", "id": 1, "v": 2}])
            await until(2)
            await connection.admin.drop_partition(name, {"dt": "a"})
            await table.upsert([{"dt": "b", "id": 1, "v": 3}])
            await until(3)
            await table.upsert([{"dt": "a", "id": 1, "v": 4}, {"dt": "c", "id": 1, "v": 5}])
            await until(5)
            while True:
                before = scan.partition_positions
                if "c" in before:
                    break
                await asyncio.sleep(0.01)
            await table.upsert([{"dt": "c", "id": 1, "v": 6}])
            await until(6)
            scan.seek({"c": before["c"]})
            await until(7)
        assert seen[:3] == [("a", 1, 1), ("b", 1, 2), ("b", 1, 3)]
        assert sorted(seen[3:5]) == [("a", 1, 4), ("c", 1, 5)]
        assert seen[5:] == [("c", 1, 6)] * 2
        async with table.scan(until="latest") as scan:
            rows = [row async for batch in scan for row in batch.batch.to_pylist()]
        assert len(rows) == 3
        async with table.scan(start=scan.partition_positions, poll_timeout=0.2) as scan:
            assert [batch async for batch in scan] == []
        await connection.admin.drop_table(name)
        with pytest.raises(TableError) as caught:
            async with table.scan() as scan:
                await anext(scan)
        assert caught.value.code is TableErrorCode.TABLE_NOT_FOUND


def test_operations_by_bucket_need_a_partition(new: Any) -> None:
    table = new(PK)
    for work in (
        lambda: table.offsets("latest"),
        lambda: table.offsets_as_of(0),
        lambda: list(table.snapshot(0)),
        lambda: table.committed("g"),
        lambda: table.scan().positions,
        lambda: table.scan(start={0: 1}),
        lambda: table.scan(as_of={0: 1}),
        lambda: table.range_scan(as_of={0: 1}),
        lambda: table.commit("g", {0: 1}),
    ):
        assert code_of(work) is TableErrorCode.PARTITION_NEEDED
    assert code_of(lambda: table.offsets("latest", partition="x")) is TableErrorCode.PARTITION_NOT_FOUND
    table.upsert([{"dt": "a", "id": 1, "v": 2}])
    assert table.to_arrow().num_rows == 1, "operations without a bucket still work"


def test_a_partition_and_a_bucket_name_a_bucket(new: Any) -> None:
    table = new(PK)
    table.upsert([{"dt": f"d{n % 2}", "id": n, "v": n} for n in range(40)])
    ends = table.partition_offsets("latest")
    assert ends["d1"] == table.offsets("latest", partition="d1") == table.partition("d1").offsets("latest")
    assert table.offsets_as_of(time.time_ns() // 10**6, partition="d1") == ends["d1"]
    table.commit("readers", {"d1": ends["d1"]})
    assert table.committed("readers", partition="d1") == ends["d1"]
    assert table.committed("readers", partition="d0") == {}
    buckets = range(table.definition.bucket_count)
    found = [
        row
        for bucket in buckets
        for rows, _ in table.snapshot(bucket, partition="d1")
        for row in rows.to_pylist()
    ]
    assert sorted(row["id"] for row in found) == list(range(1, 40, 2))
    rows = {bucket: [] for bucket in buckets}
    for bucket in buckets:
        with table.scan(buckets=[bucket], until="latest") as scan:
            for batch in scan:
                assert batch.bucket == bucket
                rows[bucket] += batch.batch.column("id").to_pylist()
            assert scan.partition_positions == {name: {bucket: end[bucket]} for name, end in ends.items()}
    assert sorted(row for each in rows.values() for row in each) == list(range(40))


def test_a_table_without_partitions_is_one_part_without_a_name(new: Any) -> None:
    table = new("(k INT, v INT, PRIMARY KEY (k) NOT ENFORCED)")
    table.upsert([{"k": n, "v": n} for n in range(10)])
    ends = table.offsets("latest")
    assert table.partition_offsets("latest") == {"": ends}
    with table.scan(until="latest") as scan:
        assert sum(batch.row_count for batch in scan) == 10
        positions = scan.partition_positions
    assert positions == {"": ends}
    table.commit("readers", positions)
    assert (table.committed("readers"), table.partition_committed("readers")) == (ends, positions)
    assert table.to_arrow(as_of=positions).num_rows == 10
    assert [*table.scan(start=positions, until="latest")] == []
    for work in (table.partitions, lambda: table.partition("a"), lambda: table.only({"k": 1})):
        assert code_of(work) is TableErrorCode.NOT_PARTITIONED
    with pytest.raises(ValueError, match="no partition 'a'"):
        table.scan(start={"a": {0: 1}})


def test_a_partitioned_table_is_read_as_it_was_by_partition_and_bucket(new: Any) -> None:
    table = new(PK)
    table.upsert([{"dt": f"d{n % 2}", "id": n, "v": n} for n in range(10)])
    before, then = table.to_arrow(), table.partition_offsets("latest")
    at = max(part.timestamp_ms for part in table.scan(start="earliest", until="latest"))
    time.sleep(0.002)
    table.delete([{"dt": "d0", "id": 0}])
    table.upsert([{"dt": "d1", "id": 1, "v": -1}, {"dt": "d2", "id": 7, "v": 7}])
    now = table.to_arrow()
    for moment in (then, at):
        assert table.to_arrow(as_of=moment).sort_by("id") == before.sort_by("id")
        assert table.range_scan({"dt": "d0"}, {"dt": "d2"}, as_of=moment) == before.sort_by(
            [("dt", "ascending"), ("id", "ascending")]
        )
        assert table.range_scan({"dt": "d1", "id": 3}, columns=["v"], limit=2, as_of=moment).num_rows == 2
        # A scan begins with the state of then; what came since comes as changes, of new partitions too.
        rows: dict[tuple[str, int], int] = {}
        state = 0
        with table.scan(as_of=moment, until="latest") as scan:
            for part in scan:
                state += part.batch.num_rows if part.from_snapshot else 0
                for row, change in zip(part.batch.to_pylist(), part.change_types, strict=True):
                    if change in (ChangeType.DELETE, ChangeType.UPDATE_BEFORE):
                        rows.pop((row["dt"], row["id"]), None)
                    else:
                        rows[row["dt"], row["id"]] = row["v"]
        assert state == before.num_rows
        assert {(*key, value) for key, value in rows.items()} == {
            tuple(row.values()) for row in now.to_pylist()
        }
    some = {"d1": then["d1"]}
    assert table.range_scan(as_of=some).column("id").to_pylist() == [1, 3, 5, 7, 9]
    with pytest.raises(ValueError, match="start with the state"):
        new(LOG).scan(as_of=at)
