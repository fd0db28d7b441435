"""`python -m bench.stored_scans`: the processor time of scans of a primary-key bucket, without network and client.

A bucket of one million rows of five columns was written in scattered order. The scan is the server's own
(`SnapshotScan`), in pieces of 4 MiB. It reads the bucket in several states: never merged; merged into one sorted run;
and with files above the run that wait for a merge, each with 10,000 rows of the whole range of keys. RocksDB merges
only when the benchmark says so. Processor time of the process hardly depends on the load of the machine. Run it from
another working tree of Headrace to compare the two.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.ddl.clauses import parse_columns
from headrace.tablelayer.model.filters.filters import Filter, encode_filter
from headrace.tablelayer.model.rows.stored import encode_rows
from headrace.tablelayer.model.rows.versions import SchemaVersions
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.merge.engines import row_keys
from headrace.tablelayer.server.read.snapshot_scans import SnapshotScan
from headrace.tablelayer.server.read.wanted import Wanted
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.layout import KeyRange
from headrace.tablelayer.server.store.shared_memory import SharedMemory

ROWS, WRITTEN = 1_000_000, 10_000
WAITING = (0, 1, 2, 4, 9)
"""Numbers of files above the merged ones."""
SCHEMA = parse_columns(
    "id BIGINT NOT NULL, a BIGINT, b DOUBLE, c STRING, d INT, PRIMARY KEY (id) NOT ENFORCED"
)
CASES: dict[str, tuple[list[int] | None, pc.Expression | None]] = {
    "5 of 5 columns": (None, None),
    "2 of 5 columns": ([0, 2], None),
    "0.1 % by a text": ([0, 2], pc.field("c") == "customer-000005"),
    "0.2 %, ids near each other": ([0, 2], (pc.field("a") >= 1_500_000) & (pc.field("a") < 1_506_000)),
}


class _Bucket:
    @staticmethod
    def versions() -> SchemaVersions:
        return SchemaVersions([SCHEMA])


def _rows(ids: np.ndarray) -> pa.RecordBatch:
    texts = pa.array([f"customer-{(1 + n) % 997:06d}" for n in range(997)]).take(
        pa.array((ids * 7 + 1) % 997)
    )
    columns = [ids, ids * 3, (ids + 1) / 3, texts, (ids % 1000).astype(np.int32)]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=SCHEMA.arrow())


class _Unmerged(SharedMemory):
    def options(self, stores: int = 1) -> Any:
        options = super().options(stores)
        options.set_disable_auto_compactions(True)
        return options


def _write(store: KeyValueStore, ids: np.ndarray, offset: int) -> None:
    rows = _rows(np.sort(ids))
    group = row_keys(SCHEMA, rows).to_pylist(), encode_rows(rows, SCHEMA).to_pylist()
    store.write([group], offset, ROWS)


def _scan(store: KeyValueStore, columns: list[int] | None, condition: pc.Expression | None) -> None:
    chosen = None if condition is None else Filter.parse(encode_filter(condition, SCHEMA), SCHEMA)
    scan = SnapshotScan(cast(Any, _Bucket), store.snapshot(), Wanted(SCHEMA, columns, chosen), KeyRange())
    piece, has_more = 0, True
    while has_more:
        _, _, has_more = scan.rows_of(piece, 4 << 20)
        piece += 1
    scan.end()


def _measure(store: KeyValueStore, state: str) -> None:
    for name, (columns, condition) in CASES.items():
        taken = []
        for _ in range(9):
            began = time.process_time()
            _scan(store, columns, condition)
            taken.append((time.process_time() - began) * 1e9 / ROWS)
        first, median = taken[0], statistics.median(taken[2:])
        print(f"{state}; {name}: {median:.1f} ns of processor time a row, the first scan {first:.1f}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = KeyValueStore.open(Path(folder) / "bucket", _Unmerged(Limits()))
        order = np.random.default_rng(7).permutation(ROWS).astype(np.int64)
        for start in range(0, ROWS, WRITTEN):
            _write(store, order[start : start + WRITTEN], start + WRITTEN)
        store.flush()
        _measure(store, f"never merged, {len(store.live_files())} files")
        with store._files as database:
            database.compact_range(None, None)
        above = 0
        for waiting in WAITING:
            while above < waiting:
                above += 1
                _write(store, order[: ROWS : ROWS // WRITTEN] + above, ROWS + above)
                store.flush()
            _measure(store, f"{above} files above")
        store.close()


if __name__ == "__main__":
    main()
