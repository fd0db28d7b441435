"""Random tables with a lake, compared with a model in Spark's catalog and source, the client, SQL and streams.

Between the reads rows are written, changed and deleted by the client and by Spark, rounds run, logs are cut, partitions
expire and are dropped, and columns are added, renamed and dropped.
"""

from __future__ import annotations

import itertools
import json
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.tablelayer.client import Connection
from headrace.tablelayer.lake.tiering_job import run_tiering
from headrace.tablelayer.lake.union_read import union_read
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.lake.offsets import PartitionBucket
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.quoting import quote_name
from headrace.tablelayer.spark.options import ReadOptions
from headrace.tablelayer.spark.stream import stream_reader
from headrace.tablelayer.spark.types import spark_schema
from headrace.tablelayer.tests.lake.test_plain_name import ByTheJob, CuttingBroker
from headrace.tablelayer.tests.lake.test_plain_name import address as address
from headrace.tablelayer.tests.lake.test_plain_name import client as client
from headrace.tablelayer.tests.lake.test_plain_name import server as server
from headrace.tablelayer.tests.model.random_rows import array_of
from headrace.tablelayer.tests.spark.spark_tables import load
from headrace.tablelayer.tests.sql.differential.reference import difference, lines_of
from headrace.tablelayer.tests.sql.differential.run import Report, Run, seed_and_seconds
from headrace.tablelayer.tests.sql.differential.tables import (
    KEY,
    NAMES,
    SPARK_TYPES,
    partition_values,
    quoted,
    random_table,
    random_value,
)
from headrace.tablelayer.tests.sql.differential.translation import backquoted

MOMENTS, READS = 8, 5
_names = itertools.count()
ADDED = {"INT DEFAULT 7": 7, "STRING DEFAULT 'x''y'": "x'y", "BOOLEAN DEFAULT TRUE": True}
"""New columns, with the values of the rows that are there."""
Row = dict[str, Any]


class Living:
    """A table with its rows by `k`, in the form of `array_of`."""

    def __init__(self, rng: random.Random, spark: Any, server: CuttingBroker, client: Connection) -> None:
        self.rng, self.spark, self.server, self.client = rng, spark, server, client
        self.name = f"r{next(_names)}"
        self.path = f"default.{self.name}"
        self.lake = rng.choice(["iceberg", "paimon"])
        drawn = random_table(rng, self.path, row_count=0, types=SPARK_TYPES)
        options = f", 'table.datalake.enabled' = 'true', 'table.datalake.format' = '{self.lake}')"
        self.statement = drawn.statement.removesuffix(")") + options
        client.execute(self.statement)
        self.key, self.partition = drawn.primary_key, drawn.partition
        self.rows: dict[int, Row] = {}
        self.written, self.gone = 0, set[int]()
        self.expired: set[str] = set()
        self.tierer = ByTheJob(client, self.path, server.address)
        self.said = [self.statement]
        self.streams = [] if self.key else [Following(self, chance) for chance in (1.0, 0.3)]

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.client.table(self.path).definition.schema.columns

    def day(self, row: Row) -> str:
        """Return the name of a row's partition."""
        (column,) = (each for each in self.columns if each.name == self.partition)
        value = array_of(column.type, [row[column.name]])[0].as_py()
        return str(value).lower() if isinstance(value, bool) else str(value)

    # -- steps

    def step(self) -> None:
        steps: list[Callable[[], str]] = [
            self.append,
            self.append,
            self.tier,
            self.tier,
            self.cut,
            self.alter,
        ]
        if self.key:
            steps += [self.change, self.change, self.delete]
        if self.partition is not None:
            steps += [self.expire, self.pass_by, self.drop]
        self.said.append(self.rng.choice(steps)())

    def append(self) -> str:
        count = self.rng.randrange(1, 20)
        new = range(self.written, self.written + count)
        self.written += count
        return f"append {count} {self.write({k: self.row(k) for k in new})}"

    def change(self) -> str:
        ks = self.some(0.3)
        kept = {*self.key, KEY, self.partition}
        rows = {
            k: {
                name: self.rows[k].get(name) if name in kept else value for name, value in self.row(k).items()
            }
            for k in ks
        }
        return f"change {ks} {self.write(rows)}"

    def some(self, share: float) -> list[int]:
        """Return some `k` whose partitions did not expire."""
        there = [k for k in self.rows if self.partition is None or self.day(self.rows[k]) not in self.expired]
        return sorted(self.rng.sample(there, int(len(there) * share)))

    def row(self, k: int) -> Row:
        found: Row = {}
        for column in self.columns:
            if column.name == KEY:
                found[KEY] = k
            elif column.name == self.partition:
                found[column.name] = self.rng.choice(partition_values(column.type))
            else:
                found[column.name] = random_value(
                    self.rng, column.type, nullable=column.nullable and column.name not in self.key
                )
        return found

    def arrow(self, rows: Sequence[Row], columns: Sequence[Column]) -> pa.Table:
        arrays = [array_of(each.type, [row.get(each.name) for row in rows]) for each in columns]
        return pa.table(arrays, pa.schema([each.field() for each in columns]))

    def write(self, rows: dict[int, Row]) -> str:
        if not rows:
            return ""
        given = self.arrow(list(rows.values()), self.columns)
        way = self.rng.choice(["client", "client", "catalog", "source"])
        if way == "client":
            table = self.client.table(self.path)
            (table.upsert if self.key else table.append)(given)
        else:
            frame = self.spark.createDataFrame(in_microseconds(given), spark_schema(self.columns))
            if way == "catalog":
                frame.writeTo(f"headrace.{self.path}").append()
            else:
                frame.write.format("headrace").option("bootstrap.servers", self.server.address).option(
                    "table", self.path
                ).mode("append").save()
        self.rows |= rows
        return way

    def delete(self) -> str:
        ks = self.some(0.2)
        if not ks:
            return "delete nothing"
        if self.rng.random() < 0.5:
            columns = [each for each in self.columns if each.name in self.key]
            self.client.table(self.path).delete(self.arrow([self.rows[k] for k in ks], columns))
            way = "client"
        else:
            self.spark.sql(f"DELETE FROM headrace.{self.path} WHERE {KEY} IN ({', '.join(map(str, ks))})")
            way = "catalog"
        for k in ks:
            del self.rows[k]
        return f"delete {ks} {way}"

    def tier(self) -> str:
        lines: list[str] = []
        assert run_tiering(self.server.address, tables=[self.path], report=lines.append) == 0, lines
        return "tier"

    def cut(self) -> str:
        """Cut the log up to the tiered offsets, or less."""
        offsets = self.tierer.coordinator.describe(self.tierer.definition.table_id).offsets
        table = self.client.table(self.path)
        existing = {each.table_id for each in table.partitions()} if self.partition else set()
        for place, offset in offsets.items():
            path, bucket = table.path, place
            if isinstance(place, PartitionBucket):
                if place.table_id not in existing:
                    continue
                path, bucket = path.of_partition(place.partition), place.bucket
            self.server.cut(path.topic, bucket, self.rng.choice([offset, offset // 2]))
        return "cut"

    def alter(self) -> str:
        columns = [each for each in self.columns if each.name not in {*self.key, KEY, self.partition}]
        kind = self.rng.choice(["ADD", "ADD", "ADD", "RENAME", "DROP"])
        names = {each.name.lower() for each in self.columns}
        new = self.rng.choice([each for each in NAMES if each.lower() not in names])
        value = None
        if kind == "ADD":
            words = self.rng.choice([*SPARK_TYPES, *ADDED, *ADDED])
            value = ADDED.get(words)
            text = f"ADD {quote_name(new)} {words}"
        elif not columns:
            return "alter nothing"
        elif kind == "DROP":
            text = f"DROP {quote_name(self.rng.choice(columns).name)}"
        else:
            text = f"RENAME {quote_name(self.rng.choice(columns).name)} TO {quote_name(new)}"
        before = {each.id: each.name for each in self.columns}
        self.client.execute(f"ALTER TABLE {self.path} {text}")
        after = {each.id: each.name for each in self.columns}
        for row in self.rows.values():
            renamed = {after[id_]: row[name] for id_, name in before.items() if id_ in after}
            row.clear()
            row.update({name: renamed.get(name, value) for name in after.values()})
        return text

    def expire(self) -> str:
        """Drop a partition as the calendar does when the lake has all of it."""
        self.tier()
        names = [each.name for each in self.client.table(self.path).partitions()]
        if not names:
            return "expire nothing"
        return self.expire_these([self.rng.choice(names)])

    def expire_these(self, names: Sequence[str]) -> str:
        for name in names:
            self.server.expire(self.client.table(self.path).definition, name)
            self.expired.add(name)
        return f"expire {names}"

    def pass_by(self) -> str:
        """Let the partitions that are new expire before a stream looks."""
        before = self.client.table(self.path).partitions()
        said = [self.append(), self.tier()]
        after = self.client.table(self.path).partitions()
        return ", ".join([*said, self.expire_these([each.name for each in after if each not in before])])

    def drop(self) -> str:
        names = [each.name for each in self.client.table(self.path).partitions()]
        if not names or self.rng.random() < 0.5:
            return "drop nothing"
        name = self.rng.choice(names)
        self.client.admin.drop_partition(self.path, {str(self.partition): name})
        gone = [k for k, row in self.rows.items() if self.day(row) == name]
        self.gone.update(gone)
        for k in gone:
            del self.rows[k]
        self.expired.discard(name)
        return f"drop {name}"

    # -- reads

    def reads(self) -> Iterator[tuple[str, Callable[[], pa.Table]]]:
        spark, address, client = self.spark, self.server.address, self.client
        table = f"headrace.{self.path}"
        yield "catalog", lambda: spark.sql(f"SELECT * FROM {table}").toArrow()
        yield "source", lambda: load(spark, address, self.path).toArrow()
        yield "union_read", lambda: union_read(spark, address, self.path).toArrow()
        yield "client", lambda: client.table(self.path).to_arrow()
        yield "sql", lambda: client.sql(f"SELECT * FROM {self.name}").to_arrow()
        yield (
            "DuckDB",
            lambda: client.sql(f"SELECT a.* FROM {self.name} a LEFT JOIN (SELECT 1 AS o) ON TRUE").to_arrow(),
        )

    def some_of_it(self, column: str, least: int) -> Iterator[tuple[str, Callable[[], pa.Table]]]:
        """Yield the reads of two columns where `k` is at least that."""
        spark, address, client = self.spark, self.server.address, self.client
        where, names = f"{KEY} >= {least}", list(dict.fromkeys([KEY, column]))
        listed, ours = ", ".join(map(backquoted, names)), ", ".join(map(quoted, names))
        chosen = [*map(backquoted, names)]
        yield (
            "catalog",
            lambda: spark.sql(f"SELECT {listed} FROM headrace.{self.path} WHERE {where}").toArrow(),
        )
        yield "source", lambda: load(spark, address, self.path).where(where).select(*chosen).toArrow()
        yield (
            "union_read",
            lambda: union_read(spark, address, self.path).where(where).select(*chosen).toArrow(),
        )
        yield "client", lambda: client.table(self.path).to_arrow(names, filter=where)
        yield "sql", lambda: client.sql(f"SELECT {ours} FROM {self.name} WHERE {where}").to_arrow()

    def faults(self, report: Report) -> Iterator[str]:
        """Yield a text for each read that does not equal the model."""
        columns = self.columns
        names = [each.name for each in columns]
        every = comparable(self.arrow(list(self.rows.values()), columns))
        column = self.rng.choice(names)
        least = self.rng.randrange(self.written + 1)
        kept = self.arrow([row for k, row in self.rows.items() if k >= least], columns)
        of_some = comparable(kept.select(list(dict.fromkeys([KEY, column]))))
        asked = [
            *((name, read, names, every) for name, read in self.reads()),
            *(
                (f"{name}, {column} of k >= {least}", read, list(dict.fromkeys([KEY, column])), of_some)
                for name, read in self.some_of_it(column, least)
            ),
        ]
        for name, read, wanted, expected in self.rng.sample(asked, READS):
            report.asked[name.partition(",")[0]] += 1
            try:
                found = comparable(read().select(wanted))
            except Exception as error:  # noqa: BLE001 - a finding
                yield f"{name}: {type(error).__name__} {str(error)[:1500]}"
                continue
            fault = difference(found, expected)
            if fault is not None:
                yield f"{name}: {fault}"
        count = f"SELECT count(*) AS n FROM headrace.{self.path}"
        counts: dict[str, Callable[[], int]] = {
            "catalog": lambda: self.spark.sql(count).collect()[0].n,
            "client": lambda: self.client.table(self.path).count(),
            "sql": lambda: self.client.sql(f"SELECT count(*) AS n FROM {self.name}").rows()[0]["n"],
        }
        for name, ask in counts.items():
            if (n := ask()) != len(self.rows):
                yield f"{name}: count {n}, not {len(self.rows)}"
        for each in self.streams:
            if self.rng.random() < each.chance:
                report.asked["stream"] += 1
                yield from each.faults()


class Following:
    """A stream of a log table that is read now and then: each row once, also after a restart."""

    def __init__(self, of: Living, chance: float) -> None:
        self.of, self.chance = of, chance
        self.seen: Counter[int] = Counter()
        self.losses = 0
        self.reader = self.start()
        self.at = self.reader.initialOffset()
        self.last = self.at

    def start(self) -> Any:
        given = {"bootstrap.servers": self.of.server.address, "table": self.of.path}
        return stream_reader(ReadOptions.parse(given), [KEY])

    def read(self, start: Any, end: Any) -> list[int]:
        parts = [pickle.loads(pickle.dumps(each)) for each in self.reader.partitions(start, end)]
        return sorted(
            k for each in parts for batch in self.reader.read(each) for k in batch.column(KEY).to_pylist()
        )

    def faults(self) -> Iterator[str]:
        rng, name = self.of.rng, f"stream {self.chance}"
        restart = rng.random()
        if restart < 0.3:
            self.reader = self.start()
            if restart < 0.15:  # AvailableNow asks for the end first
                end = self.reader.latestOffset()
                self.read(self.last, self.at)
            else:
                self.read(self.last, self.at)
                end = self.reader.latestOffset()
        else:
            end = self.reader.latestOffset()
        end = json.loads(json.dumps(end))
        try:
            new = self.read(self.at, end)
        except TableError as error:
            if error.code is not TableErrorCode.SCAN_EXPIRED:
                raise
            yield f"{name}: {error}"
            return
        self.seen.update(new)
        self.last, self.at = self.at, end
        twice = sorted(k for k, count in self.seen.items() if count > 1)
        missing = sorted(self.of.rows.keys() - self.seen.keys())
        if twice or missing:
            yield f"{name}: twice {twice}, missing {missing}"
        if more := self.seen.keys() - self.of.rows.keys() - self.of.gone:
            yield f"{name}: unknown {sorted(more)}"


def in_microseconds(rows: pa.Table) -> pa.Table:
    """Return rows with moments as Spark has them."""
    for index, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            kind = pa.timestamp("us", field.type.tz)
            rows = rows.set_column(index, field.with_type(kind), rows.column(index).cast(kind))
    return rows


def comparable(rows: pa.Table) -> list[str]:
    for index, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            kind = pa.timestamp(field.type.unit, "UTC")
            rows = rows.set_column(index, field.with_type(kind), rows.column(index).cast(kind))
    return lines_of(rows)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_every_interface_reads_a_random_table_with_a_lake_alike(
    spark: Any, server: CuttingBroker, client: Connection
) -> None:
    seed, seconds = seed_and_seconds(1200)
    print(f"HEADRACE_DIFFERENTIAL_SEED={seed} HEADRACE_DIFFERENTIAL_SECONDS={seconds}")
    run = Run(seed)
    spark.conf.set("spark.headrace.bootstrap.servers", server.address)
    try:
        for rng, _ in run.tables(seconds, 1_000_000):
            try:
                table = Living(rng, spark, server, client)
            except TableError as error:
                print("refused:", error.message[:200])
                run.report.refused += 1
                continue
            for _ in range(MOMENTS):
                for _ in range(rng.randrange(1, 4)):
                    table.step()
                faults = list(table.faults(run.report))
                if faults:
                    run.report.faults.append("\n  ".join([*table.said, *faults]))
                    print(run.report.faults[-1], flush=True)
                    break
            client.admin.drop_table(table.path)
    finally:
        spark.conf.unset("spark.headrace.bootstrap.servers")
    print(run.report)
    assert not run.report.faults, "\n".join([str(run.report), *run.report.faults])
    assert run.report.asked["catalog"] > 0
