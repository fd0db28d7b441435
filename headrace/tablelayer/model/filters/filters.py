"""Filters: conditions on rows that a client makes and the server evaluates.

A client has a `pyarrow.compute.Expression` or a condition in SQL, and sends it as Substrait over just the columns
that it names (`encode_filter`). The server reads it against the schema that the reader knows (`Filter.parse`),
evaluates it on the statistics of each batch (`verdict`) and, to leave out rows, on the rows (`mask`). The cost of a
filter is bounded: its bytes by `FILTER_SIZE_MAX`, its parts by `tree_reader`, and the memory of results by evaluating
so few rows at a time that all parts together take at most `_COMPUTED_BYTES`. Reading an IN with many values takes
some milliseconds of processor time, so it must not run on an event loop. As in SQL, a row for which the condition is
null does not match.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.batches.statistics import ColumnStatistics
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters.nodes import TRUE, Comparison, Junction, Node
from headrace.tablelayer.model.filters.substrait import compact, parse
from headrace.tablelayer.model.filters.ticks import in_ticks
from headrace.tablelayer.model.filters.tree_reader import TreeReader
from headrace.tablelayer.model.schema.schema import Column, Schema

FilterLike = str | pc.Expression | list[Any] | None
"""A caller's filter: a condition in SQL, an expression, a predicate (`conditions.Predicate`), or nothing."""

FILTER_SIZE_MAX: Final = 4 << 20
"""Maximum bytes of an encoded filter: an IN of some 300,000 values of 8 bytes. A reader sends it with each request.
"""
_NESTING_MAX: Final = 500_000
_SIGNS: Final = re.compile(r'("(?:[^"\\]|\\.)*")|([()])')
_COMPUTED_BYTES: Final = 64 << 20
_VALUE_BYTES: Final = 16


class Verdict(Enum):
    """The result for a batch: no row, every row, or maybe some rows match."""

    NONE = 0
    ALL = 1
    SOME = 2


def encode_filter(expression: pc.Expression, schema: Schema) -> bytes:
    """Return the encoded filter for a request.

    Raises TableError(INVALID_FILTER) for an unknown column or an operation that cannot be encoded.
    """
    if not isinstance(expression, pc.Expression):
        raise _invalid(
            f"{expression!r} is not a filter: give a condition in SQL or a pyarrow.compute.Expression"
        )
    _check_nesting(expression)
    shown = expression
    try:
        expression, arrow = in_ticks(expression, schema.arrow())
        data = compact(bytes(expression.to_substrait(arrow)))
        reader = TreeReader(parse(data), [column.type for column in schema.columns])
        reader.read()
        used = pa.schema([arrow.field(position) for position in sorted(reader.used)] or [arrow.field(0)])
        data = compact(bytes(expression.to_substrait(used)))
    except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
        raise _invalid(
            f"the filter {str(shown)[:1000]} cannot be sent to the server: {error}. Compare a column with a value "
            "of its own type (pyarrow.scalar(value, type)), and use AND, OR, NOT, IN, IS NULL, starts_with"
        ) from error
    _check_size(data)
    return data


def _check_nesting(expression: pc.Expression) -> None:
    """Refuse deep nesting, because pyarrow writes function names twice per level: 200 MB for a chain of 20 ORs."""
    depth = cost = 0
    for quoted, sign in _SIGNS.findall(str(expression)):
        if quoted or sign == "(":
            depth += not quoted
            cost += 1 << min(depth, 64)
        else:
            depth -= 1
    if cost > _NESTING_MAX:
        raise _invalid(
            "the filter has too many ANDs or ORs inside of each other to be sent: use isin(values), nest them evenly, "
            "(a | b) | (c | d), or give a condition in SQL"
        )


def _check_size(data: bytes | memoryview) -> None:
    if len(data) > FILTER_SIZE_MAX:
        raise _invalid(
            f"the filter has {len(data)} bytes; the maximum is {FILTER_SIZE_MAX}: use a part of its values at a time"
        )


class Filter(msgspec.Struct, frozen=True):
    """A parsed filter. `columns`: ascending positions in its schema; `mask` takes batches of just these columns."""

    schema: Schema
    columns: tuple[int, ...]
    _node: Node
    _order: tuple[int, ...]
    _rows_at_once: int

    @classmethod
    def parse(cls, data: bytes | memoryview, schema: Schema) -> Filter:
        """Return the filter, checked against a schema. Takes too long for an event loop.

        Raises TableError(INVALID_FILTER) for anything but one condition over columns of this schema.
        """
        _check_size(data)
        data = bytes(data)
        try:
            parsed = parse(data)
            nested = [name for name in parsed.names if name in schema and schema.column(name).type.is_nested]
            if nested:  # the names of a ROW's fields are among those of the columns
                raise ValueError(f"column '{nested[0]}' is nested, and nested columns cannot be in a filter")
            unknown = [name for name in parsed.names if name not in schema]
            if unknown or len(set(parsed.names)) != len(parsed.names):
                raise ValueError(
                    f"there is no column '{unknown[0]}'" if unknown else "a column is named more than once"
                )
            if not parsed.names:
                raise ValueError("it names no column")
            columns = schema.select(parsed.names)
            reader = TreeReader(parsed, [column.type for column in columns])
            node = reader.read()
            # An expression that is not a condition must fail here, not with the first row.
            found = node.evaluate([pa.array([], column.type.arrow()) for column in columns])
            if found.type != pa.bool_():
                raise ValueError(f"it is an expression of the type {found.type}, but a condition is BOOLEAN")
        except (pa.ArrowException, ValueError, TypeError, KeyError, NotImplementedError) as error:
            raise _invalid(f"the filter cannot be used: {error}") from error
        positions = [schema.index(column.name) for column in columns]
        ascending = sorted(positions)
        rows_at_once = max(1024, _COMPUTED_BYTES // (_VALUE_BYTES * (reader.node_count + 1)))
        return cls(schema, tuple(ascending), node, tuple(map(ascending.index, positions)), rows_at_once)

    def verdict(self, find: Callable[[int], ColumnStatistics | None]) -> Verdict:
        """Return the result for a batch. `find` returns a column's statistics by id, in the form of the filter's
        schema.
        """
        ids = [self.schema.columns[self.columns[index]].id for index in self._order]
        outcomes = self._node.outcomes(lambda position: find(ids[position]))
        if not outcomes & TRUE:
            return Verdict.NONE
        return Verdict.ALL if outcomes == TRUE else Verdict.SOME

    def equalities(self) -> list[tuple[Column, pa.Scalar]]:
        """Return columns with the value that each has in every matching row."""
        node = self._node
        parts = node.parts if isinstance(node, Junction) and node.conjunctive else (node,)
        return [
            (self.schema.columns[self.columns[self._order[part.column]]], part.scalar)
            for part in parts
            if isinstance(part, Comparison) and part.word == "equal"
        ]

    def mask(self, rows: pa.RecordBatch) -> np.ndarray:
        """Return bool[n] for rows of `columns`, true for rows that match."""
        masks = [
            self._mask(rows.slice(start, self._rows_at_once))
            for start in range(0, max(rows.num_rows, 1), self._rows_at_once)
        ]
        return masks[0] if len(masks) == 1 else np.concatenate(masks)

    def _mask(self, rows: pa.RecordBatch) -> np.ndarray:
        try:
            found = self._node.evaluate([rows.column(index) for index in self._order])
        except pa.ArrowException as error:
            raise _invalid(f"the filter cannot be computed: {error}") from error
        if isinstance(found, pa.Scalar):
            return np.full(rows.num_rows, bool(found.as_py()))
        if found.null_count:
            found = found.fill_null(False)
        mask: np.ndarray = found.to_numpy(zero_copy_only=False)
        return mask


def _invalid(message: str) -> TableError:
    return TableError(TableErrorCode.INVALID_FILTER, message)
