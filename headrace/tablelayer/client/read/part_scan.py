"""Scan one part of a table: optionally the state of its buckets, then their log from there on.

The next answer is requested while the caller works on the last one. The server blocks while there is nothing new, so no
client polls in a loop. A bucket whose snapshot is still being read has no position yet.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from html import escape
from time import monotonic
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.records.header import BatchHeader, read_header
from headrace.tablelayer.client.read.offsets import Moment
from headrace.tablelayer.client.read.reader import Reader
from headrace.tablelayer.client.read.state import snapshot_pieces
from headrace.tablelayer.client.shown import ROWS_SHOWN, rows_html
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import (
    Backoff,
    Deadline,
    error_of,
    is_stale_route,
    may_retry,
    raise_for,
    retrying,
)
from headrace.tablelayer.client.wire.routes import TableRoutes
from headrace.tablelayer.model.batches.batch import ArrowBatch, ChangeType, schema_id_of
from headrace.tablelayer.model.batches.ipc import answer_bytes_max
from headrace.tablelayer.model.messages.read import ScanLogBucket, ScanLogRequest, ScanLogResponse
from headrace.tablelayer.model.table.definition import StoredTable

logger = logging.getLogger("headrace.client")

_LOG_OVERHEAD = 12
_SNAPSHOT_OFFSET = -1
_scan_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ScanBatch:
    """Some rows of one bucket, in log order.

    `change_types` is uint8[n] of `ChangeType` (+A +I -U +U -D), `offsets` int64[n]. Rows of the state that opens a
    "full" scan are +I, their offsets -1 and `from_snapshot` true. `timestamp_ms` is when the server appended the batch,
    -1 for a snapshot.
    """

    bucket: int
    batch: pa.RecordBatch
    change_types: np.ndarray
    offsets: np.ndarray
    timestamp_ms: int
    from_snapshot: bool = False
    partition: str = ""
    """The partition's name if the table is partitioned."""

    @property
    def row_count(self) -> int:
        """The number of rows of `batch`."""
        return int(self.batch.num_rows)

    def _repr_html_(self) -> str:
        changes = pa.array(
            [ChangeType(kind).short for kind in self.change_types[: ROWS_SHOWN + 1]], pa.string()
        )
        offsets = pa.array(self.offsets[: ROWS_SHOWN + 1])
        rows = self.batch.slice(0, ROWS_SHOWN + 1)
        shown = pa.table([changes, offsets, *rows.columns], names=["", "offset", *rows.schema.names])
        return f"<p>{escape(self._where())}</p>{rows_html(shown)}"

    def _where(self) -> str:
        partition = f"partition {self.partition}, " if self.partition else ""
        rows = f"{self.row_count} row{'' if self.row_count == 1 else 's'}"
        return f"{partition}bucket {self.bucket}: {rows}{' of the state' if self.from_snapshot else ''}"


@dataclass(slots=True)
class _Bucket:
    """One bucket's position: `offset` is the caller's, `fetch_offset` that of the answers requested or arrived."""

    bucket: int
    offset: int | None
    until: int | None
    wants_snapshot: bool
    fetch_offset: int = 0
    generation: int = 0

    def move(self, offset: int) -> None:
        self.offset = self.fetch_offset = offset
        self.generation += 1

    @property
    def finished(self) -> bool:
        return self.until is not None and self.offset is not None and self.offset >= self.until

    @property
    def fetched(self) -> bool:
        return self.until is not None and self.fetch_offset >= self.until


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A log batch, of which rows `first` to `last` (exclusive) are wanted, or none, and its bucket's next offset.

    It is decoded in its turn, while the next answer is on its way.
    """

    bucket: int
    generation: int
    next_offset: int
    batch: ArrowBatch | None = None
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a table that a scan reads, apart from its beginning and end."""

    columns: Sequence[str] | None = None
    """None: all."""
    buckets: Sequence[int] | None = None
    """None: all, also those that are added."""
    poll_timeout: float | None = None
    """Seconds without a row after which the scan ends; None: never."""
    condition: bytes | None = None
    """An encoded filter (`model.filters.encode_filter`)."""
    row_filter: bool = True
    """Whether the server drops rows by `condition`; otherwise it only skips batches."""


class PartScan:
    """The stream of one part, as the module describes. `tablelayer.client.table.scan` makes it for callers."""

    def __init__(
        self,
        cluster: Cluster,
        definition: StoredTable,
        selection: Selection,
        *,
        start: str | int | Mapping[int, int],
        until: str | Mapping[int, int] | None,
        as_of: Moment | None,
    ) -> None:
        columns, buckets = selection.columns, selection.buckets
        self._condition = selection.condition
        self._row_filter = selection.condition is not None and selection.row_filter
        self._cluster = cluster
        self._config = cluster.config
        self._definition = definition
        self._topic = definition.path.topic
        self._routes = TableRoutes(cluster, definition)
        self._reader = Reader(cluster, definition)
        self._ids, self._schema, self._order = self._reader.project(columns)
        self._versions = definition.versions
        chosen = None if columns is None else set(columns)
        self._positions = (
            None
            if chosen is None
            else [index for index, name in enumerate(definition.schema.names) if name in chosen]
        )
        self._is_whole = chosen is None or len(chosen) == len(definition.schema.columns)
        self._start = start
        self._until = until
        self._poll_timeout = selection.poll_timeout
        self._as_of = as_of
        self._states_at: Mapping[int, int] = {}
        self._wanted = self._choose(buckets)
        self._follows = (
            definition.may_grow
            and buckets is None
            and not isinstance(until, Mapping)
            and len(self._wanted) == definition.bucket_count
        )
        """Whether the scan reads all buckets, also those that are added."""
        self._grew_at = 0.0
        self._channel = f"scan-{next(_scan_numbers)}"
        self._buckets: dict[int, _Bucket] = {}
        self._fetches: dict[int, tuple[list[int], asyncio.Task[list[_Arrived]]]] = {}
        self._arrived: deque[_Arrived] = deque()
        self._turn = 0

    def _choose(self, buckets: Sequence[int] | None) -> list[int]:
        count = self._definition.bucket_count
        if buckets is None:
            if isinstance(self._start, Mapping):
                buckets = list(self._start)
            else:
                return list(range(count))
        for bucket in buckets:
            if bucket < 0 or (bucket >= count and not self._definition.may_grow):
                raise self._no_bucket(bucket)
        return sorted(set(buckets))

    def _no_bucket(self, bucket: int) -> ValueError:
        last = self._definition.bucket_count - 1
        return ValueError(f"{self._topic} has no bucket {bucket}: it has buckets 0 to {last}")

    async def _look_for_buckets(self, deadline: Deadline) -> range:
        """Learn the number of buckets, and return the new ones."""
        self._grew_at = monotonic()
        known = self._definition.bucket_count
        count = max(known, await self._routes.bucket_count(deadline))
        if count > known:
            self._definition = self._definition.with_buckets(count)
            self._reader = Reader(self._cluster, self._definition)
        return range(known, count)

    async def _grow(self, deadline: Deadline) -> None:
        """Begin to read the buckets that were added, once in `partition_discovery_ms`."""
        pause = self._config.partition_discovery_ms / 1000
        if self._follows and self._until is None and monotonic() - self._grew_at >= pause:
            for bucket in await self._look_for_buckets(deadline):
                state = self._buckets[bucket] = _Bucket(bucket, None, None, wants_snapshot=False)
                state.move(0)

    def take_arrived(self) -> ScanBatch | None:
        """Return the next batch if it has arrived. Do not call it while another call waits for the next one."""
        while self._arrived:
            answer = self._arrived[0]
            state = self._buckets[answer.bucket]
            rows = None
            if state.generation == answer.generation:  # otherwise the caller has called `seek`
                if answer.batch is not None:
                    try:
                        rows = self._rows(answer.bucket, answer.batch, answer.first, answer.last)
                    except DecodeError as error:
                        self._pass_over(answer.bucket, answer.batch.header, error)
                state.offset = answer.next_offset
            self._arrived.popleft()
            if rows is not None:
                return rows
        return None

    async def close(self) -> None:
        """Stop reading ahead and release the connection. Idempotent."""
        fetches = [fetch for _, fetch in self._fetches.values()]
        self._fetches.clear()
        self._arrived.clear()
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)
        self._cluster.release(self._channel)

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each bucket, after the returned batches; none for buckets still in their snapshot."""
        return {state.bucket: state.offset for state in self._buckets.values() if state.offset is not None}

    @property
    def ends(self) -> dict[int, int] | None:
        """The end of each bucket; None for a scan without an end, or before it has begun."""
        ends = {state.bucket: state.until for state in self._buckets.values() if state.until is not None}
        return ends or None

    @property
    def bucket_count(self) -> int:
        """The number of the part's buckets, whether they are read or not."""
        return self._definition.bucket_count

    @property
    def until(self) -> Mapping[int, int] | None:
        """The end of the scan, if it was given as offsets."""
        return self._until if isinstance(self._until, Mapping) else None

    @property
    def read_count(self) -> int:
        """The number of buckets that are read."""
        return len(self._wanted)

    @property
    def has_arrived(self) -> bool:
        """Whether `take_arrived` may have something."""
        return bool(self._arrived)

    def seek(self, positions: Mapping[int, int]) -> None:
        """Continue from these offsets; batches that were read ahead are dropped."""
        for bucket, offset in positions.items():
            state = self._buckets.get(bucket)
            if state is None:
                raise ValueError(
                    f"cannot seek in bucket {bucket}: this scan does not read it, or has not begun"
                )
            state.wants_snapshot = False
            state.move(offset)

    # -- the stream

    async def run(self) -> AsyncGenerator[ScanBatch, None]:
        """Iterate over the batches, once. Ends at the given end, or `poll_timeout` seconds after the last row."""
        await self._begin()
        for state in list(self._buckets.values()):
            if state.wants_snapshot:
                async with aclosing(self._snapshot(state)) as pieces:
                    async for piece in pieces:
                        yield piece
        while not all(state.finished for state in self._buckets.values()):
            arrived = await self._next_arrived()
            if arrived is None:
                return
            self._cluster.counters.rows_scanned += sum(each.last - each.first for each in arrived)
            self._arrived.extend(arrived)
            while (batch := self.take_arrived()) is not None:
                yield batch

    async def _begin(self) -> None:
        last, new = max(self._wanted, default=0), range(0)
        if self._follows or last >= self._definition.bucket_count:
            new = await retrying(
                self._look_for_buckets,
                config=self._config,
                repeatable=True,
            )
            if self._follows:
                self._wanted += new
            elif last >= self._definition.bucket_count:
                raise self._no_bucket(last)
        until: Mapping[int, int] = {}
        if self._until == "latest":
            until = await self._reader.offsets("latest", self._wanted)
        elif isinstance(self._until, Mapping):
            until = self._until
        elif self._until is not None:
            raise ValueError(f"until={self._until!r}: give 'latest', offsets by bucket, or None for no end")
        start = self._start
        snapshot = start == "full" and self._definition.is_primary_key_table
        offsets: Mapping[int, int] = {}
        if self._as_of is not None:
            self._states_at = await self._reader.offsets_as_of(self._as_of, self._wanted)
        if isinstance(start, Mapping):
            offsets = {**dict.fromkeys(new, 0), **start}
        elif not snapshot:
            offsets = await self._reader.offsets("earliest" if start == "full" else start, self._wanted)
        for bucket in self._wanted:
            state = _Bucket(bucket, None, until.get(bucket), snapshot)
            if not snapshot:
                state.move(offsets[bucket])
            self._buckets[bucket] = state

    async def _snapshot(self, state: _Bucket) -> AsyncGenerator[ScanBatch, None]:
        taken_at = 0
        pieces = snapshot_pieces(
            self._cluster,
            self._definition,
            state.bucket,
            self._ids,
            self._schema,
            self._channel,
            condition=self._condition,
            as_of=self._states_at.get(state.bucket),
        )
        async with aclosing(pieces):
            async for rows, log_offset in pieces:
                taken_at = log_offset
                if not state.wants_snapshot:
                    return  # the caller has called `seek`
                if rows.num_rows:
                    count = rows.num_rows
                    yield ScanBatch(
                        bucket=state.bucket,
                        batch=_reorder_batch(rows, self._order),
                        change_types=np.full(count, ChangeType.INSERT, np.uint8),
                        offsets=np.full(count, _SNAPSHOT_OFFSET, np.int64),
                        timestamp_ms=-1,
                        from_snapshot=True,
                    )
        if state.wants_snapshot:
            state.wants_snapshot = False
            state.move(taken_at)

    async def _next_arrived(self) -> list[_Arrived] | None:
        """Return the batches of the next answer; None if the poll timeout passed without rows."""
        deadline = None if self._poll_timeout is None else Deadline(self._poll_timeout * 1000)
        patience = Deadline(self._config.delivery_timeout_ms)
        backoff = Backoff(self._config)
        while True:
            try:
                await self._grow(patience)
                await self._start_fetches(patience)
                tasks = [task for _, task in self._fetches.values()]
                timeout = None if deadline is None else deadline.remaining_ms / 1000
                done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                arrived, failure = self._collect(done)
                if failure is not None and not arrived:
                    raise failure
            except Exception as error:
                if is_stale_route(error):
                    self._routes.forget()
                if patience.passed or not may_retry(error, repeatable=True, elapsed_ms=patience.elapsed_ms):
                    raise
                await backoff.pause(patience)
            else:
                if any(self._buckets[piece.bucket].generation == piece.generation for piece in arrived):
                    await self._start_fetches(patience)
                    return arrived
                if done:
                    patience, backoff = Deadline(self._config.delivery_timeout_ms), Backoff(self._config)
            if deadline is not None and deadline.passed:
                return None

    def _collect(self, done: set[asyncio.Task[list[_Arrived]]]) -> tuple[list[_Arrived], Exception | None]:
        """Return the batches of ended fetches and a failure of one, so that no arrived batch is lost."""
        arrived: list[_Arrived] = []
        failure: Exception | None = None
        for leader in [leader for leader, (_, task) in self._fetches.items() if task in done]:
            try:
                arrived += self._fetches.pop(leader)[1].result()
            except Exception as error:  # noqa: BLE001 - the caller judges it
                failure = error
        return arrived, failure

    async def _start_fetches(self, deadline: Deadline) -> None:
        """Send one request to each leader of buckets that are not finished and not requested already."""
        busy = {bucket for asked, _ in self._fetches.values() for bucket in asked}
        waiting = [
            bucket for bucket, state in self._buckets.items() if not state.fetched and bucket not in busy
        ]
        if not waiting:
            return
        self._turn += 1  # the server fills an answer in the order of the request: rotate the buckets
        turn = self._turn % len(waiting)
        for leader, asked in (
            await self._routes.by_leader(waiting[turn:] + waiting[:turn], deadline)
        ).items():
            if leader not in self._fetches:
                task = asyncio.create_task(self._fetch(leader, asked), name=f"scan of {self._topic}")
                task.add_done_callback(seen)
                self._fetches[leader] = (asked, task)

    async def _fetch(self, leader: int, asked: list[int]) -> list[_Arrived]:
        generations = {bucket: self._buckets[bucket].generation for bucket in asked}
        offsets = {bucket: self._buckets[bucket].fetch_offset for bucket in asked}
        wait_ms, max_bytes = self._config.scan_max_wait_ms, self._config.scan_max_size_bytes
        request = ScanLogRequest(
            table_id=self._routes.table_id,
            columns=self._ids,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            schema_id=self._definition.schema.schema_id,
            filter=self._condition,
            row_filter=self._row_filter,
            buckets=[
                ScanLogBucket(
                    bucket=bucket,
                    offset=offsets[bucket],
                    max_bytes=min(max_bytes, self._config.scan_max_bucket_size_bytes),
                )
                for bucket in asked
            ],
        )
        answer = await self._cluster.send(
            request,
            ScanLogResponse,
            node_id=leader,
            channel=self._channel,
            deadline=Deadline(self._config.request_timeout_ms + wait_ms),
            extra_wait_ms=wait_ms,
        )
        raise_for(answer.error_code, answer.error_message, doing=f"scan {self._topic}")
        arrived: list[_Arrived] = []
        failure: Exception | None = None
        for entry in answer.buckets:
            bucket, offset = entry.bucket, offsets[entry.bucket]
            if entry.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise self._out_of_range(bucket, offset, entry.log_start_offset, entry.high_watermark)
            error = error_of(
                entry.error_code, entry.error_message, doing=f"scan bucket {bucket} of {self._topic}"
            )
            if error is not None:
                failure = failure or error
            elif entry.records:
                await self._learn_schemas(entry.records)
                arrived += self._unpack(bucket, generations[bucket], offset, entry.records)
            if error is None and entry.filtered_end_offset > offset:
                until = self._buckets[bucket].until
                end = entry.filtered_end_offset if until is None else min(entry.filtered_end_offset, until)
                arrived.append(_Arrived(bucket, generations[bucket], end))
        if failure is not None and not arrived:
            raise failure
        for piece in arrived:
            state = self._buckets[piece.bucket]
            if state.generation == piece.generation:
                state.fetch_offset = piece.next_offset
        return arrived

    def _out_of_range(self, bucket: int, offset: int, begin: int, end: int) -> KafkaError:
        remedy = "scan again, for example from 'earliest'"
        if offset < begin:
            whole = self._definition.is_primary_key_table or self._definition.settings.datalake_enabled
            remedy = (
                f"{begin - offset:,} offsets were deleted before this scan read them. Continue at {begin} without them"
                f" (start, or seek), or scan again from {'full' if whole else 'earliest'!r}"
            )
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"bucket {bucket} of {self._topic} has no offset {offset}: it begins at {begin} and ends at {end};"
            f" {remedy}",
        )

    async def _learn_schemas(self, records: memoryview) -> None:
        """Fetch the table's schemas if a batch has one that is newer than the opened table."""
        position = 0
        while len(records) - position >= _LOG_OVERHEAD:
            if schema_id_of(records, position) not in self._versions:
                deadline = Deadline(self._config.request_timeout_ms)
                self._versions = (await self._routes.describe(deadline)).versions
                return
            position += read_header(records, position).size

    def _unpack(self, bucket: int, generation: int, offset: int, records: memoryview) -> list[_Arrived]:
        """Return the batches of an answer, without rows before `offset` (batches are whole) or from the end on."""
        until = self._buckets[bucket].until
        pieces: list[_Arrived] = []
        position = 0
        while len(records) - position >= _LOG_OVERHEAD:
            header = read_header(records, position)
            begin, position = position, position + header.size
            next_offset = header.base_offset + header.last_offset_delta + 1
            if next_offset <= offset:
                continue
            if until is not None and header.base_offset >= until:
                break
            try:
                parsed = ArrowBatch.parse(records[begin:position])
            except DecodeError as error:
                self._pass_over(bucket, header, error)
                end = next_offset if until is None else min(next_offset, until)
                pieces.append(_Arrived(bucket, generation, end))
                continue
            first, last = max(0, offset - header.base_offset), header.record_count
            if until is not None:
                last = min(last, until - header.base_offset)
            if parsed.offset_deltas is not None:
                first = int(np.searchsorted(parsed.offset_deltas, first))
                if until is not None:
                    last = int(np.searchsorted(parsed.offset_deltas, until - header.base_offset))
            if until is not None:
                next_offset = min(next_offset, until)
            place = bucket, generation, next_offset
            pieces.append(_Arrived(*place, parsed, first, last) if last > first else _Arrived(*place))
        return pieces

    def _pass_over(self, bucket: int, header: BatchHeader, error: DecodeError) -> None:
        """Skip a batch that cannot be read: another attempt would fail, too."""
        self._cluster.counters.batches_unreadable += 1
        logger.error(
            "bucket %d of %s: the batch at offsets %d to %d cannot be read and is skipped: %s",
            bucket, self._topic, header.base_offset, header.next_offset - 1, error,
        )  # fmt: skip

    def _rows(self, bucket: int, parsed: ArrowBatch, first: int, last: int) -> ScanBatch:
        header = parsed.header
        batch = _reorder_batch(self._conformed(parsed), self._order)
        change_types = parsed.change_types
        if change_types is None:
            change_types = np.zeros(header.record_count, np.uint8)
        offsets = np.arange(first, last, dtype=np.int64)
        if parsed.offset_deltas is not None:
            offsets = parsed.offset_deltas[first:last].astype(np.int64)
        return ScanBatch(
            bucket=bucket,
            batch=batch if (first, last) == (0, batch.num_rows) else batch.slice(first, last - first),
            change_types=change_types[first:last],
            offsets=offsets + header.base_offset,
            timestamp_ms=header.max_timestamp,
        )

    def _conformed(self, parsed: ArrowBatch) -> pa.RecordBatch:
        """Return a batch of any schema version with the columns of the scan's schema."""
        source = self._versions.get(parsed.schema_id)
        conversion = self._versions.conversion(parsed.schema_id, self._definition.schema, self._positions)
        bytes_max = answer_bytes_max(parsed.message)
        if self._is_whole:
            return conversion.of(parsed.to_record_batch(source.arrow(), bytes_max=bytes_max))
        if not conversion.needed:
            return conversion.of_needed([], parsed.header.record_count)
        sent = pa.schema([source.columns[position].field() for position in conversion.needed])
        rows = parsed.to_record_batch(sent, bytes_max=bytes_max)
        return conversion.of_needed(rows.columns, parsed.header.record_count)


def _reorder_batch(batch: pa.RecordBatch, names: Sequence[str] | None) -> pa.RecordBatch:
    return batch if names is None or batch.schema.names == list(names) else batch.select(list(names))


def seen(task: asyncio.Future[Any]) -> None:
    """Retrieve a task's error: a scan that was closed, or that called `seek`, no longer looks at it."""
    if not task.cancelled():
        task.exception()
