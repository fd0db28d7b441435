"""Filters: which rows a reader wants, made by the client, carried out by the server.

A client has a `pyarrow.compute.Expression` or a condition in SQL, and sends it as Substrait over just the columns
that it names (`encode_filter`). The server reads it against the schema that the reader knows (`Filter.parse`), asks it
about the statistics of each batch (`verdict`) and, if rows are to be left out, about the rows (`mask`).

Rows for which the condition is null are not wanted, as in SQL.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablelayer.model import substrait
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.schema import Schema
from tablelayer.model.statistics import ColumnStatistics

FilterLike = str | pc.Expression | None
"""What callers give: a condition in SQL, an expression, or nothing."""

FILTER_SIZE_MAX: Final = 1 << 20
"""Of an encoded filter: an IN of some 50,000 values."""


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
    arrow = schema.arrow()
    try:
        data = bytes(expression.to_substrait(arrow))
        reader = substrait.TreeReader(substrait.parse(data), [column.type for column in schema.columns])
        reader.read()
        used = pa.schema([arrow.field(position) for position in sorted(reader.used)] or [arrow.field(0)])
        return bytes(expression.to_substrait(used))
    except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
        raise _invalid(
            f"the filter {expression} cannot be sent to the server: {error}. Compare a column with a value of its "
            "own type (pyarrow.scalar(value, type)), and use AND, OR, NOT, IN, IS NULL, starts_with"
        ) from error


class Filter(msgspec.Struct, frozen=True):
    """`columns`: positions in the schema it was parsed for, ascending; `mask` takes batches of just these."""

    schema: Schema
    columns: tuple[int, ...]
    _node: substrait.Node
    _expression: Any
    _order: tuple[int, ...]

    @classmethod
    def parse(cls, data: bytes | memoryview, schema: Schema) -> Filter:
        """Raises TableError(INVALID_FILTER) for anything but one condition over columns of this schema."""
        if len(data) > FILTER_SIZE_MAX:
            raise _invalid(f"the filter has {len(data)} bytes; {FILTER_SIZE_MAX} is the most")
        import pyarrow.substrait

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
            bound = pyarrow.substrait.deserialize_expressions(data)
            for field, column in zip(bound.schema, columns, strict=True):
                if field.type != column.type.arrow():
                    raise ValueError(f"column '{column.name}' is {column.type}, not {field.type}")
            (expression,) = bound.expressions.values()
            # What is not a condition is found out here, not with the first row.
            arrow = pa.schema([column.field().with_nullable(True) for column in columns])
            nothing = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in arrow], schema=arrow)
            nothing.filter(expression)
        except (pa.ArrowException, ValueError, TypeError, KeyError, NotImplementedError) as error:
            raise _invalid(f"the filter cannot be used: {error}") from error
        positions = [schema.index(column.name) for column in columns]
        ascending = sorted(positions)
        return cls(schema, tuple(ascending), node, expression, tuple(map(ascending.index, positions)))

    def verdict(self, find: Callable[[int], ColumnStatistics | None]) -> Verdict:
        """`find` gives the statistics of a column by its id, in the form of the filter's schema."""
        ids = [self.schema.columns[self.columns[index]].id for index in self._order]
        outcomes = self._node.outcomes(lambda position: find(ids[position]))
        if not outcomes & substrait.TRUE:
            return Verdict.NONE
        return Verdict.ALL if outcomes == substrait.TRUE else Verdict.SOME

    def mask(self, rows: pa.RecordBatch) -> np.ndarray:
        """bool[n] for rows of `columns`: which are wanted."""
        arrays = [rows.column(index) for index in self._order]
        try:
            found = self._node.evaluate(arrays)
        except substrait.OpaqueError:
            return self._mask_by_pyarrow(arrays, rows.num_rows)
        if isinstance(found, pa.Scalar):
            return np.full(rows.num_rows, bool(found.as_py()))
        if found.null_count:
            found = found.fill_null(False)
        mask: np.ndarray = found.to_numpy(zero_copy_only=False)
        return mask

    def _mask_by_pyarrow(self, arrays: list[pa.Array], count: int) -> np.ndarray:
        numbers = pa.array(np.arange(count))
        names = [f"c{index}" for index in range(len(arrays))]
        rows = pa.RecordBatch.from_arrays([*arrays, numbers], names=[*names, "row"])
        try:
            kept = rows.filter(self._expression).column("row").to_numpy()
        except pa.ArrowException as error:
            raise _invalid(f"the filter cannot be computed: {error}") from error
        mask = np.zeros(count, bool)
        mask[kept] = True
        return mask


def _invalid(message: str) -> TableError:
    return TableError(TableErrorCode.INVALID_FILTER, message)
