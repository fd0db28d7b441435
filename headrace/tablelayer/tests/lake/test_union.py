"""Union reads without Spark or a server: a lake and a log in memory, compared with the complete log.

`tests/spark/test_union_scan.py` has a server, `tests/spark/test_union_read.py` a lake too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.lake import union_scan as module
from headrace.tablelayer.lake.adapter import LakeError, LakeState
from headrace.tablelayer.lake.union_scan import UnionScan, union_scan
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.ddl import CreateTable, parse
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters.conditions import filter_of_sql
from headrace.tablelayer.model.filters.filters import Filter, encode_filter
from headrace.tablelayer.model.lake.offsets import PartitionBucket
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.partitions import Partition
from headrace.tablelayer.tests.lake.in_memory import tiered_into

Row = dict[str, Any]
DELETE = ChangeType.DELETE
PUT = ChangeType.UPDATE_AFTER


def definition(sql: str) -> TableDefinition:
    (statement,) = parse(sql)
    assert isinstance(statement, CreateTable)
    return statement.definition.with_id(UUID(int=1))


KEYED = definition("CREATE TABLE t (id INT, v INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
LOG = definition("CREATE TABLE t (id INT, v INT, name STRING)")
PARTITIONED = definition(
    "CREATE TABLE t (dt STRING, id INT, v INT, PRIMARY KEY (id, dt) NOT ENFORCED) PARTITIONED BY (dt)"
)


@dataclass
class World:
    """The log of a table (by place), what of it is in the lake, and the connection that shows the log."""

    table: TableDefinition
    entries: dict[Any, list[tuple[int, Row]]] = field(default_factory=dict)
    tiered: dict[Any, int] = field(default_factory=dict)
    lake: list[Row] = field(default_factory=list)
    cut: dict[Any, int] = field(default_factory=dict)
    dropped: dict[str, UUID] = field(default_factory=dict)
    """The partitions that clients dropped."""
    lake_reads: list[tuple[int, list[str]]] = field(default_factory=list)
    """The names of the columns that the lake was asked for."""

    def write(self, place: Any, *changes: tuple[int, Row]) -> None:
        self.entries.setdefault(place, []).extend(changes)

    def state(self, ends: Mapping[Any, int]) -> list[Row]:
        """Return the table's rows at these offsets, by the log."""
        rows = []
        for place, end in ends.items():
            if not self.table.is_primary_key_table:
                rows += [row for _, row in self.entries[place][:end]]
                continue
            living: dict[int, Row] = {}
            for change, row in self.entries[place][:end]:
                living.pop(row["id"], None)
                if change != DELETE:
                    living[row["id"]] = row
            rows += living.values()
        return rows

    def latest(self) -> dict[Any, int]:
        return {place: len(entries) for place, entries in self.entries.items()}

    def tier(self) -> None:
        """Tier as a round does: the lake keeps the rows of partitions that are gone, but not the offsets."""
        self.tiered = self.latest()
        gone = [
            row for row in self.lake if "dt" in row and row["dt"] not in {p.partition for p in self.tiered}
        ]
        self.lake = gone + self.state(self.tiered)

    def scan(self, sql: str | None = None, columns: Sequence[str] | None = None, **options: Any) -> UnionScan:
        snapshot = LakeOfWorld(self)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "tiered_table", lambda *_: tiered_into(snapshot, self.table))
            return union_scan(Connection(self), str(self.table.path), columns, sql, **options)

    def found(self, *arguments: Any, **options: Any) -> list[Row]:
        scan = self.scan(*arguments, **options)
        rows = ordered(scan.to_arrow().to_pylist())
        assert ordered(scan.to_arrow().to_pylist()) == rows, "each time the same"
        return rows


def ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: repr(sorted(row.items())))


def batch_of(table: TableDefinition, names: Sequence[str], rows: Sequence[Row]) -> pa.RecordBatch:
    schema = pa.schema([table.schema.column(name).field().with_nullable(True) for name in names])
    return pa.RecordBatch.from_pylist(
        [{name: row.get(name) for name in names} for row in rows], schema=schema
    )


class LakeOfWorld:
    def __init__(self, world: World) -> None:
        self.world = world
        self.rows, self.tiered, self.dropped = list(world.lake), dict(world.tiered), dict(world.dropped)

    def state(self, known: int | None) -> LakeState:
        return LakeState(1, 1, self.tiered) if self.tiered else LakeState()

    def read(
        self, snapshot: int, columns: Sequence[Column], wanted: Any, predicate: Any
    ) -> Iterator[pa.RecordBatch]:
        names = [column.name for column in columns]
        self.world.lake_reads.append((snapshot, names))
        batch = batch_of(self.world.table, names, self.rows)
        if wanted is not None:
            filtered = [wanted.schema.columns[place].name for place in wanted.columns]
            batch = batch.filter(pa.array(wanted.mask(batch.select(filtered))))
        yield from (batch.slice(start, 2) for start in range(0, batch.num_rows, 2))


class Connection:
    """The part of the table client that a union read uses."""

    def __init__(self, world: World) -> None:
        self.world = world

    def table(self, path: str) -> Any:
        world = self.world
        by_name: dict[str, dict[int, int]] = {}
        ids: dict[str, UUID] = {}
        for place in world.entries:
            if isinstance(place, PartitionBucket):
                ids[place.partition] = place.table_id

        def offsets(at: str) -> dict[Any, int]:
            return {place: world.cut.get(place, 0) if at == "earliest" else len(entries)
                    for place, entries in world.entries.items()}  # fmt: skip

        def partition_offsets(at: str) -> dict[str, dict[int, int]]:
            by_name.clear()
            for place, offset in offsets(at).items():
                by_name.setdefault(place.partition, {})[place.bucket] = offset
            return dict(by_name)

        partitions = [Partition(name, table_id, 1) for name, table_id in ids.items()]
        return SimpleNamespace(
            offsets=offsets, partition_offsets=partition_offsets, partitions=lambda: list(partitions)
        )

    def open_table(self, table: TableDefinition) -> Any:
        world = self.world
        part = table.path.partition

        def entries_of(bucket: int) -> tuple[Any, list[tuple[int, Row]]]:
            place = bucket if part is None else PartitionBucket(part, table.table_id, bucket)  # type: ignore[arg-type]
            if place not in world.entries:
                raise TableError(TableErrorCode.TABLE_NOT_FOUND, "it was dropped")
            return place, world.entries[place]

        @contextmanager
        def scan(
            names: Sequence[str],
            start: Mapping[int, int],
            until: Mapping[int, int],
            filter: Any = None,  # noqa: A002
        ) -> Iterator[Any]:
            parts = []
            for bucket, end in until.items():
                place, entries = entries_of(bucket)
                begin = start.get(bucket, 0)
                if world.cut.get(place, 0) > begin:
                    raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "gone")
                rows = [row for _, row in entries[begin:end]]
                types = np.array([change for change, _ in entries[begin:end]], np.uint8)
                parts.append((batch_of(world.table, names, filtered_rows(world.table, rows, filter)), types))
            yield [SimpleNamespace(batch=batch, change_types=types) for batch, types in parts]

        def snapshot(bucket: int, names: Sequence[str], wanted: Any, *, as_of: int | None) -> Iterator[Any]:
            place, entries = entries_of(bucket)
            end = len(entries) if as_of is None else as_of
            rows = world.state({place: end})
            yield batch_of(world.table, names, filtered_rows(world.table, rows, wanted)), end

        return SimpleNamespace(scan=scan, snapshot=snapshot)


def filtered_rows(table: TableDefinition, rows: list[Row], sql: str | None) -> list[Row]:
    if sql is None or not rows:
        return rows
    wanted = Filter.parse(encode_filter(filter_of_sql(sql, table.schema), table.schema), table.schema)
    batch = batch_of(table, [table.schema.columns[place].name for place in wanted.columns], rows)
    return [row for row, chosen in zip(rows, wanted.mask(batch).tolist(), strict=True) if chosen]


def row(key: int, v: int | None = 0, name: str | None = "x") -> Row:
    return {"id": key, "v": v, "name": name}


def in_partition(dt: str, number: int) -> PartitionBucket:
    return PartitionBucket(dt, UUID(int=number), 0)


def of(dt: str, key: int, v: int = 0) -> Row:
    return {"dt": dt, "id": key, "v": v}


def test_changes_of_the_tail_replace_and_delete_rows_of_the_lake() -> None:
    world = World(KEYED)
    world.write(0, *((PUT, row(key)) for key in range(5)))
    world.tier()
    world.write(0, (PUT, row(1, 7)), (DELETE, row(2)), (PUT, row(9)), (DELETE, row(9)), (PUT, row(10, None)))
    assert world.found() == ordered([row(0), row(1, 7), row(3), row(4), row(10, None)])
    assert world.found("v >= 5") == [row(1, 7)]
    assert world.found("v = 0") == ordered([row(0), row(3), row(4)]), "key 1 is not what the lake says of it"
    assert ordered(world.scan(columns=["name"]).to_arrow().to_pylist()) == [{"name": "x"}] * 5


def test_a_log_tables_tail_is_added() -> None:
    world = World(LOG)
    world.write(0, (0, row(1)), (0, row(1)))
    world.tier()
    assert world.found() == [row(1), row(1)]
    world.write(0, (0, row(1)), (0, row(2, 5)))
    assert world.found() == ordered([row(1), row(1), row(1), row(2, 5)])
    assert world.found("v > 1") == [row(2, 5)]


@pytest.mark.parametrize("table", [KEYED, LOG])
def test_both_sides_are_pinned(table: TableDefinition) -> None:
    world = World(table)
    world.write(0, (PUT, row(1)), (PUT, row(2)))
    world.tier()
    world.write(0, (PUT, row(3)))
    scan = world.scan()
    world.write(0, (PUT, row(4)), (DELETE if table is KEYED else PUT, row(1)))
    world.tier()
    assert ordered(scan.to_arrow().to_pylist()) == [row(1), row(2), row(3)]
    assert (scan.offsets, scan.end_offsets) == ({0: 2}, {0: 3})


def test_before_the_first_round_there_is_only_the_log() -> None:
    for table in (KEYED, LOG):
        world = World(table)
        world.write(0, (PUT, row(1)), (PUT, row(2)))
        assert world.found() == [row(1), row(2)]
        assert world.lake_reads == []


def test_rows_in_neither_lake_nor_log_are_an_error() -> None:
    world = World(KEYED)
    world.write(0, *((PUT, row(key)) for key in range(6)))
    world.tier()
    world.cut[0] = 6
    assert len(world.found()) == 6, "all that left the log is in the lake"
    world.write(0, *((PUT, row(key)) for key in range(6, 9)))
    scan = world.scan()
    world.cut[0] = 7
    with pytest.raises(LakeError, match="begins after the end of the lake's last round"):
        world.scan()
    with pytest.raises(LakeError, match="was deleted from the log during this read"):
        scan.to_arrow()


def test_a_look_at_the_lake_that_was_too_early_is_repeated() -> None:
    """A round ended, and the log was cut, between the read of the lake and that of the log."""
    world = World(KEYED)
    world.write(0, (PUT, row(1)), (PUT, row(2)))
    early = LakeOfWorld(world)
    early.tiered = {0: 1}
    world.tier()
    world.cut[0] = 2
    looks = [early, LakeOfWorld(world)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "tiered_table", lambda *_: tiered_into(looks.pop(0), KEYED))
        scan = union_scan(Connection(world), str(KEYED.path))
    assert ordered(scan.to_arrow().to_pylist()) == [row(1), row(2)]
    assert looks == []


def test_partitions_that_are_new_dropped_or_made_again() -> None:
    world = World(PARTITIONED)
    a, b, again, new = in_partition("a", 5), in_partition("b", 6), in_partition("a", 7), in_partition("c", 8)
    world.write(a, (PUT, of("a", 1)), (PUT, of("a", 2)))
    world.write(b, (PUT, of("b", 1)))
    world.tier()
    world.write(new, (PUT, of("c", 1)), (PUT, of("c", 1, 5)), (DELETE, of("c", 2)))
    world.write(b, (PUT, of("b", 1, 9)))
    assert world.found() == ordered([of("a", 1), of("a", 2), of("b", 1, 9), of("c", 1, 5)])
    del world.entries[a]
    assert world.found() == ordered([of("a", 1), of("a", 2), of("b", 1, 9), of("c", 1, 5)]), "it expired"
    world.write(again, (PUT, of("a", 2, 3)))
    assert world.found() == ordered([of("a", 1), of("a", 2, 3), of("b", 1, 9), of("c", 1, 5)]), "a late row"
    assert world.found("v = 0") == [of("a", 1)]
    del world.entries[again]
    world.dropped["a"] = a.table_id
    assert world.found() == ordered([of("b", 1, 9), of("c", 1, 5)]), "a client dropped it"
    world.write(again, (PUT, of("a", 2, 3)))
    expected = ordered([of("a", 2, 3), of("b", 1, 9), of("c", 1, 5)])
    assert world.found() == expected, "nothing of the one before"
    assert world.found(None, ["id"]) == ordered([{"id": each["id"]} for each in expected])
    assert world.found("v = 0") == []
    world.lake = [each for each in world.lake if each["dt"] != "a"]  # as the round does
    world.tier()
    assert world.found() == expected, "the lake has the later one"
    assert world.found(only={"dt": "a"}) == [of("a", 2, 3)]
    assert world.found(until={"b": {0: 2}}) == [of("b", 1, 9)]


def test_a_partition_that_is_dropped_while_it_is_read_gives_nothing_more() -> None:
    world = World(PARTITIONED)
    a, b = in_partition("a", 5), in_partition("b", 6)
    world.write(a, (PUT, of("a", 1)))
    world.write(b, (PUT, of("b", 1)))
    scan = world.scan()
    del world.entries[a]
    assert scan.to_arrow().to_pylist() == [of("b", 1)]


@pytest.mark.parametrize("table", [KEYED, LOG, PARTITIONED])
def test_random_tables_equal_their_log(table: TableDefinition) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(25):
        world = World(table)
        places = [in_partition(dt, 5 + n) for n, dt in enumerate("ab")] if table is PARTITIONED else [0, 1]
        for _ in range(rng.randrange(1, 5)):
            for at, place in enumerate(places):
                changes = []
                for _ in range(rng.randrange(5)):
                    key = rng.randrange(4) * 2 + at
                    change = DELETE if table is not LOG and rng.random() < 0.3 else PUT
                    if isinstance(place, PartitionBucket):
                        changes.append((change, of(place.partition, key, rng.randrange(9))))
                    else:
                        changes.append((change, row(key, rng.choice([None, rng.randrange(9)]))))
                world.write(place, *changes)
            if rng.random() < 0.5:
                world.tier()
                world.cut = dict(world.tiered)
        condition = rng.choice([None, "v >= 4", "id = 2 OR v < 3"])
        expected = filtered_rows(table, world.state(world.latest()), condition)
        assert world.found(condition) == ordered(expected)
