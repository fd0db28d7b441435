"""Work per batch, never per row: no line of the server runs once for each row of a request (CONTRIBUTING, Code, 6).

Each face runs with few and with many rows, while the lines of Headrace's own code are counted. A loop inside of a C
function (`map`, `to_pylist`) or of a kernel does not count.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.filters.filters import encode_filter
from headrace.tablelayer.tests.server.tables import Table, tables

FEW, MANY = 1_000, 12_000
COLUMNS = "a INT, b INT, v BIGINT, text STRING, PRIMARY KEY (a, b) NOT ENFORCED"
PACKAGE = str(Path(__file__).parents[3])
ALLOWED = {
    "KeyValueStore._by_prefix": "RocksDB's iterator has no other interface, and a prefix has few rows",
    "KeyValueStore.values_while": "a limit scan has at most 100,000 rows, by RocksDB's iterator",
    "Room.admits": "the room of a limit scan is counted row by row",
    "RowCost.stored": "as `Room.admits`",
    "KeyValueStore._while": "the sizes of a lookup's rows are counted before its answer is made",
    "KeyValueStore.get_within": "the sizes of the rows that a write replaces are counted",
    "_to_store": "the values of a batch with deletions are chosen by a list comprehension",
    "KeyValueStore.write": "RocksDB's batch takes one deletion a call",
}
"""Functions that may run once a row, with the reason. Any other one is a defect."""


class Lines:
    """Counts the lines that run in Headrace's own functions, in all threads that start from now on."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[CodeType, int]] = Counter()

    def __enter__(self) -> Lines:
        threading.settrace(self._called)
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        return self._line if name.startswith(PACKAGE) and "/tests/" not in name else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.counts[frame.f_code, frame.f_lineno] += 1
        return self._line


def row(n: int) -> dict[str, Any]:
    return {"a": n // 10, "b": n % 10, "v": n, "text": f"text {n}"}


async def upsert(table: Table, count: int) -> None:
    rows = [row(n) for n in range(count)]
    answer: Any = await table.put_batch(table.batch(rows, [ChangeType.UPDATE_AFTER] * count))
    assert answer.error_code == 0


async def partial_update(table: Table, count: int) -> None:
    rows = [{name: row(n)[name] for name in ("a", "b", "v")} for n in range(count)]
    batch = table.batch(rows, [ChangeType.UPDATE_AFTER] * count, ["a", "b", "v"])
    answer: Any = await table.put_batch(batch, target_columns=[0, 1, 2])
    assert answer.error_code == 0


async def delete(table: Table, count: int) -> None:
    rows = [row(n) for n in range(count)]
    answer: Any = await table.put_batch(table.batch(rows, [ChangeType.DELETE] * count))
    assert answer.error_code == 0


async def scan(table: Table, count: int, condition: bytes | None = None, expected: int | None = None) -> None:
    scan_id, found = m.OPEN_SCAN, 0
    while True:
        request = m.ScanSnapshotRequest(table_id=table.table_id, bucket=0, scan_id=scan_id, max_bytes=1 << 22)
        request.filter = condition
        answer = await table.broker.send(request)
        assert answer.error_code == 0, answer.error_message
        found += pa.ipc.read_record_batch(
            pa.py_buffer(bytes(answer.rows)), table.definition.schema.arrow()
        ).num_rows
        scan_id = answer.scan_id
        if not answer.has_more:
            break
    assert found == (count if expected is None else expected)


async def filtered_scan(table: Table, count: int) -> None:
    await scan(table, count, encode_filter(pc.field("v") < count // 2, table.definition.schema), count // 2)


async def changelog(table: Table, count: int) -> None:
    assert sum(batch.header.record_count for batch in await table.scan()) >= count


async def lookup(table: Table, count: int) -> None:
    keys = encode_ipc(
        pa.record_batch(
            {
                "a": pa.array([n // 10 for n in range(count)], pa.int32()),
                "b": pa.array([n % 10 for n in range(count)], pa.int32()),
            }
        )
    )
    answer = await table.broker.send(
        m.LookupRequest(
            table_id=table.table_id, buckets=[m.LookupBucket(bucket=0, keys=keys)], timeout_ms=60_000
        )
    )
    assert answer.buckets[0].found == b"\x01" * count


async def prefix_lookup(table: Table, count: int) -> None:
    prefixes = encode_ipc(pa.record_batch({"a": pa.array(range(count // 10), pa.int32())}))
    bucket = m.PrefixLookupBucket(bucket=0, prefixes=prefixes)
    answer = await table.broker.send(m.PrefixLookupRequest(table_id=table.table_id, buckets=[bucket]))
    assert set(memoryview(answer.buckets[0].counts).cast("i")) == {10}


async def limit_scan(table: Table, count: int) -> None:
    assert len(await table.limit(count)) == count


async def count_rows(table: Table, count: int) -> None:
    assert await table.count() == count


FACES: dict[str, Callable[[Table, int], Coroutine[Any, Any, None]]] = {
    "upsert of new rows": upsert,
    "upsert of existing rows": upsert,
    "partial update": partial_update,
    "scan": scan,
    "filtered scan": filtered_scan,
    "changelog": changelog,
    "lookup": lookup,
    "prefix lookup": prefix_lookup,
    "limit scan": limit_scan,
    "count": count_rows,
    "deletion": delete,
}


async def counted(folder: Path, count: int) -> dict[str, Counter[tuple[CodeType, int]]]:
    found = {}
    lines = Lines()
    with lines:
        async with tables(folder) as all_tables:
            table = await all_tables.create(COLUMNS, bucket_key=["a"])
            for name, face in FACES.items():
                lines.counts = Counter()
                await face(table, count)
                found[name] = lines.counts
    return found


@pytest.mark.slow
async def test_no_line_of_the_server_runs_once_for_each_row(tmp_path: Path) -> None:
    few, many = await counted(tmp_path / "few", FEW), await counted(tmp_path / "many", MANY)
    per_row = {
        f"{face}: {code.co_qualname}, {Path(code.co_filename).name}:{line}"
        for face, lines in many.items()
        for (code, line), times in lines.items()
        if times - few[face][code, line] >= (MANY - FEW) // 2
    }
    reasons = {each: [name for name in ALLOWED if f": {name}" in each] for each in per_row}
    assert [each for each, names in reasons.items() if not names] == []
    assert {name for names in reasons.values() for name in names} == set(ALLOWED), (
        "a reason is not needed any more"
    )
