"""A bucket of another broker, as one that a produced batch is written to (`joint_write.JointBucket`).

When the bucket's turn in the total order comes, its leader prepares the rows and locks the bucket (`held_rows.py`)
until all other buckets are prepared; then it logs them. Every reason to refuse rows is known before anything is logged.
The leader may be lost in between: rows that other buckets have logged stay, and the producer repeats the batch, as
after a disk failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

import numpy as np
import pyarrow as pa

from headrace.broker.log.partition_log import AppendInfo
from headrace.broker.net.peers import PeerLostError
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.arrays.arrays import Mask
from headrace.tablelayer.model.batches.ipc import decode_ipc, encode_ipc
from headrace.tablelayer.model.errors import RowError, TableError, TableErrorCode
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.server.merge.engines import Operations
from headrace.tablelayer.server.merge.writes import OperationSource, Writer

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition
    from headrace.tablelayer.server.services import Services

Response = TypeVar("Response", bound=m.TableResponse)

_CHANNELS: Final = 4
_BUSY_SECONDS: Final = 0.005
_PREPARE_SECONDS: Final = 20.0
_LOG_SECONDS: Final = 10.0
_MORE_SECONDS: Final = 2.0
"""Added to a request's own timeout when the broker waits for another broker."""


class RemoteBucket:
    """Another broker's bucket, for one batch and its rows for that bucket."""

    def __init__(
        self,
        services: Services,
        partition: Partition,
        leader: int,
        definition: TableDefinition,
        rows: Operations,
        writer: Writer,
    ) -> None:
        self.partition = partition
        self._services = services
        self._leader = leader
        self._definition = definition
        self._rows = rows
        self._writer = writer
        self._ticket: UUID | None = None
        self._repeat: AppendInfo | None = None
        self._epoch = -1
        self._failure: Exception | None = None

    @property
    def name(self) -> str:
        return f"{self.partition.topic.name} bucket {self.partition.index} on broker {self._leader}"

    @property
    def place(self) -> tuple[bytes, int]:
        return self.partition.topic.topic_id.bytes, self.partition.index

    @property
    def writing(self) -> AbstractAsyncContextManager[object]:
        return self._held()

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        try:
            await self._prepare()
        except (KafkaError, TableError) as error:
            # Reported together with other buckets' errors: of several bad rows, the one sent first.
            self._failure = error
        try:
            yield
        finally:
            ticket, self._ticket = self._ticket, None
            if ticket is not None:
                self._services.context.background.start(self._release(ticket), "rows that are not logged")

    def check_open(self) -> None:
        if self._failure is not None:
            raise self._failure

    def repeated(self, writer: Writer) -> AppendInfo | None:
        return self._repeat

    async def prepare_rows(self, source: OperationSource, writer: Writer) -> UUID | None:
        return self._ticket

    async def log_prepared(self, prepared: UUID, size: int) -> AppendInfo:
        """Have the leader log the rows. `size` is the charge to this broker's budget; the leader charges its own."""
        self._ticket = None
        answer = await self._ask(
            m.LogRowsRequest(ticket=prepared), m.LogRowsResponse, "rows-logged", _LOG_SECONDS
        )
        _check(answer)
        self._services.budget.release(size)
        return AppendInfo(answer.base_offset, answer.last_offset, -1, 0)

    async def wait_published(self, info: AppendInfo, acks: int, timeout_ms: int) -> AppendInfo:
        await wait_elsewhere(
            self._services, self._leader, self.partition, info.last_offset + 1, acks, timeout_ms, self._epoch
        )
        return info

    async def _prepare(self) -> None:
        request = await self._services.run(self._request)
        deadline = asyncio.get_running_loop().time() + _PREPARE_SECONDS
        channel = f"rows-{self.partition.index % _CHANNELS}"
        while True:
            answer = await self._ask(request, m.PrepareRowsResponse, channel, _PREPARE_SECONDS)
            if not answer.is_busy:
                break
            if asyncio.get_running_loop().time() > deadline:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{self.name}: the bucket is always locked by other writes; send the batch again",
                )
            await asyncio.sleep(_BUSY_SECONDS)
        if answer.row >= 0:
            raise RowError(answer.row, answer.column, answer.reason)
        _check(answer)
        self._epoch = answer.leader_epoch
        if answer.last_offset >= 0:
            self._repeat = AppendInfo(answer.base_offset, answer.last_offset, -1, 0, duplicate=True)
        else:
            self._ticket = answer.ticket

    def _request(self) -> m.PrepareRowsRequest:
        rows, writer = self._rows, self._writer
        return m.PrepareRowsRequest(
            topic=self.partition.topic.name,
            bucket=self.partition.index,
            schema_id=self._definition.schema.schema_id,
            rows=bytes(encode_ipc(rows.rows)),
            deletes=None if rows.deletes is None else rows.deletes.astype(np.uint8).tobytes(),
            sent_as=None if rows.sent_as is None else rows.sent_as.astype("<i8").tobytes(),
            kept=[
                m.KeptCells(column=column, cells=cells.astype(np.uint8).tobytes())
                for column, cells in (rows.kept or {}).items()
            ],
            **writer.fields(),
        )

    async def _release(self, ticket: UUID) -> None:
        try:
            request = m.LogRowsRequest(ticket=ticket, release=True)
            await self._ask(request, m.LogRowsResponse, "rows-logged", _LOG_SECONDS)
        except KafkaError:
            return  # the leader releases them after a timeout

    async def _ask(
        self,
        request: m.PrepareRowsRequest | m.LogRowsRequest,
        response: type[Response],
        channel: str,
        seconds: float,
    ) -> Response:
        """Ask the bucket's leader. Raises KafkaError(LEADER_NOT_AVAILABLE)."""
        try:
            return await self._services.context.peers.ask(
                self._leader, request, response, channel=channel, seconds=seconds
            )
        except PeerLostError as error:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{self.name}: {error.message}") from None


def rows_of(request: m.PrepareRowsRequest, schema: Schema) -> Operations:
    """Return the rows that another broker sent. All contents are checked; blocking. Raises DecodeError."""
    expected = schema.arrow()
    fields = pa.schema([each.with_nullable(True) for each in expected])  # deletes have key columns only
    found = decode_ipc(request.rows, fields, untrusted=True)
    rows = pa.RecordBatch.from_arrays(found.columns, schema=expected)
    count = rows.num_rows
    if any(rows.column(name).null_count for name in schema.primary_key):
        raise DecodeError("rows of another broker have no key")
    deletes = None if request.deletes is None else _mask(request.deletes, count)
    kept = {each.column: _mask(each.cells, count) for each in request.kept}
    if not kept.keys() <= {each.id for each in schema.columns}:
        raise DecodeError("rows of another broker keep cells of columns that the table does not have")
    sent_as = None
    if request.sent_as is not None:
        if len(request.sent_as) != 8 * count:
            raise DecodeError(f"{count} rows of another broker have {len(request.sent_as)} bytes of numbers")
        sent_as = np.frombuffer(request.sent_as, "<i8").astype(np.intp)
        if count and not 0 <= int(sent_as.min()) <= int(sent_as.max()) < 1 << 31:
            raise DecodeError("rows of another broker have record numbers outside of any batch")
    return Operations(rows, deletes, sent_as=sent_as, kept=kept or None)


def _mask(cells: bytes, count: int) -> Mask:
    if len(cells) != count:
        raise DecodeError(f"{count} rows of another broker have {len(cells)} marks")
    return np.frombuffer(cells, np.uint8).astype(bool)


async def wait_elsewhere(
    services: Services,
    leader: int,
    partition: Partition,
    end_offset: int,
    acks: int,
    timeout_ms: int,
    leader_epoch: int = -1,
) -> None:
    """Wait as `acks` demands for rows in a bucket of another broker.

    `end_offset` is the end of the rows (-1: the log's present end). `leader_epoch` is the epoch in which the last row
    was logged (-1: unknown). Raises KafkaError.
    """
    request = m.AwaitRowsRequest(
        topic=partition.topic.name,
        bucket=partition.index,
        end_offset=end_offset,
        acks=acks,
        timeout_ms=timeout_ms,
        leader_epoch=leader_epoch,
    )
    try:
        answer = await services.context.peers.ask(
            leader,
            request,
            m.AwaitRowsResponse,
            channel=f"rows-awaited-{partition.index % _CHANNELS}",
            seconds=timeout_ms / 1000 + _MORE_SECONDS,
        )
    except PeerLostError as error:
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, error.message) from None
    _check(answer)


def _check(answer: m.TableResponse) -> None:
    """Raise the answer's error: TableError or KafkaError."""
    code, message = answer.error_code, answer.error_message or ""
    if code == ErrorCode.NONE:
        return
    if code >= TableErrorCode.DATABASE_NOT_FOUND:
        raise TableError(TableErrorCode(code), message)
    raise KafkaError(ErrorCode(code), message)
