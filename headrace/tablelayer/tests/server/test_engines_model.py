"""R1 to R10, R12.2, R12.3, R14 on a real broker: random tables of every kind against the rules in plain Python.

After every batch the emitted changelog is the oracle's, the changelog from 0 replayed into an empty map equals the
table, and lookups and the row count agree. Batches are repeated as by retries. The server is stopped cleanly, or its
files are taken as `kill -9` leaves them, stores flushed or not.

`HEADRACE_MODEL_SEED` and `HEADRACE_MODEL_OPERATIONS` choose the seed and the length of the soak test.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.tests.server.oracle import Change, Oracle, Refused, comparable
from headrace.tablelayer.tests.server.random_tables import KEY, random_batch, random_definition
from headrace.tablelayer.tests.server.tables import Row, Table, run, tables
from simulator.files import copy_as_killed

REFUSED = (TableErrorCode.DELETION_DISABLED, TableErrorCode.INVALID_ROW)


class Session:
    """One table over restarts, with its known state."""

    def __init__(self, rng: random.Random, definition: TableDefinition) -> None:
        self.rng = rng
        self.definition = definition
        self.oracle = Oracle(definition)
        self.replayed: dict[tuple[Any, ...], Row] = {}
        self.end = 0
        self.numbers: set[int] = set()
        self.sequence = 0
        self.sent: list[tuple[bytes, Any, dict[str, Any]]] = []
        self.operations = 0
        self.refused = 0

    async def batch(self, table: Table) -> None:
        operations, columns, overwrite = random_batch(self.rng, self.definition)
        schema = self.definition.schema
        ids = None if columns is None else [schema.column(name).id for name in columns]
        changes = [3 if sign == "+" else 4 for sign, _ in operations]
        data = table.batch(
            [row for _, row in operations], changes, columns,
            producer_id=9, producer_epoch=0, base_sequence=self.sequence,
        )  # fmt: skip
        how = {"target_columns": ids, "overwrite": overwrite}
        answer: Any = await table.put_batch(data, **how)
        before = dict(self.oracle.rows)
        emitted = [] if answer.error_code else await table.changelog(answer.base_offset)
        if self.oracle.numbered is not None:
            given = [row[self.oracle.numbered] for change, row in emitted if change == "+I"]
            assert self.numbers.isdisjoint(given)
            self.numbers.update(given)
            assert len(set(given)) == len(given)
            self.oracle.numbers = given
        try:
            expected = self.oracle.apply(operations, columns, overwrite=overwrite)
        except Refused:
            assert answer.error_code in REFUSED, answer.error_message
            assert table.partition.log.log_end_offset == self.end
            assert self.oracle.rows == before
            self.refused += 1
        else:
            assert answer.error_code == 0, answer.error_message
            assert self.seen(emitted) == self.seen(expected)
            assert (answer.base_offset, answer.end_offset) == (self.end, self.end + max(1, len(expected)))
            self.end = answer.end_offset
            self.sequence += len(operations)
            self.sent = [*self.sent, (data, answer, how)][-5:]
            self.replay(emitted)
        self.operations += len(operations)
        assert self.rows(self.replayed.values()) == self.rows(self.oracle.rows.values())

    async def retry(self, table: Table) -> None:
        """R3.1: one of the last five batches again."""
        if not self.sent:
            return
        data, answer, how = self.rng.choice(self.sent)
        again: Any = await table.put_batch(data, **how)
        assert again.error_code == 0, again.error_message
        assert (again.base_offset, again.end_offset) == (answer.base_offset, answer.end_offset)
        assert table.partition.log.log_end_offset == self.end

    def replay(self, changes: list[Change]) -> None:
        for change, row in changes:
            at = tuple(row[name] for name in KEY)
            if change == "+I":
                assert at not in self.replayed
                self.replayed[at] = row
            elif change == "+U":
                assert at in self.replayed
                self.replayed[at] = row
            elif change == "-U":
                assert self.seen([(change, self.replayed[at])]) == self.seen([(change, row)])
            else:
                assert self.seen([(change, self.replayed.pop(at))]) == self.seen([(change, row)])

    def seen(self, changes: list[Change]) -> list[Any]:
        return [(change, comparable(self.definition, row)) for change, row in changes]

    def rows(self, rows: Any) -> list[Any]:
        ordered = sorted(rows, key=lambda row: (row["k1"], row["k2"].encode()))
        return [comparable(self.definition, row) for row in ordered]

    async def check(self, table: Table) -> None:
        expected = self.rows(self.oracle.rows.values())
        assert [comparable(self.definition, row) for row in await table.state()] == expected
        assert await table.count() == len(expected)
        keys = [{"k1": n, "k2": text} for n in range(8) for text in ("", "x")]
        looked_up = await table.lookup(*keys)
        for key, row in zip(keys, looked_up, strict=True):
            held = self.oracle.rows.get((key["k1"], key["k2"]))
            assert comparable(self.definition, row) == comparable(self.definition, held)


def live(seed: int, tmp_path: Path, restarts: int, batches: int) -> Session:
    """Run the life of one random table; return its counts."""
    rng = random.Random(seed)
    definition = random_definition(rng)
    print(f"seed {seed}: {dict(definition.options)} {definition.schema.to_json()}")
    session = Session(rng, definition)

    async def work() -> None:
        directory = tmp_path / f"{seed}-0"
        for number in range(restarts + 1):
            limits = Limits(flush_bytes=rng.choice([500, 1 << 20]))
            crash_to = tmp_path / f"{seed}-{number + 1}" if rng.random() < 0.7 else None
            async with tables(directory, limits=limits) as all_tables:
                if number == 0:
                    table = await all_tables.create_as(definition)
                else:
                    table = await all_tables.open()
                    assert table.definition.without_id() == replace(definition, bucket_count=1)
                    await session.check(table)
                for _ in range(batches):
                    await session.batch(table)
                    if rng.random() < 0.2:
                        await session.retry(table)
                await session.check(table)
                if crash_to is not None:
                    copy_as_killed(directory, crash_to)
            directory = crash_to or directory

    run(work)
    shutil.rmtree(tmp_path, ignore_errors=True)
    return session


@pytest.mark.parametrize("seed", range(8))
def test_r1_to_r14_a_random_table_of_any_kind_equals_the_rules_over_restarts(
    tmp_path: Path, seed: int
) -> None:
    assert live(seed, tmp_path / "tables", restarts=2, batches=8).operations > 50


@pytest.mark.parametrize("seed", [8, 34, 37])
def test_r1_5_random_tables_that_refuse_batches_equal_the_rules(tmp_path: Path, seed: int) -> None:
    """The refused batches overflow an aggregation, or have deletes that are disabled."""
    assert live(seed, tmp_path / "tables", restarts=1, batches=16).refused > 0


@pytest.mark.soak
def test_r1_to_r14_twenty_thousand_operations_equal_the_rules(tmp_path: Path) -> None:
    seed = int(os.environ.get("HEADRACE_MODEL_SEED", str(random.randrange(1 << 30))))
    wanted = int(os.environ.get("HEADRACE_MODEL_OPERATIONS", "20000"))
    done = 0
    while done < wanted:
        done += live(seed, tmp_path / "tables", restarts=4, batches=25).operations
        seed += 1
    print(f"{done} operations")
