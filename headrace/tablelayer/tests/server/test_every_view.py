"""Rows that are written through one view of a table are read through every other one, for every type.

The views are the table client's Arrow batches and each value format of the Kafka view (R17), with nulls, extremes,
empty and odd values, also nested.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.records.decode import decode_records
from headrace.tablelayer.model.avro.schema import AvroSchema, schema_text
from headrace.tablelayer.model.avro.write import Frame
from headrace.tablelayer.model.batches.batch import encode_arrow_batch
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import DOUBLE, FLOAT
from headrace.tablelayer.server.kafka_view.records_to_rows import from_kafka
from headrace.tablelayer.server.kafka_view.rows_to_records import to_kafka
from headrace.tablelayer.server.merge.writes import decode_append
from headrace.tablelayer.tests.model.random_rows import (
    EVERY_TYPE,
    array_of,
    avro_nested_types,
    batches,
    edges_of,
    plain_types,
    with_edges,
)

FORMAT, ID = "table.kafka.value-format", 7
VIEWS = {
    "json": {},
    "path": {"table.kafka.value-path": "payload.row"},
    "debezium-json": {FORMAT: "debezium-json", "table.kafka.debezium.out-of-range-times": "keep"},
    "avro registry": {FORMAT: "avro", "table.kafka.avro.registry-url": "http://registry"},
    "avro record": {FORMAT: "avro", "table.kafka.avro.schema": "record"},
}


def through(view: str, schema: Schema, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Pass rows that a table client wrote through a Kafka client, which writes them into a table again."""
    definition = TableDefinition(TablePath("db", "t"), schema, options=VIEWS[view])
    sent = encode_arrow_batch(rows, schema_id=schema.schema_id, change_types=None, timestamp_ms=1234)
    batch, _, _ = decode_append(memoryview(sent), definition)
    text = schema_text(schema, "db", "t")
    frame = {"avro registry": Frame.confluent(ID), "avro record": Frame.container(text)}.get(view)
    records = decode_records(to_kafka(batch, definition, frame))
    assert len(records) == rows.num_rows
    written = from_kafka(records, definition, {ID: AvroSchema.parse(text)})
    assert written.change_types is None
    return written.rows


@settings(max_examples=40, deadline=None)
@given(
    batches(max_columns=5, column_types=plain_types | avro_nested_types, values=with_edges),
    st.permutations(sorted(VIEWS)),
)
def test_r17_rows_pass_through_every_format_unchanged(
    made: tuple[Schema, pa.RecordBatch], order: list[str]
) -> None:
    schema, rows = made
    passed = rows
    for view in order:  # what came in by one goes out by the next
        passed = through(view, schema, passed)
        assert passed.equals(rows), view


@pytest.mark.parametrize("view", VIEWS)
def test_r17_nulls_and_edges_of_every_type(view: str) -> None:
    columns, arrays = [], []
    most = max(len(edges_of(each)) for each in EVERY_TYPE)
    for index, each in enumerate(EVERY_TYPE):
        edges = [None, *edges_of(each)]
        columns.append(Column(index, f"c{index}", each))
        arrays.append(array_of(each, (edges * (most + 1))[: most + 1]))
    schema = Schema.of(columns)
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow())
    found = through(view, schema, rows)
    for column, got, wanted in zip(columns, found.columns, rows.columns, strict=True):
        assert got.equals(wanted), column.type
    signs = [np.signbit(found.column(index).to_numpy(zero_copy_only=False)) for index in (5, 6)]
    assert all(sign.any() and not sign.all() for sign in signs)
    assert [columns[index].type for index in (5, 6)] == [FLOAT, DOUBLE]


@pytest.mark.parametrize("view", VIEWS)
def test_r17_nan_passes_through_every_format(view: str) -> None:
    schema = Schema.of([("f", FLOAT), ("d", DOUBLE)])
    rows = pa.RecordBatch.from_pydict({"f": [np.nan, None], "d": [None, np.nan]}, schema.arrow())
    found = through(view, schema, rows)
    assert [found.column(0).is_null().to_pylist(), found.column(1).is_null().to_pylist()] == [
        [False, True], [True, False],
    ]  # fmt: skip
    assert np.isnan(found.column(0)[0].as_py())
    assert np.isnan(found.column(1)[1].as_py())
