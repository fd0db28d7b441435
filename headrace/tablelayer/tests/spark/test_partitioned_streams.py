"""Partitioned tables as streams: the reader's two sides without Spark, then the whole way, exactly once."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark import run_available_now
from headrace.tablelayer.client import Connection
from headrace.tablelayer.lake.union_read import _stream_start
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.lake.offsets import PartitionBucket
from headrace.tablelayer.spark.options import ReadOptions
from headrace.tablelayer.spark.positions import (
    PartitionAt,
    PartitionedPosition,
    nothing_passed,
    partition_starts,
)
from headrace.tablelayer.spark.stream import stream_reader
from headrace.tablelayer.tests.spark.spark_tables import Server, read_available, sink, stream

_names = itertools.count()
PK = "(d STRING, id INT, v INT, PRIMARY KEY (d, id) NOT ENFORCED) PARTITIONED BY (d) WITH ('bucket.num'='2')"
LOG = "(d STRING, id INT) PARTITIONED BY (d) WITH ('bucket.num'='2')"

partitions = st.dictionaries(
    st.sampled_from(["2024", "2025", "eu.2"]),
    st.builds(
        PartitionAt,
        st.sampled_from("ab"),
        st.dictionaries(st.integers(0, 3), st.integers(0, 9)),
        st.booleans(),
    ),
)


@given(partitions, partitions, st.booleans(), st.lists(st.none() | st.integers(-1)), st.lists(st.integers()))
def test_positions_by_partition_survive_the_checkpoint(
    at: Any, began: Any, initial: bool, lakes: Any, gone: Any
) -> None:
    position = PartitionedPosition("an id", at, began, initial, *lakes[:3], gone=tuple(gone[:2]))
    assert PartitionedPosition.from_json(json.loads(json.dumps(position.to_json()))) == position


@given(st.randoms(use_true_random=False))
def test_counts_prove_only_that_no_partition_came_and_went(rng: random.Random) -> None:
    """Random histories of a table: a proof is never wrong, and is found if clients dropped nothing."""
    names, ids = "abc", itertools.count()
    there = {name: next(ids) for name in names}
    before, expired, gone, unseen, dropped = dict(there), 0, 0, 0, 0
    begin = expired, gone
    for _ in range(rng.randrange(9)):
        name = rng.choice(names)
        if name in there:
            is_drop, gone = rng.random() < 0.3, gone + 1
            was = there.pop(name)
            expired, dropped = expired + (not is_drop), dropped + is_drop
            unseen += not is_drop and was not in before.values()
        else:
            there[name] = next(ids)

    def position(partitions: dict[str, int], counts: tuple[int, ...]) -> PartitionedPosition:
        return PartitionedPosition(
            "t", {name: PartitionAt(str(each), {}) for name, each in partitions.items()}, gone=counts
        )

    start, end = position(before, begin), position(there, (expired, gone))
    proved = nothing_passed(start, end)
    assert not (proved and unseen)
    assert proved or unseen or dropped
    some = position({name: each for name, each in there.items() if name != "a"}, (expired,))
    assert nothing_passed(position(before, begin[:1]), some) == (expired == 0)
    assert not nothing_passed(position(before, ()), end)
    assert not nothing_passed(replace(start, initial=True), end)


def test_a_batch_begins_at_the_last_end_of_each_partition() -> None:
    was = {"a": PartitionAt("1", {0: 5}), "b": PartitionAt("2", {0: 7}), "c": PartitionAt("3", {0: 1})}
    now = {
        "a": PartitionAt("1", {0: 9}),
        "b": PartitionAt("22", {0: 2}),
        "d": PartitionAt("4", {0: 3}, full=True),
    }
    start, end = PartitionedPosition("t", was), PartitionedPosition("t", now, {"a": PartitionAt("1", {0: 4})})
    assert [(name, begin) for name, _, begin in partition_starts(start, end)] == [
        ("a", {0: 5}),
        ("b", {0: 0}),  # dropped and made again
        ("d", "full"),
    ]
    asked_again = PartitionedPosition("t", {"a": PartitionAt("1", {0: 8})}, initial=True)
    begins = {name: begin for name, _, begin in partition_starts(asked_again, end)}
    assert begins["a"] == {0: 4}, "where it began then, not where it would now"


def test_a_stream_behind_the_lake_names_the_partitions_that_are_still_the_same() -> None:
    here, gone = UUID(int=1), UUID(int=2)
    tiered = {
        PartitionBucket("a", here, 0): 5,
        PartitionBucket("a", here, 1): 6,
        PartitionBucket("b", gone, 0): 7,
    }
    present = {
        PartitionBucket("a", here, 0): 9,
        PartitionBucket("a", here, 1): 9,
        PartitionBucket("b", here, 0): 1,
    }
    assert _stream_start(tiered, present) == {"a": {"0": 5, "1": 6}}
    assert _stream_start({0: 3, 1: 4}, {0: 3, 1: 4}) == {"0": 3, "1": 4}


def make(client: Connection, text: str) -> Any:
    name = f"part_stream{next(_names)}"
    client.execute(f"CREATE TABLE {name} {text}")
    return client.table(name)


class Stream:
    """The driver's calls as Spark makes them; `restart` is a new driver with the same checkpoint."""

    def __init__(self, address: str, path: Any, names: list[str], **options: str) -> None:
        given = {"bootstrap.servers": address, "table": str(path), **options}
        self.options, self.names = ReadOptions.parse(given), names
        self.reader: Any = stream_reader(self.options, names)
        self.committed: Any = None
        self.last: Any = None

    def batch(self, *, commit: bool = True) -> list[tuple[Any, ...]]:
        start = self.committed or self.reader.initialOffset()
        end = json.loads(json.dumps(self.reader.latestOffset()))
        rows = self.read(start, end)
        if commit:
            self.last, self.committed = (start, end), end
        return rows

    def read(self, start: Any, end: Any) -> list[tuple[Any, ...]]:
        splits = self.reader.partitions(start, end)
        batches = [batch for split in splits for batch in self.reader.read(split)]
        return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())

    def restart(self) -> list[tuple[Any, ...]]:
        """The rows of the last batch, which Spark asks for again."""
        self.reader = stream_reader(self.options, self.names)
        return self.read(*self.last)


def test_r18_3_a_stream_reads_added_partitions_and_ends_dropped_ones(
    address: str, client: Connection
) -> None:
    table = make(client, PK)
    table.upsert([{"d": "a", "id": 1, "v": 1}, {"d": "b", "id": 2, "v": 2}])
    table.upsert([{"d": "a", "id": 1, "v": 3}])
    followed = Stream(address, table.path, ["d", "id", "v", "_change_type"], mode="upsert")
    assert followed.batch() == [("a", 1, 3, "+I"), ("b", 2, 2, "+I")]
    assert followed.batch() == []
    table.upsert([{"d": "a", "id": 1, "v": 4}, {"d": "c", "id": 9, "v": 9}])
    table.upsert([{"d": "c", "id": 9, "v": 10}])
    changes = [("a", 1, 4, "+U"), ("c", 9, 9, "+I"), ("c", 9, 10, "+U")]
    assert followed.batch() == changes
    assert followed.restart() == changes
    table.delete([{"d": "b", "id": 2}])
    client.execute(f"ALTER TABLE {table.path} DROP PARTITION (d = 'c')")
    assert followed.batch() == [("b", 2, 2, "-D")]
    table.upsert([{"d": "c", "id": 1, "v": 1}])
    assert followed.batch() == [("c", 1, 1, "+I")], "a partition of this name, and another one"
    steady = followed.committed
    assert followed.batch() == []
    assert followed.committed == steady, "the position does not change without new rows"
    client.admin.drop_table(table.path)
    client.execute(f"CREATE TABLE {table.path.table} {PK}")
    with pytest.raises(TableError, match="dropped and created again"):
        followed.batch()


def test_r18_3_a_partition_that_goes_while_it_is_read_gives_nothing_more(
    address: str, client: Connection
) -> None:
    table = make(client, LOG)
    table.append([{"d": "a", "id": 1}, {"d": "b", "id": 2}])
    followed = Stream(address, table.path, ["id"])
    start, end = followed.reader.initialOffset(), followed.reader.latestOffset()
    splits = followed.reader.partitions(start, end)
    client.execute(f"ALTER TABLE {table.path} DROP PARTITION (d = 'a')")
    assert [
        row["id"] for split in splits for batch in followed.reader.read(split) for row in batch.to_pylist()
    ] == [2]
    assert followed.read(start, end) == [(2,)]


def test_capped_batches_over_partitions_and_every_kind_of_start(address: str, client: Connection) -> None:
    table = make(client, LOG)
    table.append([{"d": f"d{n % 3}", "id": n} for n in range(30)])
    capped = Stream(address, table.path, ["id"], maxOffsetsPerTrigger="7", availableNow="capped")
    sizes, seen = [], []
    for number in range(7):
        if number == 2:
            table.append(
                [{"d": "d9", "id": 100}, {"d": "d0", "id": 101}]
            )  # after the run began: for the next one
        rows = capped.batch()
        sizes.append(len(rows))
        seen += rows
    assert sizes == [7, 7, 7, 7, 2, 0, 0]
    assert sorted(seen) == [(n,) for n in range(30)]
    capped.restart()
    assert [row for _ in range(2) for row in capped.batch()] == [(100,), (101,)]
    latest = Stream(address, table.path, ["id"], startingOffsets="latest")
    assert latest.batch() == []
    offsets = table.partition_offsets("latest")
    table.append([{"d": "d0", "id": 200}, {"d": "e", "id": 201}])
    assert latest.batch() == [(200,), (201,)]
    some = Stream(
        address, table.path, ["id"], startingOffsets=json.dumps({"d0": offsets["d0"], "d1": offsets["d1"]})
    )
    assert [row[0] for row in some.batch()] == [n for n in range(30) if n % 3 == 2] + [100, 200, 201]
    ended = Stream(address, table.path, ["id"], endingOffsets=json.dumps({"d1": offsets["d1"]}))
    assert [row[0] for row in ended.batch()] == [n for n in range(30) if n % 3 == 1]
    pruned = Stream(address, table.path, ["id"], where=json.dumps(["=", "d", "e"]))
    assert pruned.batch() == [(201,)]
    client.admin.drop_table(table.path)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.xdist_group("spark")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_r3_5_a_partitioned_table_is_streamed_into_another_exactly_once(
    spark: Any, server: Server, address: str, client: Connection, tmp_path: Path
) -> None:
    """New partitions come, a committed batch is repeated with its rows in another order, the server is killed."""
    source, target = make(client, LOG), make(client, LOG)
    rng = random.Random(7)

    def add(numbers: range) -> None:
        source.append([{"d": f"d{n % (1 + n // 40)}", "id": n} for n in numbers])

    def run(*, kill: bool = False) -> None:
        frame = stream(spark, address, str(source.path), maxOffsetsPerTrigger=50, availableNow="capped")
        frame = frame.repartition(2, (frame.id + rng.randrange(9)) % 3)
        if kill:
            server.kill()
            server.start()
        run_available_now(sink(frame, address, str(target.path), tmp_path / "c"))

    add(range(80))
    run()
    commits = sorted((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(commits) == 2, "micro-batches of fifty"
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    add(range(80, 150))
    run(kill=True)
    with target.scan(start="earliest", until="latest") as scan:
        found = sorted((row["d"], row["id"]) for part in scan for row in part.batch.to_pylist())
    assert found == sorted((f"d{n % (1 + n // 40)}", n) for n in range(150))
    assert sorted(each.name for each in target.partitions()) == ["d0", "d1", "d2", "d3"]
    rows = read_available(stream(spark, address, str(target.path)), tmp_path / "back")
    assert sorted((row.d, row.id) for row in rows) == found
