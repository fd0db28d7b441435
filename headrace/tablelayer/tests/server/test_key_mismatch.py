"""A produced record whose key differs from the key in its value."""

import json

import pytest

from headrace.tablelayer.model.ddl import parse
from headrace.tablelayer.model.errors import RowError, TableError
from headrace.tablelayer.server.kafka_view.records_to_rows import from_kafka
from headrace.tablelayer.tests.server.test_value_formats import DEBEZIUM, change, records

ONE = "id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED"
TWO = "a INT, b STRING, v INT, PRIMARY KEY (a, b) NOT ENFORCED"


def table(columns, **options):
    chosen = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    (statement,) = parse(f"CREATE TABLE t ({columns})" + (f" WITH ({chosen})" if chosen else ""))
    return statement.definition


def pair(key, value):
    return (key if isinstance(key, bytes | None) else json.dumps(key).encode(), json.dumps(value).encode())


@pytest.mark.parametrize(
    ("columns", "good", "bad"),
    [
        (ONE, [(10, {"id": 10}), ({"id": 11}, {"id": "11"}), (None, {"id": 12})], (9, {"id": 10})),
        (ONE, [(b" 10 ", {"id": 10})], ({"id": 9, "v": "x"}, {"id": 10, "v": "x"})),
        (TWO, [({"b": "x", "a": 1}, {"a": 1, "b": "x"})], ({"a": 1, "b": "y"}, {"a": 1, "b": "x"})),
        (
            "s STRING, v INT, PRIMARY KEY (s) NOT ENFORCED",
            [(b"ann", {"s": "ann"}), ("b", {"s": "b"})],
            (b"Ann", {"s": "ann"}),
        ),
    ],
)
def test_a_key_that_contradicts_its_value_is_refused_or_left_alone(columns, good, bad):
    strict = table(columns)
    taken = from_kafka(records(*(pair(*each) for each in good)), strict)
    assert taken.rows.num_rows == len(good)
    batch = records(*(pair(*each) for each in [*good, bad, *good]))
    with pytest.raises(RowError, match=r"the record's key is .*, but its value has") as caught:
        from_kafka(batch, strict)
    assert caught.value.index == len(good)
    assert "'table.kafka.key-mismatch' = 'ignore'" in caught.value.reason
    assert (
        from_kafka(batch, table(columns, **{"table.kafka.key-mismatch": "ignore"})).rows.num_rows
        == 2 * len(good) + 1
    )


def test_keys_that_cannot_be_the_table_s_are_not_looked_at_and_those_beside_them_are():
    other = pair(b"user-7", {"id": 7})
    assert from_kafka(records(*[other] * 40), table(ONE)).rows.num_rows == 40
    with pytest.raises(RowError) as caught:
        from_kafka(records(other, pair(1, {"id": 1}), other, pair(2, {"id": 3}), other), table(ONE))
    assert (caught.value.index, caught.value.column) == (3, "id")
    with pytest.raises(RowError) as caught:
        from_kafka(records(pair(2, {"id": 3}), other), table(ONE))
    assert caught.value.index == 0


def test_the_first_record_that_contradicts_is_named_and_worse_ones_come_first():
    with pytest.raises(RowError) as caught:
        from_kafka(records(pair(1, {"id": 1}), pair(2, {"id": 3}), pair(4, {"id": 5})), table(ONE))
    assert caught.value.index == 1
    with pytest.raises(RowError, match=r"BIGINT|number"):
        from_kafka(records(pair(2, {"id": 3}), pair(4, {"id": "x"})), table(ONE))


def test_envelopes_are_held_to_their_keys_and_log_tables_have_none():
    schema = table(ONE, **DEBEZIUM)
    from_kafka(records((b'{"id": 1}', change("c", None, {"id": 1}))), schema)
    with pytest.raises(RowError, match="key is 2, but its value has 1"):
        from_kafka(records((b'{"id": 2}', change("c", None, {"id": 1}))), schema)
    assert from_kafka(records(pair(9, {"id": 10})), table("id BIGINT")).rows.num_rows == 1
    with pytest.raises(TableError, match="primary key"):
        table("id BIGINT", **{"table.kafka.key-mismatch": "ignore"})
