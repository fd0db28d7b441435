"""Lookup by prefix and delta join through Spark, beside Spark's own join of the same tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from headrace.tablelayer.client import Connection
from headrace.tablelayer.model.types.column_types import BIGINT, STRING
from headrace.tablelayer.spark.delta_joins import delta_join
from headrace.tablelayer.spark.lookups import lookup_join
from headrace.tablelayer.tests.spark.spark_tables import create, load, read_available, stream

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.parametrize(
    "all_streams",
    [False, pytest.param(True, marks=pytest.mark.soak)],
    ids=["batches and changes", "lookups of streams too"],
)
def test_joins_equal_sparks_own_joins(
    spark: Any, address: str, client: Connection, tmp_path: Path, all_streams: bool
) -> None:
    orders = create(
        client,
        [("customer", BIGINT), ("nr", BIGINT), ("price", BIGINT)],
        ("customer", "nr"),
        bucket_key=("customer",),
    )
    customers = create(client, [("id", BIGINT), ("name", STRING)], ("id",), buckets=4)
    client.table(orders).upsert([{"customer": n % 20, "nr": n, "price": n} for n in range(200)])
    client.table(customers).upsert([{"id": n, "name": f"c{n}"} for n in range(15)])
    on = {"customer": "id"}

    def own_join() -> set[tuple[Any, ...]]:
        ours = {
            (row["customer"], row["nr"], row["price"]) for row in client.table(orders).to_arrow().to_pylist()
        }
        names = {row["id"]: row["name"] for row in client.table(customers).to_arrow().to_pylist()}
        return {(*row, names[row[0]]) for row in ours if row[0] in names}

    frame = delta_join(spark, orders, customers, on=on, bootstrap=address)
    assert {tuple(row) for row in frame.collect()} == own_join()

    state: dict[tuple[int, int], tuple[Any, ...]] = {}

    def apply() -> None:
        changes = delta_join(spark, orders, customers, on=on, bootstrap=address, streaming=True)
        for row in read_available(changes, tmp_path / "c"):
            if row._change_type == "-D":
                state.pop((row.customer, row.nr), None)
            else:
                state[row.customer, row.nr] = (row.customer, row.nr, row.price, row.name)

    apply()
    assert set(state.values()) == own_join()
    client.table(orders).delete([{"customer": 3, "nr": 3}, {"customer": 4, "nr": 4}])
    client.table(orders).upsert(
        [{"customer": 17, "nr": 900, "price": 1}, {"customer": 5, "nr": 5, "price": -5}]
    )
    client.table(customers).delete([{"id": 4}])
    client.table(customers).upsert([{"id": 17, "name": "new"}, {"id": 6, "name": "renamed"}])
    apply()
    assert set(state.values()) == own_join()

    looked_up = lookup_join(
        load(spark, address, customers),
        address,
        orders,
        on={"id": "customer"},
        how="inner",
        select=["nr", "price"],
    )
    assert {(row.id, row.nr, row.price, row.name) for row in looked_up.collect()} == own_join()
    if not all_streams:
        return
    # As a stream: by prefix, with those that have no order; and by primary key, through a cache.
    changes = stream(spark, address, customers, mode="upsert")
    all_rows = lookup_join(changes, address, orders, on={"id": "customer"}, select=["nr", "price"])
    found = {(row.id, row.nr, row.price, row.name) for row in read_available(all_rows, tmp_path / "prefix")}
    missing = {row["id"] for row in client.table(customers).to_arrow().to_pylist()} - {
        row[0] for row in own_join()
    }
    assert {row for row in found if row[1] is not None} == own_join()
    assert {row[0] for row in found if row[1] is None} == missing
    for how in ("left", "inner"):
        named = lookup_join(
            stream(spark, address, orders, mode="upsert"),
            address,
            customers,
            on={"customer": "id"},
            how=how,
            cache_ttl_s=60,
        )
        found = {(row.customer, row.nr, row.price, row.name) for row in read_available(named, tmp_path / how)}
        assert {row for row in found if row[3] is not None} == own_join()
        every = {row["nr"] for row in client.table(orders).to_arrow().to_pylist()}
        assert {row[1] for row in found} == (every if how == "left" else {row[1] for row in own_join()})


@pytest.mark.soak
def test_left_joins_of_partitioned_tables_follow_new_partitions(
    spark: Any, address: str, client: Connection, tmp_path: Path
) -> None:
    """Several orders of a customer, some customers without any, and the other way round; by day."""
    name = f"joined_{tmp_path.name.replace('-', '_')}"[:60]
    for table, rest in (("c", "PRIMARY KEY (d, k)"), ("o", "PRIMARY KEY (d, k, nr)")):
        client.execute(
            f"CREATE TABLE {name}_{table} (d STRING, k INT, nr INT, v INT, {rest} NOT ENFORCED) PARTITIONED BY (d)"
            " WITH ('bucket.num' = '2', 'bucket.key' = 'k')"
        )
    left, right = client.table(f"default.{name}_c"), client.table(f"default.{name}_o")

    def own_join() -> set[tuple[Any, ...]]:
        with duckdb.connect() as database:
            database.register("l", left.to_arrow())
            database.register("r", right.to_arrow())
            query = "SELECT l.d, l.k, l.v, r.nr, r.v FROM l LEFT JOIN r ON l.d = r.d AND l.k = r.k"
            return set(database.sql(query).fetchall())

    left.upsert([{"d": "mon", "k": k, "nr": 0, "v": k} for k in range(6)])
    right.upsert([{"d": "mon", "k": n % 4, "nr": n, "v": n} for n in range(10)])
    joined: dict[str, Any] = {
        "on": {"d": "d", "k": "k"}, "select": {"nr": "order", "v": "paid"}, "how": "left", "bootstrap": address,
    }  # fmt: skip
    tables = f"default.{name}_c", f"default.{name}_o"
    batch = delta_join(spark, *tables, **joined).select("d", "k", "v", "order", "paid")
    assert {tuple(row) for row in batch.collect()} == own_join()

    state: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def apply() -> None:
        changes = delta_join(spark, *tables, streaming=True, **joined)
        for row in read_available(changes, tmp_path / "c"):
            if row._change_type == "-D":
                state.pop((row.d, row.k, row.order), None)
            else:
                state[row.d, row.k, row.order] = (row.d, row.k, row.v, row.order, row.paid)

    apply()
    assert set(state.values()) == own_join()
    left.upsert([{"d": "tue", "k": 1, "nr": 0, "v": 11}, {"d": "tue", "k": 2, "nr": 0, "v": 12}])
    right.upsert([{"d": "tue", "k": 1, "nr": 1, "v": 5}, {"d": "mon", "k": 5, "nr": 50, "v": 9}])
    right.delete([{"d": "mon", "k": 0, "nr": n} for n in (0, 4, 8)])
    left.delete([{"d": "mon", "k": 1}])
    apply()
    assert set(state.values()) == own_join()
    for each in tables:
        client.admin.drop_table(each)
