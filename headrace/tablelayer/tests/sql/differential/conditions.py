"""Random conditions, each in the dialects of Headrace, the reference (DuckDB over a copy) and Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from headrace.tablelayer.model.types.column_types import FLOAT_KINDS, INTEGER_KINDS, TEXT_KINDS, TypeKind
from headrace.tablelayer.tests.sql.differential.tables import (
    NANOS,
    NS_MAX,
    NS_MIN,
    TEXTS,
    YEARS,
    Column,
    RandomTable,
    days_of,
    moment_text,
    random_moment,
)

HEADRACE, REFERENCE, SPARK = "headrace", "reference", "spark"
Named = Callable[[str], str]
"""A column's name as the statement has it."""


class UnsaidError(Exception):
    """The dialect cannot express it."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Texts by dialect, in which §0§ stands for the first of `columns`."""

    texts: dict[str, str | None]
    columns: tuple[str, ...] = ()

    def text(self, dialect: str, named: Named) -> str:
        text = self.texts.get(dialect, self.texts[HEADRACE])
        if text is None:
            raise UnsaidError
        for index, name in enumerate(self.columns):
            text = text.replace(f"§{index}§", named(name))
        return text

    def smaller(self) -> Iterator[Condition]:
        yield from ()


@dataclass(frozen=True, slots=True)
class Joined:
    """Parts with words between, before and behind them."""

    words: tuple[str, ...]
    parts: tuple[Condition, ...]

    def text(self, dialect: str, named: Named) -> str:
        texts = [part.text(dialect, named) for part in self.parts]
        return "".join(word + text for word, text in zip(self.words, [*texts, ""], strict=True))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in self.parts for name in part.columns))

    def smaller(self) -> Iterator[Condition]:
        yield from self.parts
        for index, part in enumerate(self.parts):
            for each in part.smaller():
                yield Joined(self.words, (*self.parts[:index], each, *self.parts[index + 1 :]))


Condition = Leaf | Joined


def negated(condition: Condition) -> Condition:
    return Joined(("NOT (", ")"), (condition,))


def is_null(condition: Condition) -> Condition:
    return Joined(("(", ") IS NULL"), (condition,))


def both(left: Condition, right: Condition) -> Condition:
    return Joined(("(", ") AND (", ")"), (left, right))


def smallest(condition: Condition, fails: Callable[[Condition], bool]) -> Condition:
    """Return a condition inside of this one that fails too and has no smaller one that does."""
    for each in condition.smaller():
        if fails(each):
            return smallest(each, fails)
    return condition


def random_condition(rng: random.Random, table: RandomTable, depth: int = 2) -> Condition:
    if depth and rng.random() < 0.5:
        left, right = (random_condition(rng, table, depth - 1) for _ in range(2))
        words = rng.choice(
            [("(", " AND ", ")"), ("(", " OR ", ")"), ("", " AND ", ""), ("", " OR ", ""), ("(", ") AND NOT (", ")"),
             ("CASE WHEN ", " THEN TRUE ELSE ", " END"), ("coalesce(", ", ", ")")]
        )  # fmt: skip
        return Joined(words, (left, right))
    if depth and rng.random() < 0.35:
        words = rng.choice(
            [("NOT (", ")"), ("NOT ", ""), ("(", ") IS NULL"), ("(", ") IS NOT NULL"), ("((", "))"), ("NOT NOT (", ")"),
             ("(", ") IS TRUE"), ("(", ") IS NOT TRUE"), ("(", ") IS DISTINCT FROM TRUE"), ("(", ") = FALSE")]
        )  # fmt: skip
        inner = random_condition(rng, table, depth - 1)
        if words[0] == "NOT " and isinstance(inner, Joined):
            words = ("NOT (", ")")
        return Joined(words, (inner,))
    return random_leaf(rng, table)


def random_leaf(rng: random.Random, table: RandomTable) -> Leaf:
    column = rng.choice(table.columns)
    if rng.random() < 0.04:
        return Leaf(
            {HEADRACE: rng.choice(["TRUE", "FALSE", "NULL::BOOLEAN", "1 = 1", "1 = 0"]), SPARK: "TRUE"}
        )
    if rng.random() < 0.1:
        return Leaf({HEADRACE: f"§0§ IS {rng.choice(['', 'NOT '])}NULL"}, (column.name,))
    kind = column.type.kind
    if column.type.is_nested:
        return _nested(rng, column)
    if kind is TypeKind.BOOLEAN and rng.random() < 0.6:
        return Leaf(
            {
                HEADRACE: rng.choice(
                    ["§0§", "NOT §0§", "§0§ IS TRUE", "§0§ IS NOT FALSE", "§0§ = TRUE", "§0§ <> FALSE"]
                )
            },
            (column.name,),
        )
    if kind in TEXT_KINDS and rng.random() < 0.6:
        return _pattern(rng, column)
    if rng.random() < 0.08:
        alike = [each for each in table.plain if each.words == column.words]
        other = rng.choice(alike)
        return Leaf({HEADRACE: f"§0§ {rng.choice(SIGNS)} §1§"}, (column.name, other.name))
    shape = rng.random()
    negation = rng.choice(["", "NOT "])
    if shape < 0.18:
        values = [random_literal(rng, column, table) for _ in range(rng.randint(1, 4))]
        nothing = rng.random() < 0.15
        texts = {dialect: _in(values, dialect, negation, nothing) for dialect in (HEADRACE, SPARK)}
        if _in_nanos(column):
            any_of = " OR ".join(
                [*(value.compared("=", REFERENCE) or "" for value in values), *["NULL"] * nothing]
            )
            texts[REFERENCE] = f"{negation}({any_of})"
        return Leaf(texts, (column.name,))
    if shape < 0.32:
        low, high = (random_literal(rng, column, table) for _ in range(2))
        texts = {
            dialect: None if None in (low.text(dialect), high.text(dialect))
            else f"§0§ {negation}BETWEEN {low.text(dialect)} AND {high.text(dialect)}"
            for dialect in (HEADRACE, SPARK)
        }  # fmt: skip
        if _in_nanos(column):
            between = f"{low.compared('>=', REFERENCE)} AND {high.compared('<=', REFERENCE)}"
            texts[REFERENCE] = f"{negation}({between})"
        return Leaf(texts, (column.name,))
    if shape < 0.37:
        return Leaf({HEADRACE: f"§0§ {rng.choice(SIGNS)} NULL"}, (column.name,))
    sign = rng.choice([*SIGNS, *SIGNS, "IS DISTINCT FROM", "IS NOT DISTINCT FROM"])
    literal = random_literal(rng, column, table)
    turned = not sign.startswith("IS") and rng.random() < 0.25
    return Leaf(
        {dialect: literal.compared(sign, dialect, turned=turned) for dialect in (HEADRACE, REFERENCE, SPARK)},
        (column.name,),
    )


def _in_nanos(column: Column) -> bool:
    return column.type.kind in _MOMENTS and column.type.unit == "ns"


_MOMENTS = (TypeKind.TIME, TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_LTZ)
SIGNS = ("=", "<>", "!=", "<", "<=", ">", ">=")
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _in(values: list[Literal], dialect: str, negation: str, nothing: bool) -> str | None:
    texts = [value.text(dialect) for value in values]
    if None in texts:
        return None
    return f"§0§ {negation}IN ({', '.join([*map(str, texts), *(['NULL'] * nothing)])})"


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal by dialect. `beyond`: the reference cannot hold it, but it is above (1) or below (-1) all values of
    the column.
    """

    headrace: str
    reference: str = ""
    spark: str | None = ""
    beyond: int = 0

    def text(self, dialect: str) -> str | None:
        if dialect == SPARK:
            return self.headrace if self.spark == "" else self.spark
        return self.reference or self.headrace if dialect == REFERENCE else self.headrace

    def compared(self, sign: str, dialect: str, *, turned: bool = False) -> str | None:
        """Compare the column §0§ with the literal; `turned`: the literal stands in front."""
        text = self.text(dialect)
        if text is None:
            return None
        if dialect == REFERENCE and self.beyond:
            if sign.startswith("IS"):
                return str(sign == "IS DISTINCT FROM").upper()
            holds = sign in ("<>", "!=") or sign in (("<", "<=") if self.beyond > 0 else (">", ">="))
            return f"CASE WHEN §0§ IS NULL THEN NULL ELSE {str(holds).upper()} END"
        return f"{text} {_TURNED.get(sign, sign)} §0§" if turned else f"§0§ {sign} {text}"


def text_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def spark_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t")
    return f"'{escaped}'"


def random_literal(rng: random.Random, column: Column, table: RandomTable) -> Literal:
    """Return a literal to compare with the column: of its own type or of another one, near its values or far away."""
    kind = column.type.kind
    stored = rng.choice(table.rows.column(column.name).to_pylist() or [None]) if kind in _TAKEN else None
    if kind is TypeKind.BOOLEAN:
        return Literal(rng.choice(["TRUE", "FALSE"]))
    if kind in INTEGER_KINDS:
        near = 0 if stored is None else stored
        number = rng.choice(
            [near, near + 1, near - 1, rng.randint(-5, 10), 127, 128, -129, 2**31, 2**63 - 1, -(2**63) + 1]
        )
        form = rng.random()
        if form < 0.7:
            return Literal(str(number))
        if form < 0.8:
            return Literal(rng.choice([str(2**63), str(-(2**64)), str(10**30)]), spark=None)
        if form < 0.9:
            return Literal(rng.choice([f"{number}.0", f"{number}.5"]) if abs(number) < 10**6 else str(number))
        return Literal(
            f"{number}::BIGINT"
            if rng.random() < 0.5 and number >= 0
            else f"'{number}'"
            if abs(number) < 100
            else str(number),
            spark=None,
        )
    if kind is TypeKind.DECIMAL:
        near = Decimal(0) if stored is None else stored
        number = rng.choice(
            [
                near,
                near + Decimal(1).scaleb(-column.type.scale),
                Decimal(rng.randint(-50, 50)) / 4,
                Decimal("1E-12"),
            ]
        )
        text = f"{number:f}"
        return Literal(text if len(text.replace("-", "").replace(".", "")) <= 38 else "0")
    if kind in FLOAT_KINDS:
        name = column.words
        if rng.random() < 0.35:
            special = rng.choice(["NaN", "Infinity", "-Infinity", "-0.0", "0.0"])
            return Literal(f"'{special}'::{name}", spark=f"{name.lower()}('{special}')")
        near = 0.0 if stored is None or stored != stored or abs(stored) > 1e15 else stored
        number = rng.choice([near, near + 0.5, rng.randint(-20, 20) / 4, 0.0])
        return Literal(rng.choice([repr(number), f"{number:.1f}", f"{number:e}"]))
    if kind in TEXT_KINDS:
        text = rng.choice([rng.choice(TEXTS), "" if stored is None else stored])
        return Literal(text_literal(text), spark=spark_text(text))
    if kind in (TypeKind.BINARY, TypeKind.BYTES):
        data = rng.choice([stored or b"", b"", b"ab", b"\xff"])
        escaped = "".join(f"\\x{byte:02X}" for byte in data)
        return Literal(f"'{escaped}'::BLOB", spark=f"X'{data.hex()}'")
    if kind is TypeKind.DATE:
        text = moment_text(days_of(rng.choice(YEARS), *rng.choice([(1, 1), (12, 31)])) * 86_400 * 10**9)
        day = text[:10]
        return Literal(
            rng.choice([f"DATE '{day}'", f"'{day}'", f"'{day}'::DATE", f"TIMESTAMP '{text}'"]),
            spark=f"DATE'{day}'",
        )
    if kind is TypeKind.TIME:
        nanos = rng.choice([0, 43_200_000_000_000, 43_200_123_456_000, 86_399_000_000_000, 1_000_000_000])
        text = moment_text(nanos)[11:]
        is_nanos = column.type.unit == "ns"
        return Literal(
            rng.choice([f"TIME '{text}'", f"'{text}'"]),
            f"CAST('{text}' AS TIME_NS)" if is_nanos else "",
            None,
        )
    return _moment(rng, column, table)


_TAKEN = {
    *INTEGER_KINDS, *FLOAT_KINDS, *TEXT_KINDS, TypeKind.DECIMAL, TypeKind.BINARY, TypeKind.BYTES,
}  # fmt: skip


def _moment(rng: random.Random, column: Column, table: RandomTable) -> Literal:
    """Return a literal of TIMESTAMP or TIMESTAMP_LTZ; typed ones have at most microseconds, as in DuckDB."""
    step = NANOS[column.type.unit]
    ticks = table.rows.column(column.name).cast("int64").to_pylist()
    known = [each * step for each in ticks if each is not None]
    nanos = rng.choice(
        [rng.choice(known or [0]), rng.choice(known or [0]) + rng.choice([1, -1]) * step, random_moment(rng)]
    )
    nanos = max(-62_135_596_800 * 10**9, min(nanos, 253_402_300_799 * 10**9))
    if rng.random() < 0.4:
        nanos -= nanos % rng.choice([10**9, 10**6, 86_400 * 10**9])
    zoned = column.type.kind is TypeKind.TIMESTAMP_LTZ
    digits = None
    if rng.random() < 0.75 or step > 1:  # DuckDB's typed literals, and its other columns, have microseconds
        nanos -= nanos % 1000
        text = moment_text(nanos, digits)
        midnight = nanos % (86_400 * 10**9) == 0
        forms = [f"TIMESTAMP '{text}'", f"'{text}'", f"'{text}'::TIMESTAMP", f"CAST('{text}' AS TIMESTAMP)"]
        if midnight:
            forms += [f"DATE '{text[:10]}'"]
        if zoned:
            forms += [f"TIMESTAMPTZ '{text}Z'", f"TIMESTAMPTZ '{text}+00:00'", f"'{text}Z'"] * 2
        form = rng.choice(forms)
        spark = f"TIMESTAMP_LTZ'{text}Z'" if zoned else f"TIMESTAMP_NTZ'{text}'"
    else:
        text = moment_text(nanos)
        form, spark = f"'{text}{'Z' if zoned else ''}'", None
    if step > 1:
        return Literal(form, spark=spark)
    beyond = (nanos > NS_MAX) - (nanos < NS_MIN)
    return Literal(form, f"CAST('{text}' AS TIMESTAMP_NS)", None, beyond)


def _pattern(rng: random.Random, column: Column) -> Leaf:
    text = rng.choice([each for each in TEXTS if "\n" not in each])
    part = text[: rng.randint(0, 4)]
    pattern = rng.choice(
        [f"{part}%", f"{part}%", f"%{part}", f"%{part}%", f"_{part}%", part, "%", "", f"{part}_", f"{part}%%"]
    )
    shape = rng.random()
    name = (column.name,)
    if shape < 0.55:
        word = rng.choice(["LIKE", "NOT LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"])
        spark = None if "\\" in pattern else f"§0§ {word} {spark_text(pattern)}"
        return Leaf({HEADRACE: f"§0§ {word} {text_literal(pattern)}", SPARK: spark}, name)
    if shape < 0.65:
        return Leaf(
            {
                HEADRACE: f"§0§ {rng.choice(['~~', '!~~', '~~*', '!~~*'])} {text_literal(pattern)}",
                SPARK: None,
            },
            name,
        )
    if shape < 0.75:
        sign = rng.choice("!#a_")  # '%' would escape the end of the pattern
        escaped = "".join(f"{sign}{each}" if each in (sign, "%", "_") else each for each in part)
        word = rng.choice(["LIKE", "NOT LIKE"])
        return Leaf(
            {HEADRACE: f"§0§ {word} {text_literal(escaped + '%')} ESCAPE '{sign}'", SPARK: None}, name
        )
    if shape < 0.82:
        start = text_literal(part)
        said = rng.choice(
            [
                f"starts_with(§0§, {start})",
                f"§0§ ^@ {start}",
                f"NOT starts_with(§0§, {start})",
                f"contains(§0§, {start})",
            ]
        )
        return Leaf({HEADRACE: said, SPARK: None}, name)
    if shape < 0.9:
        return Leaf(
            {
                HEADRACE: rng.choice(
                    ["length(§0§) > 3", "upper(§0§) = 'APPLE'", "§0§ || 'x' = 'ax'", "lower(§0§) <> §0§"]
                )
            },
            name,
        )
    said = rng.choice(
        ["§0§ GLOB 'a*'", "§0§ SIMILAR TO 'a.*'", "§0§ NOT SIMILAR TO 'a.*'", "regexp_matches(§0§, '^a')"]
    )
    return Leaf({HEADRACE: said, SPARK: None}, name)


def _nested(rng: random.Random, column: Column) -> Leaf:
    kind, fields = column.type.kind, column.type.fields
    name = (column.name,)
    if kind is TypeKind.ARRAY:
        inner = fields[0].type
        said: list[tuple[str, str | None]] = [
            ("len(§0§) > 1", "size(§0§) > 1 AND §0§ IS NOT NULL"), ("len(§0§) = 0", None), ("§0§[1] IS NULL", None),
            ("§0§ = []", None),
        ]  # fmt: skip
        if inner.kind in INTEGER_KINDS:
            said += [("list_contains(§0§, 1)", "array_contains(§0§, 1)"), ("§0§[1] > 0", None)]
        if inner.kind is TypeKind.ROW:
            said += [
                ("§0§[1].a IS NOT NULL", None),
                ("§0§[1].b LIKE 'a%'", None),
                ("§0§[1].b NOT LIKE 'a%'", None),
            ]
    elif kind is TypeKind.MAP:
        said = [("cardinality(§0§) > 0", "size(§0§) > 0 AND §0§ IS NOT NULL"), ("cardinality(§0§) = 0", None)]
        if fields[1].type.kind in INTEGER_KINDS:
            said += [("§0§['a'] > 0", None), ("§0§['apple'] IS NULL", None)]
    else:
        first = fields[0].name
        said = [(f"(§0§).{first} IS NULL", f"(§0§).{first} IS NULL"), ("§0§ IS NOT NULL", "§0§ IS NOT NULL")]
        if fields[0].type.kind in INTEGER_KINDS:
            texts = [f"(§0§).{first} > 0", f"(§0§).{first} IN (1, 2)", "(§0§).b NOT LIKE 'a%'"]
            said += [(text, text) for text in texts]
        else:
            said += [(f"(§0§).{first}.d > 0", f"(§0§).{first}.d > 0")]
    headrace, spark = rng.choice(said)
    return Leaf({HEADRACE: headrace, SPARK: spark}, name)
