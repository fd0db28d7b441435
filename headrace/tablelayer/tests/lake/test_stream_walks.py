"""Random walks of streams over a table that is written, tiered, cut, expired and dropped: each row once."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from headrace.tablelayer.client import Connection
from headrace.tablelayer.lake.adapter import LakeError
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.spark.options import ReadOptions
from headrace.tablelayer.spark.stream import stream_reader
from headrace.tablelayer.tests.lake.test_plain_name import SEED, CuttingBroker, Query, Row, World
from headrace.tablelayer.tests.lake.test_plain_name import address as address
from headrace.tablelayer.tests.lake.test_plain_name import client as client
from headrace.tablelayer.tests.lake.test_plain_name import server as server

_REASONS = ("nothing else knows of these partitions", "has expired", "history", "of an earlier partition")
"""Parts of the messages with which a stream may end after snapshots have expired."""


class Walker:
    """A stream that reads now and then, with the rows that it has read. It begins again when snapshots are missing."""

    def __init__(self, server: CuttingBroker, world: World, pace: float, **options: str) -> None:
        self.server, self.world, self.options = server, world, options
        self.pace = pace
        self.begin()

    def begin(self) -> None:
        self.query = Query(self.server, self.world, **self.options)
        self.seen: Counter[Row] = Counter()
        self.planned = False

    def known(self) -> set[str]:
        """Return the ids of the partitions in the stream's position."""
        return {each["id"] for each in self.query.at.get("partitions", {}).values()}

    def step(self, rng: random.Random) -> str:
        query = self.query
        if rng.random() > self.pace:
            return ""
        if self.planned:  # the process was killed after it had planned a batch; another one repeats it
            query.reader = stream_reader(ReadOptions.parse(query.given), query.names)
            rows, done = query.rows(query.reader.partitions(query.at, query.end)), "repeat"
            query.last, query.at, self.planned = query.at, query.end, False
        elif (way := rng.random()) < 0.2:
            query.plan()
            self.planned = True
            return "plan"
        elif way < 0.4 and not self.query.given.get("maxOffsetsPerTrigger"):
            rows, done = query.available_now(), "available now"
        else:
            rows, done = query.batch(), "batch"
        self.seen.update(rows)
        return f"{done} {len(rows)}"


class Walk:
    """One walk. `of` has the id of the partition of each row, "" without partitions."""

    def __init__(
        self, rng: random.Random, server: CuttingBroker, client: Connection, partitioned: bool
    ) -> None:
        self.rng = rng
        self.world = World(server, client, partitioned=partitioned)
        self.of: dict[Row, str] = {}
        self.dropped: set[str] = set()
        self.log: list[str] = []
        self.forgets = 0
        self.append(10)
        self.walkers = [
            Walker(server, self.world, 0.9),
            Walker(server, self.world, 0.15),
            Walker(server, self.world, 0.4, maxOffsetsPerTrigger="7"),
        ]

    def ids(self) -> dict[str, str]:
        return {each.name: str(each.table_id) for each in self.world.table.partitions()}

    def append(self, count: int) -> None:
        world = self.world
        days = self.rng.sample("abc", self.rng.randrange(1, 4))
        rows: list[Row] = [(world.ids + at, at, self.rng.choice(days)) for at in range(count)]
        world.ids += count
        world.write(rows)
        ids = self.ids() if world.is_partitioned else {}
        self.of |= {row: ids.get(row[2], "") for row in rows}

    def step(self) -> str:
        rng, world = self.rng, self.world
        kind = rng.choice(["append", "append", "tier", "cut", "expire", "drop", "forget"])
        day = rng.choice("abc")
        if kind == "append":
            self.append(rng.randrange(1, 20))
        elif kind == "tier":
            world.tier()
        elif kind == "forget":
            self.forgets += 1
            world.expire_snapshots()
        elif kind == "cut":
            world.expire({place: rng.choice([end, end // 2]) for place, end in world.tierer.offsets.items()})
        elif not world.is_partitioned or day not in self.ids():
            return ""
        elif kind == "expire":
            world.expire_partition(day)
        elif rng.random() < 0.5:
            self.dropped |= {each for row, each in self.of.items() if row[2] == day}  # expired ones too
            world.drop_partition(day)
        return f"{kind} {day}"

    def read(self, each: Walker) -> str:
        """Let a stream read. It may end only with a reason: snapshots that it needs have expired."""
        try:
            return each.step(self.rng)
        except (TableError, LakeError) as error:
            said = str(error)
            if not self.forgets or not any(reason in said for reason in _REASONS):
                raise
            if _REASONS[0] in said and each.query.at.get("gone"):
                unread = {of for row, of in self.of.items() if row not in each.seen}
                assert unread - each.known() - set(self.ids().values()), f"nothing was missed; {self.log}"
            each.begin()
            return f"ended: {said}"

    def check(self) -> None:
        for number, each in enumerate(self.walkers):
            told = f"stream {number}; {self.log}"
            assert not each.seen.keys() - self.of.keys(), told
            assert not [row for row, count in each.seen.items() if count > 1], told

            if each.planned:
                continue
            rest: list[Row] = []
            try:
                while new := each.query.batch():
                    rest += new
            except (TableError, LakeError):
                assert self.forgets, told
                continue
            assert not set(rest) & each.seen.keys(), told
            each.seen.update(rest)
            missing = [row for row in self.of if row not in each.seen and self.of[row] not in self.dropped]
            assert not missing, f"{told}: {missing[:5]}"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("walks", "steps"), [(1, 40), pytest.param(40, 100, marks=pytest.mark.soak)])
@pytest.mark.parametrize("partitioned", [False, True])
def test_streams_read_each_row_once_on_random_walks(
    server: CuttingBroker, client: Connection, partitioned: bool, walks: int, steps: int
) -> None:
    for walk in range(walks):
        rng = random.Random(f"{SEED}/{walk}")
        live = Walk(rng, server, client, partitioned)
        for _ in range(steps):
            said = [live.step(), *(live.read(each) for each in live.walkers)]
            live.log.append(", ".join(filter(None, said)))
        live.check()
