"""R3.5 behind kill -9: batches whose tasks are repeated in other orders, while the server is killed and restarted."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time

import pyarrow as pa
import pytest

from headrace.tablelayer.client import connect
from headrace.tablelayer.client.table.staging import Receipt

SECONDS = float(os.environ.get("HEADRACE_STAGED_SECONDS", "8"))
SEED = int(os.environ.get("HEADRACE_SEED", "0")) or random.randrange(1 << 30)


def run_task(table, batch_id: int, rows: list[int], random_: random.Random) -> Receipt:
    """Run a task once: its rows in any order and any number of pieces."""
    rows = random_.sample(rows, len(rows))
    writer = table.staged_writer("query", batch_id, f"{random_.getrandbits(64):x}")
    cuts = sorted({0, len(rows), *random_.choices(range(len(rows) + 1), k=2)})
    for start, end in itertools.pairwise(cuts):
        writer.write(pa.table({"n": pa.array(rows[start:end], pa.int64())}))
    return writer.finish()


@pytest.mark.slow
def test_r3_5_a_batch_is_written_once_whatever_dies(own_server) -> None:
    print(f"seed {SEED}")
    random_ = random.Random(SEED)
    with connect(own_server.address) as connection:
        connection.execute("CREATE TABLE t (n BIGINT) WITH ('bucket.num'='3', 'bucket.key'='n')")
    stop = threading.Event()
    kills, steps, patience = [], [0], 1.0

    def kill() -> None:
        """Kill at a random time, but not before some work is done."""
        nonlocal patience
        done = 0
        while not stop.wait(random_.uniform(0.3, 1.5) * patience):
            patience = 1.0 if steps[0] > done else 2 * patience
            done = steps[0]
            own_server.restart()
            kills.append(time.monotonic())

    killer = threading.Thread(target=kill)
    killer.start()
    written = batch_id = 0
    try:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or not kills:
            with connect_patiently(own_server.address) as driver:
                table = driver.table("default.t")
                rows = list(range(written, written + random_.randrange(1, 3000)))
                for _ in range(
                    random_.randrange(1, 3)
                ):  # the driver may die after the commit, and repeat everything
                    parts = random_.randrange(1, 4)
                    tasks = [rows[part::parts] for part in range(parts)]
                    run_task(
                        table, batch_id, tasks[0], random_
                    )  # a failed or speculative attempt, which never counts
                    receipts = [run_task(table, batch_id, task, random_) for task in tasks]
                    table.commit_staged("query", batch_id, receipts)
                    steps[0] += 1
            written += len(rows)
            batch_id += 1
    finally:
        stop.set()
        killer.join(60)
    with connect_patiently(own_server.address) as reader:
        found = sorted(reader.table("default.t").to_arrow().column("n").to_pylist())
    assert found == list(range(written)), f"seed {SEED}, {batch_id} batches, {len(kills)} kills"


def connect_patiently(address: str):
    """Connect, and wait if the server is down."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return connect(address)
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
