"""A left delta join of two partitioned tables as a stream, called as Spark calls it; a real server, no Spark."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa

from headrace.tablelayer.client import Connection
from headrace.tablelayer.spark.delta_joins import DeltaJoinReader, DeltaJoinStreamReader, plan_join


def test_partitions_come_and_go_and_a_restart_goes_on(address: str, client: Connection) -> None:
    for name, key in (("dj_c", "d, k"), ("dj_o", "d, k, nr")):
        client.execute(
            f"CREATE TABLE {name} (d STRING, k INT, nr INT, v INT, PRIMARY KEY ({key}) NOT ENFORCED) PARTITIONED BY (d)"
            " WITH ('bucket.num' = '2', 'bucket.key' = 'k')"
        )
    left, right = client.table("dj_c"), client.table("dj_o")
    spec = {
        "left": "default.dj_c", "right": "default.dj_o", "on": {"d": "d", "k": "k"},
        "select": {"nr": "order", "v": "paid"}, "how": "left",
    }  # fmt: skip
    join = plan_join(address, spec)

    def truth() -> set[tuple[Any, ...]]:
        rows = set()
        orders = [tuple(row.values()) for row in right.to_arrow().to_pylist()]
        for d, k, _, v in (tuple(row.values()) for row in left.to_arrow().to_pylist()):
            found = [order for order in orders if order[:2] == (d, k)]
            rows |= {(d, k, v, order[2], order[3]) for order in found} or {(d, k, v, None, None)}
        return rows

    state: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    committed: Any = None
    reader = DeltaJoinStreamReader(join, 4)

    def batches(count: int) -> None:
        nonlocal committed
        for _ in range(count):
            end = reader.latestOffset()
            start = committed or reader.initialOffset()
            if end == start:
                return
            worker = pickle.loads(pickle.dumps(reader))
            for part in reader.partitions(start, end):
                for batch in worker.read(pickle.loads(pickle.dumps(part))):
                    apply(batch)
            committed = end
        raise AssertionError("it does not come to an end")

    def apply(batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            key = (row["d"], row["k"], row["order"])
            if row["_change_type"] == "-D":
                state.pop(key, None)
            else:
                state[key] = (row["d"], row["k"], row["v"], row["order"], row["paid"])

    left.upsert([{"d": "mon", "k": k, "nr": 0, "v": k} for k in range(6)])
    right.upsert([{"d": "mon", "k": n % 4, "nr": n, "v": n} for n in range(10)])
    whole = DeltaJoinReader(join)
    rows = [row for part in whole.partitions() for batch in whole.read(part) for row in batch.to_pylist()]
    assert {(row["d"], row["k"], row["v"], row["order"], row["paid"]) for row in rows} == truth()
    assert len(rows) == len(truth())
    batches(3)
    assert set(state.values()) == truth()

    left.upsert([{"d": "tue", "k": 1, "nr": 0, "v": 11}, {"d": "tue", "k": 2, "nr": 0, "v": 12}])
    right.upsert([{"d": "tue", "k": 1, "nr": 1, "v": 5}, {"d": "mon", "k": 5, "nr": 50, "v": 9}])
    right.delete([{"d": "mon", "k": 0, "nr": n} for n in (0, 4, 8)])
    left.delete([{"d": "mon", "k": 1}])
    batches(20)
    assert set(state.values()) == truth()

    # After a restart Spark shows the last range first, then asks how far it goes.
    again = DeltaJoinStreamReader(plan_join(address, spec), None)
    again.partitions(committed, committed)
    reader = again
    left.upsert([{"d": "mon", "k": 0, "nr": 0, "v": 100}, {"d": "wed", "k": 0, "nr": 0, "v": 1}])
    client.admin.drop_partition("default.dj_o", {"d": "tue"})
    batches(3)
    dropped = {("tue", 1, 11, 1, 5)}  # what was joined with a dropped partition is not retracted
    assert set(state.values()) - dropped == truth() - {("tue", 1, 11, None, None)}
    for table in (left, right):
        client.admin.drop_table(str(table.path))
