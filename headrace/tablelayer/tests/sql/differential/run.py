"""Runs of the generator: rounds of random tables, conditions and statements from a seed, with each answer compared.

A round has one table. Its conditions are checked in the part that is sent to the server (`translation`), then asked in
statements of `queries` through the APIs, then used to change rows. A fault is made smaller before it is reported.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from headrace.tablelayer.client import Connection, Table
from headrace.tablelayer.tests.sql.differential import queries
from headrace.tablelayer.tests.sql.differential.conditions import (
    HEADRACE,
    Condition,
    random_condition,
    smallest,
)
from headrace.tablelayer.tests.sql.differential.doors import Doors, filter_is_taken, open_doors
from headrace.tablelayer.tests.sql.differential.queries import Draw, Make, Said
from headrace.tablelayer.tests.sql.differential.reference import (
    Reference,
    RefusedError,
    difference,
    lines_of,
    true_rows,
)
from headrace.tablelayer.tests.sql.differential.tables import NESTED, PLAIN, RandomTable, quoted, random_table
from headrace.tablelayer.tests.sql.differential.translation import translation_fault

CONDITIONS = 8
"""Number of conditions in a round."""
FAULTS_MAX = 20
ALIKE_MAX = 3
"""Maximum number of reported faults of one kind of question."""
Check = Callable[[Condition, Condition], str | None]
"""Ask with two conditions; return the answer's fault, and the statement."""


@dataclass
class Report:
    """The number of questions and the findings."""

    seed: int
    rounds: int = 0
    conditions: int = 0
    refused: int = 0
    """Conditions that DuckDB cannot compute over the copy."""
    asked: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.asked.items()))
        return (
            f"seed {self.seed}: {self.asked.total()} statements and filters over {self.conditions} conditions of "
            f"{self.rounds} tables ({kinds}; {self.refused} conditions refused by DuckDB); {len(self.faults)} faults"
        )


def seed_and_seconds(seconds: float, seed: int | None = None) -> tuple[int, float]:
    """Return HEADRACE_DIFFERENTIAL_SEED and HEADRACE_DIFFERENTIAL_SECONDS. `seed` None: another one each time."""
    usual = random.randrange(1 << 30) if seed is None else seed
    return (
        int(os.environ.get("HEADRACE_DIFFERENTIAL_SEED", usual)),
        float(os.environ.get("HEADRACE_DIFFERENTIAL_SECONDS", seconds)),
    )


class Run:
    """A run over a server. `kinds` and `parts` limit the questions."""

    def __init__(self, seed: int, asked_min: int = 0) -> None:
        """`asked_min`: statements and filters that are asked however long they take, as on a busy machine."""
        self._asked_min = asked_min
        self.report = Report(seed)
        self.reference = Reference()
        self._told: Counter[str] = Counter()
        self._ends = 0.0

    @property
    def is_over(self) -> bool:
        """Return whether the time has passed and enough was asked; a round that is under way ends early."""
        return time.monotonic() > self._ends and self.report.asked.total() >= self._asked_min

    def tables(self, seconds: float, rounds: int) -> Iterator[tuple[random.Random, int]]:
        """Yield a source of random choices for each round until the time, or the number of rounds, is over."""
        self._ends = time.monotonic() + seconds
        for number in range(rounds):
            if self.is_over or len(self.report.faults) >= FAULTS_MAX:
                return
            self.report.rounds += 1
            yield random.Random(f"{self.report.seed}/{number}"), number

    def conditions(self, rng: random.Random, table: RandomTable, count: int = CONDITIONS) -> Iterator[Said]:
        """Conditions that the reference can compute, with their values."""
        for _ in range(count):
            if self.is_over:
                return
            condition = random_condition(rng, table, rng.choice([0, 1, 2]))
            self.report.conditions += 1
            try:
                yield Said(condition, self.reference.truth(condition))
            except RefusedError:
                self.report.refused += 1

    def check(self, kind: str, table: RandomTable, check: Check, p: Condition, q: Condition) -> None:
        """Count a question. If its answer is wrong, report the smallest conditions for which it is."""
        self.report.asked[kind] += 1
        fault = self._fault(check, p, q)
        if fault is None:
            return
        p = smallest(p, lambda each: self._fault(check, each, q) is not None)
        q = smallest(q, lambda each: self._fault(check, p, each) is not None)
        fault = self._fault(check, p, q) or fault
        told = f"{kind}: {fault}"
        self._told[kind] += 1
        if self._told[kind] <= ALIKE_MAX:
            seed = f"HEADRACE_DIFFERENTIAL_SEED={self.report.seed}, round {self.report.rounds - 1}"
            self.report.faults.append(f"{told}\n  {table.statement}\n  {seed}")

    @staticmethod
    def _fault(check: Check, p: Condition, q: Condition) -> str | None:
        try:
            return check(p, q)
        except RefusedError:
            return None
        except Exception as error:  # noqa: BLE001 - an error where there is an answer is a fault
            words = " ".join(str(error).split())
            cause = words[words.rfind("Caused by") :][:300] if "Caused by" in words else ""
            told = f"{type(error).__name__}: {words[:300]} {cause}"
            texts = dict.fromkeys(each.text(HEADRACE, quoted) for each in (p, q))
            return f"{told}\n  with {' and with '.join(texts)}"

    # -- without a server

    def translations(self, seconds: float, rounds: int) -> Report:
        """Check conditions only in the part that is sent to the server."""
        for rng, _ in self.tables(seconds, rounds):
            table = random_table(rng, "default.t", row_count=rng.choice([1, 7, 40]))
            self.reference.load(table)
            for said in self.conditions(rng, table, 4 * CONDITIONS):
                self.translation(table, said)
        return self.report

    def translation(self, table: RandomTable, said: Said) -> None:
        def check(p: Condition, _: Condition) -> str | None:
            _, fault = translation_fault(table, p, self.reference.truth(p))
            return None if fault is None else f"{p.text(HEADRACE, quoted)}\n  {fault}"

        self.check("translation", table, check, said.condition, said.condition)

    # -- over a server

    def questions(
        self,
        connection: Connection,
        database: str,
        folder: Path,
        seconds: float,
        rounds: int,
        kinds: tuple[Make, ...] = queries.KINDS,
        types: tuple[str, ...] = (*PLAIN, *NESTED),
    ) -> Report:
        """Run tables, conditions and statements through the APIs; files are written to `folder`."""
        with open_doors(connection, database) as doors:
            for rng, number in self.tables(seconds, rounds):
                count = 700 if number % 10 == 9 else rng.choice([0, 1, 20, 40])
                table = random_table(rng, f"{database}.t{number}", row_count=count, types=types)
                self._fill(doors, table)
                self.reference.load(table)
                said = list(self.conditions(rng, table))
                for index, p in enumerate(said):
                    if self.is_over:
                        break
                    q = said[(index + 1) % len(said)]
                    self.translation(table, p)
                    self._filter(doors, table, rng, p)
                    for _ in range(2):
                        self._query(doors, table, rng, kinds, p, q)
                if table.primary_key and not self.is_over:
                    self._changes(doors, table, rng, said)
                if not self.is_over:
                    self._copies(doors, table, rng, said, folder)
                connection.admin.drop_table(table.path)
        return self.report

    def _fill(self, doors: Doors, table: RandomTable) -> None:
        for _ in doors.session.run(table.statement):
            pass
        handle = doors.connection.table(table.path)
        (handle.upsert if table.primary_key else handle.append)(table.rows)

    def _filter(self, doors: Doors, table: RandomTable, rng: random.Random, p: Said) -> None:
        handle = doors.connection.table(table.path)
        columns = rng.sample(handle.definition.schema.names, rng.randint(1, len(table.columns)))
        form = rng.randrange(4)

        def check(condition: Condition, _: Condition) -> str | None:
            text = condition.text(HEADRACE, quoted)
            rows = true_rows(self.reference.truth(condition))
            if form == 0:
                count = filter_is_taken(lambda: handle.count(text))
                return None if count in (None, len(rows)) else f"count({text!r}) is {count}, not {len(rows)}"
            if form == 1 and not table.primary_key:
                found = filter_is_taken(lambda: _scanned(handle, columns, text))
            else:
                found = filter_is_taken(lambda: handle.to_arrow(columns, filter=text))
            fault = (
                None if found is None else difference(lines_of(found), self.reference.lines(columns, rows))
            )
            return None if fault is None else f"filter {text!r}, columns {columns}: {fault}"

        self.check("filter", table, check, p.condition, p.condition)

    def _query(
        self, doors: Doors, table: RandomTable, rng: random.Random, kinds: tuple[Make, ...], p: Said, q: Said
    ) -> None:
        make, seed = rng.choice(kinds), str(rng.random())
        draw = Draw(seed, table, self.reference)
        door = rng.choices(["sql", "flight", "rest"], [8, 1, 1])[0]
        if make is queries.unqualified_with:
            door = "sql"  # the only one with a database of its own

        def check(left: Condition, right: Condition) -> str | None:
            query = make(
                draw, Said(left, self.reference.truth(left)), Said(right, self.reference.truth(right))
            )
            if door == "rest":
                rows = doors.rest(query.sql)
                wanted = len(query.lines) if query.at_most is None else min(query.at_most, len(query.lines))
                fault = None if len(rows) == min(wanted, 1000) else f"{len(rows)} rows, not {wanted}"
            else:
                found = doors.sql(query.sql) if door == "sql" else lines_of(doors.flight(query.sql))
                lines = query.lines
                if query.zeros_alike:
                    found, lines = (
                        [each.replace("-0.0", "0.0") for each in each_of] for each_of in (found, lines)
                    )
                fault = difference(found, lines, at_most=query.at_most)
            return None if fault is None else f"{query.sql}\n  {fault}"

        self.check(f"{door} {make.__name__}", table, check, p.condition, q.condition)

    def _changes(self, doors: Doors, table: RandomTable, rng: random.Random, said: list[Said]) -> None:
        """DELETE the three parts of a condition and UPDATE some rows; afterwards the rows are as before."""
        handle = doors.connection.table(table.path)
        names = [column.name for column in table.columns]
        every = range(table.rows.num_rows)

        def stands(rows: list[int], what: str) -> str | None:
            fault = difference(lines_of(handle.to_arrow(names)), self.reference.lines(names, rows))
            return None if fault is None else f"{what}\n  {fault}"

        def delete(p: Condition, _: Condition) -> str | None:
            truth = self.reference.truth(p)
            text = p.text(HEADRACE, quoted)
            try:
                left = list(every)
                for part, value in ((text, True), (f"NOT ({text})", False), (f"({text}) IS NULL", None)):
                    statement = f"DELETE FROM {table.path} WHERE {part}"
                    count, wanted = doors.written(statement), sum(each is value for each in truth)
                    left = [row for row in left if truth[row] is not value]
                    if count != wanted:
                        return f"{statement}\n  {count} rows deleted, not {wanted}"
                    if (fault := stands(left, statement)) is not None:
                        return fault
            finally:
                handle.upsert(table.rows)
            return None

        others = [
            column
            for column in table.columns
            if column.name not in table.primary_key and column.name != table.partition
        ]
        target = rng.choice(others) if others else None
        alias = rng.choice(["", " AS al"])

        def update(p: Condition, _: Condition) -> str | None:
            """Setting a value to itself keeps it; then it is set to NULL where the condition is true."""
            assert target is not None
            truth = self.reference.truth(p)
            text, name = p.text(HEADRACE, quoted), quoted(target.name)
            rows = true_rows(truth)
            try:
                for value in (name, "NULL"):
                    statement = f"UPDATE {table.path}{alias} SET {name} = {value} WHERE {text}"
                    count = doors.written(statement)
                    if count != len(rows):
                        return f"{statement}\n  {count} rows updated, not {len(rows)}"
                    found = lines_of(handle.to_arrow(names))
                    wanted = self.reference.lines(names, every)
                    if value == "NULL":
                        at = names.index(target.name)
                        for row in rows:
                            cells = wanted[row].split("\t")
                            cells[at] = "NULL"
                            wanted[row] = "\t".join(cells)
                    if (fault := difference(found, wanted)) is not None:
                        return f"{statement}\n  {fault}"
            finally:
                handle.upsert(table.rows)
            return None

        for p in rng.sample(said, min(2, len(said))):
            self.check("DELETE", table, delete, p.condition, p.condition)
            if target is not None:
                self.check("UPDATE", table, update, p.condition, p.condition)

    def _copies(
        self, doors: Doors, table: RandomTable, rng: random.Random, said: list[Said], folder: Path
    ) -> None:
        """Copy the rows that a condition is true for into a table: by INSERT, by CREATE TABLE AS, by a file."""
        names = [column.name for column in table.columns]
        form = rng.choice(["INSERT", "CREATE TABLE AS", "COPY csv", "COPY json", "COPY parquet"])
        target = f"{table.path}_copy"
        file = folder / f"rows.{form.split()[-1]}"

        def check(p: Condition, _: Condition) -> str | None:
            rows = true_rows(self.reference.truth(p))
            query = (
                f"SELECT {', '.join(map(quoted, names))} FROM {table.path} WHERE {p.text(HEADRACE, quoted)}"
            )
            made = table.statement.replace(table.path, target, 1)
            statements = {
                "INSERT": [made, f"INSERT INTO {target} {query}"],
                "CREATE TABLE AS": [f"CREATE TABLE {target} AS {query}"],
            }.get(form, [made, f"COPY ({query}) TO '{file}'", f"COPY {target} FROM '{file}'"])
            try:
                counts = [doors.written(statement) for statement in statements]
                found = lines_of(doors.connection.table(target).to_arrow(names))
            finally:
                doors.connection.admin.drop_table(target, if_exists=True)
            fault = difference(found, self.reference.lines(names, rows))
            if fault is None and counts[-1] != len(rows):
                fault = f"{counts[-1]} rows written, not {len(rows)}"
            return None if fault is None else f"{'; '.join(statements)}\n  {fault}"

        for p in said[:1]:
            self.check(form, table, check, p.condition, p.condition)


def _scanned(table: Table, columns: Sequence[str], condition: str) -> pa.Table:
    """Return a log table's rows from a scan with a filter."""
    with table.scan(columns, start="earliest", until="latest", filter=condition) as scan:
        found = [batch.batch.select(columns) for batch in scan]
    schema = pa.schema([table.arrow_schema.field(name).with_nullable(True) for name in columns])
    return pa.concat_tables(
        [schema.empty_table(), *(pa.table(each) for each in found)], promote_options="permissive"
    )
