"""Random statements around two conditions, each with its right answer.

A kind of query is a function of a `Draw`. It returns a function of conditions and their values, which returns a
`Query`, so that the same query can be asked again with smaller conditions.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from headrace.tablelayer.model.types.column_types import FLOAT_KINDS, INTEGER_KINDS, TypeKind
from headrace.tablelayer.tests.sql.differential.conditions import HEADRACE, Condition, Named
from headrace.tablelayer.tests.sql.differential.reference import Reference, Truth, true_rows
from headrace.tablelayer.tests.sql.differential.tables import RandomTable, quoted


@dataclass(frozen=True, slots=True)
class Query:
    """A query. `lines` are those of the answer, in any order. `at_most`: any of them, at most that many."""

    sql: str
    lines: list[str]
    at_most: int | None = None
    zeros_alike: bool = False
    """Either of 0.0 and -0.0 may stand for both: they are equal."""


@dataclass(frozen=True, slots=True)
class Said:
    """A condition and its value for each row."""

    condition: Condition
    truth: Truth

    @property
    def rows(self) -> list[int]:
        return true_rows(self.truth)

    def text(self, named: Named = quoted) -> str:
        return self.condition.text(HEADRACE, named)


@dataclass(frozen=True, slots=True)
class Draw:
    """Random choices for one kind of query, the same ones each time that it is asked for."""

    seed: str
    table: RandomTable
    reference: Reference

    @property
    def rng(self) -> random.Random:
        return random.Random(self.seed)

    @property
    def count(self) -> int:
        return self.table.rows.num_rows

    def columns(self, rng: random.Random) -> list[str]:
        names = [column.name for column in self.table.columns]
        return names if rng.random() < 0.4 else rng.sample(names, rng.randint(1, len(names)))

    def listed(self, columns: list[str], before: str = "") -> str:
        every = [column.name for column in self.table.columns]
        return f"{before}*" if columns == every else ", ".join(before + quoted(name) for name in columns)

    def lines(self, columns: list[str], rows: list[int]) -> list[str]:
        return self.reference.lines(columns, rows)


Make = Callable[[Draw, Said, Said], Query]


def _conjunction(p: Said, q: Said) -> list[int]:
    return [row for row in p.rows if q.truth[row]]


def plain(draw: Draw, p: Said, q: Said) -> Query:
    columns = draw.columns(draw.rng)
    return Query(
        f"SELECT {draw.listed(columns)} FROM {draw.table.path} WHERE {p.text()}", draw.lines(columns, p.rows)
    )


def value_of_condition(draw: Draw, p: Said, q: Said) -> Query:
    """NoREC: nothing can be left out, as every row is in the answer with the condition's value."""
    words = {True: "true", False: "false", None: "NULL"}
    lines = [f"{row}\t{words[value]}" for row, value in enumerate(p.truth)]
    return Query(f"SELECT k, ({p.text()}) AS z FROM {draw.table.path}", lines)


def counted(draw: Draw, p: Said, q: Said) -> Query:
    return Query(f"SELECT count(*) FROM {draw.table.path} WHERE {p.text()}", [str(len(p.rows))])


def counted_without_where(draw: Draw, p: Said, q: Said) -> Query:
    text = draw.rng.choice([f"count(*) FILTER (WHERE {p.text()})", f"count(CASE WHEN {p.text()} THEN 1 END)"])
    return Query(f"SELECT {text} FROM {draw.table.path}", [str(len(p.rows))])


def three_parts(draw: Draw, p: Said, q: Said) -> Query:
    """TLP: every row is in one of the parts."""
    columns, text, path = draw.columns(draw.rng), p.text(), draw.table.path
    parts = [text, f"NOT ({text})", f"({text}) IS NULL"]
    sql = " UNION ALL ".join(f"SELECT {draw.listed(columns)} FROM {path} WHERE {part}" for part in parts)
    return Query(sql, draw.lines(columns, list(range(draw.count))))


def three_counts(draw: Draw, p: Said, q: Said) -> Query:
    text, path = p.text(), draw.table.path
    parts = [text, f"NOT ({text})", f"({text}) IS NULL"]
    counts = [sum(value is wanted for value in p.truth) for wanted in (True, False, None)]
    sql = ", ".join(f"(SELECT count(*) FROM {path} WHERE {part})" for part in parts)
    return Query(f"SELECT {sql}", ["\t".join(map(str, counts))])


def extremes(draw: Draw, p: Said, q: Said) -> Query:
    column = draw.rng.choice(draw.table.plain)
    name = quoted(column.name)
    parts = ["count(*)", f"count({name})", f"min({name})", f"max({name})"]
    if column.type.kind in INTEGER_KINDS or column.type.kind is TypeKind.DECIMAL:
        parts.append(f"sum({name})")
    listed = ", ".join(draw.rng.sample(parts, draw.rng.randint(1, len(parts))))
    chosen = ", ".join(map(str, p.rows)) or "NULL"
    lines = draw.reference.asked(f"SELECT {listed} FROM copy WHERE __row IN ({chosen})")
    return Query(f"SELECT {listed} FROM {draw.table.path} WHERE {p.text()}", lines, zeros_alike=True)


def limited(draw: Draw, p: Said, q: Said) -> Query:
    rng = draw.rng
    columns, limit = draw.columns(rng), rng.choice([0, 1, 2, 5, 1000])
    where = f" WHERE {p.text()}" if rng.random() < 0.8 else ""
    rows = p.rows if where else list(range(draw.count))
    sql = f"SELECT {draw.listed(columns)} FROM {draw.table.path}{where}"
    if rng.random() < 0.4:
        skipped = rng.choice([0, 1, 7])
        return Query(
            f"{sql} ORDER BY k LIMIT {limit} OFFSET {skipped}",
            draw.lines(columns, rows[skipped : skipped + limit]),
        )
    return Query(f"{sql} LIMIT {limit}", draw.lines(columns, rows), at_most=limit)


def other_names(draw: Draw, p: Said, q: Said) -> Query:
    """An alias with column names: those of other columns, or new ones, of all columns or of the first ones."""
    rng = draw.rng
    names = [column.name for column in draw.table.columns]
    shuffled = rng.sample(names, len(names))
    new = shuffled if rng.random() < 0.7 else [f"n{index}" for index in range(len(names))]
    given = len(names) if new is shuffled else rng.randint(1, len(names))
    called = dict(zip(names, [*new[:given], *names[given:]], strict=True))
    before = rng.choice(["", "al."])
    columns = draw.columns(rng)

    def named(name: str) -> str:
        return before + quoted(called[name])

    listed = ", ".join(named(name) for name in columns)
    alias = rng.choice(["AS al", "al"]) + f"({', '.join(quoted(name) for name in new[:given])})"
    sql = f"SELECT {listed} FROM {draw.table.path} {alias} WHERE {p.text(named)}"
    return Query(sql, draw.lines(columns, p.rows))


def aliased(draw: Draw, p: Said, q: Said) -> Query:
    columns = draw.columns(draw.rng)
    before = draw.rng.choice(["al", draw.table.name])
    alias = "" if before == draw.table.name else " AS al"
    text = p.text(lambda name: f"{before}.{quoted(name)}")
    return Query(
        f"SELECT {draw.listed(columns, f'{before}.')} FROM {draw.table.path}{alias} WHERE {text}",
        draw.lines(columns, p.rows),
    )


def defined_by_with(draw: Draw, p: Said, q: Said) -> Query:
    """The name that WITH defines is the table's own, or another one."""
    rng = draw.rng
    columns, name = draw.columns(rng), rng.choice([draw.table.name, draw.table.name, "w"])
    words = rng.choice(["", "MATERIALIZED ", "NOT MATERIALIZED "])
    inner = f"SELECT * FROM {draw.table.path} WHERE {p.text()}"
    if rng.random() < 0.3:  # the name means something else inside of one subquery
        before = f"{draw.table.name}."
        inside = f"(WITH {name} AS (SELECT 1 AS z) SELECT z FROM {name}) AS one"
        return Query(
            f"SELECT {draw.listed(columns, before)} FROM {inside}, {draw.table.path}"
            f" WHERE {p.text(lambda each: before + quoted(each))}",
            draw.lines(columns, p.rows),
        )
    sql = f"WITH {name} AS {words}({inner}) SELECT {draw.listed(columns)} FROM {name} WHERE {q.text()}"
    return Query(sql, draw.lines(columns, _conjunction(p, q)))


def unqualified_with(draw: Draw, p: Said, q: Said) -> Query:
    """WITH t AS (SELECT ... FROM t): the session's database has the table."""
    columns, name = draw.columns(draw.rng), draw.table.name
    inner = f"SELECT * FROM {name} WHERE {p.text()}"
    sql = f"WITH {name} AS ({inner}) SELECT {draw.listed(columns)} FROM {name} WHERE {q.text()}"
    return Query(sql, draw.lines(columns, _conjunction(p, q)))


def subquery(draw: Draw, p: Said, q: Said) -> Query:
    rng = draw.rng
    columns, path = draw.columns(rng), draw.table.path
    both = draw.lines(columns, _conjunction(p, q))
    listed = draw.listed(columns)
    forms = [
        f"SELECT {listed} FROM (SELECT * FROM {path} WHERE {p.text()}) AS s WHERE {q.text()}",
        f"SELECT {listed} FROM {path} WHERE k IN (SELECT k FROM {path} WHERE {p.text()}) AND ({q.text()})",
        f"SELECT {listed} FROM {path} WHERE ({p.text()}) AND EXISTS (SELECT 1 FROM {path} AS i"
        f" WHERE i.k = {draw.table.name}.k AND ({q.text(lambda name: f'i.{quoted(name)}')}))",
        f"SELECT {listed} FROM {path} WHERE {p.text()} INTERSECT ALL SELECT {listed} FROM {path} WHERE {q.text()}",
        f"FROM {path} SELECT {listed} WHERE ({p.text()}) AND ({q.text()})",
        f"SELECT {listed} FROM {path} WHERE ({p.text()}) AND ({q.text()})"
        " QUALIFY row_number() OVER (PARTITION BY k) = 1",
    ]
    index = rng.randrange(len(forms))
    if index == 3:
        shown = ["k", *columns]
        return Query(
            f"SELECT {', '.join(map(quoted, shown))} FROM {path} WHERE {p.text()} INTERSECT"
            f" SELECT {', '.join(map(quoted, shown))} FROM {path} WHERE {q.text()}",
            draw.lines(shown, _conjunction(p, q)),
        )
    return Query(forms[index], both)


def joined(draw: Draw, p: Said, q: Said) -> Query:
    rng = draw.rng
    path = draw.table.path
    left, right = p.text(lambda name: f"l.{quoted(name)}"), q.text(lambda name: f"r.{quoted(name)}")
    columns = draw.columns(rng)
    listed = ", ".join(f"l.{quoted(name)}" for name in columns)
    both = _conjunction(p, q)
    form = rng.randrange(4)
    if form == 0:
        return Query(
            f"SELECT {listed} FROM {path} l JOIN {path} r ON l.k = r.k WHERE ({left}) AND ({right})",
            draw.lines(columns, both),
        )
    if form == 1:
        unmatched = [row for row in p.rows if not q.truth[row]]
        return Query(
            f"SELECT {listed} FROM {path} l LEFT JOIN (SELECT * FROM {path} r WHERE {right}) r ON l.k = r.k"
            f" WHERE ({left}) AND r.k IS NULL",
            draw.lines(columns, unmatched),
        )
    if form == 2:
        rows = [row for row in p.rows if not q.truth[row]]
        return Query(
            f"SELECT {listed} FROM {path} l ANTI JOIN {path} r ON l.k = r.k AND ({right}) WHERE {left}",
            draw.lines(columns, rows),
        )
    # The condition on the side that the join fills up stands in WHERE: null rows are judged too, and k is not null.
    return Query(
        f"SELECT {listed} FROM {path} l LEFT JOIN {path} r ON l.k = r.k"
        f" WHERE ({right}) AND ({left}) AND r.k IS NOT NULL",
        draw.lines(columns, both),
    )


def grouped(draw: Draw, p: Said, q: Said) -> Query:
    rng = draw.rng
    column = rng.choice([each for each in draw.table.plain if each.type.kind not in FLOAT_KINDS])
    chosen = ", ".join(map(str, p.rows)) or "NULL"
    name = quoted(column.name)
    if rng.random() < 0.3:
        lines = draw.reference.asked(f"SELECT DISTINCT {name} FROM copy WHERE __row IN ({chosen})")
        return Query(f"SELECT DISTINCT {name} FROM {draw.table.path} WHERE {p.text()}", lines)
    rest = f"GROUP BY {name} HAVING count(*) > {rng.choice([0, 1])}"
    lines = draw.reference.asked(
        f"SELECT {name}, count(*), max(k) FROM copy WHERE __row IN ({chosen}) {rest}"
    )
    return Query(f"SELECT {name}, count(*), max(k) FROM {draw.table.path} WHERE {p.text()} {rest}", lines)


def by_key(draw: Draw, p: Said, q: Said) -> Query:
    """Equality or bounds on the key beside the condition: lookups, ranges, partitions."""
    rng = draw.rng
    columns = draw.columns(rng)
    low, high = sorted((rng.randint(-2, draw.count), rng.randint(-2, draw.count)))
    form = rng.randrange(5)
    if form == 0:
        before, rows = f"k = {low}", [low] if 0 <= low < draw.count else []
    elif form == 1:
        before, rows = f"k > {low} AND k <= {high}", [row for row in range(draw.count) if low < row <= high]
    elif form == 2:
        before, rows = f"k BETWEEN {low} AND {high}", [row for row in range(draw.count) if low <= row <= high]
    elif form == 3:
        before, rows = f"k IN ({low}, {high}, 3)", [row for row in range(draw.count) if row in (low, high, 3)]
    else:
        before, rows = f"k <> {low}", [row for row in range(draw.count) if row != low]
    listed = draw.listed(columns)
    if rng.random() < 0.3:
        return Query(f"SELECT {listed} FROM {draw.table.path} WHERE {before}", draw.lines(columns, rows))
    rows = [row for row in rows if p.truth[row]]
    where = f"{before} AND ({p.text()})" if rng.random() < 0.5 else f"({p.text()}) AND {before}"
    if rng.random() < 0.3:
        return Query(f"SELECT count(*) FROM {draw.table.path} WHERE {where}", [str(len(rows))])
    return Query(f"SELECT {listed} FROM {draw.table.path} WHERE {where}", draw.lines(columns, rows))


def chosen_twice(draw: Draw, p: Said, q: Said) -> Query:
    """Expressions and new names that hide columns."""
    rng = draw.rng
    first, second = (rng.choice(draw.table.columns).name for _ in range(2))
    if first == second:
        return plain(draw, p, q)
    sql = f"SELECT {quoted(first)} AS {quoted(second)}, k FROM {draw.table.path} WHERE {p.text()}"
    return Query(sql, draw.lines([first, "k"], p.rows))


KINDS: tuple[Make, ...] = (
    plain, value_of_condition, counted, counted_without_where, three_parts, three_counts, extremes, limited,
    other_names, aliased, defined_by_with, unqualified_with, subquery, joined, grouped, by_key, chosen_twice,
)  # fmt: skip
