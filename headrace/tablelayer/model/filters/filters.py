"""Filters: which rows a reader wants, made by the client, carried out by the server.

A client has a `pyarrow.compute.Expression` or a condition in SQL, and sends it as Substrait over just the columns
that it names (`encode_filter`). The server reads it against the schema that the reader knows (`Filter.parse`), asks it
about the statistics of each batch (`verdict`) and, if rows are to be left out, about the rows (`mask`). What a filter
may cost is bounded before it is paid: its bytes by `FILTER_SIZE_MAX`, its parts and what they may be by `substrait`,
what its parts give by looking at so many rows at once that all of them together take no more than `_COMPUTED_BYTES`.
Reading one of many values takes some milliseconds of processor time, so it is no work for an event loop.

Rows for which the condition is null are not wanted, as in SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.batches.statistics import ColumnStatistics
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters import substrait
from headrace.tablelayer.model.filters.ticks import in_ticks
from headrace.tablelayer.model.schema.schema import Schema

FilterLike = str | pc.Expression | None
"""What callers give: a condition in SQL, an expression, or nothing."""

FILTER_SIZE_MAX: Final = 4 << 20
"""Of an encoded filter: an IN of some 300,000 values of 8 bytes. A reader sends it with each request."""
_NESTING_MAX: Final = 500_000
_SIGNS: Final = re.compile(r'("(?:[^"\\]|\\.)*")|([()])')
_COMPUTED_BYTES: Final = 64 << 20
_VALUE_BYTES: Final = 16


class Verdict(Enum):
    """Of a batch: no row, every row, or maybe some rows are wanted."""

    NONE = 0
    ALL = 1
    SOME = 2


def encode_filter(expression: pc.Expression, schema: Schema) -> bytes:
    """The filter for a request. Raises TableError(INVALID_FILTER): a column that is not there, an operation that
    cannot travel."""
    if not isinstance(expression, pc.Expression):
        raise _invalid(
            f"{expression!r} is no filter: give a condition in SQL or a pyarrow.compute.Expression"
        )
    _check_nesting(expression)
    shown = expression
    try:
        expression, arrow = in_ticks(expression, schema.arrow())
        data = substrait.compact(bytes(expression.to_substrait(arrow)))
        reader = substrait.TreeReader(substrait.parse(data), [column.type for column in schema.columns])
        reader.read()
        used = pa.schema([arrow.field(position) for position in sorted(reader.used)] or [arrow.field(0)])
        data = substrait.compact(bytes(expression.to_substrait(used)))
    except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
        raise _invalid(
            f"the filter {str(shown)[:1000]} cannot be sent to the server: {error}. Compare a column with a value "
            "of its own type (pyarrow.scalar(value, type)), and use AND, OR, NOT, IN, IS NULL, starts_with"
        ) from error
    _check_size(data)
    return data


def _check_nesting(expression: pc.Expression) -> None:
    """pyarrow writes the names of functions twice for each level of the expression: 200 MB for a chain of 20 ORs."""
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
            f"the filter has {len(data)} bytes; {FILTER_SIZE_MAX} is the most: ask with a part of its values at a time"
        )


class Filter(msgspec.Struct, frozen=True):
    """`columns`: positions in the schema it was parsed for, ascending; `mask` takes batches of just these."""

    schema: Schema
    columns: tuple[int, ...]
    _node: substrait.Node
    _order: tuple[int, ...]
    _rows_at_once: int

    @classmethod
    def parse(cls, data: bytes | memoryview, schema: Schema) -> Filter:
        """Raises TableError(INVALID_FILTER) for anything but one condition over columns of this schema. Not for an
        event loop."""
        _check_size(data)
        data = bytes(data)
        try:
            parsed = substrait.parse(data)
            nested = [name for name in parsed.names if name in schema and schema.column(name).type.is_nested]
            if nested:  # the names of a ROW's fields stand among those of the columns
                raise ValueError(f"column '{nested[0]}' is nested, and nested columns cannot be in a filter")
            unknown = [name for name in parsed.names if name not in schema]
            if unknown or len(set(parsed.names)) != len(parsed.names):
                raise ValueError(
                    f"there is no column '{unknown[0]}'" if unknown else "a column is named more than once"
                )
            if not parsed.names:
                raise ValueError("it is over no column")
            columns = schema.select(parsed.names)
            reader = substrait.TreeReader(parsed, [column.type for column in columns])
            node = reader.read()
            # What is not a condition is found out here, not with the first row.
            found = node.evaluate([pa.array([], column.type.arrow()) for column in columns])
            if found.type != pa.bool_():
                raise ValueError(f"it gives values of the type {found.type} and is no condition")
        except (pa.ArrowException, ValueError, TypeError, KeyError, NotImplementedError) as error:
            raise _invalid(f"the filter cannot be used: {error}") from error
        positions = [schema.index(column.name) for column in columns]
        ascending = sorted(positions)
        rows_at_once = max(1024, _COMPUTED_BYTES // (_VALUE_BYTES * (reader.node_count + 1)))
        return cls(schema, tuple(ascending), node, tuple(map(ascending.index, positions)), rows_at_once)

    def verdict(self, find: Callable[[int], ColumnStatistics | None]) -> Verdict:
        """`find` gives the statistics of a column by its id, in the form of the filter's schema."""
        ids = [self.schema.columns[self.columns[index]].id for index in self._order]
        outcomes = self._node.outcomes(lambda position: find(ids[position]))
        if not outcomes & substrait.TRUE:
            return Verdict.NONE
        return Verdict.ALL if outcomes == substrait.TRUE else Verdict.SOME

    def mask(self, rows: pa.RecordBatch) -> np.ndarray:
        """bool[n] for rows of `columns`: which are wanted."""
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
