"""Without numba the interpreter runs the kernels that place rows, with the same results."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import hashlib, sys
from decimal import Decimal

if sys.argv[1] == "without":
    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("numba", "llvmlite"):
                raise ModuleNotFoundError(name, name=name)
    sys.meta_path.insert(0, Absent())

import numpy as np
import pyarrow as pa
from headrace.tablelayer.model.rows.keys import decode_keys, encode_keys
from headrace.tablelayer.model.table.buckets import iceberg_buckets, key_buckets
from headrace.tablelayer.model.table.paimon_buckets import paimon_buckets

assert ("numba" in sys.modules) == (sys.argv[1] == "with")
random = np.random.default_rng(7)
longs = random.integers(-(2**63), 2**63 - 1, 200)
columns = [
    pa.array(longs),
    pa.array((longs >> 32).astype("i4")),
    pa.array([random.integers(0, 3, int(n)).astype("u1").tobytes() for n in random.integers(0, 20, 200)]),
    pa.array([Decimal(int(n)) * 10 ** (i % 19) for i, n in enumerate(longs)], pa.decimal128(38, 0)),
    pa.array(longs >> 20).cast(pa.timestamp("us")),
    pa.array([None if n % 7 == 0 else "\u00e9" * int(n % 20) for n in longs]),
]
seen = hashlib.sha256()
for column in columns:
    seen.update(iceberg_buckets(column, 7).tobytes() + paimon_buckets([column, columns[0]], 7).tobytes())
keys = encode_keys(columns[:5])
seen.update(key_buckets(keys, 13).tobytes())
for column in decode_keys(keys, [column.type for column in columns[:5]]):
    seen.update(str(column.to_pylist()).encode())
print(seen.hexdigest())
"""


def test_rows_are_placed_alike_with_and_without_the_compiler():
    said = [
        subprocess.run(
            [sys.executable, "-W", "error", "-c", PROGRAM, how],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
        ).stdout
        for how in ("with", "without")
    ]
    assert said[0] == said[1]
    assert len(said[0]) == 65
