"""R2, R5 to R10 without a server: `merge` compared with the rules in plain Python, over tables of every kind."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.errors import RowError, TableError
from headrace.tablelayer.model.rows.stored import decode_rows
from headrace.tablelayer.model.schema.aggregates import Aggregate, AggregateFunction
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.types import column_types as types
from headrace.tablelayer.server.merge.aggregation import Chain, fold
from headrace.tablelayer.server.merge.auto_increment import Numbers
from headrace.tablelayer.server.merge.engines import MergeRules, Operations, merge
from headrace.tablelayer.server.merge.writes import admit, target_columns
from headrace.tablelayer.tests.server.oracle import Change, Operation, Oracle, Refused, comparable
from headrace.tablelayer.tests.server.random_tables import random_batch, random_definition


class Store:
    """The part of a tablet around `merge`, with a dict as its store."""

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self.values: dict[bytes, bytes] = {}
        self.row_count = 0
        self.numbers = Numbers()
        self.numbers.add(1, 1 << 40)

    def apply(
        self, operations: list[Operation], columns: list[str] | None, *, overwrite: bool = False
    ) -> list[Change]:
        schema = self.definition.schema
        ids = None if columns is None else [schema.column(name).id for name in columns]
        targets = None
        if ids is not None:
            chosen = target_columns(self.definition, schema, ids)
            if len(chosen) < len(schema.columns):
                targets = frozenset(schema.index(column.name) for column in chosen)
        rows = [{**dict.fromkeys(schema.names), **row} for _, row in operations]
        deletes: Any = np.array([sign == "-" for sign, _ in operations])
        batch = pa.RecordBatch.from_pylist(rows, schema=schema.arrow())
        operation_batch = Operations(batch, deletes if deletes.any() else None, targets, overwrite)
        merged = merge(
            MergeRules.of(self.definition), admit(self.definition, operation_batch),
            lambda keys: [self.values.get(key) for key in keys], self.numbers.peek,
        )  # fmt: skip
        self.numbers.use(merged.numbers_taken)
        assert merged.keys == sorted(set(merged.keys))
        for key, value in zip(merged.keys, merged.values, strict=True):
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value
        self.row_count += merged.row_delta
        kinds = [ChangeType(change).short for change in merged.change_types.tolist()]
        return list(zip(kinds, merged.changelog.to_pylist(), strict=True))

    def state(self) -> list[Any]:
        stored = [self.values[key] for key in sorted(self.values)]
        return decode_rows(pa.array(stored, pa.binary()), self.definition.schema).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(30))
def test_r2_to_r10_every_kind_of_table_equals_the_rules_in_plain_python(seed: int) -> None:
    rng = random.Random(seed)
    definition = random_definition(rng)
    print(f"seed {seed}: {dict(definition.options)} {definition.schema.to_json()}")
    store, oracle = Store(definition), Oracle(definition)

    def seen(changes: list[Change]) -> list[Any]:
        return [(change, comparable(definition, row)) for change, row in changes]

    for _ in range(20):
        operations, columns, overwrite = random_batch(rng, definition)
        try:
            expected = oracle.apply(operations, columns, overwrite=overwrite)
        except Refused:
            with pytest.raises(TableError):
                store.apply(operations, columns, overwrite=overwrite)
        else:
            assert seen(store.apply(operations, columns, overwrite=overwrite)) == seen(expected)
        by_key = sorted(oracle.rows.items(), key=lambda item: (item[0][0], item[0][1].encode()))
        assert [comparable(definition, row) for row in store.state()] == [
            comparable(definition, row) for _, row in by_key
        ]
        assert store.row_count == len(oracle.rows)


def test_r9_7_an_overflow_names_the_row_as_it_was_sent_and_the_column() -> None:
    from headrace.tablelayer.model.ddl.clauses import parse_columns
    from headrace.tablelayer.model.table.path import TablePath

    options = {"table.merge-engine": "aggregation", "fields.n.agg": "sum"}
    schema = parse_columns("k INT, n TINYINT, PRIMARY KEY (k) NOT ENFORCED")
    store = Store(TableDefinition(TablePath("default", "t"), schema, options=options))
    with pytest.raises(RowError, match="column 'n': with 100 the sum does not fit into TINYINT") as caught:
        store.apply([("+", {"k": 2, "n": 1}), ("+", {"k": 1, "n": 100}), ("+", {"k": 1, "n": 100})], None)
    assert caught.value.index == 2
    assert store.state() == []


@given(
    st.sampled_from([8, 16, 32, 64]), st.sampled_from(["sum", "product"]),
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300) | st.none(), min_size=1, max_size=6),
)  # fmt: skip
@settings(deadline=None)
def test_r9_7_integers_fold_exactly_or_say_where_they_overflow(
    bits: int, function: str, values: list[int | None]
) -> None:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    values = [None if value is None else max(low, min(high, value)) for value in values]
    expected, held, failed = [], None, None
    for index, value in enumerate(values):
        if held is None or value is None:
            held = value if held is None else held
        else:
            held = held + value if function == "sum" else held * value
        if held is not None and not low <= held <= high:
            failed = index
            break
        expected.append(held)
    kind = {8: types.TINYINT, 16: types.SMALLINT, 32: types.INT, 64: types.BIGINT}[bits]
    column = Column(0, "n", kind, aggregate=Aggregate(AggregateFunction(function)))
    count = len(values)
    chain = Chain(
        np.arange(count), np.zeros(count, np.int64), np.arange(count) > 0, np.zeros(count, np.bool_)
    )
    given_values = pa.array(values, kind.arrow())
    if failed is None:
        assert fold(column, given_values, pa.nulls(1, kind.arrow()), chain).to_pylist() == expected
    else:
        with pytest.raises(RowError) as caught:
            fold(column, given_values, pa.nulls(1, kind.arrow()), chain)
        assert caught.value.index == failed
