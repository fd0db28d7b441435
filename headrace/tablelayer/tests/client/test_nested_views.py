"""Nested values that are written through one view of a table are the same through every other one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.tablelayer.client import Connection
from headrace.tablelayer.model.ddl.render import create_table_sql
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.json.rows import json_to_rows, rows_to_json
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import INT, DataType, TypeKind
from headrace.tablelayer.sql.session import Session
from headrace.tablelayer.tests.model.random_rows import array_of, nested_types, values_of

_numbers = itertools.count()
# Python's own date and time have no nanoseconds, and years from 1 to 9999.
_inexact = frozenset({TypeKind.TIME, TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_LTZ})


@st.composite
def rows_and_schemas(draw: st.DrawFn) -> tuple[Schema, pa.RecordBatch]:
    """A key and nested columns, and rows of distinct keys."""
    types: list[DataType] = draw(st.lists(nested_types, min_size=1, max_size=3))
    nullable = [draw(st.booleans()) for _ in types]
    columns = [Column(0, "id", INT, nullable=False)]
    columns += [
        Column(0, f"c{i}", each, null) for i, (each, null) in enumerate(zip(types, nullable, strict=True))
    ]
    count = draw(st.integers(1, 5))
    arrays = [pa.array(range(count), pa.int32())]
    for each, null in zip(types, nullable, strict=True):
        value = st.none() | values_of(each) if null else values_of(each)
        arrays.append(array_of(each, draw(st.lists(value, min_size=count, max_size=count))))
    schema = Schema.of(columns)
    return schema, pa.RecordBatch.from_arrays(arrays, schema=schema.arrow())


def write_by_arrow(connection: Connection, path: str, rows: pa.RecordBatch, keyed: bool) -> None:
    table = connection.table(path)
    (table.upsert if keyed else table.append)(rows)


def write_by_dicts(connection: Connection, path: str, rows: pa.RecordBatch, keyed: bool) -> None:
    types = [column.type for column in connection.table(path).definition.schema.columns]
    exact = not any(each.contains(_inexact) for each in types)
    data = rows.to_pylist() if exact else pa.table(rows)
    table = connection.table(path)
    (table.upsert if keyed else table.append)(data)


def write_by_kafka(connection: Connection, path: str, rows: pa.RecordBatch, keyed: bool) -> None:
    failures: list[Any] = []
    producer = Producer({"bootstrap.servers": connection.bootstrap})
    for value in rows_to_json(rows).to_pylist():
        producer.produce(path, value, partition=0, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(100) == 0
    assert failures == [None] * rows.num_rows


def consumed(connection: Connection, path: str, schema: Schema, count: int) -> pa.Table:
    consumer = Consumer({"bootstrap.servers": connection.bootstrap, "group.id": "nested"})
    consumer.assign([TopicPartition(path, 0, 0)])
    values = [record.value() for record in consumer.consume(count, 60)]
    consumer.close()
    assert all(isinstance(json.loads(value), dict) for value in values)
    return pa.table(json_to_rows(pa.array(values, pa.binary()), schema))


@settings(max_examples=9, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(rows_and_schemas(), st.booleans(), st.sampled_from([write_by_arrow, write_by_dicts, write_by_kafka]))
def test_r20_1_rows_written_in_one_way_are_read_in_all_others(
    connection: Connection,
    drawn: tuple[Schema, pa.RecordBatch],
    keyed: bool,
    write: Callable[[Connection, str, pa.RecordBatch, bool], None],
) -> None:
    schema, rows = drawn
    path = f"default.nested{next(_numbers)}"
    made = TableDefinition(
        TablePath.parse(path), Schema.of(schema.columns, ("id",) if keyed else ()), bucket_count=1
    )
    connection.execute(create_table_sql(made))
    table = connection.table(path)
    assert table.definition.schema.arrow().equals(made.schema.arrow())
    write(connection, path, rows, keyed)
    wanted = pa.table(rows)

    def same(found: Any) -> None:
        found = pa.table(found).select(wanted.column_names).cast(wanted.schema)
        assert found.take(pc.sort_indices(found.column("id"))).combine_chunks().equals(wanted)

    same(table.to_arrow())
    same(table.limit(100))
    same(consumed(connection, path, made.schema, rows.num_rows))
    (answer,) = Session(connection).run(f"SELECT * FROM {path} ORDER BY id")
    assert answer.rows is not None
    same(answer.rows.cast(wanted.schema))
    some = wanted.column_names[1:]
    with table.scan(some, start="earliest", until="latest") as scan:
        projected = pa.concat_tables([pa.table(part.batch) for part in scan])
    assert projected.num_rows == rows.num_rows
    if keyed:
        found, answers = table.lookup(list(range(rows.num_rows)))
        assert found.all()
        same(answers)
        table.upsert(table.lookup([0])[1])  # what is read can be written
        same(table.to_arrow())
    connection.admin.drop_table(path)


def test_nested_values_in_sql_and_pandas(connection: Connection, make_table: Callable[[str], Any]) -> None:
    table = make_table(
        "(id INT, tags ARRAY<STRING NOT NULL>, attrs MAP<STRING, DECIMAL(10, 2)>,"
        " who ROW<id INT, name STRING, address ROW<city STRING>>, PRIMARY KEY (id) NOT ENFORCED)"
    )
    name = str(table.path)
    session = Session(connection)
    list(session.run(
        f"INSERT INTO {name} VALUES (1, ARRAY['a', 'b'], MAP['x', 1.5], ROW(7, 'Ann', ROW('Bern')));"
        f"INSERT INTO {name} VALUES (2, NULL, MAP[], NULL);"
        f"UPDATE {name} SET tags = ARRAY['z'] WHERE id = 2"
    ))  # fmt: skip

    def query(sql: str) -> list[dict[str, Any]]:
        (answer,) = session.run(sql)
        assert answer.rows is not None
        rows: list[dict[str, Any]] = answer.rows.to_pylist()
        return rows

    assert query(
        f"SELECT who.name, who.address.city c, tags[1] t, attrs['x'] x FROM {name} WHERE id = 1"
    ) == [{"name": "Ann", "c": "Bern", "t": "a", "x": pa.scalar("1.50").cast(pa.decimal128(10, 2)).as_py()}]
    # A field called as the key is not the key.
    assert query(f"SELECT id FROM {name} WHERE who.id = 7") == [{"id": 1}]
    assert query(f"SELECT id FROM {name} WHERE who.id < 2") == []
    assert query(f"SELECT p.who.id AS x FROM {name} AS p WHERE p.id = 1") == [{"x": 7}]
    assert query(f"SELECT unnest(tags) AS t FROM {name} WHERE id = 2") == [{"t": "z"}]
    assert query(f"SELECT id FROM {name} WHERE who IS NULL") == [{"id": 2}]
    assert query(f"SELECT count(*) AS n FROM {name} WHERE attrs['x'] > 1 AND id < 9") == [{"n": 1}]
    for condition in ("tags IS NULL", pc.field("who").is_valid(), pc.field("tags").is_null()):
        with pytest.raises(
            TableError, match=r"a filter cannot express tags IS NULL|is nested, and nested columns cannot"
        ):
            table.count(condition)
    frame = table.to_arrow().to_pandas()
    table.upsert(frame)
    assert [frame["tags"][i].tolist() for i in range(2)] == [["a", "b"], ["z"]]
    found, rows = table.lookup([1, 2])
    assert found.all()
    assert rows.column("who").to_pylist() == [{"id": 7, "name": "Ann", "address": {"city": "Bern"}}, None]
    assert rows.column("attrs").to_pylist()[1] == []
