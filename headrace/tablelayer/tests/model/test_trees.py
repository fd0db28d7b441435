"""Every argument of sqlglot's trees is looked at, and an upgrade that adds one is noticed.

After an upgrade of sqlglot run `python -m headrace.tablelayer.tests.model.test_trees`, check the difference in
`sqlglot_arguments.json`, and name the new arguments where they matter before the range in pyproject.toml moves.
"""

import itertools
import json
import re
from pathlib import Path

import pytest
import sqlglot
from sqlglot import expressions as exp

from headrace.tablelayer.model.ddl import DdlError, parse
from headrace.tablelayer.model.ddl import select as module
from headrace.tablelayer.model.ddl.moments import OF_MICROSECONDS
from headrace.tablelayer.model.ddl.names import Names
from headrace.tablelayer.model.ddl.query import ReadOptions
from headrace.tablelayer.model.ddl.select import analyze
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.filters.conditions import filter_of_sql, push_down
from headrace.tablelayer.model.filters.trees import conjuncts, hints_in, only
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.types import column_types as types

_TABLE = Path(__file__).with_name("sqlglot_arguments.json")
_ROOT = Path(__file__).parents[2]
_READERS = [
    "model/filters/conditions.py", "model/filters/trees.py", "model/ddl/select.py", "model/ddl/moments.py",
    "model/ddl/scopes.py", "model/ddl/known.py", "model/ddl/query_types.py", "model/ddl/decimals.py",
    "model/ddl/adapt.py", "model/ddl/flink_functions.py", "model/ddl/hints.py", "model/ddl/lookup_joins.py",
    "model/ddl/streams.py", "model/ddl/fine_literals.py", "model/ddl/nanoseconds.py", "model/ddl/answer_names.py",
    "model/ddl/simple_queries.py", "model/ddl/reads.py",
]  # fmt: skip
SCHEMA = Schema.of(
    [
        Column(0, "a", types.INT),
        Column(1, "s", types.STRING),
        Column(2, "d", types.DATE),
        Column(3, "f", types.BOOLEAN),
    ],
    schema_id=0,
)


def arguments() -> dict[str, list[str]]:
    """Return the arguments of each class of nodes that our readers name."""
    texts = [(_ROOT / name).read_text() for name in _READERS]
    named = {name for text in texts for name in re.findall(r"\b(?:exp|sql)\.([A-Z]\w*)", text)}
    classes = {name: getattr(exp, name) for name in sorted(named)}
    return {name: list(kind.arg_types) for name, kind in classes.items() if hasattr(kind, "arg_types")}


def test_every_reader_of_trees_is_in_the_table() -> None:
    readers = [
        str(path.relative_to(_ROOT))
        for path in _ROOT.rglob("*.py")
        if "tests" not in path.parts and re.search(r"\b(exp|sql)\.(Column|Select)\b", path.read_text())
    ]
    assert set(readers) <= set(_READERS)


def test_the_arguments_of_nodes_equal_the_reviewed_list() -> None:
    known = json.loads(_TABLE.read_text())
    found = arguments()
    assert found.keys() == known.keys()
    for name, names in found.items():
        assert names == known[name], f"sqlglot's {name} has other arguments: see the top of this file"


def test_sqlglot_is_pinned_to_the_version_of_the_node_table() -> None:
    pinned = re.search(r'"sqlglot>=([0-9.]+),<([0-9.]+)"', (_ROOT.parents[1] / "pyproject.toml").read_text())
    assert pinned is not None
    low, version, high = (
        tuple(int(part) for part in text.split(".")) for text in (pinned[1], sqlglot.__version__, pinned[2])
    )
    assert low <= version < high


PUSHED = [
    "a = 1 AND s LIKE 'x%'",
    "NOT (a < 5 OR s NOT LIKE 'y%')",
    "a BETWEEN 1 AND -2 AND d >= DATE '2024-01-01'",
    "a IN (1, 2) AND s IS NOT NULL AND f",
    "a <> 1 AND f = TRUE AND (s = 'x')",
]


@pytest.mark.parametrize("condition", PUSHED)
def test_a_node_with_an_argument_that_is_not_known_is_not_pushed(condition: str) -> None:
    tree = sqlglot.parse_one(condition, read="duckdb")
    assert push_down([tree.copy()], SCHEMA, "duckdb").complete
    for index, _ in enumerate(tree.walk()):
        changed = tree.copy()
        node = next(itertools.islice(changed.walk(), index, None))
        node.args["later"] = True
        pushed = push_down([changed], SCHEMA, "duckdb")
        assert not pushed.complete, f"{type(node).__name__} of {condition}"


SHORTCUTS = {
    "SELECT a FROM t WHERE a = 1": ("is_simple", "reads"),
    "SELECT * FROM d.t AS x WHERE x.a = -1 AND s = 'q' LIMIT 5": ("is_simple",),
    "SELECT COUNT(*) FROM t": ("is_simple", "aggregates"),
    "SELECT COUNT(*) FROM t WHERE s LIKE 'a%'": ("counts", "aggregates"),
    "SELECT MIN(a), MAX(t.s) AS m FROM t": ("aggregates",),
}


@pytest.mark.parametrize(("text", "ways"), SHORTCUTS.items())
def test_a_query_with_an_argument_that_is_not_known_is_refused_or_goes_to_duckdb(
    text: str, ways: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = analyze(text, 0, len(text), Names("d"))
    assert all(getattr(plain, way) for way in ways)
    tree = module._parse_one(text)
    for index, node in enumerate(tree.walk()):
        changed = tree.copy()
        next(itertools.islice(changed.walk(), index, None)).args["later"] = True
        monkeypatch.setattr(module, "_parse_one", lambda _, changed=changed: changed)
        try:
            found = analyze(text, 0, len(text), Names("d"))
        except DdlError:
            continue
        # The name of a result is DuckDB's, and all but equalities in a WHERE are what `push_down` reads.
        passed_over = isinstance(node.parent, exp.Alias) and node.arg_key == "alias"
        in_where = node.find_ancestor(exp.Where) is not None
        for way in ways:
            of_others = passed_over or (in_where and way != "is_simple")
            assert not getattr(found, way) or of_others, f"{type(node).__name__}: {way}"


def test_only_and_conjuncts() -> None:
    tree = sqlglot.parse_one("(a = 1 AND (b OR c)) AND NOT d")
    assert [part.sql() for part in conjuncts(tree)] == ["a = 1", "b OR c", "NOT d"]
    like = sqlglot.parse_one("a NOT LIKE 'x'", read="duckdb")
    assert not only(like, exp.Like, "this", "expression")
    assert only(like, exp.Like, "this", "expression", "negate")
    assert not only(sqlglot.parse_one("TRY_CAST(a AS INT)"), exp.Cast, "this", "to", "safe")


HINT = "/*+ OPTIONS('scan.snapshot-id'='1') */"
HINTED = [
    f"SELECT {HINT} * FROM t",
    f"SELECT * FROM t WHERE a = 1 {HINT};",
    f"SELECT * FROM (SELECT 1) {HINT}",
    f"INSERT {HINT} INTO t VALUES (1)",
    f"INSERT INTO t {HINT} VALUES (1)",
    f"INSERT INTO t {HINT} SELECT a FROM u",
    f"UPDATE t {HINT} SET a = 1 WHERE b = 2",
    f"DELETE FROM t {HINT} WHERE a = 1",
    f"TRUNCATE TABLE t {HINT}",
    f"COPY t TO 'x.csv' {HINT}",
    f"CREATE TABLE t (a INT {HINT})",
    f"-- {HINT}\nDROP TABLE t {HINT}",
]


@pytest.mark.parametrize("sql", HINTED)
def test_hints_are_refused_where_no_table_of_a_query_is(sql: str) -> None:
    with pytest.raises(DdlError, match=r"after (the name of )?a table") as raised:
        parse(sql)
    assert raised.value.word == HINT


READ_BY_HINT = [
    "SELECT * FROM t {}",
    "SELECT a FROM t {} AS x WHERE x.a = 1",
    "SELECT (SELECT 1 FROM t {})",
    "SELECT * FROM u JOIN t {} ON u.a = t.a",
    "INSERT INTO u SELECT * FROM t {}",
    "CREATE VIEW v AS SELECT * FROM t {}",
    "EXPLAIN SELECT * FROM t {};",
]


@pytest.mark.parametrize("sql", READ_BY_HINT)
def test_a_hint_that_is_not_known_is_refused_and_pointed_at(sql: str) -> None:
    for options, told in (
        ("'scan.snapshotid'='1'", "'scan.snapshotid' is not known"),
        ("'scan.startup.mode'='late'", "one of full, earliest"),
        ("'scan.startup.mode'='timestamp'", "go together"),
        ("'scan.snapshot-id'='x'", "whole number"),
        ("'scan.snapshot-id'=1", "a hint is written"),
    ):
        hint = f"/*+ OPTIONS({options}) */"
        with pytest.raises(DdlError, match=told) as raised:
            parse(sql.format(hint))
        assert raised.value.word == hint


def test_the_options_of_a_hint_belong_to_their_table() -> None:
    text = f"SELECT * FROM t {HINT} AS x JOIN u ON u.a = x.a"
    select = analyze(text, 0, len(text), Names("d"))
    assert {name: each.options for name, each in select.moments.items()} == {
        select.tables[0]: ReadOptions(snapshot=1)
    }
    assert select.tables[1] == "d.u"
    assert not select.is_simple
    assert select.reads is None
    text = "SELECT a FROM t /*+ OPTIONS('lookup.async'='true') */"
    select = analyze(text, 0, len(text), Names("d"))
    assert not select.moments
    assert select.notices == ("the hint's 'lookup.async' has no effect here",)


def test_a_hint_of_a_lookup_join_may_not_choose_rows() -> None:
    text = "SELECT o.a FROM o JOIN t /*+ OPTIONS({}) */ FOR SYSTEM_TIME AS OF o.ptime AS x ON o.a = x.a"
    sql = text.format("'lookup.async'='true'")
    select = analyze(sql, 0, len(sql), Names("d"))
    assert select.times == (("d.o", "ptime"),)
    assert select.notices == ("the hint's 'lookup.async' has no effect here",)
    for options, told in (
        ("'scan.snapshot-id'='1'", "leave one of them out"),
        ("'lookup.asink'='1'", "is not known"),
    ):
        with pytest.raises(DdlError, match=told):
            parse(text.format(options))


def test_text_that_looks_like_a_hint_is_not_a_hint() -> None:
    for sql in ("SELECT '/*+ x */'", 'SELECT 1 AS "/*+"', "SELECT 1 -- /*+ x */", "SELECT 1 /* a /*+ b */"):
        assert hints_in(sql) == []
    assert hints_in("a / b - c /*+ x */") == [(10, 18)]


def test_a_hint_in_a_filter_is_refused() -> None:
    with pytest.raises(TableError, match="a filter cannot express"):
        filter_of_sql(f"a = 1 {HINT}", SCHEMA)
    with pytest.raises(TableError, match="a filter cannot express"):
        filter_of_sql("a = 1; a = 2", SCHEMA)


def test_each_function_of_moments_is_known_to_take_microseconds_or_nanoseconds() -> None:
    """An upgrade of DuckDB that adds a function is noticed."""
    duckdb = pytest.importorskip("duckdb")
    ((functions,),) = (
        duckdb.connect()
        .execute(
            "SELECT list(DISTINCT function_name) FROM duckdb_functions() WHERE list_has_any(parameter_types,"
            " ['TIMESTAMP', 'TIMESTAMP WITH TIME ZONE', 'TIMESTAMP_NS', 'TIMESTAMPTZ_NS'])"
        )
        .fetchall()
    )
    of_any_type = r"(arg_?)?(min|max)(_by)?(_nulls?(_last)?)?"
    of_nanoseconds = {"epoch_ns", "nanosecond", "strftime", "timezone", "lttb", "quantile_cont"}
    operators = {"+", "-", "add", "subtract"}
    found = {name for name in functions if not re.fullmatch(of_any_type, name) and "json" not in name}
    assert found - of_nanoseconds - operators == OF_MICROSECONDS - {"date_add", "extract"}


if __name__ == "__main__":
    _TABLE.write_text(json.dumps(arguments(), indent=1) + "\n")
