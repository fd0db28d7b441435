"""Check the part of a condition that is sent to the server, without a server: JSON, Arrow, Substrait, statistics."""

from __future__ import annotations

import json

import pyarrow as pa

from headrace.tablelayer.model.batches import statistics
from headrace.tablelayer.model.filters.conditions import DUCKDB, arrow_expression, push_down
from headrace.tablelayer.model.filters.filters import Filter, Verdict, encode_filter
from headrace.tablelayer.tests.sql.differential.conditions import HEADRACE, SPARK, Condition
from headrace.tablelayer.tests.sql.differential.reference import Truth, rows_told, true_rows
from headrace.tablelayer.tests.sql.differential.tables import RandomTable, quoted

_SLICES = 4


def backquoted(name: str) -> str:
    return f"`{name}`"


def pushed_of(table: RandomTable, condition: Condition, dialect: str = HEADRACE) -> tuple[object, bool]:
    """(the pushed predicate or None, whether that is all of the condition)."""
    spark = dialect == SPARK
    text = condition.text(dialect, backquoted if spark else quoted)
    pushed = push_down([text], table.schema, "spark" if spark else DUCKDB)
    return pushed.predicate, pushed.complete


def translation_fault(
    table: RandomTable, condition: Condition, truth: Truth, dialect: str = HEADRACE
) -> tuple[bool, str | None]:
    """Return (whether anything was pushed, its fault).

    A part of the condition keeps every row for which the whole is true; the whole keeps only these rows.
    """
    predicate, complete = pushed_of(table, condition, dialect)
    if predicate is None:
        return False, None
    schema = table.schema
    expression = arrow_expression(json.loads(json.dumps(predicate)), schema.arrow())
    wanted = set(true_rows(truth))
    rows = table.rows.cast(schema.arrow()).combine_chunks()
    kept = rows.filter(expression).column("k").to_pylist()
    fault = _told(table, condition, predicate, complete, wanted, set(kept), "Arrow")
    if fault is not None:
        return True, fault
    found = Filter.parse(encode_filter(expression, schema), schema)
    (batch,) = rows.to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]
    columns = batch.select([schema.columns[index].name for index in found.columns])
    mask = found.mask(columns).tolist()
    kept_by_server = {row for row, value in enumerate(mask) if value}
    fault = _told(table, condition, predicate, complete, wanted, kept_by_server, "the server's mask")
    if fault is not None:
        return True, fault
    size = max(1, len(mask) // _SLICES)
    for start in range(0, len(mask), size):
        part = batch.slice(start, size)
        data = statistics.compute(part, schema, schema.names)
        known = statistics.decode(data, schema, part.num_rows)
        verdict, here = found.verdict(known.get), mask[start : start + size]
        if (verdict is Verdict.NONE and any(here)) or (verdict is Verdict.ALL and not all(here)):
            return (
                True,
                f"pushed {predicate}: the statistics of rows {start}.. say {verdict.name}, their mask {here}",
            )
    return True, None


def _told(
    table: RandomTable,
    condition: Condition,
    predicate: object,
    complete: bool,
    wanted: set[int],
    kept: set[int],
    by: str,
) -> str | None:
    lost, more = wanted - kept, (kept - wanted) if complete else set()
    if not lost and not more:
        return None
    rows = rows_told(table, condition, sorted(lost or more))
    return f"pushed {predicate}: {by} {'loses' if lost else 'keeps'} {len(lost or more)} rows: {rows}"
