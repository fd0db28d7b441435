"""Reads, writes, SQL, joins and streams of one application: `cluster_steps.py ADDRESS TABLES FOLDER STEP...`.

It prints a line for each step with what it found, which is the same wherever Spark runs. The program chooses no master:
`spark-submit` does, or SPARK_REMOTE.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

ROWS = 20_000


class Steps:
    """The steps, with tables whose names begin with a prefix of their own."""

    def __init__(self, spark: Any, address: str, prefix: str, folder: str) -> None:
        self.spark, self.address, self.prefix, self.folder = spark, address, prefix, folder

    def name(self, table: str) -> str:
        return f"default.{self.prefix}{table}"

    def source(self, reader: Any, table: str) -> Any:
        return (
            reader.format("headrace")
            .option("bootstrap.servers", self.address)
            .option("table", self.name(table))
        )

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        return [
            tuple(row)
            for row in self.spark.sql(text.replace("T.", f"headrace.default.{self.prefix}")).collect()
        ]

    def write(self) -> object:
        frame = (
            self.spark.range(ROWS)
            .selectExpr("id", "CAST(id AS STRING) AS name", "id % 7 AS k")
            .repartition(4)
        )
        self.source(frame.write, "log").mode("append").save()
        self.source(frame.write, "keyed").mode("append").save()
        return ROWS

    def read(self) -> object:
        found = [self.source(self.spark.read, table).load() for table in ("log", "keyed")]
        return [(frame.count(), frame.selectExpr("sum(id)").first()[0]) for frame in found]

    def select(self) -> object:
        return self.sql("SELECT count(*), sum(id) FROM T.keyed WHERE k < 3")

    def insert(self) -> object:
        self.sql(f"INSERT INTO T.log SELECT id, 'more', 0 FROM range({ROWS}, {2 * ROWS})")
        return self.sql("SELECT count(*), count(DISTINCT id) FROM T.log")

    def merge(self) -> object:
        self.sql(
            f"""MERGE INTO T.keyed t
            USING (SELECT id, id + 1 AS k FROM range({ROWS - 10}, {ROWS + 10})) s ON t.id = s.id
            WHEN MATCHED THEN UPDATE SET k = s.k WHEN NOT MATCHED THEN INSERT (id, name, k) VALUES (s.id, 'new', s.k)"""
        )
        return self.sql(
            f"SELECT count(*), count(IF(name = 'new', 1, NULL)) FROM T.keyed WHERE k >= {ROWS - 10}"
        )

    def lookup_join(self) -> object:
        from headrace.spark import lookup_join

        rows = self.source(self.spark.read, "log").load().selectExpr("id AS o")
        joined = lookup_join(rows, self.address, self.name("keyed"), on={"o": "id"}, select={"k": "found"})
        return [tuple(joined.selectExpr("count(*)", "count(found)").first())]

    def delta_join(self) -> object:
        from headrace.spark import delta_join

        joined = delta_join(
            self.spark, self.name("keyed"), self.name("dim"), on=["id"], bootstrap=self.address
        )
        return [joined.count()]

    def stream(self) -> object:
        rows = self.source(self.spark.readStream, "log").load().selectExpr("id", "name", "k")
        writer = self.source(rows.writeStream, "copy").option("checkpointLocation", f"{self.folder}/copy")
        writer.outputMode("append").trigger(availableNow=True).start().awaitTermination()
        counts = (
            self.spark.readStream.table(f"headrace.{self.name('log')}").groupBy("k").count().toDF("k", "n")
        )
        writer = counts.writeStream.outputMode("update").option("checkpointLocation", f"{self.folder}/counts")
        writer.trigger(availableNow=True).toTable(f"headrace.{self.name('counts')}").awaitTermination()
        return self.sql("SELECT count(*), count(DISTINCT id), (SELECT sum(n) FROM T.counts) FROM T.copy")

    def union_read(self) -> object:
        return self.sql("SELECT count(*), count(DISTINCT id) FROM T.tiered")


def main() -> None:
    from headrace.spark import session

    address, prefix, folder, *wanted = sys.argv[1:]
    steps = Steps(
        session("steps", extra={"spark.headrace.bootstrap.servers": address}), address, prefix, folder
    )
    for name in wanted:
        step: Callable[[], object] = getattr(steps, name)
        print(f"{name}: {step()}", flush=True)
    steps.spark.stop()


if __name__ == "__main__":
    main()
