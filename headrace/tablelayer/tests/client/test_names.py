"""A string as an argument that is a list of names: never read letter by letter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.tablelayer.client import ConfigKind, DataError
from headrace.tablelayer.client.errors import ClientError
from headrace.tablelayer.client.names import pairs_of_names, several

NAMES = st.text(min_size=1, max_size=4)


@given(st.lists(NAMES, unique=True))
def test_names_that_are_equal_on_both_sides_are_given_as_a_list(names):
    equal = {name: name for name in names}
    assert pairs_of_names("on", names) == pairs_of_names("on", equal) == equal
    assert pairs_of_names("on", [(name, name) for name in names]) == equal
    assert several("columns", names) == names


@given(st.dictionaries(NAMES, NAMES), NAMES)
def test_pairs_and_single_names_of_columns_are_accepted(pairs, name):
    assert pairs_of_names("on", pairs) == pairs_of_names("on", list(pairs.items())) == pairs
    assert pairs_of_names("on", name) == {name: name}


@pytest.mark.parametrize(
    ("value", "said"), [([1], "1"), ({"a": 1}, "texts"), ([("a",)], "a pair of names"), (["a", "a"], "twice")]
)
def test_values_that_are_not_pairs_of_names_are_refused(value, said):
    with pytest.raises((TypeError, ValueError), match=said):
        pairs_of_names("on", value)


@pytest.fixture
def table(make_table):
    table = make_table("(a INT, b STRING, ab STRING, PRIMARY KEY (a) NOT ENFORCED)")
    table.upsert([{"a": 1, "b": "x", "ab": "y"}])
    return table


READS = {
    "to_arrow": lambda table: table.to_arrow("ab"),
    "to_pandas": lambda table: table.to_pandas("ab"),
    "to_polars": lambda table: table.to_polars("ab"),
    "batches": lambda table: list(table.batches("ab")),
    "snapshot": lambda table: list(table.snapshot(0, "ab")),
    "scan": lambda table: list(table.scan("ab", until="latest")),
    "lookup": lambda table: table.lookup([1], "ab"),
    "lookup_one": lambda table: table.lookup_one(1, "ab"),
    "range_scan": lambda table: table.range_scan(columns="ab"),
    "limit": lambda table: table.limit(1, "ab"),
    "extremes": lambda table: table.extremes("ab"),
    "partial": lambda table: table.partial([{"a": 1, "b": "z"}], "ab"),
    "delete": lambda table: table.delete([1], columns="b"),
}


@pytest.mark.parametrize("call", READS.values(), ids=READS)
def test_a_text_is_refused_as_a_list_of_columns(table, call):
    with pytest.raises(TypeError, match="give a list"):
        call(table)
    assert table.to_arrow().to_pylist() == [{"a": 1, "b": "x", "ab": "y"}]


def test_a_key_that_is_a_text_is_given_in_a_list(make_table):
    words = make_table("(k STRING, n INT, PRIMARY KEY (k, n) NOT ENFORCED) WITH ('bucket.key' = 'k')")
    words.upsert([{"k": k, "n": 1} for k in ("a", "b", "ab")])
    for call in (words.lookup, words.delete, words.prefix_lookup, words.prefix_lookup_grouped, words.upsert):
        with pytest.raises(DataError, match="cannot take rows from a str"):
            call("ab")
    assert words.prefix_lookup(["ab"]).to_pylist() == [{"k": "ab", "n": 1}]
    assert words.count() == 3


def test_a_text_is_refused_where_a_list_is_expected(connection, table):
    for call in (
        lambda: connection.kafka.alter_configs(ConfigKind.TOPIC, "t", {}, "retention.ms"),
        lambda: connection.admin.alter_database("default", reset_properties="ab"),
        lambda: connection.security.grant("SELECT", table.path, "User:ann"),
        lambda: connection.security.grant(["SELECT"], table.path, "User:ann", columns="ab"),
        lambda: connection.security.revoke(["SELECT"], table.path, "User:ann", columns="ab"),
    ):
        with pytest.raises(TypeError, match="give a list"):
            call()
    with pytest.raises(ClientError, match="give a list"):
        connection.sql(f"SELECT * FROM {table.path} WHERE b = ? AND ab = ?", "xy")
    with pytest.raises(ClientError, match="give a list"):
        connection.sql_many(f"INSERT INTO {table.path} VALUES (?, ?, 'n')", ["12", "34"])
    assert table.count() == 1
