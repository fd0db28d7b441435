"""Tables on a real broker without sockets: helpers for frequent steps of tests."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from headrace.broker.net.reply import Peer
from headrace.broker.runtime.ports import SystemClock
from headrace.broker.security.principal import ANONYMOUS, Session
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.batch import ArrowBatch, ChangeType, encode_arrow_batch
from headrace.tablelayer.model.batches.ipc import decode_ipc, encode_ipc
from headrace.tablelayer.model.ddl import AlterTable, parse
from headrace.tablelayer.model.ddl.clauses import parse_columns
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.evolution import changes_to_json
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.server.limits import Limits
from simulator.direct import DirectBroker, direct_broker
from simulator.files import copy_as_killed as copy_as_killed

Row = dict[str, Any]
Change = tuple[str, Row]
LAKES = {"datalake.iceberg.warehouse": "/lake", "datalake.paimon.warehouse": "/lake"}
"""Configurations of a server that offers both lakes; nothing is tiered there."""
TIMEOUT_MS = 60_000
"""The timeout of requests that must not time out."""
DEADLINE_SECONDS = 60.0


class MovableClock(SystemClock):
    """The system's clock, ahead by `ahead_ms`; the one that only counts by `waited_seconds`."""

    ahead_ms = 0
    waited_seconds = 0.0

    def time_ms(self) -> int:
        return super().time_ms() + self.ahead_ms

    def monotonic(self) -> float:
        return super().monotonic() + self.waited_seconds


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def coming_from(broker: DirectBroker, host: str) -> DirectBroker:
    """Return the same broker, as a client of another host."""
    other = copy.copy(broker)
    other.peer = Peer(2, host, 1, "PLAINTEXT", Session(ANONYMOUS, "PLAINTEXT"))
    return other


async def until(holds: Callable[[], Any], because: str = "") -> None:
    """Wait until a condition holds, which may be a coroutine function."""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                answer = holds()
                if await answer if inspect.isawaitable(answer) else answer:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(because or "what is waited for has not come") from None


@asynccontextmanager
async def tables(
    data_dir: Path, config: Mapping[str, str] | None = None, limits: Limits | None = None, **options: Any
) -> AsyncIterator[Tables]:
    """Run a broker. Without `limits` nothing is written to files by itself, however long a test takes."""
    extension = TableExtension(limits or Limits(flush_seconds=3600.0))
    async with direct_broker(data_dir, config, extensions=[extension], **options) as broker:
        yield Tables(broker, extension)


class Tables:
    def __init__(self, broker: DirectBroker, extension: TableExtension) -> None:
        self.broker = broker
        self.extension = extension

    async def create(
        self,
        columns: str,
        *,
        buckets: int = 1,
        name: str = "t",
        bucket_key: Sequence[str] = (),
        given: Mapping[str, str] | None = None,
        **options: str,
    ) -> Table:
        """`options` are named without `table.` and with _ for dots, those in `given` as they are."""
        named = {f"table.{key.replace('_', '.')}": value for key, value in options.items()}
        return await self.create_as(
            TableDefinition(
                TablePath("default", name),
                parse_columns(columns),
                bucket_key=tuple(bucket_key),
                bucket_count=buckets,
                options={**named, **(given or {})},
            )
        )

    async def create_as(self, definition: TableDefinition) -> Table:
        answer = await self.broker.send(m.CreateTableRequest(definition=definition.to_json()))
        assert answer.error_code == 0, answer.error_message
        return Table(self.broker, definition.with_id(answer.table_id))

    async def open(self, name: str = "t") -> Table:
        answer = await self.broker.send(m.DescribeTableRequest(database="default", table=name))
        assert answer.error_code == 0, answer.error_message
        return Table(self.broker, TableDefinition.from_json(answer.definition))


class Table:
    """One table; bucket 0 by default. `error` methods return the answer, the others raise AssertionError."""

    def __init__(self, broker: DirectBroker, definition: TableDefinition) -> None:
        self.broker = broker
        self.definition = definition

    @property
    def table_id(self) -> UUID:
        assert self.definition.table_id is not None
        return self.definition.table_id

    async def alter(self, clauses: str) -> Table:
        """Run ALTER TABLE; return the table in its new schema. This object keeps the old one."""
        (statement,) = parse(f"ALTER TABLE `{self.definition.path.table}` {clauses}")
        assert isinstance(statement, AlterTable)
        answer = await self.alter_answer(changes_to_json(statement.changes))
        assert answer.error_code == 0, answer.error_message
        return Table(self.broker, TableDefinition.from_json(answer.definition))

    async def alter_answer(self, changes: str, expected_schema_id: int = -1) -> m.AlterTableResponse:
        path = self.definition.path
        answer: m.AlterTableResponse = await self.broker.send(
            m.AlterTableRequest(
                database=path.database,
                table=path.table,
                changes=changes,
                expected_schema_id=expected_schema_id,
            )
        )
        return answer

    async def latest(self) -> TableDefinition:
        path = self.definition.path
        answer = await self.broker.send(m.DescribeTableRequest(database=path.database, table=path.table))
        assert answer.error_code == 0, answer.error_message
        return TableDefinition.from_json(answer.definition)

    @property
    def partition(self) -> Any:
        return self.broker.context.replicas.partition(self.definition.path.topic, 0)

    # -- writing

    def batch(
        self, rows: Sequence[Row], changes: Sequence[int] | None = None, columns: Sequence[str] | None = None,
        **options: Any,
    ) -> bytes:  # fmt: skip
        schema = self.definition.schema
        arrow = (
            schema.arrow()
            if columns is None
            else pa.schema([schema.column(each).field() for each in columns])
        )
        data = pa.RecordBatch.from_pylist(list(rows), schema=arrow)
        types = None if changes is None else np.array(changes, np.uint8)
        options.setdefault("schema_id", schema.schema_id)
        return bytes(encode_arrow_batch(data, change_types=types, **options))

    async def put_batch(
        self,
        batch: bytes,
        *,
        bucket: int = 0,
        acks: int = -1,
        target_columns: list[int] | None = None,
        overwrite: bool = False,
        update: bool = False,
    ) -> m.WrittenBucket | m.PutRowsResponse:
        """Return the bucket's answer, or the response if it failed as a whole."""
        mode = m.WRITE_MODE_OVERWRITE if overwrite else m.WRITE_MODE_MERGE
        answer = await self.broker.send(
            m.PutRowsRequest(
                table_id=self.table_id, acks=acks, timeout_ms=TIMEOUT_MS, target_columns=target_columns,
                write_mode=m.WRITE_MODE_UPDATE if update else mode,
                buckets=[m.WriteBucket(bucket=bucket, batch=batch)],
            )
        )  # fmt: skip
        return answer if answer.error_code else answer.buckets[0]

    async def put(
        self,
        *operations: tuple[str, Row],
        columns: Sequence[str] | None = None,
        overwrite: bool = False,
        update: bool = False,
        **options: Any,
    ) -> m.WrittenBucket:
        """Operations ("+", row) and ("-", row) in one batch."""
        changes = [ChangeType.UPDATE_AFTER if sign == "+" else ChangeType.DELETE for sign, _ in operations]
        schema = self.definition.schema
        ids = None if columns is None else [schema.column(each).id for each in columns]
        batch = self.batch([row for _, row in operations], changes, columns, **options)
        answer: Any = await self.put_batch(batch, target_columns=ids, overwrite=overwrite, update=update)
        return answer

    async def append(self, rows: Sequence[Row], *, bucket: int = 0, acks: int = -1, **options: Any) -> Any:
        answer = await self.broker.send(
            m.AppendRowsRequest(
                table_id=self.table_id, acks=acks, timeout_ms=TIMEOUT_MS,
                buckets=[m.WriteBucket(bucket=bucket, batch=self.batch(rows, **options))],
            )
        )  # fmt: skip
        return answer if answer.error_code else answer.buckets[0]

    # -- reading

    async def scan(
        self, offset: int = 0, columns: Sequence[str] | None = None, bucket: int = 0
    ) -> list[ArrowBatch]:
        """All batches from an offset to the high watermark."""
        schema = self.definition.schema
        ids = None if columns is None else [schema.column(each).id for each in columns]
        batches: list[ArrowBatch] = []
        while True:
            answer = await self.broker.send(
                m.ScanLogRequest(
                    table_id=self.table_id,
                    columns=ids,
                    buckets=[m.ScanLogBucket(bucket=bucket, offset=offset)],
                    schema_id=schema.schema_id,
                )
            )
            result = answer.buckets[0]
            assert result.error_code == 0, result.error_message
            if not result.records:
                return batches
            records = memoryview(bytes(result.records))
            while records:
                batch = ArrowBatch.parse(records)
                records = records[batch.header.size :]
                batches.append(batch)
                offset = batch.header.next_offset

    async def changelog(self, offset: int = 0, bucket: int = 0) -> list[Change]:
        changes: list[Change] = []
        versions = (await self.latest()).versions
        for batch in await self.scan(offset, bucket=bucket):
            stored = batch.to_record_batch(versions.get(batch.schema_id).arrow(), untrusted=True)
            conversion = versions.conversion(batch.schema_id, self.definition.schema)
            rows = conversion.of(stored).to_pylist()
            types = [0] * len(rows) if batch.change_types is None else batch.change_types.tolist()
            changes += [(ChangeType(change).short, row) for change, row in zip(types, rows, strict=True)]
        return changes

    async def lookup(
        self,
        *keys: Row,
        bucket: int = 0,
        columns: Sequence[str] | None = None,
        insert_if_absent: bool = False,
    ) -> list[Row | None]:
        schema = self.definition.schema
        key_schema = pa.schema([column.field() for column in schema.key_columns])
        ids = None if columns is None else [schema.column(each).id for each in columns]
        answer = await self.broker.send(
            m.LookupRequest(
                table_id=self.table_id, columns=ids,
                buckets=[m.LookupBucket(
                    bucket=bucket, keys=encode_ipc(pa.RecordBatch.from_pylist(list(keys), schema=key_schema))
                )],
                insert_if_absent=insert_if_absent, timeout_ms=TIMEOUT_MS,
                schema_id=schema.schema_id,
            )
        )  # fmt: skip
        assert answer.error_code == 0, answer.error_message
        result = answer.buckets[0]
        assert result.error_code == 0, result.error_message
        return [
            row if found else None
            for row, found in zip(self.rows(result.rows, columns), result.found, strict=True)
        ]

    def rows(self, data: Any, columns: Sequence[str] | None = None) -> list[Row]:
        schema = self.definition.schema
        arrow = (
            schema.arrow()
            if columns is None
            else pa.schema([schema.column(each).field() for each in columns])
        )
        return decode_ipc(bytes(data), arrow).to_pylist()  # type: ignore[no-any-return]

    async def state(self, bucket: int = 0, **asked: Any) -> list[Row]:
        """All rows, by a snapshot scan in small pieces; `asked` are more fields of its request."""
        rows: list[Row] = []
        scan_id, more = m.OPEN_SCAN, True
        while more:
            answer = await self.broker.send(
                m.ScanSnapshotRequest(
                    table_id=self.table_id,
                    bucket=bucket,
                    scan_id=scan_id,
                    max_bytes=1,
                    schema_id=self.definition.schema.schema_id,
                    **asked,
                )
            )
            assert answer.error_code == 0, answer.error_message
            scan_id, more = answer.scan_id, answer.has_more
            rows += self.rows(answer.rows)
        return rows

    async def limit(self, count: int, columns: Sequence[str] | None = None, bucket: int = 0) -> list[Row]:
        schema = self.definition.schema
        ids = None if columns is None else [schema.column(each).id for each in columns]
        answer = await self.broker.send(
            m.LimitScanRequest(
                table_id=self.table_id, columns=ids, limit=count, buckets=[bucket], schema_id=schema.schema_id
            )
        )
        assert answer.error_code == 0, answer.error_message
        assert answer.buckets[0].error_code == 0, answer.buckets[0].error_message
        return self.rows(answer.buckets[0].rows, columns)

    async def count(self, bucket: int = 0) -> int:
        answer = await self.broker.send(m.CountRowsRequest(table_id=self.table_id, buckets=[bucket]))
        assert answer.error_code == 0, answer.error_message
        assert answer.buckets[0].error_code == 0, answer.buckets[0].error_message
        return int(answer.buckets[0].count)


def replay(changes: Sequence[Change], key: Sequence[str]) -> dict[tuple[Any, ...], Row]:
    """The table that a changelog gives; a change that does not fit what is there is an AssertionError."""
    state: dict[tuple[Any, ...], Row] = {}
    for change, row in changes:
        at = tuple(row[name] for name in key)
        if change == "+I":
            assert at not in state
            state[at] = row
        elif change == "+U":
            state[at] = row
        elif change == "-U":
            assert state[at] == row
        else:
            assert change == "-D"
            assert state.pop(at) == row
    return state
