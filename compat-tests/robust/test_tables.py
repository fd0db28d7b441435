"""Tables behind kill -9: no acknowledged row is lost right after a flush, and a large table is back at once.

HEADRACE_SOAK_KILLS, HEADRACE_SOAK_SEED and HEADRACE_SOAK_ROWS set the number of kills, the seed and the size.
"""

from __future__ import annotations

import os
import random
import time

import numpy as np
import pyarrow as pa
import pytest

from headrace.tablelayer.client import ClientError, connect

KILLS = int(os.environ.get("HEADRACE_SOAK_KILLS", "100"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "1"))
ROWS = int(os.environ.get("HEADRACE_SOAK_ROWS", "2000000"))
ROWS_PER_UPSERT = 50_000
FIRST_LOOKUP_SECONDS = float(os.environ.get("HEADRACE_SOAK_LOOKUP_SECONDS", "2"))
"""Maximum time from the start of the process after the kill."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]


@pytest.mark.parametrize("durability", ["process", "power"])
def test_no_acknowledged_row_is_lost_by_a_kill_straight_after_a_flush(own_server, durability) -> None:
    """Old and new keys are upserted and acknowledged by all; after an immediate kill -9 and a start, every row is
    compared.
    """
    rng, expected = random.Random(SEED), {}
    with connect(own_server.address) as connection:
        connection.execute(
            "CREATE TABLE t (k BIGINT, v STRING, n BIGINT, PRIMARY KEY (k) NOT ENFORCED) "
            f"WITH ('bucket.num'='2', 'durability'='{durability}')"
        )
    started = time.monotonic()
    for kill in range(KILLS // 2):
        with connect(own_server.address) as connection:
            table = connection.table("default.t")
            for _ in range(rng.randint(1, 3)):
                keys = rng.sample(range(2000), rng.randint(1, 300))
                rows = [{"k": key, "v": f"{kill}/{rng.random()}", "n": kill} for key in keys]
                table.upsert(rows)
                expected.update((row["k"], row) for row in rows)
            if rng.random() < 0.3:
                gone = rng.sample(sorted(expected), min(20, len(expected)))
                table.delete([{"k": key} for key in gone])
                for key in gone:
                    del expected[key]
            own_server.kill()
        own_server.start()
        with connect(own_server.address) as connection:
            found = {row["k"]: row for row in connection.table("default.t").to_arrow().to_pylist()}
        different = compare(found, expected)
        assert not different, f"seed {SEED}, kill {kill}: {len(different)} rows differ: {different[:5]}"
    print(
        f"durability={durability} seed={SEED}: {KILLS // 2} kills straight after a flush in "
        f"{time.monotonic() - started:.0f} s, {len(expected)} rows at the end, 0 differences"
    )


def compare(found: dict, expected: dict) -> list:
    return [
        (key, found.get(key), expected.get(key))
        for key in found.keys() | expected.keys()
        if found.get(key) != expected.get(key)
    ]


@pytest.mark.one_process("how soon its own disk is read")
def test_a_large_table_answers_soon_after_a_kill(own_server) -> None:
    rng = np.random.default_rng(SEED)
    with connect(own_server.address) as connection:
        connection.execute(
            "CREATE TABLE t (k BIGINT, v STRING, n DOUBLE, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket.num'='1')"
        )
        table = connection.table("default.t")
        for start in range(0, ROWS, ROWS_PER_UPSERT):
            keys = np.arange(start, min(start + ROWS_PER_UPSERT, ROWS))
            values = pa.array([f"value {key}" for key in keys.tolist()])
            table.upsert(pa.table({"k": keys, "v": values, "n": rng.random(len(keys))}))
    own_server.kill()
    began = time.monotonic()
    own_server.start()
    ready = time.monotonic()
    key = ROWS - 1
    while True:
        try:
            with connect(own_server.address) as connection:
                found, rows = connection.table("default.t").lookup([key])
            break
        except ClientError:
            assert time.monotonic() < began + 60
            time.sleep(0.02)
    answered = time.monotonic()
    assert all(found)
    assert rows.column("v").to_pylist() == [f"value {key}"]
    print(
        f"{ROWS} rows, kill -9: ready after {ready - began:.2f} s, first lookup {answered - ready:.2f} s later"
    )
    with connect(own_server.address) as connection:
        assert connection.table("default.t").count() == ROWS
    assert answered - began < FIRST_LOOKUP_SECONDS
