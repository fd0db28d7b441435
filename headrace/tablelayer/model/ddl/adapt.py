"""Changes to a query for DuckDB that depend on the types of its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from headrace.tablelayer.model.ddl.answer_names import AnswerNames
from headrace.tablelayer.model.ddl.decimals import adapt_decimals
from headrace.tablelayer.model.ddl.fine_literals import has_fine_literals, keep_digits
from headrace.tablelayer.model.ddl.moments import adapt_moments
from headrace.tablelayer.model.ddl.query_types import has_nanoseconds


def adapt(tree: exp.Expr, tables: Mapping[str, pa.Schema]) -> bool:
    """Change a query in place, so that DuckDB can answer it exactly. The columns of the answer keep their names.

    Return whether it changed.

    `tables`: schemas by the keys in the `meta` of the table nodes (`query_types.SCHEMA`).
    """
    kinds = [kind for schema in tables.values() for kind in schema.types]
    needed = [change for has, change in _CHANGES if any(_has(has, kinds))]
    if has_fine_literals(tree):
        needed.append(keep_digits)
    if not needed:
        return False
    before, answer = tree.sql(dialect=DuckDB), AnswerNames(tree)
    for change in needed:
        change(tree, tables)
    answer.keep(tree)
    return bool(tree.sql(dialect=DuckDB) != before)


_CHANGES = ((pa.types.is_decimal, adapt_decimals), (has_nanoseconds, adapt_moments))


def _has(wanted: Callable[[pa.DataType], bool], kinds: Iterable[pa.DataType]) -> Iterable[bool]:
    for kind in kinds:
        yield wanted(kind)
        if pa.types.is_nested(kind):
            yield from _has(wanted, [kind.field(place).type for place in range(kind.num_fields)])
