"""SQL conditions for readers: the part of SQL whose meaning Arrow shares with Spark and DuckDB.

An engine applies the whole condition again, so a pushed predicate only has to keep every row for which the condition
holds. `filter_of_sql` is for callers without an engine and accepts only conditions that can be pushed as a whole.
Pushed are comparisons of a column with a literal of its own kind, IN, BETWEEN, IS [NOT] NULL, LIKE 'prefix%', and
AND, OR, NOT of those. In both engines NaN equals itself and is the largest value. Not pushed: FLOAT columns,
functions, comparisons of two columns, and literals that the engine would cast. Each part of a conjunction is pushed
on its own. A node or an argument that is not named here is not pushed (`trees`). A predicate is a JSON value, because
it is passed in a string option of Spark: `["and", p, ...]`, `["or", p, ...]`, `["not", p]`, `["null", column]`,
`["in", column, [values]]`, `["prefix", column, text]`, or `["=" | "<" | "<=" | ">" | ">=", column, value]`; dates,
timestamps and decimals are text.
"""

from __future__ import annotations

import datetime
import decimal
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters.trees import conjuncts, hints_in, only
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.types.column_types import TEXT_KINDS, DataType, TypeKind
from headrace.tablelayer.model.types.values import in_utc, typed

Predicate = list[Any]

_INTEGERS = frozenset({TypeKind.TINYINT, TypeKind.SMALLINT, TypeKind.INT, TypeKind.BIGINT})
SPARK, DUCKDB = "spark", "duckdb"
_IN_MAX = 200_000
_MOMENT_TYPES: dict[str, dict[TypeKind, tuple[str, ...]]] = {
    SPARK: {TypeKind.DATE: ("date",), TypeKind.TIMESTAMP: ("timestampntz",)},
    DUCKDB: {
        TypeKind.DATE: ("date",),
        TypeKind.TIMESTAMP: ("timestamp", "timestampntz", "date"),
        TypeKind.TIMESTAMP_LTZ: ("timestamptz", "timestampltz", "timestamp", "timestampntz", "date"),
    },
}
"""The types of literals, in sqlglot's names, that can be compared with a column of a kind without a cast."""
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class PushedCondition:
    """A condition after pushing: the `predicate` to push (None: nothing) and the parts that cannot be pushed."""

    __slots__ = ("columns", "left", "predicate")

    def __init__(self, predicate: Predicate | None, left: tuple[str, ...], columns: tuple[str, ...]) -> None:
        self.predicate = predicate
        self.left = left
        self.columns = columns
        """The table's columns that the condition names, pushed or not."""

    @property
    def complete(self) -> bool:
        return not self.left


def expression_of(wanted: str | pc.Expression | Predicate, schema: Schema) -> pc.Expression:
    """Return a caller's filter as an expression over the table's rows. Raises TableError(INVALID_FILTER)."""
    if isinstance(wanted, str):
        return filter_of_sql(wanted, schema)
    return arrow_expression(wanted, schema.arrow()) if isinstance(wanted, list) else wanted


def filter_of_sql(condition: str, schema: Schema) -> pc.Expression:
    """Return a SQL condition as an expression over the table's rows.

    Raises TableError(INVALID_FILTER) that names the parts that cannot be a filter.
    """
    pushed = push_down([condition], schema, DUCKDB)
    if pushed.left or pushed.predicate is None:
        raise TableError(
            TableErrorCode.INVALID_FILTER,
            f"a filter cannot express {' and '.join(pushed.left) or 'nothing'}: compare columns "
            f"({', '.join(schema.names)}) with literals of their own type, by =, <>, <, <=, >, >=, IN, BETWEEN, "
            "IS NULL, LIKE 'prefix%', AND, OR, NOT",
        )
    return arrow_expression(pushed.predicate, schema.arrow())


def push_down(conditions: Iterable[Any], schema: Schema, dialect: str = SPARK) -> PushedCondition:
    """Return the part of conditions that can be pushed. `conditions` (texts or sqlglot's trees) must all hold."""
    import sqlglot
    from sqlglot import expressions as sql
    from sqlglot.errors import SqlglotError

    by_name = _by_name(schema)
    parts: list[Predicate] = []
    left, named = list[str](), dict[str, None]()
    for condition in conditions:
        try:
            trees = [condition] if isinstance(condition, sql.Expr) else sqlglot.parse(condition, read=dialect)
        except SqlglotError:
            trees = []
        if len(trees) != 1 or trees[0] is None or (isinstance(condition, str) and hints_in(condition)):
            # The engine's own parser reports the error. All columns are named, because the condition's columns are
            # unknown.
            left.append(str(condition))
            named |= dict.fromkeys(schema.names)
            continue
        tree = trees[0]
        text = condition if isinstance(condition, str) else tree.sql(dialect=dialect)
        named |= dict.fromkeys(_names_in(tree, text, schema))
        for part in conjuncts(tree):
            pushed = _Translation(by_name, dialect).of(part)
            if pushed is None:
                left.append(part.sql(dialect=dialect))
            else:
                parts.append(pushed)
    predicate = None if not parts else parts[0] if len(parts) == 1 else ["and", *parts]
    return PushedCondition(predicate, tuple(left), tuple(named))


def _by_name(schema: Schema) -> dict[str, Column]:
    """Return the columns by lower-case name, without names that differ in case only.

    Engines do not agree on the column that such a name means.
    """
    found: dict[str, Column | None] = {}
    for column in schema.columns:
        found[column.name.lower()] = None if column.name.lower() in found else column
    return {name: column for name, column in found.items() if column is not None}


def _names_in(tree: Any, text: str, schema: Schema) -> list[str]:
    """Return the columns that a condition may name, including some that its words only might mean.

    A word before a dot may be a column whose field is wanted, and the parser takes `list[0]` for a call.
    """
    from sqlglot import expressions as sql

    if tree.find(sql.Star, sql.PositionalColumn) is not None:
        return list(schema.names)
    used = {part.name.lower() for column in tree.find_all(sql.Column) for part in column.parts}
    used |= set(re.findall(r"\w+", text.lower()))
    return [name for name in schema.names if name.lower() in used]


class _Translation:
    """A translation to predicates. It returns None for any node or argument that is not named here."""

    def __init__(self, by_name: dict[str, Column], dialect: str) -> None:
        self._by_name = by_name
        self._dialect = dialect

    def of(self, tree: Any) -> Predicate | None:
        from sqlglot import expressions as sql

        signs = {sql.EQ: "=", sql.LT: "<", sql.LTE: "<=", sql.GT: ">", sql.GTE: ">="}
        if only(tree, sql.Paren, "this"):
            return self.of(tree.this)
        if only(tree, sql.And, "this", "expression") or only(tree, sql.Or, "this", "expression"):
            left, right = self.of(tree.left), self.of(tree.right)
            word = "and" if type(tree) is sql.And else "or"
            return None if left is None or right is None else [word, left, right]
        if only(tree, sql.Not, "this"):
            return _negated(self.of(tree.this))
        if only(tree, sql.NEQ, "this", "expression"):
            return _negated(self._comparison("=", tree))
        if type(tree) is sql.Column:
            column = self._column(tree)
            is_flag = column is not None and column.type.kind is TypeKind.BOOLEAN
            return ["=", column.name, True] if column is not None and is_flag else None
        if only(tree, sql.Is, "this", "expression", "negate") and only(tree.expression, sql.Null):
            column = self._column(tree.this)
            is_null = None if column is None else ["null", column.name]
            return _negated(is_null) if tree.args.get("negate") else is_null
        if only(tree, sql.Like, "this", "expression", "negate"):
            column, prefix = self._column(tree.this), _like_prefix(tree.expression)
            if column is None or column.type.kind not in TEXT_KINDS or prefix is None:
                return None
            begins = ["prefix", column.name, prefix]
            return _negated(begins) if tree.args.get("negate") else begins
        if only(tree, sql.Between, "this", "low", "high"):
            column = self._column(tree.this)
            low = None if column is None else self._literal(tree.args["low"], column)
            high = None if column is None else self._literal(tree.args["high"], column)
            if column is None or low is None or high is None:
                return None
            return ["and", [">=", column.name, low], ["<=", column.name, high]]
        if only(tree, sql.In, "this", "expressions"):
            column = self._column(tree.this)
            values = [] if column is None else [self._literal(value, column) for value in tree.expressions]
            fits = 0 < len(values) <= _IN_MAX and None not in values
            return ["in", column.name, values] if column is not None and fits else None
        sign = signs.get(type(tree))
        return self._comparison(sign, tree) if sign and only(tree, type(tree), "this", "expression") else None

    def _comparison(self, sign: str, tree: Any) -> Predicate | None:
        for this, other, word in ((tree.left, tree.right, sign), (tree.right, tree.left, _MIRRORED[sign])):
            column = self._column(this)
            if column is not None:
                value = self._literal(other, column)
                return None if value is None else [word, column.name, value]
        return None

    def _column(self, tree: Any) -> Column | None:
        from sqlglot import expressions as sql

        if not only(tree, sql.Column, "this") or not only(tree.this, sql.Identifier, "this", "quoted"):
            return None
        column = self._by_name.get(tree.name.lower())
        return None if column is None or column.type.is_nested else column

    def _literal(self, tree: Any, column: Column) -> Any:
        """Return the literal as JSON if it is one of the column's own kind; else None."""
        from sqlglot import expressions as sql

        kind = column.type.kind
        negative = only(tree, sql.Neg, "this")
        literal = tree.this if negative else tree
        if kind is TypeKind.BOOLEAN and only(literal, sql.Boolean, "this"):
            return None if negative else bool(literal.this)
        if kind in (TypeKind.DATE, TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_LTZ):
            return None if negative else self._moment(literal, column)
        if not only(literal, sql.Literal, "this", "is_string"):
            return None
        text = str(literal.this)
        if literal.is_string:
            return text if kind in TEXT_KINDS and not negative else None
        text = f"-{text}" if negative else text
        if kind in _INTEGERS and text.lstrip("-").isdigit():
            value = int(text)
            return value if -(2**63) <= value < 2**63 else None
        if kind is TypeKind.DECIMAL:
            return _decimal(text, column)
        if kind is TypeKind.DOUBLE:
            number = float(text)
            return number if abs(number) < float("inf") else None
        return None

    def _moment(self, literal: Any, column: Column) -> str | None:
        """Return the moment of a literal that does not depend on a session's time zone; else None.

        These are DATE '...' and TIMESTAMP_NTZ '...', and in DuckDB, whose zone is UTC here, also TIMESTAMP '...',
        TIMESTAMPTZ '...' and plain texts.
        """
        from sqlglot import expressions as sql

        kind, bare, of_date = column.type.kind, literal, False
        if only(literal, sql.Cast, "this", "to"):
            to = literal.to
            if not only(to, sql.DataType, "this"):
                return None
            if not to.is_type(*_MOMENT_TYPES[self._dialect].get(kind, ())):
                return None
            bare, of_date = literal.this, to.is_type("date")
        elif self._dialect != DUCKDB:
            return None
        if not only(bare, sql.Literal, "this", "is_string") or not bare.is_string:
            return None
        text = str(bare.this)
        try:
            if kind is TypeKind.DATE:
                value = typed(text, column.type)
                return value.isoformat() if isinstance(value, datetime.date) else None
            if of_date and _DAY.fullmatch(text) is None:
                return None
            return moment_text(text, column.type)
        except ValueError:
            return None


def _negated(predicate: Predicate | None) -> Predicate | None:
    return None if predicate is None else ["not", predicate]


_DAY = re.compile(r"[0-9]{4,6}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(
    r"(?P<year>[0-9]{4}|[1-9][0-9]{4,5})(?P<date>-[0-9]{2}-[0-9]{2})"
    r"(?:[T ](?P<clock>[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.(?P<fraction>[0-9]{1,9}))?)?)"
    r"(?P<zone>Z|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_EPOCH = datetime.datetime(1970, 1, 1)
_FAR_YEAR = 9999
"""The last year of Python's datetime; the range of nanoseconds ends in 2262."""


def moment_text(text: str, data_type: DataType) -> str | None:
    """Return a literal's moment as ISO 8601, for a TIMESTAMP or TIMESTAMP_LTZ type; None if the type is not exact
    enough.

    Raises ValueError for another text. With a type in nanoseconds a year after 9999 becomes the last moment of 9999,
    which is also beyond all values of the type.
    """
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a timestamp, such as 2024-09-19 12:00:00")
    year, zone = int(found["year"]), found["zone"]
    clock = (found["clock"] or "00:00:00").partition(".")[0]
    if year > _FAR_YEAR:
        if data_type.unit != "ns":
            return None
        datetime.datetime.fromisoformat(f"2000{found['date']} {clock}{zone or ''}")
        return f"{_FAR_YEAR}-12-31T23:59:59{'+00:00' if data_type.kind is TypeKind.TIMESTAMP_LTZ else ''}"
    value = datetime.datetime.fromisoformat(f"{year:04}{found['date']} {clock}{zone or ''}")
    if data_type.kind is TypeKind.TIMESTAMP_LTZ:
        value = in_utc(value)
    elif value.tzinfo is not None:
        raise ValueError(f"'{text}' has a zone, but {data_type} has none")
    digits = (found["fraction"] or "").rstrip("0")
    if len(digits) > {"s": 0, "ms": 3, "us": 6, "ns": 9}[data_type.unit]:
        return None
    fraction = f".{digits.ljust(6 if len(digits) <= 6 else 9, '0')}" if digits else ""
    shown = value.replace(tzinfo=None).isoformat(timespec="seconds")
    return f"{shown}{fraction}{'+00:00' if value.tzinfo is not None else ''}"


def nanoseconds(text: str) -> int:
    """Return a text of `moment_text` as nanoseconds since 1970."""
    whole, _, rest = text.removesuffix("+00:00").partition(".")
    since = datetime.datetime.fromisoformat(whole) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 10**9 + int(rest.ljust(9, "0"))


def _ticks(text: str, arrow_type: pa.DataType) -> int:
    """Return a text of `moment_text` in the unit of a type, even beyond the type's range. Raises ValueError."""
    ticks, rest = divmod(nanoseconds(text), {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[arrow_type.unit])
    if rest:
        raise ValueError(f"{text} has more digits than {arrow_type}")
    return ticks


def _like_prefix(pattern: Any) -> str | None:
    """Return the plain text before the last % of a pattern; None for another pattern."""
    from sqlglot import expressions as sql

    if not only(pattern, sql.Literal, "this", "is_string") or not pattern.is_string:
        return None
    text = str(pattern.this)
    prefix = text.removesuffix("%")
    return None if prefix == text or any(sign in prefix for sign in "%_\\") else prefix


def _decimal(text: str, column: Column) -> str | None:
    try:
        number = decimal.Decimal(text)
        rounded = number.quantize(decimal.Decimal(1).scaleb(-column.type.scale))
    except decimal.InvalidOperation:
        return None
    fits = rounded == number and len(rounded.as_tuple().digits) <= column.type.precision
    return str(rounded) if fits and "e" not in text.lower() else None


def arrow_expression(predicate: Predicate, schema: pa.Schema) -> pc.Expression:
    """Return the predicate as an expression over columns of the table's own Arrow types. Raises ValueError."""
    word, *rest = predicate
    if word in ("and", "or"):
        parts = [arrow_expression(part, schema) for part in _chain(predicate)]
        return _joined(parts, operator.and_ if word == "and" else operator.or_)
    if word == "not":
        return ~arrow_expression(rest[0], schema)
    name = rest[0]
    field = pc.field(name)
    if word == "null":
        return field.is_null()
    if word == "prefix":
        return pc.starts_with(field, rest[1])
    arrow_type = schema.field(name).type
    if word == "in":
        return _any_of(field, rest[1], arrow_type)
    return _compare(word, field, rest[1], arrow_type)


def _chain(predicate: Predicate) -> list[Predicate]:
    """Return the parts of an AND or OR, with nested ones of the same word merged into it.

    An OR of equalities of one column becomes one IN.
    """
    word, found, left = predicate[0], list[Predicate](), predicate[:0:-1]
    equal: dict[str, list[Any]] = {}
    while left:
        part = left.pop()
        if part[0] == word:
            left += part[:0:-1]
        elif word == "or" and part[0] in ("=", "in"):
            values = equal.get(part[1])
            if values is None:
                values = equal[part[1]] = []
                found.append(["in", part[1], values])
            values += part[2] if part[0] == "in" else [part[2]]
        else:
            found.append(part)
    return [["=", each[1], each[2][0]] if each[0] == "in" and len(each[2]) == 1 else each for each in found]


def _joined(parts: list[pc.Expression], join: Callable[[Any, Any], Any]) -> pc.Expression:
    """Join the parts as a balanced tree."""
    half = len(parts) // 2
    return parts[0] if not half else join(_joined(parts[:half], join), _joined(parts[half:], join))


def _any_of(field: pc.Expression, values: list[Any], arrow_type: pa.DataType) -> pc.Expression:
    """Return whether a value is in one set of values, null for null; Arrow's own `isin` is false for null."""
    if pa.types.is_timestamp(arrow_type):
        values = [_ticks(value, arrow_type) for value in values]
    if pa.types.is_integer(arrow_type) or pa.types.is_timestamp(arrow_type):
        limit = 1 << (arrow_type.bit_width - 1)
        values = [value for value in values if -limit <= value < limit]
    if pa.types.is_floating(arrow_type) and 0 in values:
        values = [*values, 0.0, -0.0]  # they are equal but have different bits
    if pa.types.is_decimal(arrow_type):
        values = [decimal.Decimal(value) for value in values]
    elif pa.types.is_date(arrow_type):
        values = [datetime.date.fromisoformat(value) for value in values]
    return field.isin(pa.array(values, arrow_type)) | (field < field)


def _compare(word: str, field: pc.Expression, value: Any, arrow_type: pa.DataType) -> pc.Expression:
    if pa.types.is_timestamp(arrow_type):
        value = _ticks(value, arrow_type)
    if pa.types.is_integer(arrow_type) or pa.types.is_timestamp(arrow_type):
        # Beyond the type's range a comparison has the same answer for every value that is not null.
        limit = 1 << (arrow_type.bit_width - 1)
        if value >= limit:
            word, value = ("<=" if word in ("<", "<=") else ">"), limit - 1
        elif value < -limit:
            word, value = (">=" if word in (">", ">=") else "<"), -limit
    scalar = _scalar(value, arrow_type)
    match word:
        case "=":
            return field == scalar
        case "<":
            return field < scalar
        case "<=":
            return field <= scalar
        case ">":
            found = field > scalar
        case ">=":
            found = field >= scalar
        case _:
            raise ValueError(f"a predicate begins with the unknown word {word!r}")
    return found | pc.is_nan(field) if pa.types.is_floating(arrow_type) else found


def _scalar(value: Any, arrow_type: pa.DataType) -> pa.Scalar:
    if pa.types.is_decimal(arrow_type):
        return pa.scalar(decimal.Decimal(value), arrow_type)
    if pa.types.is_date(arrow_type):
        return pa.scalar(datetime.date.fromisoformat(value), arrow_type)
    return pa.scalar(value, arrow_type)


def columns_of(predicate: Predicate) -> set[str]:
    """Return the columns that a predicate uses."""
    word, *rest = predicate
    if word in ("and", "or", "not"):
        return set().union(*(columns_of(part) for part in rest))
    return {str(rest[0])}
