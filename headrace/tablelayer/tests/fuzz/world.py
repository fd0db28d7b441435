"""The existing tables of a server that is fuzzed, and honest requests of every kind about them.

The server draws ids from one seed, so a frame for one world means the same in another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.schema import ApiMessage
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.avro.schema import schema_text
from headrace.tablelayer.model.avro.write import Frame, rows_to_avro
from headrace.tablelayer.model.batches.batch import encode_arrow_batch
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.ddl import AlterTable, parse
from headrace.tablelayer.model.ddl.clauses import parse_columns
from headrace.tablelayer.model.filters.filters import encode_filter
from headrace.tablelayer.model.json.write import rows_to_json
from headrace.tablelayer.model.options.table_options import ArrowCompression
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.evolution import changes_to_json
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.staged.ledger import Ledger
from headrace.tablelayer.tests.fuzz.server import WatchedServer, Wire
from headrace.tablelayer.tests.server.test_hostile_batches import COLUMNS, KEYED, filled
from simulator.direct import response_type

FORMAT = "table.kafka.value-format"
PLAIN = "plain"
PARTITIONED, PARTITION = "parted", "a"
KEYS = 40
"""Honest rows have keys below."""


@dataclass
class Standing:
    """A table as it was made; `definition` has its id and is what writers and readers go by."""

    definition: TableDefinition

    @property
    def name(self) -> str:
        return self.definition.path.table

    @property
    def topic(self) -> str:
        return self.definition.path.topic

    @property
    def table_id(self) -> UUID:
        assert self.definition.table_id is not None
        return self.definition.table_id

    @property
    def keyed(self) -> bool:
        return self.definition.is_primary_key_table

    def rows(self, rng: np.random.Generator, count: int | None = None) -> pa.RecordBatch:
        count = int(rng.choice([1, 1, 2, 7, 30])) if count is None else count
        batch = filled(self, count, int(rng.integers(KEYS)))  # type: ignore[arg-type]
        if self.definition.partition_keys:  # the rows of the one partition
            at = batch.schema.get_field_index(self.definition.partition_keys[0])
            column = pa.array([PARTITION] * count, batch.schema.field(at).type)
            batch = batch.set_column(at, batch.schema.field(at), column)
        number = self.definition.settings.auto_increment_column
        if number is not None:
            at = batch.schema.get_field_index(number)
            batch = batch.set_column(at, batch.schema.field(at), pa.nulls(count, batch.schema.field(at).type))
        return batch

    def batch(self, rng: np.random.Generator) -> bytes:
        rows = self.rows(rng)
        deletes = self.definition.settings.merge_engine is None
        changes = rng.choice([3, 3, 3, 4 if deletes else 3], rows.num_rows).astype(np.uint8)
        compression = ArrowCompression(str(rng.choice([each.value for each in ArrowCompression])))
        return bytes(
            encode_arrow_batch(
                rows,
                schema_id=self.definition.schema.schema_id,
                change_types=changes if self.keyed else None,
                compression=compression,
            )
        )

    def keys(self, rng: np.random.Generator, names: tuple[str, ...], count: int | None = None) -> bytes:
        return bytes(encode_ipc(self.rows(rng, count).select(list(names))))

    def columns(self, rng: np.random.Generator) -> list[int] | None:
        ids = [column.id for column in self.definition.schema.columns]
        return (
            None
            if rng.random() < 0.4
            else sorted(rng.choice(ids, rng.integers(1, len(ids) + 1), False).tolist())
        )

    def filter(self, rng: np.random.Generator) -> bytes | None:
        schema = self.definition.schema
        if "id" not in schema or "s" not in schema:
            return None
        id_, s, low = pc.field("id"), pc.field("s"), pa.scalar(int(rng.integers(KEYS)), pa.int32())
        choices = [
            None, None, id_ == low, (id_ >= low) & s.is_valid(), pc.starts_with(s, "text 1") | (id_ < low), ~(s == "x"),
            id_.isin(pa.array(range(int(rng.integers(1, 300))), pa.int32())),
        ]  # fmt: skip
        chosen = choices[int(rng.integers(len(choices)))]
        return None if chosen is None else encode_filter(chosen, schema)


TABLES: list[tuple[str, str, int, tuple[str, ...], dict[str, str]]] = [
    ("log", COLUMNS, 2, (), {"table.statistics.columns": "*"}),
    ("keyed", KEYED, 1, (), {}),
    ("pair", "a INT, b STRING, n BIGINT, PRIMARY KEY (a, b) NOT ENFORCED", 2, ("a",), {}),
    (
        "sums", "id INT, n BIGINT, s STRING, t TINYINT, PRIMARY KEY (id) NOT ENFORCED", 1, (),
        {"table.merge-engine": "aggregation", "fields.n.agg": "sum", "fields.s.agg": "listagg", "fields.t.agg": "sum"},
    ),
    (
        "versions", "id INT, v BIGINT, s STRING, PRIMARY KEY (id) NOT ENFORCED", 1, (),
        {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "v"},
    ),
    (
        "numbers", "id INT, number BIGINT, s STRING, PRIMARY KEY (id) NOT ENFORCED", 1, (),
        {"auto-increment.fields": "number"},
    ),
    ("debezium", "id INT, d DECIMAL(9, 2), s STRING, PRIMARY KEY (id) NOT ENFORCED", 2, (), {FORMAT: "debezium-json"}),
    (
        "avro", COLUMNS.replace("k MAP<STRING, INT>", "k MAP<STRING, INT>"), 1, (),
        {FORMAT: "avro", "table.kafka.avro.schema": "record"},
    ),
    ("path", "id INT, s STRING, l ARRAY<INT>", 1, (), {"table.kafka.value-path": "payload.row"}),
    ("lake", "id INT, s STRING", 2, (), {"table.datalake.enabled": "true"}),
    ("altered", "id INT, s STRING", 1, (), {}),
]  # fmt: skip


class World:
    """The tables of a server that was just started on an empty folder."""

    def __init__(self, server: WatchedServer) -> None:
        self.server = server
        self.wire = Wire(server)
        self.tables: dict[str, Standing] = {}
        self.plain_id = UUID(int=0)
        self.epochs: list[int] = [0]
        self.scans: list[int] = [m.OPEN_SCAN]
        self._correlation = 0

    def frame(self, request: ApiMessage, version: int | None = None, client_id: str | None = "fuzz") -> bytes:
        """Encode a frame. Raise EncodeError for values that cannot be encoded."""
        version = type(request).MAX_VERSION if version is None else version
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        header = RequestHeader(request.API_KEY, version, self._correlation, client_id)
        return encode_request_header(header, request.header_version(version)) + request.encode(version)

    def ask(self, request: ApiMessage, version: int | None = None) -> Any:
        """The answer, decoded."""
        version = type(request).MAX_VERSION if version is None else version
        answer = self.wire.ask(self.frame(request, version))
        assert answer is not None, f"the connection was closed on {request}"
        return decoded(type(request), answer, version)

    def make(self) -> None:
        for name, columns, buckets, bucket_key, options in TABLES:
            self._make_table(
                TableDefinition(
                    TablePath("default", name), parse_columns(columns), bucket_key=bucket_key, bucket_count=buckets,
                    options=options,
                )
            )  # fmt: skip
        (statement,) = parse(
            f"CREATE TABLE {PARTITIONED} (day STRING, id INT, s STRING, PRIMARY KEY (id, day) NOT ENFORCED)"
            " PARTITIONED BY (day)"
        )
        whole = self._make_table(statement.definition)  # type: ignore[union-attr]
        answer = self.ask(m.CreatePartitionRequest(table_id=whole.table_id, name=PARTITION))
        assert answer.error_code == 0, answer.error_message
        partition = whole.definition.of_partition(PARTITION, answer.partition_id)
        self.tables[partition.path.table] = Standing(partition)
        (altered,) = parse("ALTER TABLE altered ADD n BIGINT, MODIFY id BIGINT")
        assert isinstance(altered, AlterTable)
        changed = self.ask(
            m.AlterTableRequest(database="default", table="altered", changes=changes_to_json(altered.changes))
        )
        assert changed.error_code == 0, changed.error_message
        self.tables["altered"].definition = TableDefinition.from_json(changed.definition)
        answer = self.ask(
            CreateTopicsRequest(topics=[CreatableTopic(name=PLAIN, num_partitions=2, replication_factor=1)])
        )
        assert answer.topics[0].error_code == 0, answer
        self.plain_id = answer.topics[0].topic_id

    def _make_table(self, definition: TableDefinition) -> Standing:
        answer = self.ask(m.CreateTableRequest(definition=definition.to_json()))
        assert answer.error_code == 0, answer.error_message
        table = self.tables[definition.path.table] = Standing(
            definition.with_id(answer.table_id).with_buckets(answer.bucket_count)
        )
        return table

    # -- drawing --------------------------------------------------------------------------------------------

    def with_rows(self, rng: np.random.Generator, *, keyed: bool | None = None) -> Standing:
        found = [
            each for each in self.tables.values()
            if not each.definition.is_partitioned and (keyed is None or each.keyed is keyed)
        ]  # fmt: skip
        return found[int(rng.integers(len(found)))]

    def bucket(self, rng: np.random.Generator, table: Standing) -> int:
        return int(rng.integers(table.definition.bucket_count))

    def ids(self) -> list[UUID]:
        return [each.table_id for each in self.tables.values()] + [self.plain_id, UUID(int=0), UUID(int=1)]


def decoded(request: type[ApiMessage], answer: bytes, version: int) -> Any:
    response = response_type(request)
    _, position = decode_response_header(answer, response.header_version(version))
    return response.decode(answer, version, None, position)


# -- honest requests of the table layer -------------------------------------------------------------------------


Maker = Callable[[World, np.random.Generator], ApiMessage]


def _name(rng: np.random.Generator) -> str:
    return f"fuzz{int(rng.integers(3))}"


def new_definition(rng: np.random.Generator) -> TableDefinition:
    columns, buckets, bucket_key, options = [each[1:] for each in TABLES][int(rng.integers(len(TABLES)))]
    return TableDefinition(
        TablePath("default", _name(rng)), parse_columns(columns), bucket_key=bucket_key, bucket_count=buckets,
        options=options,
    )  # fmt: skip


def _create_table(world: World, rng: np.random.Generator) -> ApiMessage:
    return m.CreateTableRequest(
        definition=new_definition(rng).to_json(), ignore_if_exists=bool(rng.random() < 0.3)
    )


ALTERATIONS = (
    "ADD extra INT", "ADD note STRING NOT NULL DEFAULT 'é' AFTER id", "DROP extra", "DROP note", "MODIFY s COMMENT 'c'",
    "RENAME extra TO other", "RENAME other TO extra", "SET ('table.log.ttl' = '7 d')", "RESET ('table.log.ttl')",
)  # fmt: skip


def _alter_table(world: World, rng: np.random.Generator) -> ApiMessage:
    (statement,) = parse(f"ALTER TABLE altered {rng.choice(ALTERATIONS)}")
    assert isinstance(statement, AlterTable)
    return m.AlterTableRequest(
        database="default", table="altered", changes=changes_to_json(statement.changes)
    )


def _write(kind: type[Any], keyed: bool) -> Maker:
    def make(world: World, rng: np.random.Generator) -> ApiMessage:
        table = world.with_rows(rng, keyed=keyed)
        buckets = {world.bucket(rng, table) for _ in range(rng.integers(1, 3))}
        parts = [m.WriteBucket(bucket=each, batch=table.batch(rng)) for each in sorted(buckets)]
        return kind(table_id=table.table_id, acks=-1, timeout_ms=5000, buckets=parts)  # type: ignore[no-any-return]

    return make


def _partial_write(world: World, rng: np.random.Generator) -> ApiMessage:
    table = world.tables[str(rng.choice(["keyed", "sums", "pair"]))]
    schema = table.definition.schema
    key = [schema.index(name) for name in schema.primary_key]
    others = [index for index in range(len(schema.columns)) if index not in key and rng.random() < 0.5]
    chosen = sorted([*key, *others])
    rows = table.rows(rng).select(chosen)
    batch = encode_arrow_batch(
        rows, schema_id=schema.schema_id, change_types=np.full(rows.num_rows, 3, np.uint8)
    )
    return m.PutRowsRequest(
        table_id=table.table_id, acks=-1, timeout_ms=5000, target_columns=[schema.columns[i].id for i in chosen],
        buckets=[m.WriteBucket(bucket=world.bucket(rng, table), batch=bytes(batch))],
    )  # fmt: skip


def _put(world: World, rng: np.random.Generator) -> ApiMessage:
    if rng.random() < 0.3:
        return _partial_write(world, rng)
    request: Any = _write(m.PutRowsRequest, True)(world, rng)
    return request  # type: ignore[no-any-return]


def _lookup(world: World, rng: np.random.Generator) -> ApiMessage:
    table = world.with_rows(rng, keyed=True)
    bucket = m.LookupBucket(
        bucket=world.bucket(rng, table), keys=table.keys(rng, table.definition.schema.primary_key)
    )
    return m.LookupRequest(
        table_id=table.table_id, columns=table.columns(rng), buckets=[bucket], timeout_ms=5000,
        schema_id=table.definition.schema.schema_id, insert_if_absent=bool(rng.random() < 0.2),
    )  # fmt: skip


def _prefix_lookup(world: World, rng: np.random.Generator) -> ApiMessage:
    table = world.tables["pair"]
    bucket = m.PrefixLookupBucket(bucket=world.bucket(rng, table), prefixes=table.keys(rng, ("a",)))
    return m.PrefixLookupRequest(
        table_id=table.table_id, columns=table.columns(rng), buckets=[bucket],
        schema_id=table.definition.schema.schema_id,
    )  # fmt: skip


def _scan_log(world: World, rng: np.random.Generator) -> ApiMessage:
    table = world.with_rows(rng)
    return m.ScanLogRequest(
        table_id=table.table_id, columns=table.columns(rng), min_bytes=1, schema_id=table.definition.schema.schema_id,
        buckets=[m.ScanLogBucket(bucket=world.bucket(rng, table), offset=int(rng.integers(40)))],
        filter=table.filter(rng), row_filter=bool(rng.random() < 0.5),
    )  # fmt: skip


def _limit_scan(world: World, rng: np.random.Generator) -> ApiMessage:
    table = world.with_rows(rng)
    return m.LimitScanRequest(
        table_id=table.table_id, columns=table.columns(rng), limit=int(rng.integers(50)), filter=table.filter(rng),
        buckets=[world.bucket(rng, table)], schema_id=table.definition.schema.schema_id,
    )  # fmt: skip


def _count_rows(world: World, rng: np.random.Generator) -> ApiMessage:
    table = world.with_rows(rng)
    return m.CountRowsRequest(
        table_id=table.table_id, buckets=[world.bucket(rng, table)], filter=table.filter(rng),
        schema_id=table.definition.schema.schema_id,
        extremes=None if rng.random() < 0.5 else [table.definition.schema.columns[0].id],
    )  # fmt: skip


def _scan_snapshot(world: World, rng: np.random.Generator) -> ApiMessage:
    table = world.with_rows(rng, keyed=True)
    schema = table.definition.schema
    opens = rng.random() < 0.6
    scan_id = m.OPEN_SCAN if opens else int(world.scans[int(rng.integers(len(world.scans)))])
    request = m.ScanSnapshotRequest(
        table_id=table.table_id, bucket=world.bucket(rng, table), scan_id=scan_id, columns=table.columns(rng),
        max_bytes=int(rng.choice([1, 100, 4 << 20])), close=bool(rng.random() < 0.2), schema_id=schema.schema_id,
        filter=table.filter(rng),
    )  # fmt: skip
    if rng.random() < 0.3:
        request.lower, request.lower_columns = table.keys(rng, schema.primary_key[:1], 1), 1
    if rng.random() < 0.3:
        request.upper, request.upper_columns = table.keys(rng, schema.primary_key, 1), len(schema.primary_key)
    if rng.random() < 0.3:
        request.limit = int(rng.integers(10))
    if rng.random() < 0.2:
        request.as_of = int(rng.integers(30))
    return request


def _stage(world: World, rng: np.random.Generator) -> ApiMessage:
    table = world.with_rows(rng)
    return m.StageRowsRequest(
        table_id=table.table_id, writer=f"w{rng.integers(2)}", batch_id=int(rng.integers(4)), attempt="1",
        chunks=[
            m.StagedChunk(bucket=world.bucket(rng, table), number=number, batch=table.batch(rng)) for number in range(2)
        ],
    )  # fmt: skip


def _commit_staged(world: World, rng: np.random.Generator) -> ApiMessage:
    table = world.with_rows(rng)
    return m.CommitStagedRequest(
        table_id=table.table_id, writer=f"w{rng.integers(2)}", batch_id=int(rng.integers(4)),
        attempts=[m.StagedAttempt(attempt="1", chunks=[m.StagedCount(bucket=0, count=int(rng.integers(3)))])],
        single=bool(rng.random() < 0.2),
    )  # fmt: skip


def _abort_staged(world: World, rng: np.random.Generator) -> ApiMessage:
    table = world.with_rows(rng)
    return m.AbortStagedRequest(
        table_id=table.table_id, writer=f"w{rng.integers(2)}", batch_id=int(rng.integers(4)), attempts=["1"]
    )


def _decided(world: World, rng: np.random.Generator) -> ApiMessage:
    """Report a decision for a writer that has staged nothing: only `commit` may report others."""
    table = world.with_rows(rng)
    ledger = Ledger("w9", int(rng.integers(1000)), int(rng.integers(4)), ("1",), 0, 1000, 1_700_000_000_000)
    place = m.StagedPlace(bucket=world.bucket(rng, table), count=int(rng.integers(3)))
    return m.ApplyStagedRequest(table_id=table.table_id, ledger=ledger.to_json(), place=place)


def _prepare_rows(world: World, rng: np.random.Generator) -> ApiMessage:
    table = world.with_rows(rng)
    rows, columns = table.rows(rng), table.definition.schema.columns
    count = rows.num_rows
    return m.PrepareRowsRequest(
        topic=table.topic, bucket=world.bucket(rng, table), schema_id=table.definition.schema.schema_id,
        rows=bytes(encode_ipc(rows)), producer_id=-1, producer_epoch=-1, base_sequence=-1, sequence_count=count,
        deletes=bytes(count) if table.keyed and rng.random() < 0.5 else None,
        sent_as=np.arange(count, dtype="<i8").tobytes() if rng.random() < 0.5 else None,
        kept=[m.KeptCells(column=columns[-1].id, cells=bytes(count))] if table.keyed and rng.random() < 0.3 else [],
    )  # fmt: skip


def _await_rows(world: World, rng: np.random.Generator) -> ApiMessage:
    table = world.with_rows(rng)
    return m.AwaitRowsRequest(
        topic=table.topic, bucket=world.bucket(rng, table), end_offset=-1, acks=-1, timeout_ms=100
    )


def _keep_staged(world: World, rng: np.random.Generator) -> ApiMessage:
    """Keep staged rows of another broker's writer, whose batch no client commits."""
    table = world.with_rows(rng)
    return m.KeepStagedRequest(
        table_id=table.table_id, writer="w8", batch_id=int(rng.integers(4)), attempt=f"a{int(rng.integers(3))}",
        place=m.StagedPlace(bucket=world.bucket(rng, table), count=int(rng.integers(2))),
        batch=bytes(int(rng.integers(200))),
    )  # fmt: skip


def _hand_over_staged(world: World, rng: np.random.Generator) -> ApiMessage:
    """Hand over rows that do not exist, so that no broker is asked to keep them."""
    table = world.with_rows(rng)
    return m.HandOverStagedRequest(
        table_id=table.table_id, writer="w9", batch_id=int(rng.integers(4)), attempt=f"a{int(rng.integers(3))}",
        place=m.StagedPlace(bucket=world.bucket(rng, table), count=0), broker_id=int(rng.integers(3)),
    )  # fmt: skip


def _copy_store(world: World, rng: np.random.Generator) -> ApiMessage:
    """Copy a store from a copy that does not exist, or begin one, which is left alone."""
    table = world.with_rows(rng)
    copy_id = UUID(int=int(rng.integers(3)))
    return m.CopyStoreRequest(
        topic=table.topic, bucket=world.bucket(rng, table), copy_id=copy_id, file="CURRENT",
        position=int(rng.integers(-1, 9)), done=bool(rng.integers(2)),
    )  # fmt: skip


def _ends(world: World, rng: np.random.Generator) -> ApiMessage:
    table = world.with_rows(rng)
    wanted = [
        m.WantedEnd(topic=each, partition=world.bucket(rng, table), offset=int(rng.integers(40)))
        for each in (table.topic, PLAIN)
    ]
    return m.DescribeEndsRequest(partitions=wanted)


def _staged_elsewhere(kind: type[Any]) -> Maker:
    def make(world: World, rng: np.random.Generator) -> ApiMessage:
        return kind(  # type: ignore[no-any-return]
            table_id=world.with_rows(rng).table_id, writer=f"w{rng.integers(2)}", batch_id=int(rng.integers(4)),
            attempts=[["1"], []][int(rng.integers(2))],
        )  # fmt: skip

    return make


def _lake(kind: type[Any], **fields: Callable[[World, np.random.Generator], Any]) -> Maker:
    def make(world: World, rng: np.random.Generator) -> ApiMessage:
        given = {name: value(world, rng) for name, value in fields.items()}
        return kind(table_id=world.tables["lake"].table_id, **given)  # type: ignore[no-any-return]

    return make


def _epoch(world: World, rng: np.random.Generator) -> int:
    return world.epochs[-1]


def _properties(world: World, rng: np.random.Generator) -> list[m.Property]:
    return [m.Property(key="owner", value="é")]


TABLE_REQUESTS: dict[type[ApiMessage], Maker] = {
    m.CreateDatabaseRequest: lambda world, rng: m.CreateDatabaseRequest(
        name=_name(rng), ignore_if_exists=True, comment="c", properties=_properties(world, rng)
    ),
    m.DropDatabaseRequest: lambda world, rng: m.DropDatabaseRequest(
        name=_name(rng), ignore_if_not_exists=True, cascade=True
    ),
    m.ListDatabasesRequest: lambda world, rng: m.ListDatabasesRequest(),
    m.CreateTableRequest: _create_table,
    m.DropTableRequest: lambda world, rng: m.DropTableRequest(
        database="default", table=_name(rng), ignore_if_not_exists=True
    ),
    m.ListTablesRequest: lambda world, rng: m.ListTablesRequest(database="default"),
    m.DescribeTableRequest: lambda world, rng: m.DescribeTableRequest(database="default", table="keyed"),
    m.AlterTableRequest: _alter_table,
    m.DescribeDatabaseRequest: lambda world, rng: m.DescribeDatabaseRequest(name="default"),
    m.AlterDatabaseRequest: lambda world, rng: m.AlterDatabaseRequest(
        name=_name(rng), comment="x", set_properties=_properties(world, rng), reset_properties=["gone"]
    ),
    m.AppendRowsRequest: _write(m.AppendRowsRequest, False),
    m.PutRowsRequest: _put,
    m.LookupRequest: _lookup,
    m.PrefixLookupRequest: _prefix_lookup,
    m.ScanLogRequest: _scan_log,
    m.LimitScanRequest: _limit_scan,
    m.CountRowsRequest: _count_rows,
    m.ScanSnapshotRequest: _scan_snapshot,
    m.LakeBeginRequest: lambda world, rng: m.LakeBeginRequest(
        worker="w", database="default", table="lake", force=True
    ),
    m.LakeHeartbeatRequest: _lake(
        m.LakeHeartbeatRequest, epoch=_epoch, changes=lambda *_: 7, doing=lambda *_: "reading"
    ),
    m.LakeCommitRequest: _lake(
        m.LakeCommitRequest, epoch=_epoch, snapshot_id=lambda _, rng: int(rng.integers(1 << 40)),
        offsets=lambda *_: [m.LakeOffset(bucket=each, offset=each) for each in range(2)],
    ),
    m.DescribeLakeRequest: _lake(m.DescribeLakeRequest),
    m.LakeEndRequest: _lake(m.LakeEndRequest, epoch=_epoch, failure=lambda _, rng: rng.choice(["why", None])),
    m.LakeFinishRequest: _lake(m.LakeFinishRequest),
    m.ListLakeRequest: lambda world, rng: m.ListLakeRequest(),
    m.ListSnapshotsRequest: lambda world, rng: m.ListSnapshotsRequest(topic=rng.choice(["default.keyed", "no", "."])),
    m.ListTableLoadsRequest: lambda world, rng: m.ListTableLoadsRequest(),
    m.ListRefusedRequest: lambda world, rng: m.ListRefusedRequest(topic=rng.choice([None, "default.keyed", "no"])),
    m.StageRowsRequest: _stage,
    m.CommitStagedRequest: _commit_staged,
    m.AbortStagedRequest: _abort_staged,
    m.CreatePartitionRequest: lambda world, rng: m.CreatePartitionRequest(
        table_id=world.tables[PARTITIONED].table_id, name=_name(rng), ignore_if_exists=True
    ),
    m.DropPartitionRequest: lambda world, rng: m.DropPartitionRequest(
        table_id=world.tables[PARTITIONED].table_id, name=_name(rng), ignore_if_not_exists=True
    ),
    m.ListPartitionsRequest: lambda world, rng: m.ListPartitionsRequest(
        table_id=world.tables[PARTITIONED].table_id
    ),
    m.GrantColumnsRequest: lambda world, rng: m.GrantColumnsRequest(
        database="default", table="keyed", principal="User:ann", columns=["id"]
    ),
    m.RevokeColumnsRequest: lambda world, rng: m.RevokeColumnsRequest(
        database="default", table="keyed", principal="User:ann", columns=["id"]
    ),
    m.ListColumnGrantsRequest: lambda world, rng: m.ListColumnGrantsRequest(database="default", table="keyed"),
    m.DescribeServerRequest: lambda world, rng: m.DescribeServerRequest(),
    m.BeginBackupRequest: lambda world, rng: m.BeginBackupRequest(),
    m.HoldBackupRequest: lambda world, rng: m.HoldBackupRequest(backup_id="0" * 32, is_over=True),
    m.CutBackupRequest: lambda world, rng: m.CutBackupRequest(backup_id="0" * 32, step=int(rng.integers(7))),
    m.ReadBackupRequest: lambda world, rng: m.ReadBackupRequest(
        backup_id="0" * 32, place="cut.json", size_bytes=int(rng.integers(9))
    ),
    m.DescribeEndsRequest: _ends,
    m.CountStagedRequest: _staged_elsewhere(m.CountStagedRequest),
    m.ApplyStagedRequest: _decided,
    m.DropStagedRequest: _staged_elsewhere(m.DropStagedRequest),
    m.PrepareRowsRequest: _prepare_rows,
    m.LogRowsRequest: lambda world, rng: m.LogRowsRequest(
        ticket=UUID(int=int(rng.integers(9))), release=bool(rng.integers(2))
    ),
    m.AwaitRowsRequest: _await_rows,
    m.CopyStoreRequest: _copy_store,
    m.KeepStagedRequest: _keep_staged,
    m.HandOverStagedRequest: _hand_over_staged,
    m.KeepDeadLettersRequest: lambda world, rng: m.KeepDeadLettersRequest(
        topic=rng.choice([PLAIN, "default.keyed", "no"]), partition=0, batch=bytes(int(rng.integers(200))),
        timeout_ms=100,
    ),
}  # fmt: skip
"""Honest requests for each API of the table layer."""


# -- the Kafka view -------------------------------------------------------------------------------------------


def values_for(table: Standing, rows: pa.RecordBatch) -> list[bytes]:
    """The values of records that hold these rows."""
    options, schema = table.definition.options, table.definition.schema
    if options.get(FORMAT) == "avro":
        text = schema_text(schema, "default", table.name)
        offsets, data = rows_to_avro(rows, schema, Frame.container(text))
        raw = bytes(data)
        return [raw[start:end] for start, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False)]
    texts = rows_to_json(rows).to_pylist()
    if options.get(FORMAT) == "debezium-json":
        return [b'{"before":null,"after":%b,"op":"c","ts_ms":1}' % text for text in texts]
    if "table.kafka.value-path" in options:
        return [b'{"payload":{"row":%b},"more":[1]}' % text for text in texts]
    return [bytes(text) for text in texts]


def produced_to(world: World, rng: np.random.Generator) -> Standing:
    names = [each for each in world.tables if each != "altered"]
    return world.tables[names[int(rng.integers(len(names)))]]


def records_for(table: Standing, rng: np.random.Generator) -> list[Record]:
    values = values_for(table, table.rows(rng))
    records = [Record(None, value, (), 1_700_000_000_000) for value in values]
    schema = table.definition.schema
    if table.keyed and len(schema.primary_key) == 1 and rng.random() < 0.3:
        records.append(Record(b"%d" % rng.integers(KEYS), None, (), 1_700_000_000_000))
    return records


def produce_request(world: World, table: Standing, index: int, batch: bytes) -> ApiMessage:
    data = PartitionProduceData(index=index, records=batch)
    topic = TopicProduceData(name=table.topic, topic_id=table.table_id, partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic])


def _produce(world: World, rng: np.random.Generator) -> ApiMessage:
    table = produced_to(world, rng)
    return produce_request(world, table, world.bucket(rng, table), build_batch(records_for(table, rng)))


def _fetch(world: World, rng: np.random.Generator) -> ApiMessage:
    table = world.with_rows(rng)
    wanted = FetchPartition(
        partition=world.bucket(rng, table), fetch_offset=int(rng.integers(20)), partition_max_bytes=1 << 20
    )
    topic = FetchTopic(topic=table.topic, topic_id=table.table_id, partitions=[wanted])
    return FetchRequest(max_wait_ms=0, min_bytes=1, topics=[topic])


def _create_topic(world: World, rng: np.random.Generator) -> ApiMessage:
    columns, buckets, bucket_key, options = [each[1:] for each in TABLES][int(rng.integers(len(TABLES)))]
    given = {"table.schema": columns, **options}
    if bucket_key:
        given["table.bucket-key"] = ",".join(bucket_key)
    configs = [CreatableTopicConfig(name=name, value=value) for name, value in given.items() if "." in name]
    topic = CreatableTopic(
        name=f"default.{_name(rng)}", num_partitions=buckets, replication_factor=1, configs=configs
    )
    return CreateTopicsRequest(topics=[topic], validate_only=bool(rng.random() < 0.5))


def _alter_configs(world: World, rng: np.random.Generator) -> ApiMessage:
    choices = [
        ("table.log.ttl", "3 d"),
        ("table.statistics.columns", "*"),
        ("table.comment", "c"),
        ("max.message.bytes", "999999"),
    ]
    name, value = choices[int(rng.integers(len(choices)))]
    config = AlterableConfig(name=name, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=2, resource_name="default.altered", configs=[config])
    return IncrementalAlterConfigsRequest(resources=[resource])


KAFKA_REQUESTS: dict[type[ApiMessage], Maker] = {
    ProduceRequest: _produce,
    FetchRequest: _fetch,
    CreateTopicsRequest: _create_topic,
    IncrementalAlterConfigsRequest: _alter_configs,
    DescribeConfigsRequest: lambda world, rng: DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=2, resource_name=world.with_rows(rng).topic)]
    ),
    CreatePartitionsRequest: lambda world, rng: CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="default.altered", count=1, assignments=None)]
    ),
    ListOffsetsRequest: lambda world, rng: ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name=world.with_rows(rng).topic,
                partitions=[
                    ListOffsetsPartition(partition_index=0, timestamp=int(rng.choice([-1, -2, -3, 5])))
                ],
            )
        ],
    ),
    MetadataRequest: lambda world, rng: MetadataRequest(
        topics=[MetadataRequestTopic(name=world.with_rows(rng).topic)], allow_auto_topic_creation=False
    ),
}
"""The requests of Kafka's clients about tables."""
