"""The rows of the table benchmarks, for every client: they need only numpy and pyarrow.

The PK table has a bigint key and nine columns, about 100 bytes a row; the log table has twenty columns, about 170 bytes
a row.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

WRITE_ROWS = 10_000
PREFIX_ROWS = 10

PK_COLUMNS = (
    "id BIGINT NOT NULL, a BIGINT, b BIGINT, c INT, d INT, e DOUBLE, f DOUBLE, g STRING, h STRING, i BIGINT, "
    "PRIMARY KEY (id) NOT ENFORCED"
)
LOG_COLUMNS = ", ".join(
    [f"l{i} BIGINT" for i in range(5)]
    + [f"n{i} INT" for i in range(5)]
    + [f"d{i} DOUBLE" for i in range(4)]
    + [f"s{i} STRING" for i in range(4)]
    + [f"t{i} TIMESTAMP(6)" for i in range(2)]
)

AGGREGATION = {
    "a": "sum", "b": "max", "c": "sum", "d": "min", "e": "sum", "f": "max", "g": "last_value", "i": "sum",
}  # fmt: skip
PARTIAL_COLUMNS = ["id", "a", "g"]


def pk_rows(ids: np.ndarray, seed: int) -> pa.RecordBatch:
    """Return rows for these ids; another seed gives other values."""
    text = pa.array([f"value-{(seed + i) % 97:07d}" for i in range(97)])
    picked = text.take(pa.array((ids + seed) % 97))
    integers = (ids * 31 + seed).astype(np.int64)
    columns = [ids, integers, integers + 1, integers.astype(np.int32), integers.astype(np.int32)]
    columns += [integers / 3, integers / 7, picked, picked, integers]
    return pa.record_batch([pa.array(column) for column in columns], names=["id", *"abcdefghi"])


def prefix_rows(ids: np.ndarray, seed: int) -> pa.RecordBatch:
    """Return the same rows under a key of two columns, `id` and `c`: ten rows for each `id`."""
    rows = pk_rows(ids, seed)
    rows = rows.set_column(0, "id", pa.array(ids // PREFIX_ROWS))
    return rows.set_column(3, "c", pa.array((ids % PREFIX_ROWS).astype(np.int32)))


def log_rows(start: int, count: int) -> pa.RecordBatch:
    ids = np.arange(start, start + count)
    text = pa.array([f"string-{i:09d}" for i in range(97)]).take(pa.array(ids % 97))
    arrays = {f"l{i}": pa.array(ids + i) for i in range(5)}
    arrays |= {f"n{i}": pa.array((ids + i).astype(np.int32)) for i in range(5)}
    arrays |= {f"d{i}": pa.array(ids / (i + 2)) for i in range(4)}
    arrays |= {f"s{i}": text for i in range(4)}
    arrays |= {f"t{i}": pa.array(ids * 1_000_000).cast(pa.timestamp("us")) for i in range(2)}
    return pa.RecordBatch.from_pydict(arrays)
