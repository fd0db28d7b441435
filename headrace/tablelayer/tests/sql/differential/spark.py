"""Conditions in Spark: the builder's `where` and the catalog's SQL against Spark's own answer over a copy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.spark import table as spark_table
from headrace.tablelayer.client import Connection
from headrace.tablelayer.tests.sql.differential.conditions import (
    SPARK,
    Condition,
    UnsaidError,
    random_condition,
)
from headrace.tablelayer.tests.sql.differential.reference import RefusedError, difference, true_rows
from headrace.tablelayer.tests.sql.differential.run import Run
from headrace.tablelayer.tests.sql.differential.tables import KEY, SPARK_TYPES, RandomTable, random_table
from headrace.tablelayer.tests.sql.differential.translation import backquoted, translation_fault

_COPY = "differential_copy"


class SparkRun(Run):
    """A run whose reference is Spark over a copy of the rows in its memory, where nothing can be pushed down."""

    def __init__(self, seed: int, spark: Any, address: str, client: Connection) -> None:
        super().__init__(seed)
        self._spark, self._address, self._client = spark, address, client

    def asked_in_spark(self, database: str, seconds: float, rounds: int, conditions: int = 5) -> None:
        """Ask about tables of Spark's types: for each condition the answers of all APIs, and its pushed part."""
        for rng, number in self.tables(seconds, rounds):
            table = random_table(rng, f"{database}.s{number}", row_count=20, types=SPARK_TYPES)
            self._client.execute(table.statement)
            handle = self._client.table(table.path)
            (handle.upsert if table.primary_key else handle.append)(table.rows)
            self._spark.createDataFrame(_of_spark(table)).createOrReplaceTempView(_COPY)
            for _ in range(conditions):
                if self.is_over:
                    break
                condition = random_condition(rng, table)
                self.report.conditions += 1
                try:
                    self._true_keys(condition)
                except (UnsaidError, RefusedError):
                    self.report.refused += 1
                    continue
                for kind, check in self._checks(rng, table).items():
                    self.check(kind, table, check, condition, condition)
            self._client.admin.drop_table(table.path)

    def _true_keys(self, condition: Condition) -> list[bool | None]:
        """Return the condition's value for each row. Raise UnsaidError, and RefusedError if Spark cannot compute it."""
        from pyspark.errors import PySparkException

        text = condition.text(SPARK, backquoted)
        try:
            rows = self._spark.sql(f"SELECT {KEY}, ({text}) AS z FROM {_COPY} ORDER BY {KEY}").collect()
        except PySparkException as error:
            raise RefusedError(str(error)) from None
        return [row.z for row in rows]

    def _checks(
        self, rng: random.Random, table: RandomTable
    ) -> dict[str, Callable[[Condition, Condition], str | None]]:
        column = backquoted(rng.choice([each.name for each in table.columns]))
        spark, address = self._spark, self._address

        def compared(text: str, found: list[int], wanted: list[int]) -> str | None:
            fault = difference([*map(str, found)], [*map(str, wanted)])
            return None if fault is None else f"{text}\n  {fault}"

        def where(p: Condition, _: Condition) -> str | None:
            text = p.text(SPARK, backquoted)
            frame = spark_table(spark, table.path, address).select(KEY).where(text).to_df()
            return compared(text, [row[0] for row in frame.collect()], true_rows(self._true_keys(p)))

        def catalog(p: Condition, _: Condition) -> str | None:
            """TLP in one statement: the three parts, each with its number."""
            text, truth = p.text(SPARK, backquoted), self._true_keys(p)
            parts = [text, f"NOT ({text})", f"({text}) IS NULL"]
            path = "headrace." + ".".join(map(backquoted, table.path.split(".")))
            sql = " UNION ALL ".join(
                f"SELECT {number} AS n, {KEY}, {column} FROM {path} WHERE {part}"
                for number, part in enumerate(parts)
            )
            try:
                found = [f"{row[0]} {row[1]}" for row in spark.sql(sql).collect()]
            except Exception as error:
                if "V2ExpressionBuilder" in str(error):
                    # Spark 4.1 asserts there, for any catalog: a TINYINT compared with 128 becomes a NULL beside OR.
                    raise RefusedError(str(error)) from None
                raise
            numbers = {True: 0, False: 1, None: 2}
            wanted = [f"{numbers[value]} {row}" for row, value in enumerate(truth)]
            fault = difference(found, wanted)
            return None if fault is None else f"{sql}\n  {fault}"

        def translation(p: Condition, _: Condition) -> str | None:
            _, fault = translation_fault(table, p, self._true_keys(p), SPARK)
            return None if fault is None else f"{p.text(SPARK, backquoted)}\n  {fault}"

        return {"spark where": where, "spark catalog": catalog, "spark translation": translation}


def _of_spark(table: RandomTable) -> pa.Table:
    """The rows with moments in microseconds, which are Spark's."""
    rows = table.rows
    for index, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            rows = rows.set_column(
                index, field.name, rows.column(index).cast(pa.timestamp("us", field.type.tz))
            )
    return rows
