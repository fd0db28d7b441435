"""Expressions over times that pyarrow cannot encode in Substrait.

These are TIMESTAMP(9), TIMESTAMP_LTZ(9), and TIME in any unit but microseconds. On the wire their values are numbers
of nanoseconds since 1970 or midnight, and `values` reads them so. Here an expression is read from its pickled form
and built again, with such columns as BIGINT and the values compared with them as numbers. Source: Arrow's
`compute/expression.cc`, Serialize: an IPC file of one row whose metadata is the tree in prefix order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_COMPARISONS: Final = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
_NANOS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_LIMIT: Final = 1 << 63
_Token = tuple[str, str]


def needs_ticks(arrow_type: pa.DataType) -> bool:
    """Whether values of a type travel as numbers."""
    if pa.types.is_timestamp(arrow_type):
        return bool(arrow_type.unit == "ns")
    return bool(pa.types.is_time(arrow_type)) and arrow_type.unit != "us"


def in_ticks(expression: pc.Expression, schema: pa.Schema) -> tuple[pc.Expression, pa.Schema]:
    """Return the expression and the schema that it has on the wire; both unchanged if pyarrow can encode it.

    Raises ValueError for a comparison that has no meaning.
    """
    kinds = {field.name: field.type for field in schema if needs_ticks(field.type)}
    if not kinds:
        return expression, schema
    buffer = expression.__reduce__()[1][0]
    batch = pa.ipc.open_file(buffer).get_batch(0)
    tokens = list(_tokens(batch.schema))
    if not any(word == "field_ref" and name in kinds for word, name in tokens):
        return expression, schema
    made = _Reader(tokens, batch, kinds).read()
    fields = [pa.field(each.name, pa.int64()) if each.name in kinds else each for each in schema]
    return made, pa.schema(fields)


def _tokens(schema: pa.Schema) -> Iterator[_Token]:
    text = schema.to_string(truncate_metadata=False)
    for line in text[text.index("-- schema metadata --\n") :].split("\n")[1:]:
        word, _, quoted = line.partition(": ")
        yield word, quoted[1:-1]


class _Reader:
    """A reader that walks over the tokens once."""

    def __init__(self, tokens: list[_Token], batch: pa.RecordBatch, kinds: dict[str, pa.DataType]) -> None:
        self._left = tokens[::-1]
        self._batch = batch
        self._kinds = kinds

    def read(self) -> pc.Expression:
        word, text = self._left.pop()
        if word == "literal":
            return pc.scalar(self._batch.column(int(text))[0])
        if word == "field_ref":
            return pc.field(text)
        if word != "call":
            raise ValueError(f"a {word.replace('_', ' ')} cannot be in a filter")
        return self._call(text)

    def _call(self, function: str) -> pc.Expression:
        peeked: list[_Token] = []
        arguments: list[Any] = []
        options: pa.StructScalar | None = None
        while (token := self._left[-1])[0] != "end":
            if token[0] == "options":
                options = self._batch.column(int(self._left.pop()[1]))[0]
                continue
            peeked.append(token)
            arguments.append(self.read())
        self._left.pop()
        compared = [self._kinds[text] for word, text in peeked if word == "field_ref" and text in self._kinds]
        if compared and function in _COMPARISONS:
            for index, token in enumerate(peeked):
                if token[0] != "literal":
                    continue
                (ticks,) = _ticks_of(pa.array([self._literal(token)]), compared[0])
                if ticks is None or -_LIMIT <= ticks < _LIMIT:
                    arguments[index] = pc.scalar(pa.scalar(ticks, pa.int64()))
                else:
                    return _beyond(function, arguments[1 - index], (ticks > 0) is (index == 1))
        if compared and function == "is_in":
            values = options["value_set"].values if options is not None else pa.nulls(0)
            kept = [n for n in _ticks_of(values, compared[0]) if n is None or -_LIMIT <= n < _LIMIT]
            return arguments[0].isin(pa.array(kept, pa.int64()))
        return pc.Expression._call(function, arguments, None if options is None else _options(options))

    def _literal(self, token: _Token) -> pa.Scalar:
        return self._batch.column(int(token[1]))[0]


def _beyond(function: str, column: pc.Expression, is_less: bool) -> pc.Expression:
    """Return the comparison of a column with a value beyond the range of its type.

    It is the same for every value, and null for null. `is_less`: the left side of the comparison is the smaller one.
    """
    holds = function == "not_equal" or (
        function.startswith("less") if is_less else function.startswith("greater")
    )
    return column == column if holds else column != column


def _ticks_of(values: pa.Array, kind: pa.DataType) -> list[int | None]:
    """Return numbers of nanoseconds, of any size."""
    given = values.type
    if pa.types.is_null(given):
        return [None] * len(values)
    timestamps = pa.types.is_timestamp(given) and pa.types.is_timestamp(kind)
    if not (timestamps and (given.tz is None) is (kind.tz is None)) and not (
        pa.types.is_time(given) and pa.types.is_time(kind)
    ):
        raise ValueError(
            f"a column of Arrow's type {kind} cannot be compared with a value of the type {given}"
        )
    numbers = values.cast(pa.int32()) if pa.types.is_time32(given) else values.cast(pa.int64())
    return [None if n is None else n * _NANOS[given.unit] for n in numbers.to_pylist()]


def _options(options: pa.StructScalar) -> pc.FunctionOptions:
    sink = pa.BufferOutputStream()
    array = pa.array([options], options.type)
    batch = pa.RecordBatch.from_arrays([array], schema=pa.schema([pa.field("", options.type)]))
    with pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(batch)
    return pc.FunctionOptions.deserialize(sink.getvalue())
