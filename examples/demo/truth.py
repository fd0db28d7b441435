"""The expected answer: DuckDB over the same Parquet files, adjusted for the updates and deletes."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa

Answer = dict[tuple[str, str], tuple[Decimal, int]]
"""(nation, market segment) -> (revenue, order count)."""


@dataclass
class Truth:
    """The Parquet files, and the changes of orders since."""

    folder: Path
    prices: dict[int, Decimal] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)

    def update(self, order_key: int, price: Decimal) -> None:
        """Change the price of an order."""
        self.prices[order_key] = price

    def delete(self, order_key: int) -> None:
        """Remove an order."""
        self.deleted.add(order_key)

    def answer(self) -> Answer:
        """Return revenue and order count per nation and market segment, exact."""
        price_type = pa.decimal128(15, 2)
        changed = pa.table(
            {
                "order_key": pa.array(list(self.prices), pa.int64()),
                "price": pa.array(list(self.prices.values()), price_type),
            }
        )
        gone = pa.table({"order_key": pa.array(sorted(self.deleted), pa.int64())})
        with duckdb.connect() as database:
            database.register("changed", changed)
            database.register("gone", gone)
            rows = database.execute(
                f"""
                SELECT n_name, c_mktsegment, sum(coalesce(price, o_totalprice)), count(*)
                FROM '{self.folder / "orders.parquet"}'
                JOIN '{self.folder / "customer.parquet"}' ON c_custkey = o_custkey
                JOIN '{self.folder / "nation.parquet"}' ON n_nationkey = c_nationkey
                LEFT JOIN changed ON changed.order_key = o_orderkey
                WHERE o_orderkey NOT IN (SELECT order_key FROM gone)
                GROUP BY ALL
                """
            ).fetchall()
        return {(nation, segment): (revenue, count) for nation, segment, revenue, count in rows}
