"""Merge engines for a few upserts, row by row: rules R7, R8 and R9. `engines.merge` does the same with arrays.

An engine gets stored rows and returns one. It raises `NeedsArrays` for a row of an older schema, and for what arrays
refuse: an overflow, or a text that is too long. Pure; called on the event loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from headrace.tablelayer.model.options.table_options import MergeEngine
from headrace.tablelayer.model.rows.one_row import RowFormat
from headrace.tablelayer.model.schema.aggregates import DEFAULT_FUNCTION, JOINING, AggregateFunction
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.types.column_types import INTEGER_BITS, TEXT_KINDS, TIMESTAMP_KINDS, TypeKind
from headrace.tablelayer.server.merge.few_rows import Merge, NeedsArrays

Fold = Callable[[Any, Any], Any]
"""Returns a column's value after an upsert, from the value before and the given one; None is null."""
_ORDERED: Final = (
    frozenset(INTEGER_BITS) | TEXT_KINDS | TIMESTAMP_KINDS | {TypeKind.BOOLEAN, TypeKind.DATE, TypeKind.TIME}
)
"""Types whose values in a slot compare as the column's values do."""


def engine_of(definition: TableDefinition) -> tuple[Merge | None, bool]:
    """Return the table's engine, None if rows replace rows; and whether its engine is known here."""
    settings, schema = definition.settings, definition.schema
    engine = settings.merge_engine
    if engine is None:
        return None, True
    if engine is MergeEngine.FIRST_ROW:
        return _first_row, True
    if engine is MergeEngine.VERSIONED:
        assert settings.version_column is not None
        return _newest(RowFormat(schema), schema.index(settings.version_column)), True
    folds = folds_of(definition)
    return (merging(RowFormat(schema), folds), True) if folds else (None, False)


def folds_of(definition: TableDefinition) -> list[Fold]:
    """Return the function of each column; none if one of them is not known here."""
    schema = definition.schema
    if definition.settings.merge_engine is not MergeEngine.AGGREGATION:
        return [keep_given] * len(schema.columns)
    folds = [
        keep_given if column.name in schema.primary_key else _fold_of(column) for column in schema.columns
    ]
    return [] if None in folds else [fold for fold in folds if fold is not None]


def _first_row(before: bytes, row: bytes) -> None:
    return None


def _newest(layout: RowFormat, index: int) -> Merge:
    def merge(before: bytes, row: bytes) -> bytes | None:
        held, given = _values(layout, before)[index], _values(layout, row)[index]
        return row if held is None or (given is not None and given >= held) else None

    return merge


def merging(layout: RowFormat, folds: list[Fold]) -> Merge:
    """Return the merge of rows column by column."""

    def merge(before: bytes, row: bytes) -> bytes:
        held, given = _values(layout, before), _values(layout, row)
        return layout.row([fold(*each) for fold, *each in zip(folds, held, given, strict=True)])

    return merge


def _values(layout: RowFormat, row: bytes) -> list[Any]:
    values = layout.values(row)
    if values is None:
        raise NeedsArrays
    return values


def keep_given(held: Any, given: Any) -> Any:
    return given


def keep_held(held: Any, given: Any) -> Any:
    return held


def _fold_of(column: Column) -> Fold | None:
    """Return the function of a column; None if only arrays know it."""
    aggregate, kind = column.aggregate, column.type.kind
    function = DEFAULT_FUNCTION if aggregate is None else aggregate.function
    if function is AggregateFunction.LAST_VALUE:
        return keep_given
    if function is AggregateFunction.FIRST_VALUE:
        return keep_held
    if function is AggregateFunction.LAST_VALUE_IGNORE_NULLS:
        return _of_two(keep_given)
    if function is AggregateFunction.FIRST_VALUE_IGNORE_NULLS:
        return _of_two(keep_held)
    if function in (AggregateFunction.MAX, AggregateFunction.BOOL_OR) and kind in _ORDERED:
        return _of_two(max)
    if function in (AggregateFunction.MIN, AggregateFunction.BOOL_AND) and kind in _ORDERED:
        return _of_two(min)
    if function is AggregateFunction.SUM and kind in INTEGER_BITS:
        return _of_two(_sum(INTEGER_BITS[kind]))
    if function is AggregateFunction.SUM and kind is TypeKind.DOUBLE:
        return _of_two(_sum_of_doubles)
    if function in JOINING and kind is TypeKind.STRING:
        assert aggregate is not None
        delimiter = aggregate.delimiter.encode()
        return _of_two(lambda held, given: held + delimiter + given)
    return None


def _of_two(fold: Fold) -> Fold:
    """Return `fold`, which ignores nulls."""
    return lambda held, given: held if given is None else given if held is None else fold(held, given)


def _sum(bits: int) -> Fold:
    limit = 1 << (bits - 1)

    def fold(held: int, given: int) -> int:
        if not -limit <= held + given < limit:
            raise NeedsArrays
        return held + given

    return fold


def _sum_of_doubles(held: float, given: float) -> float:
    if math.isnan(held + given):  # arrays give NaN one sign
        raise NeedsArrays
    return held + given
