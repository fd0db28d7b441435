"""Statements of one row behind kill -9 and ALTER TABLE: each is carried out once, and counts the row that was there.

HEADRACE_SOAK_SECONDS and HEADRACE_SOAK_SEED set duration and seed.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter

import pytest

from headrace.tablelayer.client import OutcomeUnknown, connect

SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "300"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "1"))
WRITERS = 3
KEYS = 20
TABLES = (
    "CREATE TABLE items (id BIGINT, v BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num' = '2')",
    "CREATE TABLE sums (id BIGINT, n BIGINT, PRIMARY KEY (id) NOT ENFORCED)"
    " WITH ('bucket.num' = '2', 'table.merge-engine' = 'aggregation', 'fields.n.agg' = 'sum')",
    "CREATE TABLE events (id BIGINT, v BIGINT) WITH ('bucket.num' = '2')",
)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]


class Statements(threading.Thread):
    """One session with keys of its own. It knows the values that a key can have, None without a row."""

    def __init__(self, address: str, number: int, stop: threading.Event) -> None:
        super().__init__()
        self.possible: dict[int, set[int | None]] = {number * KEYS + at: {None} for at in range(KEYS)}
        self.added, self.events = Counter[int](), Counter[int]()
        self.may_be_added, self.may_be_events = Counter[int](), Counter[int]()
        self.problems: list[str] = []
        self.done = 0
        self._address, self._stop_event = address, stop
        self._rng = random.Random(f"{SEED}/{number}")
        self._next = number

    def run(self) -> None:
        try:
            with connect(self._address) as connection:
                while not self._stop_event.is_set():
                    self._one(connection)
                    self.done += 1
        except Exception as error:  # noqa: BLE001 - told by the test
            self.problems.append(f"{type(error).__name__}: {error}")

    def _one(self, connection) -> None:
        rng, key = self._rng, self._rng.choice(list(self.possible))
        self._next += WRITERS
        value = self._next
        match rng.randrange(5):
            case 0:
                self._counted(
                    connection,
                    f"INSERT INTO events (id, v) VALUES ({value}, 0)",
                    self.events,
                    self.may_be_events,
                    value,
                )
            case 1:
                self._counted(
                    connection,
                    f"INSERT INTO sums (id, n) VALUES ({key}, 1)",
                    self.added,
                    self.may_be_added,
                    key,
                )
            case 2:
                self._changed(
                    connection, f"INSERT INTO items (id, v) VALUES ({key}, {value})", key, {value}, None
                )
            case 3:
                self._changed(
                    connection,
                    f"UPDATE items SET v = {value} WHERE id = {key}",
                    key,
                    {None if each is None else value for each in self.possible[key]},
                    value,
                )
            case _:
                self._changed(connection, f"DELETE FROM items WHERE id = {key}", key, {None}, None)

    def _counted(
        self, connection, statement: str, done: Counter[int], may_be: Counter[int], key: int
    ) -> None:
        try:
            connection.sql(statement)
        except OutcomeUnknown:
            may_be[key] += 1
        else:
            done[key] += 1

    def _changed(
        self, connection, statement: str, key: int, after: set[int | None], updated: int | None
    ) -> None:
        before = self.possible[key]
        try:
            count = connection.sql(statement).row_count
        except OutcomeUnknown:
            self.possible[key] = before | after
            return
        expected = {1} if statement.startswith("INSERT") else {int(each is not None) for each in before}
        if count not in expected:
            self.problems.append(f"{statement}: {count} rows, but the key could have {before}")
        self.possible[key] = {updated if count else None} if statement.startswith("UPDATE") else after


def test_statements_of_one_row_are_carried_out_once_through_kills(own_server) -> None:
    rng, stop = random.Random(SEED), threading.Event()
    with connect(own_server.address) as connection:
        for statement in TABLES:
            connection.execute(statement)
    writers = [Statements(own_server.address, number, stop) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    kills, deadline = 0, time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline and all(writer.is_alive() for writer in writers):
            time.sleep(rng.uniform(0.2, 4))
            if rng.random() < 0.4:
                with connect(own_server.address) as connection:
                    table = rng.choice(("items", "sums", "events"))
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN c{kills}_{rng.randrange(10**9)} INT")
            own_server.restart()
            kills += 1
    finally:
        stop.set()
        for writer in writers:
            writer.join(180)
    problems = [problem for writer in writers for problem in writer.problems]
    unknown = 0
    with connect(own_server.address) as connection:
        rows = {row["id"]: row["v"] for row in connection.table("default.items").to_arrow().to_pylist()}
        sums = {row["id"]: row["n"] for row in connection.table("default.sums").to_arrow().to_pylist()}
        log = Counter(
            id_
            for part in connection.table("default.events").scan(start="earliest", until="latest")
            for id_ in part.batch.column("id").to_pylist()
        )
    for writer in writers:
        unknown += sum(writer.may_be_added.values()) + sum(writer.may_be_events.values())
        for key, possible in writer.possible.items():
            unknown += len(possible) - 1
            if rows.get(key) not in possible:
                problems.append(f"items {key}: {rows.get(key)}, not one of {possible}")
            most = writer.added[key] + writer.may_be_added[key]
            if not writer.added[key] <= sums.get(key, 0) <= most:
                problems.append(f"sums {key}: {sums.get(key)}, not {writer.added[key]} to {most}")
        problems += [
            f"events {key}: not once"
            for key in writer.events | writer.may_be_events
            if not writer.events[key] <= log.pop(key, 0) <= 1
        ]
    problems += [f"events {key}: {count} rows of a statement that was refused" for key, count in log.items()]
    print(
        f"seed {SEED}: {kills} kills in {SECONDS:.0f} s, {sum(each.done for each in writers)} statements,"
        f" {unknown} of unknown outcome, {len(problems)} differences"
    )
    assert not problems, "\n".join(problems[:20])
