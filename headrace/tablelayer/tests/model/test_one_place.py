"""The partition and the bucket of one row are those that arrays give."""

from __future__ import annotations

import random
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pytest

from headrace.tablelayer.model.ddl import parse
from headrace.tablelayer.model.rows.one_row import RowFormat
from headrace.tablelayer.model.rows.stored import encode_rows
from headrace.tablelayer.model.table.buckets import bucket_of
from headrace.tablelayer.model.table.one_place import places_of
from headrace.tablelayer.model.table.partitions import partition_names_of_rows

COLUMNS = (
    "b BIGINT, i INT, v STRING, c CHAR(3), day DATE, at TIMESTAMP(6), seen TIMESTAMP_LTZ(0), yes BOOLEAN"
)
BUCKETS = 1 << 12


def rows(chosen: random.Random) -> list[dict[str, Any]]:
    def one() -> dict[str, Any]:
        return {
            "b": chosen.randrange(-(1 << 63), 1 << 63), "i": chosen.randrange(-9, 9),
            "v": "".join(chosen.choices("aé\0z_", k=chosen.randrange(20))), "c": chosen.choice(("", "abc")),
            "day": date.fromordinal(chosen.randrange(1, 3_652_000)),
            "at": datetime(1 + chosen.randrange(9998), 2, 3, 4),
            "seen": datetime(1969, 12, 31, 23, 59, chosen.randrange(60)), "yes": chosen.random() < 0.5,
        }  # fmt: skip

    return [
        {key: None if chosen.random() < 0.05 else value for key, value in one().items()} for _ in range(200)
    ]


@pytest.mark.parametrize("lake", ["", ", 'table.datalake.format' = 'iceberg'"])
@pytest.mark.parametrize("key", ["b", "i", "v", "c", "day", "at", "seen", "v,i,day"])
def test_a_rows_bucket_and_partition_equal_those_of_arrays(key: str, lake: str) -> None:
    if lake and "," in key:
        return
    partition = "day, yes" if "day" not in key else "i, yes"
    if "i" in key.split(","):
        partition = "yes"
    (statement,) = parse(
        f"CREATE TABLE t ({COLUMNS}) PARTITIONED BY ({partition}) "
        f"WITH ('bucket.num' = '{BUCKETS}', 'bucket.key' = '{key}'{lake})"
    )
    definition: Any = statement.definition  # type: ignore[union-attr]
    schema = definition.schema
    batch = pa.RecordBatch.from_pylist(rows(random.Random(key)), schema.arrow())
    layout, places = RowFormat(schema), places_of(definition, schema.columns)
    assert places is not None
    buckets = bucket_of(definition, batch).tolist()
    found = 0
    for at, stored in enumerate(encode_rows(batch, schema).to_pylist()):
        values = layout.values(stored)
        assert values is not None
        assert layout.row(values) == stored
        place = places.place(values)
        if any(batch.column(name)[at].as_py() is None for name in definition.partition_keys):
            assert place is None
            continue
        found += 1
        _, (name,) = partition_names_of_rows(definition.partition_keys, batch.slice(at, 1))
        assert place is not None
        assert (place[0], place[1] % BUCKETS) == (name, buckets[at])
    assert found > 100


def test_a_value_that_cannot_name_a_partition_and_a_long_key_are_left_to_arrays() -> None:
    (statement,) = parse("CREATE TABLE t (p STRING, v STRING) PARTITIONED BY (p) WITH ('bucket.key' = 'v')")
    definition: Any = statement.definition  # type: ignore[union-attr]
    places = places_of(definition, definition.schema.columns)
    assert places is not None
    assert places.place([b"a", b"x"]) is not None
    assert places.place([b"a.b", b"x"]) is None
    assert places.place([b"a", b"x" * 2000]) is None
