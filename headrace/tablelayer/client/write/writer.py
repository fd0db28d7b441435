"""Write to a table: rows in, acknowledged end offsets out, each row applied exactly once.

Rows are split by bucket, cut to batches and compressed in a worker thread, and queued in the lane of their bucket
(`tablelayer.client.write.lane`). One sender per table takes at most one batch per lane into a request. It sends the
request to the leader without waiting for earlier answers. Retries repeat the same bytes, so the server applies each
batch once however often it arrives. A call that fails says how many of its rows were written, and why: it has the
server's own error if that prevented the write until the deadline. If rows wait for long because of an error, the log
`headrace.client` has a warning, as with Kafka's producers.

Limits: five requests in flight per leader, `buffer_size_bytes` of encoded data waiting (a writer further ahead waits),
one deadline per batch. Other tasks may write to the same table at the same time. The batches of a bucket are applied in
the order in which they were queued.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.tablelayer.client.errors import ConnectionFailed, OutcomeUnknown, RequestTimeout
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import (
    Backoff,
    Deadline,
    at_last,
    error_of,
    is_stale_route,
    may_retry,
)
from headrace.tablelayer.client.wire.routes import TableRoutes
from headrace.tablelayer.client.write.lane import WHOLE_ROWS, Batch, Identity, Lane, Verdict, WriteMode
from headrace.tablelayer.client.write.pieces import pieces, slabs
from headrace.tablelayer.client.write.split import Spread, buckets_of, split_by_bucket
from headrace.tablelayer.model.batches.batch import encode_arrow_batch
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.messages.write import (
    AppendRowsRequest,
    AppendRowsResponse,
    PutRowsRequest,
    PutRowsResponse,
    WriteBucket,
)
from headrace.tablelayer.model.rights import OPERATIONS, PRIVILEGES, not_granted
from headrace.tablelayer.model.table.definition import StoredTable

logger = logging.getLogger("headrace.client")

_REQUEST_SIZE = 8 << 20
_CHECKED_SINCE = 1
"""Version of requests from which a server checks the definition that rows were made for."""
_SLAB_SIZE = 32 << 20
_FEW_ROWS, _FEW_BYTES = 16, 16 << 10
"""Maximum size of rows whose encoding is faster than handing it to a thread."""
_WRITE_CHANNEL = "write"
_SERVER_SHARE = 0.9
"""The server's share of the remaining time, so that its answer with an error can still arrive."""
_WARN_AFTER_SECONDS = 2.0
"""Time before a warning: restarts of the server and changes of leaders take less."""
_WARN_EVERY_SECONDS = 10.0
_LOST_WRITER = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
#: Errors after which the outcome is unknown: the leader has the batch, but perhaps not enough replicas.
_UNDECIDED = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a write: the number of rows, and for each bucket the offset after its last changelog row.

    A reader of the changelog that has reached `end_offsets` has seen the write. A partitioned table has them in
    `partition_end_offsets`, by partition. `logged_count` is the number of rows in the changelog, for `checked` changes
    of existing rows; None for other writes, and if it is not known.
    """

    row_count: int
    end_offsets: dict[int, int] = field(default_factory=dict)
    partition_end_offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    logged_count: int | None = None


CHANGE_COLUMN = "\0change"
"""A uint8 column at the end of conformed rows, with the change type of each row, if they differ."""


def encode_write(definition: StoredTable, rows: pa.RecordBatch, change_type: int | None) -> memoryview:
    """Encode conformed rows as a write batch. `change_type` is that of every row, None for a log table."""
    change_types = None if change_type is None else np.full(rows.num_rows, change_type, np.uint8)
    if rows.schema.names[-1] == CHANGE_COLUMN:
        change_types = rows.column(CHANGE_COLUMN).to_numpy()
        rows = rows.drop_columns([CHANGE_COLUMN])
    return encode_arrow_batch(
        rows,
        schema_id=definition.schema.schema_id,
        change_types=change_types,
        compression=definition.settings.arrow_compression if change_types is None else None,
        timestamp_ms=time.time_ns() // 1_000_000,
    )


class Writer:
    """Sends all writes of one connection to one table."""

    def __init__(self, cluster: Cluster, definition: StoredTable) -> None:
        self._cluster = cluster
        self._config = cluster.config
        self._definition = definition
        self._topic = definition.path.topic
        self._routes = TableRoutes(cluster, definition)
        self._lanes = {b: Lane(b, cluster.config.max_in_flight) for b in range(definition.bucket_count)}
        self._identity: Identity | None = None
        self._has_encoded = False
        self._buffered_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._wake = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._requests: set[asyncio.Task[None]] = set()
        self._in_flight_by_leader: dict[int, int] = {}
        self._failing: dict[int, tuple[float, float]] = {}
        """The time since when a bucket's writes fail, and the time of the last warning, by bucket."""
        self._spread = self._new_spread()

    def _new_spread(self) -> Spread:
        config = self._config
        return Spread(
            self._definition.bucket_count,
            config.batch_size_bytes,
            round_robin=config.no_key_assigner == "round_robin",
        )

    def grow(self, bucket_count: int) -> None:
        """Use this many buckets for rows that are written from now on, if there are more than before."""
        config = self._config
        added = range(self._definition.bucket_count, bucket_count)
        if added:
            # A new mapping, because the sender may be iterating over the old one.
            self._lanes = {**self._lanes, **{b: Lane(b, config.max_in_flight) for b in added}}
            self._definition = self._definition.with_buckets(bucket_count)
            self._spread = self._new_spread()

    async def write(
        self,
        rows: pa.Table,
        *,
        definition: StoredTable,
        change_type: int | None = None,
        mode: WriteMode = WHOLE_ROWS,
    ) -> WriteResult:
        """Write rows that conform to `definition` (this table's, in any of its schemas), and wait for acknowledgement.

        `change_type` is None for a log table, else that of every row, unless the rows end with CHANGE_COLUMN. Raises
        TableError or KafkaError (refused, at once or until the deadline passed), OutcomeUnknown (some rows may or may
        not be written), ConnectionFailed (the server was not reached within the deadline).
        """
        batches: list[Batch] = []
        try:
            for slab in self._slabs(rows):
                for bucket, data, row_count in await self._encoded(slab, definition, change_type):
                    batch = Batch(
                        bucket=bucket,
                        data=data,
                        row_count=row_count,
                        mode=mode,
                        deadline_at=self._now() + self._config.delivery_timeout_ms / 1000,
                        done=asyncio.get_running_loop().create_future(),
                    )
                    batches.append(batch)
                    self._enqueue(batch)
                while not self._room.is_set():
                    await self._room.wait()
                if any(b.done.done() and b.done.exception() is not None for b in batches):
                    break
            if batches:
                await asyncio.wait([batch.done for batch in batches])
        except BaseException:
            for batch in batches:
                batch.done.cancel()  # batches in flight may still be applied; others will not be sent
            self._wake.set()
            raise
        return self._result(batches, rows.num_rows)

    def _result(self, batches: list[Batch], row_count: int) -> WriteResult:
        failures = [batch.done.exception() for batch in batches]
        failure = next((error for error in failures if error is not None), None)
        if failure is not None:
            written = sum(
                batch.row_count for batch, error in zip(batches, failures, strict=True) if error is None
            )
            failure.add_note(
                f"{written} of {row_count} rows were written to {self._topic} before the failure or in parallel"
            )
            raise failure
        end_offsets: dict[int, int] = {}
        for batch in batches:
            end_offsets[batch.bucket] = max(end_offsets.get(batch.bucket, 0), batch.done.result())
        counts = [batch.logged_count for batch in batches]
        return WriteResult(
            row_count, end_offsets, logged_count=sum(counts) if min(counts, default=-1) >= 0 else None
        )

    async def close(self) -> None:
        """Stop sending. Unsent writes raise ConnectionFailed, sent ones OutcomeUnknown."""
        for lane in self._lanes.values():
            for batch in lane.queue:
                self._finish(batch, _given_up(batch, ConnectionFailed("the connection was closed")))
            for batch in lane.in_flight:
                self._finish(
                    batch,
                    OutcomeUnknown(
                        f"the connection was closed while {batch.row_count} rows for bucket {batch.bucket} of"
                        f" {self._topic} were in flight: they may or may not be written"
                    ),
                )
        tasks = [*self._requests, *([self._sender] if self._sender else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- preparing: in a worker thread

    def _slabs(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Cut the rows into pieces that fill a batch of each bucket."""
        if rows.num_rows == 0:
            return
        row_size = max(1, rows.nbytes // rows.num_rows)
        slab_size = min(self._config.batch_size_bytes * self._definition.bucket_count, _SLAB_SIZE)
        yield from slabs(rows, max(1, slab_size // row_size))

    async def _encoded(
        self, slab: pa.RecordBatch, definition: StoredTable, change_type: int | None
    ) -> list[tuple[int, memoryview, int]]:
        """Encode a few rows at once, and others in a thread, as well as the first ones: they load kernels."""
        if self._has_encoded and slab.num_rows <= _FEW_ROWS and slab.nbytes <= _FEW_BYTES:
            return self._encode(slab, definition, change_type)
        encoded = await asyncio.to_thread(self._encode, slab, definition, change_type)
        self._has_encoded = True
        return encoded

    def _encode(
        self, slab: pa.RecordBatch, definition: StoredTable, change_type: int | None
    ) -> list[tuple[int, memoryview, int]]:
        encoded = []
        for bucket, part in self._split(slab, definition):
            encoded += [
                (bucket, encode_write(definition, piece, change_type), piece.num_rows)
                for piece in pieces(part, self._config.batch_size_bytes)
            ]
        return encoded

    def _split(self, slab: pa.RecordBatch, definition: StoredTable) -> list[tuple[int, pa.RecordBatch]]:
        if not definition.bucket_key:
            return self._spread.assign(slab)
        return split_by_bucket(buckets_of(definition, slab), slab)

    # -- sending

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _enqueue(self, batch: Batch) -> None:
        self._buffered_bytes += len(batch.data)
        self._cluster.counters.bytes_buffered += len(batch.data)
        if self._buffered_bytes >= self._config.buffer_size_bytes:
            self._room.clear()
        batch.done.add_done_callback(lambda _: self._left(batch))
        self._lanes[batch.bucket].queue.append(batch)
        self._wake.set()
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_loop(), name=f"writer of {self._topic}")

    def _left(self, batch: Batch) -> None:
        self._buffered_bytes -= len(batch.data)
        self._cluster.counters.bytes_buffered -= len(batch.data)
        if self._buffered_bytes < self._config.buffer_size_bytes:
            self._room.set()

    @staticmethod
    def _finish(batch: Batch, result: int | Exception) -> None:
        if batch.done.done():
            return
        if isinstance(result, Exception):
            batch.done.set_exception(result)
            batch.done.exception()  # mark it as retrieved: a cancelled caller does not do it
        else:
            batch.done.set_result(result)

    async def _send_loop(self) -> None:
        try:
            await self._send_queued()
        except Exception as error:
            for lane in self._lanes.values():
                for batch in [*lane.queue, *lane.in_flight]:
                    self._finish(batch, error)  # a bug must not leave callers waiting
            raise

    async def _send_queued(self) -> None:
        backoff = Backoff(self._config)
        while True:
            self._wake.clear()
            self._expire()
            asked = self._now()
            try:
                ready = await self._ready_by_leader()
            except Exception as error:  # noqa: BLE001 - passed to the waiting batches
                # There is no route or no identity now: all batches wait, unless waiting is useless.
                if is_stale_route(error):
                    self._routes.forget()
                self._blame(error)
                await backoff.pause(Deadline(self._config.retry_backoff_max_ms))
                continue
            backoff = Backoff(self._config)
            if not ready:
                if all(lane.is_idle for lane in self._lanes.values()):
                    return
                await self._wait_for_change(asked)
                continue
            for (leader, mode), lanes in ready.items():
                self._launch(leader, mode, [lane.sent() for lane in lanes])

    async def _wait_for_change(self, asked: float) -> None:
        """Wait until an answer arrives, a batch is queued, a pause ends, or a deadline passes.

        `asked` is the time when the lanes were last asked, or earlier. A pause that has ended since then ends the wait
        at once, because nothing else would wake the sender for it.
        """
        moments = [b.deadline_at for lane in self._lanes.values() for b in lane.queue if not b.done.done()]
        moments += [
            lane.not_before for lane in self._lanes.values() if lane.queue and lane.not_before > asked
        ]
        try:
            async with asyncio.timeout(max(0.001, min(moments) - self._now()) if moments else None):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _expire(self) -> None:
        now = self._now()
        for lane in self._lanes.values():
            for batch in lane.queue:
                if batch.deadline_at <= now and not batch.done.done():
                    self._finish(batch, self._expired(batch))

    def _expired(self, batch: Batch) -> Exception:
        within = f"within {self._config.delivery_timeout_ms} ms"
        last = f"; the last error was: {batch.last_error}" if batch.last_error else ""
        where = f"{batch.row_count} rows for bucket {batch.bucket} of {self._topic}"
        if batch.unknown:
            return RequestTimeout(
                f"{where} were sent but not acknowledged {within}: they may or may not be written{last}"
            )
        text = f"{where} were not written {within}{last}"
        if isinstance(batch.last_error, KafkaError):
            return KafkaError(batch.last_error.code, text)
        if isinstance(batch.last_error, TableError):
            return TableError(batch.last_error.code, text)
        return ConnectionFailed(text)

    def _blame(self, error: Exception) -> None:
        """Remember why nothing can be sent; fail the queued batches if retries are useless."""
        hopeless = not may_retry(error, repeatable=True, elapsed_ms=0)
        for lane in self._lanes.values():
            for batch in lane.queue:
                if hopeless:
                    self._finish(batch, _given_up(batch, error))
                batch.last_error = error

    async def _ready_by_leader(self) -> dict[tuple[int, WriteMode], list[Lane]]:
        """Return the lanes whose head may be sent, by leader and mode, and fetch identities where needed."""
        ready: dict[tuple[int, WriteMode], list[Lane]] = {}
        sizes: dict[int, int] = {}
        deadline = Deadline(self._config.request_timeout_ms)
        for lane in self._lanes.values():
            head = lane.next_to_send(self._now())
            if head is None:
                continue
            leader = await self._routes.leader(lane.bucket, deadline)
            if self._in_flight_by_leader.get(leader, 0) >= self._config.max_in_flight:
                continue
            if head.identity is None and lane.needs_identity:
                lane.give_identity(await self._identity_for(lane, deadline))
            if sizes.get(leader, 0) + len(head.data) > _REQUEST_SIZE and sizes.get(leader):
                continue
            if any(key[0] == leader and key[1] != head.mode for key in ready):
                continue
            if lane.next_to_send(self._now()) is not head:
                continue  # something failed or was cancelled during the wait
            sizes[leader] = sizes.get(leader, 0) + len(head.data)
            ready.setdefault((leader, head.mode), []).append(lane)
        return {
            key: still
            for key, lanes in ready.items()
            if (still := [lane for lane in lanes if lane.next_to_send(self._now())])
        }

    async def _identity_for(self, lane: Lane, deadline: Deadline) -> Identity:
        if lane.identity is None and self._identity is not None:
            return self._identity
        answer = await self._cluster.send(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000),
            InitProducerIdResponse,
            deadline=deadline,
        )
        if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            # Kafka gives an id to a principal with WRITE on any topic (KIP-679): so WRITE on this one is missing.
            raise not_granted(PRIVILEGES[OPERATIONS["INSERT"]], str(self._definition.path.whole))
        error = error_of(answer.error_code, None, doing="get a producer id")
        if error is not None:
            raise error
        identity = Identity(answer.producer_id, answer.producer_epoch)
        if self._identity is None:
            self._identity = identity
        return identity

    def _launch(self, leader: int, mode: WriteMode, batches: list[Batch]) -> None:
        self._in_flight_by_leader[leader] = self._in_flight_by_leader.get(leader, 0) + 1
        task = asyncio.create_task(self._exchange(leader, mode, batches), name=f"write to {self._topic}")
        self._requests.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            self._requests.discard(done)
            self._in_flight_by_leader[leader] -= 1
            self._wake.set()

        task.add_done_callback(ended)

    async def _exchange(self, leader: int, mode: WriteMode, batches: list[Batch]) -> None:
        try:
            answers = await self._send(leader, mode, batches)
        except Exception as failure:  # noqa: BLE001 - passed to the batches
            for batch in batches:
                # A refused request was not compared with what is written: an earlier attempt may have succeeded.
                self._failed(batch, failure, _given_up(batch, failure))
            return
        for batch in batches:
            answer = answers.get(batch.bucket)
            if answer is None:
                missing = RequestTimeout(f"bucket {batch.bucket} is missing in the answer")
                self._failed(batch, missing, missing)
                continue
            error = error_of(*answer[:2], doing=f"write to {self._topic} bucket {batch.bucket}")
            if error is None or getattr(error, "code", None) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                self._lanes[batch.bucket].succeeded(batch)
                self._failing.pop(batch.bucket, None)
                self._count(batch)
                batch.logged_count = answer[3]
                self._finish(batch, answer[2])
            else:
                self._failed(batch, error, _copy(error))

    def _count(self, batch: Batch) -> None:
        counters = self._cluster.counters
        counters.batches_written += 1
        counters.rows_written += batch.row_count
        counters.bytes_written += len(batch.data)

    def _failed(self, batch: Batch, error: Exception, ending: Exception) -> None:
        """Note the failure of a batch, which ends with `ending` if it must not be sent again."""
        lane, verdict = self._lanes[batch.bucket], _verdict(error)
        if verdict is Verdict.UNKNOWN or is_stale_route(error):
            self._routes.forget()
        batch.last_error = error
        lane.failed(batch, verdict)
        if verdict is Verdict.REJECTED:
            if isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_SERVER_ERROR:
                ending = OutcomeUnknown(f"{error}; {batch.row_count} rows may or may not be written")
            self._finish(batch, ending)
        else:
            base = min(
                self._config.retry_backoff_ms * 2 ** min(lane.failures, 10), self._config.retry_backoff_max_ms
            )
            self._cluster.counters.batches_repeated += 1
            self._warn(batch, error)
            lane.not_before = self._now() + base * random.uniform(0.5, 1.5) / 1000

    def _warn(self, batch: Batch, error: Exception) -> None:
        """Log a warning if writes to a bucket have failed for a while."""
        now = self._now()
        since, told = self._failing.setdefault(batch.bucket, (now, -math.inf))
        if now - since < _WARN_AFTER_SECONDS or now - told < _WARN_EVERY_SECONDS:
            return
        self._failing[batch.bucket] = since, now
        logger.warning(
            "writes to bucket %d of %s have failed for %.0f s; this one is retried for another %.0f s: %s",
            batch.bucket, self._topic, now - since, max(0.0, batch.deadline_at - now), error,
        )  # fmt: skip

    async def _send(
        self, leader: int, mode: WriteMode, batches: list[Batch]
    ) -> dict[int, tuple[int, str | None, int, int]]:
        """Send one request and return its answers by bucket: (error code, message, end offset, number of rows in the
        changelog).
        """
        acks, deadline = self._config.required_acks, Deadline(self._config.request_timeout_ms)
        patience_ms = (min(batch.deadline_at for batch in batches) - self._now()) * 1000
        timeout_ms = max(1, int(_SERVER_SHARE * min(self._config.request_timeout_ms, patience_ms)))
        table_id = self._routes.table_id
        connection = await self._cluster.connection(leader, _WRITE_CHANNEL)
        answer: AppendRowsResponse | PutRowsResponse
        keyed = self._definition.is_primary_key_table
        if mode.definition_digest and (
            connection.version_for(PutRowsRequest if keyed else AppendRowsRequest) < _CHECKED_SINCE
        ):
            raise TableError(
                TableErrorCode.SCHEMA_CHANGED,
                f"{connection.host}:{connection.port} is older than this client and cannot check that {self._topic} "
                "is unchanged",
            )
        if keyed:
            put = PutRowsRequest(
                table_id=table_id,
                acks=acks,
                timeout_ms=timeout_ms,
                target_columns=None if mode.target_columns is None else list(mode.target_columns),
                write_mode=mode.number,
                definition_digest=mode.definition_digest,
                counted=mode.counted,
                buckets=[WriteBucket(bucket=batch.bucket, batch=batch.data) for batch in batches],
            )
            answer = await connection.request(put, PutRowsResponse, timeout_ms=deadline.remaining_ms)
        else:
            append = AppendRowsRequest(
                table_id=table_id,
                acks=acks,
                timeout_ms=timeout_ms,
                definition_digest=mode.definition_digest,
                buckets=[WriteBucket(bucket=batch.bucket, batch=batch.data) for batch in batches],
            )
            answer = await connection.request(append, AppendRowsResponse, timeout_ms=deadline.remaining_ms)
        error = error_of(answer.error_code, answer.error_message, doing=f"write to {self._topic}")
        if error is not None:
            raise error
        return {
            entry.bucket: (entry.error_code, entry.error_message, entry.end_offset, entry.logged_count)
            for entry in answer.buckets
        }


def _verdict(error: Exception) -> Verdict:
    if isinstance(error, KafkaError) and error.code in _LOST_WRITER:
        return Verdict.OUT_OF_ORDER
    if isinstance(error, OutcomeUnknown) or (isinstance(error, KafkaError) and error.code in _UNDECIDED):
        return Verdict.UNKNOWN
    return Verdict.AGAIN if may_retry(error, repeatable=True, elapsed_ms=0) else Verdict.REJECTED


def _given_up(batch: Batch, error: Exception) -> Exception:
    """Return the error of a batch that will not be sent again because of `error`."""
    is_gone = isinstance(error, TableError) and error.code is TableErrorCode.TABLE_NOT_FOUND
    return at_last(_copy(error), batch.last_error if batch.unknown and not is_gone else None)


def _copy(error: Exception) -> Exception:
    """Copy an error for one batch, so that notes and tracebacks do not add up on a shared object."""
    return copy.copy(error)
