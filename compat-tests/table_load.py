"""Load on a primary-key table whose sums are checked: lookups of each key are linearizable with its writes.

Each writer has keys of its own and adds one at a time; readers look up any key. A lookup must see at least the value
that was acknowledged, or seen by a reader, when it began, and at most the value whose write had begun when it ended. So
it finds a write that is lost or done twice, and a row that an old leader still shows.
"""

from __future__ import annotations

import random
import threading
import time

import pyarrow as pa
from waits import Retries, Waits

from headrace.tablelayer.client import ClientConfig, connect
from headrace.tablelayer.client.errors import OutcomeUnknown
from headrace.tablelayer.client.write.split import buckets_of

DEADLINE_SECONDS = 120


class TableLoad:
    """The load. It creates `table`. `addresses` are of one or several servers, separated by commas."""

    def __init__(
        self,
        addresses: str,
        table: str,
        *,
        replicas: int = 3,
        buckets: int = 2,
        writers: int = 2,
        readers: int = 2,
        keys: int = 4,
        seed: int = 1,
        pause_seconds: float = 0.01,
        options: str = "",
        waits: Waits | None = None,
    ) -> None:
        """Create the load. `keys` is the number of keys of each writer; `options` are more options of the table's WITH.

        `waits` is told of each write and lookup.
        """
        self.table = table
        self.begun = [0] * (keys * writers)
        self.acknowledged = [0] * (keys * writers)
        self.uncertain = [0] * (keys * writers)
        self.problems: list[str] = []
        self.failures: list[BaseException] = []
        self.lookups = 0
        self.longest_wait = 0.0
        """Seconds from the beginning of a lookup to its answer."""
        self._waits = waits or Waits()
        self._seen = [0] * (keys * writers)
        self._addresses = addresses
        self._keys, self._seed, self._pause = keys, seed, pause_seconds
        self._over = threading.Event()
        with self._connect() as connection:
            connection.execute(
                f"CREATE TABLE {table} (k INT, v BIGINT, PRIMARY KEY (k) NOT ENFORCED)"
                f" WITH ('bucket.num' = '{buckets}', 'table.replication.factor' = '{replicas}',"
                f" 'table.merge-engine' = 'aggregation', 'fields.v.agg' = 'sum'{', ' + options if options else ''})"
            )
            every_key = pa.record_batch({"k": pa.array(range(keys * writers), pa.int32())})
            self._bucket_of = buckets_of(connection.table(table).definition, every_key).tolist()
        work = [(self._write, number) for number in range(writers)]
        work += [(self._read, number) for number in range(readers)]
        self._threads = [threading.Thread(target=self._run, args=each) for each in work]

    def _connect(self):
        config = ClientConfig(delivery_timeout_ms=DEADLINE_SECONDS * 1000, request_timeout_ms=20_000)
        return connect(self._addresses, config)

    def __enter__(self) -> TableLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(2 * DEADLINE_SECONDS)
        if any(thread.is_alive() for thread in self._threads):
            raise AssertionError("a client of the table did not come to its end after the servers were back")

    def _run(self, work, number: int) -> None:
        try:
            with self._connect() as connection:
                work(
                    connection.table(self.table),
                    random.Random(f"{self._seed}{work.__name__}{number}"),
                    number,
                    Retries(connection),
                )
        except BaseException as error:  # noqa: BLE001 - told in the test's own thread
            self.failures.append(error)

    def _write(self, table, rng: random.Random, number: int, retries: Retries) -> None:
        while not self._over.is_set():
            key = number * self._keys + rng.randrange(self._keys)
            self.begun[key] += 1
            retries.mark()
            began = time.monotonic()
            try:
                table.upsert([{"k": key, "v": 1}])
            except OutcomeUnknown:
                self.uncertain[key] += 1
            else:
                self.acknowledged[key] += 1
            self._waits.over("upsert", began, self.table, self._bucket_of[key], retries.since)
            time.sleep(rng.uniform(0, 2 * self._pause))

    def _read(self, table, rng: random.Random, number: int, retries: Retries) -> None:
        while not self._over.is_set():
            key = rng.randrange(len(self.begun))
            retries.mark()
            least, began = max(self.acknowledged[key], self._seen[key]), time.monotonic()
            row = table.lookup_one({"k": key})
            value = 0 if row is None else row["v"]
            self.longest_wait = max(self.longest_wait, time.monotonic() - began)
            self._waits.over("lookup", began, self.table, self._bucket_of[key], retries.since)
            if not least <= value <= self.begun[key]:
                self.problems.append(
                    f"reader {number} sees {value} at key {key} of {self.table}: {least} was acknowledged or seen when"
                    f" it asked, {self.begun[key]} is begun"
                )
            self._seen[key] = max(self._seen[key], value)
            self.lookups += 1
            time.sleep(rng.uniform(0, 2 * self._pause))

    def wait_for_more(self, count: int, seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until that many more writes are acknowledged, and lookups answered."""
        deadline = time.monotonic() + seconds
        writes, lookups = sum(self.acknowledged) + count, self.lookups + count
        while sum(self.acknowledged) < writes or self.lookups < lookups:
            if self.failures:
                raise self.failures[0]
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"in {seconds} s {sum(self.acknowledged)} of {writes} writes, {self.lookups} of {lookups} lookups"
                )
            time.sleep(0.02)

    def final_problems(self) -> list[str]:
        """Return the problems at the end of the load, on healthy servers."""
        if self.failures:
            raise self.failures[0]
        found = list(self.problems)
        keys = range(len(self.begun))
        with self._connect() as connection:
            table = connection.table(self.table)
            hits, rows = table.lookup(list(keys))
            values = [row["v"] if hit else 0 for hit, row in zip(hits, rows.to_pylist(), strict=True)]
            state = {row["k"]: row["v"] for row in table.to_arrow().to_pylist()}
        for key in keys:
            least, most = self.acknowledged[key], self.acknowledged[key] + self.uncertain[key]
            if not least <= values[key] <= most:
                found.append(f"key {key} of {self.table} is {values[key]} at the end: {least} to {most}")
            if state.get(key, 0) != values[key]:
                found.append(
                    f"key {key} of {self.table} is {state.get(key)} by a scan, {values[key]} by a lookup"
                )
        return found

    def figures(self) -> str:
        return (
            f"{sum(self.acknowledged)} of {sum(self.begun)} additions to {self.table} acknowledged,"
            f" {self.lookups} lookups, the longest took {self.longest_wait:.1f} s"
        )
