"""The Kafka view of a table: rows to records and back, without a server; CPU time of one core.

A batch has 100,000 rows of ten columns of eight types, as the orders of TPC-H: about 110 bytes a row in Arrow, 190 in
JSON. The time is that of a fetch and a produce request: record batches in Kafka's format, keys and checksums included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

ROWS = 100_000
GOALS = {"json out": 1_000_000, "json in": 500_000}
"""Goals in rows a second."""

_COLUMNS = (
    "o_orderkey BIGINT, o_custkey BIGINT, o_orderstatus CHAR(1), o_totalprice DECIMAL(15, 2), o_orderdate DATE, "
    "o_orderpriority STRING, o_clerk STRING, o_shippriority INT, o_updated TIMESTAMP(3), o_comment STRING, "
    "PRIMARY KEY (o_orderkey) NOT ENFORCED"
)
_WORDS = np.array(["furiously", "final", "deposits", "sleep", "blithely", "carefully", "regular", "packages"])


def orders(count: int) -> pa.RecordBatch:
    """Return rows of the columns above."""
    from headrace.tablelayer.model.ddl.clauses import parse_columns

    generator = np.random.default_rng(1)
    keys = np.arange(count, dtype=np.int64) * 4
    words = _WORDS[generator.integers(0, len(_WORDS), (5, count))]
    comments = words[0]
    for more in words[1:]:
        comments = np.char.add(np.char.add(comments, " "), more)
    cents = pa.array(generator.integers(90_000, 60_000_000, count)).cast(pa.decimal128(19, 0))
    columns = [
        pa.array(keys),
        pa.array(generator.integers(1, 150_000, count)),
        pa.array(np.array(["O", "F", "P"])[generator.integers(0, 3, count)]),
        pa.compute.multiply(cents, pa.scalar(pa.array(["0.01"]).cast(pa.decimal128(3, 2))[0])).cast(
            pa.decimal128(15, 2)
        ),
        pa.array(generator.integers(8_000, 10_500, count).astype(np.int32)).cast(pa.date32()),
        pa.array(np.array(["1-URGENT", "2-HIGH", "3-MEDIUM", "5-LOW"])[generator.integers(0, 4, count)]),
        pa.array([f"Clerk#{number:09d}" for number in generator.integers(1, 1_000, count).tolist()]),
        pa.array(np.zeros(count, np.int32)),
        pa.array(generator.integers(0, 2_000_000_000_000, count)).cast(pa.timestamp("ms")),
        pa.array(comments),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=parse_columns(_COLUMNS).arrow())


def measure(rounds: int, scale: float) -> dict[str, list[float]]:
    """Return rows a second, by figure, one sample a round."""
    from headrace.broker.runtime.malloc import keep_freed_memory
    from headrace.protocol.records.decode import decode_records
    from headrace.protocol.records.header import write_base_offset_and_epoch
    from headrace.tablelayer.model.avro.schema import AvroSchema, schema_text
    from headrace.tablelayer.model.avro.write import Frame
    from headrace.tablelayer.model.batches.batch import ArrowBatch, ChangeType, encode_arrow_batch
    from headrace.tablelayer.model.ddl.clauses import parse_columns
    from headrace.tablelayer.model.table.definition import TableDefinition
    from headrace.tablelayer.model.table.path import TablePath
    from headrace.tablelayer.server.kafka_view.records_to_rows import from_kafka
    from headrace.tablelayer.server.kafka_view.rows_to_records import to_kafka

    keep_freed_memory()  # as the server does
    count = max(1000, int(ROWS * min(scale, 1.0)))
    rows, schema = orders(count), parse_columns(_COLUMNS)
    changes = np.full(count, ChangeType.INSERT, np.uint8)
    stored = encode_arrow_batch(rows, schema_id=schema.schema_id, change_types=changes, timestamp_ms=1)
    write_base_offset_and_epoch(stored, 0, 0, 0)
    batch = ArrowBatch.parse(stored)
    text = schema_text(schema, "db", "t")
    schemas: dict[int, AvroSchema | str] = {1: AvroSchema.parse(text)}
    avro = {"table.kafka.value-format": "avro", "table.kafka.avro.schema": "record"}
    kinds: dict[str, tuple[dict[str, str], Frame | None]] = {
        "json": ({}, None),
        "json at a path": ({"table.kafka.value-path": "payload.row"}, None),
        "debezium-json": ({"table.kafka.value-format": "debezium-json"}, None),
        "avro, registry": (avro, Frame.confluent(1)),
        "avro, in the record": (avro, Frame.container(text)),
    }
    figures: dict[str, list[float]] = {}
    for kind, (options, frame) in kinds.items():
        table = TableDefinition(TablePath("db", "t"), schema, options=options)
        produced = to_kafka(batch, table, frame)

        def read(table: TableDefinition = table, produced: bytes = produced) -> Any:
            return from_kafka(decode_records(produced), table, schemas)

        if not read().rows.equals(rows):
            raise RuntimeError(f"{kind}: what was written is not what is read")
        figures[f"{kind} out"] = _rates(rounds, count, lambda t=table, f=frame: to_kafka(batch, t, f))
        figures[f"{kind} in"] = _rates(rounds, count, read)
    return figures


def _rates(rounds: int, count: int, work: Callable[[], Any]) -> list[float]:
    work()
    rates = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        rates.append(count / (time.process_time() - started))
    return rates
