"""Conditions that name rows by their keys, which the server finds without a scan."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from headrace.tablelayer.client import DataError, Table
from headrace.tablelayer.client.write.conform import conform
from headrace.tablelayer.model.types.column_types import TypeKind


def are_values(table: Table, equals: Mapping[str, Any]) -> bool:
    """Return whether literals are values of their columns' own types.

    DuckDB compares other literals, as it does for SELECT. A number that is not a FLOAT is another one for it, or the
    nearest FLOAT, as it is written.
    """
    columns = table.definition.schema.select(list(equals))
    try:
        values = conform([equals], columns, table=str(table.path), fill_missing=False)
    except DataError:
        return False
    floats = [column.name for column in columns if column.type.kind is TypeKind.FLOAT]
    return all(_is_same(equals[name], values.column(name)[0].as_py()) for name in floats)


def _is_same(literal: Any, value: float) -> bool:
    if isinstance(literal, float):
        return literal == value or literal != literal
    return Decimal(literal) == Decimal(value)
