"""Work per batch, never per row: no line of the server runs once for each row of a request (CONTRIBUTING, Code, 6).

Each view runs with few and with many rows, while the lines of Headrace's own code are counted. A loop inside of a C
function (`map`, `to_pylist`) or of a kernel does not count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import iter_headers
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.filters.filters import encode_filter
from headrace.tablelayer.tests.lines import Counts, Lines, check_per_row
from headrace.tablelayer.tests.server.tables import Table, tables

FEW, MANY = 1_000, 12_000
COLUMNS = "a INT, b INT, v BIGINT, text STRING, PRIMARY KEY (a, b) NOT ENFORCED"
ALLOWED = {
    "KeyValueStore.get_within": "the sizes of the rows that a write replaces are counted",
    "_to_store": "the values of a batch with deletions are chosen by a list comprehension",
    "KeyValueStore._apply": "RocksDB's batch takes one deletion a call",
    "build_batch": "the test produces records that it builds one by one",
    "_column": "as `build_batch`",
}
"""Functions that may run once a row, with the reason. Any other one is a defect."""


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


VIEWS: dict[str, Callable[[Table, int], Coroutine[Any, Any, None]]] = {
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
    "JSON produce": lambda table, count: json_produce(table, count),
    "Kafka fetch of JSON": lambda table, count: kafka_fetch(table, count),
}


async def json_produce(table: Table, count: int) -> None:
    records = [Record(None, json.dumps(row(n)).encode(), (), 1000) for n in range(count)]
    answer = await table.broker.produce(table.definition.path.topic, build_batch(records))
    assert answer.error_code == 0, answer.error_message


async def kafka_fetch(table: Table, count: int) -> None:
    """Read all records of the log, which has other rows too."""
    offset, found = 0, 0
    while True:
        answer = await table.broker.fetch(table.definition.path.topic, offset)
        assert answer.error_code == 0
        if not answer.records:
            break
        for _, header in iter_headers(answer.records):
            found, offset = found + header.record_count, header.next_offset
    assert found >= count


AVRO_VIEWS: dict[str, Callable[[Table, int], Coroutine[Any, Any, None]]] = {
    "upsert into a table of Avro values": upsert,
    "Kafka fetch of Avro": kafka_fetch,
}


async def counted(folder: Path, count: int) -> dict[str, Counts]:
    found = {}
    with Lines() as lines:
        async with tables(folder) as all_tables:
            avro = {"table.kafka.value-format": "avro", "table.kafka.avro.schema": "record"}
            for name, views, options in (("t", VIEWS, {}), ("u", AVRO_VIEWS, avro)):
                table = await all_tables.create(COLUMNS, name=name, bucket_key=["a"], given=options)
                for view, work in views.items():
                    lines.taken()
                    await work(table, count)
                    found[view] = lines.taken()
    return found


@pytest.mark.slow
async def test_no_line_of_the_server_runs_once_for_each_row(tmp_path: Path) -> None:
    few, many = await counted(tmp_path / "few", FEW), await counted(tmp_path / "many", MANY)
    check_per_row(few, many, MANY - FEW, ALLOWED)
