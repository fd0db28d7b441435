"""The functions of the aggregation merge engine: their names, types and options (semantics R9).

A table sets `'fields.<column>.agg' = '<function>'`, and for a parameter of the function
`'fields.<column>.<function>.<parameter>' = '<value>'`, as in Fluss. A definition keeps them with the columns, so that
they follow a column through renames; `options_of` turns them into options again. A column without a function has
`DEFAULT_FUNCTION`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from headrace.tablelayer.model.errors import invalid_table
from headrace.tablelayer.model.types.column_types import (
    NUMERIC_KINDS,
    TEXT_KINDS,
    TIMESTAMP_KINDS,
    DataType,
    TypeKind,
)

OPTION_PREFIX = "fields."
_FUNCTION_SUFFIX = ".agg"
_DELIMITER_SUFFIX = ".delimiter"
DEFAULT_DELIMITER = ","


class AggregateFunction(StrEnum):
    """The function that merges the values of one column under one key. Semantics R9 describes each."""

    SUM = "sum"
    PRODUCT = "product"
    MAX = "max"
    MIN = "min"
    LAST_VALUE = "last_value"
    LAST_VALUE_IGNORE_NULLS = "last_value_ignore_nulls"
    FIRST_VALUE = "first_value"
    FIRST_VALUE_IGNORE_NULLS = "first_value_ignore_nulls"
    LISTAGG = "listagg"
    STRING_AGG = "string_agg"
    BOOL_AND = "bool_and"
    BOOL_OR = "bool_or"
    RBM32 = "rbm32"
    RBM64 = "rbm64"


DEFAULT_FUNCTION = AggregateFunction.LAST_VALUE_IGNORE_NULLS
JOINING = frozenset({AggregateFunction.LISTAGG, AggregateFunction.STRING_AGG})
"""The functions that have a delimiter."""

_COMPARABLE = NUMERIC_KINDS | TEXT_KINDS | TIMESTAMP_KINDS | {TypeKind.DATE, TypeKind.TIME}
_TYPES: Mapping[AggregateFunction, frozenset[TypeKind]] = {
    AggregateFunction.SUM: frozenset(NUMERIC_KINDS),
    AggregateFunction.PRODUCT: frozenset(NUMERIC_KINDS),
    AggregateFunction.MAX: frozenset(_COMPARABLE),
    AggregateFunction.MIN: frozenset(_COMPARABLE),
    AggregateFunction.LISTAGG: frozenset(TEXT_KINDS),
    AggregateFunction.STRING_AGG: frozenset(TEXT_KINDS),
    AggregateFunction.BOOL_AND: frozenset({TypeKind.BOOLEAN}),
    AggregateFunction.BOOL_OR: frozenset({TypeKind.BOOLEAN}),
    AggregateFunction.RBM32: frozenset({TypeKind.BYTES}),
    AggregateFunction.RBM64: frozenset({TypeKind.BYTES}),
}


class Aggregate(msgspec.Struct, frozen=True):
    """The function of one column. `delimiter` is for listagg and string_agg only."""

    function: AggregateFunction
    delimiter: str = DEFAULT_DELIMITER


def is_aggregate_option(name: str) -> bool:
    """Whether an option's name is one of an aggregate function."""
    return name.startswith(OPTION_PREFIX)


def parse_options(options: Mapping[str, str]) -> dict[str, Aggregate]:
    """Return the functions by column name. Raises TableError(INVALID_TABLE) that names the wrong option."""
    functions: dict[str, AggregateFunction] = {}
    delimiters: dict[str, tuple[str, AggregateFunction, str]] = {}
    for name, value in options.items():
        column, function = parse_option(name, value)
        if name.endswith(_DELIMITER_SUFFIX):
            delimiters[column] = (name, function, value)
        else:
            functions[column] = function
    for column, (name, function, _) in delimiters.items():
        if functions.get(column) is not function:
            raise invalid_table(
                f"option '{name}': the column's function is {_named(functions.get(column))}, not {function}; "
                f"also set '{OPTION_PREFIX}{column}{_FUNCTION_SUFFIX}' = '{function}'"
            )
    return {
        column: Aggregate(function, delimiters[column][2] if column in delimiters else DEFAULT_DELIMITER)
        for column, function in functions.items()
    }


def parse_option(name: str, value: str) -> tuple[str, AggregateFunction]:
    """Return the column of an option and the function that it names. Raises TableError(INVALID_TABLE)."""
    rest = name.removeprefix(OPTION_PREFIX)
    if rest.endswith(_FUNCTION_SUFFIX) and len(rest) > len(_FUNCTION_SUFFIX):
        return rest.removesuffix(_FUNCTION_SUFFIX), _function(name, value)
    if rest.endswith(_DELIMITER_SUFFIX):
        column, _, function = rest.removesuffix(_DELIMITER_SUFFIX).rpartition(".")
        if column and function in JOINING:
            return column, AggregateFunction(function)
    raise invalid_table(
        f"unknown option '{name}': aggregation is written '{OPTION_PREFIX}<column>{_FUNCTION_SUFFIX}' = "
        f"'<function>', and '{OPTION_PREFIX}<column>.listagg{_DELIMITER_SUFFIX}' = '<text>'"
    )


def check_type(column: str, aggregate: Aggregate, data_type: DataType) -> None:
    """Raise TableError(INVALID_TABLE) unless the function accepts values of the type (R9.4)."""
    types = _TYPES.get(aggregate.function)
    if types is not None and data_type.kind not in types:
        words = ", ".join(kind.value for kind in TypeKind if kind in types)
        raise invalid_table(
            f"column '{column}': {aggregate.function} does not accept {data_type}; it accepts {words}"
        )


def options_of(column: str, aggregate: Aggregate) -> dict[str, str]:
    """Return the options that set this function."""
    written = {f"{OPTION_PREFIX}{column}{_FUNCTION_SUFFIX}": aggregate.function.value}
    if aggregate.delimiter != DEFAULT_DELIMITER:
        written[f"{OPTION_PREFIX}{column}.{aggregate.function}{_DELIMITER_SUFFIX}"] = aggregate.delimiter
    return written


def _function(name: str, value: str) -> AggregateFunction:
    word = value.strip().lower()
    if word in {each.value for each in AggregateFunction}:
        return AggregateFunction(word)
    near = difflib.get_close_matches(word, [each.value for each in AggregateFunction], n=1)
    hint = f"did you mean '{near[0]}'?" if near else "the functions are " + ", ".join(AggregateFunction)
    raise invalid_table(f"option '{name}' = '{value}': this function does not exist; {hint}")


def _named(function: AggregateFunction | None) -> str:
    return f"the default ({DEFAULT_FUNCTION})" if function is None else function.value
