"""Reads by key and counts: lookup, prefix lookup, limit, count, offsets, committed positions.

All of these can be repeated, so transient failures are retried until the call's deadline. Requests go to the leaders of
the buckets concerned, all at once. Failed buckets are asked again alone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import pyarrow as pa

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from headrace.tablelayer.client.errors import ConnectionFailed, OutcomeUnknown, RequestTimeout
from headrace.tablelayer.client.names import several
from headrace.tablelayer.client.read.state import snapshot_pieces
from headrace.tablelayer.client.shown import rows_html
from headrace.tablelayer.client.wire.cluster import Cluster, NotAtOnce
from headrace.tablelayer.client.wire.retry import (
    Backoff,
    Deadline,
    at_last,
    error_of,
    is_stale_route,
    leaves_unknown,
    may_retry,
    raise_for,
    together,
)
from headrace.tablelayer.client.wire.routes import TableRoutes
from headrace.tablelayer.client.write.split import buckets_of, split_by_bucket
from headrace.tablelayer.model.batches.extremes import check_ordered, extremes
from headrace.tablelayer.model.batches.ipc import decode_answer, encode_ipc
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.json.python_values import python_value
from headrace.tablelayer.model.messages.read import (
    CountRowsRequest,
    CountRowsResponse,
    LimitScanRequest,
    LimitScanResponse,
    LookupBucket,
    LookupRequest,
    LookupResponse,
    PrefixLookupBucket,
    PrefixLookupRequest,
    PrefixLookupResponse,
)
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable

AnswerT = TypeVar("AnswerT")

Moment = int | datetime | Mapping[int, int]
"""A time (milliseconds or datetime), or offsets by bucket."""

AnyMoment = Moment | Mapping[str, Mapping[int, int]]
"""A `Moment`; for a partitioned table offsets are by partition and bucket."""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_limit_numbers = itertools.count(1)
EARLIEST = -2
LATEST = -1
_ONE_OF_SEVERAL_MS = 2_000
"""Timeout of a broker while other replicas can answer too. A lookup takes milliseconds."""


def time_ms(time: int | datetime) -> int:
    """Return milliseconds since 1970; a datetime without a time zone is UTC."""
    if not isinstance(time, datetime):
        return time
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(milliseconds=1)


class _FoundRows(NamedTuple):
    found: np.ndarray
    rows: pa.Table


class LookupResult(_FoundRows):
    """Answers to a batch of keys, in the order of the keys: `found, rows = ...`.

    `found` is bool[n]. Row i of `rows` belongs to key i and is all null where `found[i]` is false. The answer has every
    write that all in-sync replicas acknowledged (`acks="all"`) more than `staleness_ms` before it; leaders have 0.
    """

    staleness_ms: int

    def __new__(cls, found: np.ndarray, rows: pa.Table, staleness_ms: int = 0) -> LookupResult:
        made = super().__new__(cls, found, rows)
        made.staleness_ms = staleness_ms
        return made

    def _repr_html_(self) -> str:
        found = pa.chunked_array([pa.array(self.found)])
        return rows_html(self.rows.add_column(0, _free("found", self.rows.column_names), found))


def _free(name: str, taken: Sequence[str]) -> str:
    return name if name not in taken else _free(f"_{name}", taken)


@dataclass(frozen=True, slots=True)
class Extremes:
    """Extremes of a table's rows, at one moment of each bucket.

    `value_counts` is the number of values that are not null, by column. `rows` has two rows, the least and the greatest
    values, null where there is no value. NaN is greater than every number.
    """

    row_count: int
    value_counts: Mapping[str, int]
    rows: pa.Table

    def minimum(self, column: str) -> Any:
        """Return the least value of a column as a Python value; None if there is none."""
        return python_value(self.rows.column(column)[0])

    def maximum(self, column: str) -> Any:
        """Return the greatest value of a column; None if there is none."""
        return python_value(self.rows.column(column)[1])

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Extremes:
        """Return the extremes of a batch's rows."""
        counts = {
            name: len(column) - column.null_count
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        return cls(batch.num_rows, counts, pa.Table.from_batches([extremes([batch], batch.schema)]))

    @classmethod
    def of_all(cls, parts: Sequence[Extremes], schema: pa.Schema) -> Extremes:
        """Return the extremes over all parts; `schema` is that of the answer."""
        batches = [batch for part in parts for batch in part.rows.to_batches()]
        counts = {name: sum(part.value_counts[name] for part in parts) for name in schema.names}
        return cls(
            sum(part.row_count for part in parts), counts, pa.Table.from_batches([extremes(batches, schema)])
        )


class _PrefixPlace:
    """The answered prefixes of one bucket. The size of an answer is limited, so one request may not be enough."""

    def __init__(self, prefixes: pa.RecordBatch) -> None:
        self.counts = np.zeros(prefixes.num_rows, np.int64)
        self.rows: list[pa.RecordBatch] = []
        self.after: bytes | None = None
        self._prefixes = prefixes
        self._done = 0
        self.payload = encode_ipc(prefixes)

    @property
    def finished(self) -> bool:
        return self._done == len(self.counts)

    def add(self, counts: bytes, rows: pa.RecordBatch, cursor: bytes | None) -> bool:
        """Add an answer and return whether it has anything new."""
        found = np.frombuffer(counts, "<i4")
        self.counts[self._done : self._done + len(found)] += found
        self.rows.append(rows)
        before, self.after = (self._done, self.after), cursor
        self._done += len(found) - (0 if cursor is None else 1)
        if not self.finished:
            self.payload = encode_ipc(self._prefixes.slice(self._done))
        if not len(found):
            self.after = before[1]
        return (self._done, self.after) != before


class Reader:
    """Sends the reads of one table."""

    def __init__(self, cluster: Cluster, definition: StoredTable) -> None:
        self._cluster = cluster
        self._config = cluster.config
        self._definition = definition
        self._schema_id = definition.schema.schema_id
        self._topic = definition.path.topic
        self._every_column = nullable_schema(definition.schema.columns)
        self._routes = TableRoutes(cluster, definition)

    # -- asking buckets

    async def ask(
        self,
        buckets: Sequence[int],
        send: Callable[[int, list[int], Deadline], Coroutine[Any, Any, dict[int, AnswerT]]],
        *,
        doing: str,
        changes: bool = False,
    ) -> dict[int, AnswerT]:
        """Ask every bucket through its leader and gather the answers. `changes` as for `retrying`.

        `send(leader, buckets, deadline)` makes one request; its answers have `.error_code` and `.error_message`.
        Buckets with a transient error are asked again. The first permanent error is raised.
        """
        deadline = Deadline(self._config.delivery_timeout_ms)
        backoff = Backoff(self._config)
        answers: dict[int, AnswerT] = {}
        open_buckets = list(buckets)
        unknown: Exception | None = None
        while open_buckets:
            failure: Exception | None = None
            try:
                groups = await self._routes.by_leader(open_buckets, deadline)
            except Exception as caught:  # noqa: BLE001 - _fail_for_good raises what must not be retried
                failure, results = caught, []
            else:
                results = await _all(send(leader, group, deadline) for leader, group in groups.items())
            for result in results:
                if isinstance(result, Exception):
                    failure = result
                    if changes and leaves_unknown(result):
                        unknown = result
                elif isinstance(result, BaseException):
                    raise result
                else:
                    for bucket, answer in result.items():
                        code, message = answer.error_code, answer.error_message  # type: ignore[attr-defined]
                        error = error_of(code, message, doing=f"{doing} bucket {bucket} of {self._topic}")
                        if error is None:
                            answers[bucket] = answer
                        else:
                            failure = error
                            if changes and leaves_unknown(error):
                                unknown = error
                            self._fail_for_good(error, deadline)
            if failure is not None:
                self._fail_for_good(failure, deadline)
                open_buckets = [bucket for bucket in open_buckets if bucket not in answers]
                if open_buckets:
                    self._must_wait()
                    await backoff.pause(deadline)
                    if deadline.passed:
                        raise at_last(failure, unknown)
                    self._cluster.counters.retries += 1
                continue
            missing = [bucket for bucket in open_buckets if bucket not in answers]
            if missing:
                raise_for(ErrorCode.UNKNOWN_SERVER_ERROR, f"no answer for buckets {missing}", doing=doing)
            break
        return answers

    async def ask_any(
        self,
        buckets: Sequence[int],
        send: Callable[[int, list[int], Deadline], Coroutine[Any, Any, dict[int, AnswerT]]],
        *,
        doing: str,
    ) -> dict[int, AnswerT]:
        """Ask as `ask` does, but any replica of each bucket; if it cannot answer, the leader, then the other replicas.

        All replicas but the last one to be asked get only a part of the time.
        """
        deadline = Deadline(self._config.delivery_timeout_ms)
        backoff = Backoff(self._config)
        answers: dict[int, AnswerT] = {}
        asked: dict[int, set[int]] = {bucket: set() for bucket in buckets}
        failure: Exception | None = None
        while left := [bucket for bucket in buckets if bucket not in answers]:
            groups: dict[tuple[int, bool, bool], list[int]] = {}
            try:
                for bucket in left:
                    replicas, leader = await self._routes.replicas(bucket, deadline)
                    rest = [node for node in replicas if node not in asked[bucket]]
                    if rest:
                        key = rest[0], rest[0] == leader, len(rest) == 1
                        groups.setdefault(key, []).append(bucket)
            except Exception as caught:  # noqa: BLE001 - _fail_for_good raises what must not be retried
                failure, groups = caught, {}
                self._fail_for_good(caught, deadline)
            if not groups:
                assert failure is not None
                self._must_wait()
                self._routes.forget()
                await backoff.pause(deadline)
                if deadline.passed:
                    raise failure
                self._cluster.counters.retries += 1
                asked = {bucket: set() for bucket in left}
                continue
            if len(groups) > 1:
                self._must_wait()
            results = await _all(
                self._one_of_several(send, node, group, deadline, is_last=is_last)
                for (node, _, is_last), group in groups.items()
            )
            for ((node, is_leader, is_last), group), result in zip(groups.items(), results, strict=True):
                for bucket in group:
                    asked[bucket].add(node)
                if not isinstance(result, BaseException):
                    for bucket in group:
                        answer: Any = result.get(bucket)
                        error = (
                            KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{doing} bucket {bucket}: no answer")
                            if answer is None
                            else error_of(
                                answer.error_code,
                                answer.error_message,
                                doing=f"{doing} bucket {bucket} of {self._topic}",
                            )
                        )
                        if error is None:
                            answers[bucket] = answer
                            continue
                        failure = error
                        if is_leader or is_last:
                            self._fail_for_good(error, deadline)
                elif not isinstance(result, Exception):
                    raise result
                else:
                    failure = result
                    if isinstance(result, (ConnectionFailed, OutcomeUnknown)):
                        self._cluster.avoid(node)
                    elif is_leader or is_last:
                        self._fail_for_good(result, deadline)
            if failure is not None and any(bucket not in answers for bucket in left):
                self._must_wait()
        return answers

    async def _one_of_several(
        self,
        send: Callable[[int, list[int], Deadline], Coroutine[Any, Any, dict[int, AnswerT]]],
        node: int,
        buckets: list[int],
        deadline: Deadline,
        *,
        is_last: bool,
    ) -> dict[int, AnswerT]:
        if is_last or not self._cluster.waits:
            return await send(node, buckets, deadline)
        ms = min(_ONE_OF_SEVERAL_MS, deadline.remaining_ms)
        try:
            async with asyncio.timeout(ms / 1000):
                return await send(node, buckets, deadline)
        except TimeoutError:
            raise RequestTimeout(f"broker {node} did not answer within {ms} ms") from None

    def _must_wait(self) -> None:
        if not self._cluster.waits:
            raise NotAtOnce

    def _fail_for_good(self, error: Exception, deadline: Deadline) -> None:
        if is_stale_route(error):
            self._routes.forget()
        if not may_retry(error, repeatable=True, elapsed_ms=deadline.elapsed_ms):
            raise error

    def project(self, columns: Sequence[str] | None) -> tuple[list[int] | None, pa.Schema, list[str] | None]:
        """Return (column ids for the request, Arrow schema of the answer, names in the caller's order).

        The answer has its columns in the table's order; `reorder` brings them into the caller's. For all columns,
        `columns`, the ids and the names are None.
        """
        schema = self._definition.schema
        if columns is None:
            return None, schema.arrow(), None
        names = several("columns", columns)
        wanted = set(names)
        if not wanted:
            raise TableError(
                TableErrorCode.INVALID_PROJECTION,
                f"{self._topic}: the list of columns is empty: name at least one",
            )
        schema.select(names)  # raises for an unknown name
        chosen = [column for column in schema.columns if column.name in wanted]
        return (
            [column.id for column in chosen],
            pa.schema([column.field() for column in chosen]),
            names,
        )

    # -- lookups

    async def lookup(
        self, keys: pa.Table, columns: Sequence[str] | None, *, insert_if_absent: bool = False
    ) -> LookupResult:
        """Look up conformed primary keys (columns in the key's order)."""
        ids, _, order = self.project(columns)
        answer_schema = self._answer_schema(ids)
        if keys.num_rows == 0:
            return LookupResult(np.zeros(0, bool), reorder(answer_schema.empty_table(), order))
        batches = keys.combine_chunks().to_batches(max_chunksize=self._config.lookup_batch_count)
        self._cluster.counters.keys_looked_up += keys.num_rows
        if len(batches) == 1:
            found, batch, stale = await self._lookup_batch(batches[0], ids, answer_schema, insert_if_absent)
            return LookupResult(found, reorder(pa.Table.from_batches([batch]), order), stale)
        gate = asyncio.Semaphore(4)

        async def one(batch: pa.RecordBatch) -> tuple[np.ndarray, pa.RecordBatch, int]:
            async with gate:
                return await self._lookup_batch(batch, ids, answer_schema, insert_if_absent)

        results = await together(map(one, batches))
        found = np.concatenate([result[0] for result in results])
        rows = reorder(pa.Table.from_batches([result[1] for result in results]), order)
        return LookupResult(found, rows, max(result[2] for result in results))

    async def _lookup_batch(
        self, keys: pa.RecordBatch, ids: list[int] | None, answer_schema: pa.Schema, insert_if_absent: bool
    ) -> tuple[np.ndarray, pa.RecordBatch, int]:
        parts, positions = self._split(keys)
        left, stale = dict(parts), 0
        ask_any = self._asks_any and not insert_if_absent
        payloads = {bucket: encode_ipc(part) for bucket, part in parts}

        async def send(leader: int, buckets: list[int], deadline: Deadline) -> dict[int, Any]:
            request = LookupRequest(
                table_id=self._routes.table_id,
                columns=ids,
                buckets=[LookupBucket(bucket=bucket, keys=payloads[bucket]) for bucket in buckets],
                schema_id=self._schema_id,
                insert_if_absent=insert_if_absent,
                timeout_ms=deadline.remaining_ms if insert_if_absent else 0,
                staleness_ms_max=self._config.lookup_max_staleness_ms if ask_any else -1,
            )
            answer = await self._cluster.send(request, LookupResponse, node_id=leader, deadline=deadline)
            raise_for(answer.error_code, answer.error_message, doing=f"look up in {self._topic}")
            return {entry.bucket: entry for entry in answer.buckets}

        found_in: dict[int, list[np.ndarray]] = {bucket: [] for bucket, _ in parts}
        rows_of: dict[int, list[pa.RecordBatch]] = {bucket: [] for bucket, _ in parts}
        while left:
            if ask_any:
                answers = await self.ask_any(list(left), send, doing="look up in")
            else:
                answers = await self.ask(list(left), send, doing="look up in", changes=insert_if_absent)
            got = 0
            for bucket, answer in answers.items():
                stale = max(stale, answer.staleness_ms)
                count = len(answer.found)
                found_in[bucket].append(np.frombuffer(answer.found, np.uint8))
                rows_of[bucket].append(decode_answer(answer.rows, answer_schema))
                got += count
                if count >= left[bucket].num_rows:
                    del left[bucket]
                else:  # the answer was full
                    left[bucket] = left[bucket].slice(count)
                    payloads[bucket] = encode_ipc(left[bucket])
            if left and not got:
                self._no_progress("looking up")
        listed = [each for bucket, _ in parts for each in found_in[bucket]]
        found = listed[0] if len(listed) == 1 else np.concatenate(listed)
        rows = [
            rows_of[bucket][0] if len(rows_of[bucket]) == 1 else pa.concat_batches(rows_of[bucket])
            for bucket, _ in parts
        ]
        if len(parts) == 1:
            return found.astype(bool), rows[0], stale
        back = np.empty(len(positions), np.int64)
        back[positions] = np.arange(len(positions))
        return found[back].astype(bool), pa.concat_batches(rows).take(pa.array(back)), stale

    @property
    def _asks_any(self) -> bool:
        return self._config.lookup_from == "any"

    async def prefix_lookup(
        self, prefixes: pa.Table, columns: Sequence[str] | None
    ) -> tuple[np.ndarray, pa.Table]:
        """Return all rows of each bucket key, by prefix, then by key: (index of each row's prefix, rows)."""
        ids, _, order = self.project(columns)
        answer_schema = self._answer_schema(ids)
        if prefixes.num_rows == 0:
            return np.zeros(0, np.int64), reorder(answer_schema.empty_table(), order)
        batches = prefixes.combine_chunks().to_batches(
            max_chunksize=max(1, self._config.lookup_batch_count // 16)
        )
        owners: list[np.ndarray] = []
        rows: list[pa.RecordBatch] = []
        start = 0
        for batch in batches:
            parts, positions = self._split(batch)
            places = {bucket: _PrefixPlace(part) for bucket, part in parts}

            async def send(
                leader: int,
                buckets: list[int],
                deadline: Deadline,
                places: dict[int, _PrefixPlace] = places,
            ) -> dict[int, Any]:
                request = PrefixLookupRequest(
                    table_id=self._routes.table_id,
                    columns=ids,
                    buckets=[
                        PrefixLookupBucket(
                            bucket=bucket, prefixes=places[bucket].payload, after=places[bucket].after
                        )
                        for bucket in buckets
                    ],
                    schema_id=self._schema_id,
                    staleness_ms_max=self._config.lookup_max_staleness_ms if self._asks_any else -1,
                )
                answer = await self._cluster.send(
                    request, PrefixLookupResponse, node_id=leader, deadline=deadline
                )
                raise_for(answer.error_code, answer.error_message, doing=f"prefix lookup in {self._topic}")
                return {entry.bucket: entry for entry in answer.buckets}

            while left := [bucket for bucket, _ in parts if not places[bucket].finished]:
                ask = self.ask_any if self._asks_any else self.ask
                answers = await ask(left, send, doing="prefix lookup in")
                moved = [
                    places[bucket].add(
                        answer.counts, decode_answer(answer.rows, answer_schema), answer.cursor
                    )
                    for bucket, answer in answers.items()
                ]
                if not any(moved):
                    self._no_progress("a prefix lookup")
            counts = np.concatenate([places[bucket].counts for bucket, _ in parts])
            found = pa.concat_batches([rows for bucket, _ in parts for rows in places[bucket].rows])
            owner = np.repeat(positions, counts)
            if len(parts) > 1:
                by_prefix = np.argsort(owner, kind="stable")
                owner, found = owner[by_prefix], found.take(pa.array(by_prefix))
            owners.append(owner + start)
            rows.append(found)
            start += batch.num_rows
        return np.concatenate(owners), reorder(pa.Table.from_batches(rows), order)

    def _no_progress(self, doing: str) -> NoReturn:
        raise_for(
            ErrorCode.UNKNOWN_SERVER_ERROR, "the answers have no new rows", doing=f"{doing} in {self._topic}"
        )
        raise AssertionError("unreachable")

    def _split(self, keys: pa.RecordBatch) -> tuple[list[tuple[int, pa.RecordBatch]], np.ndarray]:
        """Return keys by bucket, and for each key in the order of the parts its position in `keys`."""
        if self._definition.bucket_count == 1:
            return [(0, keys)], np.arange(keys.num_rows)
        buckets = buckets_of(self._definition, keys)
        return split_by_bucket(buckets, keys), np.argsort(buckets, kind="stable")

    def answer_schema(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the Arrow schema of looked up rows, in the caller's order."""
        ids, _, order = self.project(columns)
        schema = self._answer_schema(ids)
        return schema if order is None else pa.schema([schema.field(name) for name in order])

    def _answer_schema(self, ids: list[int] | None) -> pa.Schema:
        if ids is None:
            return self._every_column
        return nullable_schema(self._definition.schema.columns_by_ids(ids))

    # -- counts and samples

    async def limit(
        self, count: int, columns: Sequence[str] | None, condition: bytes | None = None
    ) -> pa.Table:
        """Return at most `count` rows (that match).

        They are the first rows by key per bucket of a primary-key table, the last rows of a log table.
        """
        ids, _, order = self.project(columns)
        answer_schema = self._answer_schema(ids)

        limit, before = count, -1

        async def send(leader: int, buckets: list[int], deadline: Deadline) -> dict[int, Any]:
            request = LimitScanRequest(
                table_id=self._routes.table_id,
                columns=ids,
                limit=limit,
                buckets=buckets,
                schema_id=self._schema_id,
                filter=condition,
                before=before,
            )
            answer = await self._cluster.send(request, LimitScanResponse, node_id=leader, deadline=deadline)
            raise_for(answer.error_code, answer.error_message, doing=f"read rows of {self._topic}")
            return {entry.bucket: entry for entry in answer.buckets}

        doing = "read rows of"
        answers = await self.ask(range(self._definition.bucket_count), send, doing=doing)
        rows: list[pa.RecordBatch] = []
        total = 0
        for bucket in sorted(answers):
            if total >= count:
                break
            answer = answers[bucket]
            found = [decode_answer(answer.rows, answer_schema)]
            if answer.has_more and self._definition.is_primary_key_table:
                found = await self._first_rows(bucket, ids, answer_schema, count - total, condition)
            while answer.has_more and not self._definition.is_primary_key_table:
                limit, before = count - sum(each.num_rows for each in found), answer.start_offset
                if limit <= 0:
                    break
                answer = (await self.ask([bucket], send, doing=doing))[bucket]
                found.insert(0, decode_answer(answer.rows, answer_schema))
            rows += found
            total += sum(each.num_rows for each in found)
        return reorder(pa.Table.from_batches(rows, schema=answer_schema).slice(0, count), order)

    async def _first_rows(
        self, bucket: int, ids: list[int] | None, schema: pa.Schema, count: int, condition: bytes | None
    ) -> list[pa.RecordBatch]:
        """Return the first rows (that match) of a primary-key bucket, if they are more than one answer can have."""
        self._must_wait()
        channel = f"limit-{next(_limit_numbers)}"
        pieces = snapshot_pieces(
            self._cluster, self._definition, bucket, ids, schema, channel, limit=None, condition=condition
        )
        found: list[pa.RecordBatch] = []
        try:
            async with aclosing(pieces):
                async for rows, _ in pieces:
                    found.append(rows.slice(0, count))
                    count -= found[-1].num_rows
                    if count <= 0:
                        break
        finally:
            self._cluster.release(channel)
        return found

    async def count(self, condition: bytes | None = None) -> int:
        """Return the number of rows now (that match): keys of a primary-key table, kept rows of a log table."""

        async def send(leader: int, buckets: list[int], deadline: Deadline) -> dict[int, Any]:
            request = CountRowsRequest(
                table_id=self._routes.table_id, buckets=buckets, schema_id=self._schema_id, filter=condition
            )
            answer = await self._cluster.send(request, CountRowsResponse, node_id=leader, deadline=deadline)
            raise_for(answer.error_code, answer.error_message, doing=f"count the rows of {self._topic}")
            return {entry.bucket: entry for entry in answer.buckets}

        answers = await self.ask(range(self._definition.bucket_count), send, doing="count the rows of")
        return sum(answer.count for answer in answers.values())

    async def extremes(self, columns: Sequence[str], condition: bytes | None = None) -> Extremes:
        """Return the least and greatest values of columns and the counts of rows and values (that match)."""
        ids, _, order = self.project(columns)
        assert ids is not None
        assert order is not None
        schema = self._definition.schema
        chosen = schema.columns_by_ids(ids)
        check_ordered(chosen)

        async def send(leader: int, buckets: list[int], deadline: Deadline) -> dict[int, Any]:
            request = CountRowsRequest(
                table_id=self._routes.table_id, buckets=buckets, schema_id=self._schema_id, filter=condition,
                extremes=ids,
            )  # fmt: skip
            answer = await self._cluster.send(request, CountRowsResponse, node_id=leader, deadline=deadline)
            raise_for(answer.error_code, answer.error_message, doing=f"find extremes of {self._topic}")
            return {entry.bucket: entry for entry in answer.buckets}

        answers = await self.ask(range(self._definition.bucket_count), send, doing="find extremes of")
        arrow = nullable_schema(chosen)
        parts = [
            Extremes(
                answer.count,
                dict(zip(arrow.names, answer.value_counts, strict=True)),
                pa.Table.from_batches([decode_answer(answer.extremes, arrow)]),
            )
            for answer in answers.values()
        ]
        found = Extremes.of_all(parts, arrow)
        return replace(found, rows=found.rows.select(list(dict.fromkeys(order))))

    async def offsets(self, at: str | int, buckets: Sequence[int]) -> dict[int, int]:
        """Return offsets: "earliest", "latest", or the first at or after a time in ms (the end if there is none)."""
        if at == "earliest":
            timestamp = EARLIEST
        elif at == "latest":
            timestamp = LATEST
        elif isinstance(at, int) and at >= 0:
            timestamp = at
        else:
            raise ValueError(
                f"{at!r} is not a position in a log: give 'earliest', 'latest' or a time in milliseconds"
            )
        found = await self._list_offsets(timestamp, buckets)
        behind = [bucket for bucket, offset in found.items() if offset < 0]
        return found | (await self._list_offsets(LATEST, behind) if behind else {})

    async def offsets_as_of(self, moment: Moment, buckets: Sequence[int]) -> dict[int, int]:
        """Return the offsets that a table's log had reached at a time, including writes at that time.

        A time is a datetime (naive: UTC) or milliseconds; offsets are returned as they are. Raises TableError
        OUTSIDE_RETENTION for a time before the log's beginning.
        """
        if isinstance(moment, Mapping):
            missing = [bucket for bucket in buckets if bucket not in moment]
            if missing:
                raise ValueError(f"offsets of {self._topic} to read as of: bucket {missing[0]} is missing")
            return {bucket: int(moment[bucket]) for bucket in buckets}
        moment = time_ms(moment)
        found = await self.offsets(moment + 1, buckets)
        earliest = await self.offsets("earliest", buckets)
        for bucket, offset in found.items():
            if 0 < offset == earliest[bucket]:
                raise TableError(
                    TableErrorCode.OUTSIDE_RETENTION,
                    f"bucket {bucket} of {self._topic} cannot be read as it was at {moment} ms: its log begins at "
                    f"offset {offset}, which was written later",
                )
        return found

    async def _list_offsets(self, timestamp: int, buckets: Sequence[int]) -> dict[int, int]:
        answers = await self.ask(
            buckets,
            lambda *asked: list_offsets(self._cluster, self._topic, timestamp, *asked),
            doing="find offsets of",
        )
        return {bucket: answers[bucket].offset for bucket in sorted(answers)}


class OffsetAnswer(NamedTuple):
    """One partition's answer to ListOffsets; `offset` is -1 if there is none at or after the time."""

    error_code: int
    error_message: str | None
    offset: int
    timestamp: int


async def list_offsets(
    cluster: Cluster,
    topic: str,
    timestamp: int,
    leader: int,
    partitions: list[int],
    deadline: Deadline,
    *,
    committed: bool = False,
) -> dict[int, OffsetAnswer]:
    """Send Kafka's ListOffsets to one leader, once; `committed` is for readers of committed records only."""
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1 if committed else 0,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=p, timestamp=timestamp) for p in partitions],
            )
        ],
    )
    answer = await cluster.send(request, ListOffsetsResponse, node_id=leader, deadline=deadline)
    return {
        entry.partition_index: OffsetAnswer(entry.error_code, None, entry.offset, entry.timestamp)
        for found in answer.topics
        for entry in found.partitions
    }


async def find_coordinator(cluster: Cluster, group: str, deadline: Deadline) -> int:
    """Return a consumer group's coordinator and remember its address. One attempt."""
    connection = await cluster.connection(None)
    if connection.version_for(FindCoordinatorRequest) >= 4:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        answer = await cluster.send(request, FindCoordinatorResponse, deadline=deadline)
        found = answer.coordinators[0]
        raise_for(found.error_code, found.error_message, doing=f"find the coordinator of group {group}")
        return cluster.remember(found.node_id, found.host, found.port)
    answer = await cluster.send(
        FindCoordinatorRequest(key=group, key_type=0), FindCoordinatorResponse, deadline=deadline
    )
    raise_for(answer.error_code, answer.error_message, doing=f"find the coordinator of group {group}")
    return cluster.remember(answer.node_id, answer.host, answer.port)


def nullable_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of answers. All columns are nullable: rows that were not found are null."""
    return pa.schema([pa.field(column.name, column.type.arrow()) for column in columns])


def reorder(table: pa.Table, names: Sequence[str] | None) -> pa.Table:
    """Return the columns in the caller's order."""
    return table if names is None or table.column_names == list(names) else table.select(list(names))


def first_row(result: LookupResult) -> dict[str, Any] | None:
    """Return the row of a one-key lookup as a dict of `python_value`s; None if it was not found."""
    if not result.found[0]:
        return None
    return {
        name: python_value(column[0])
        for name, column in zip(result.rows.schema.names, result.rows.columns, strict=True)
    }


async def _all(sends: Iterable[Coroutine[Any, Any, AnswerT]]) -> list[AnswerT | BaseException]:
    """Run all at the same time and return what each returns or raises. A single one gets no task."""
    listed = list(sends)
    if len(listed) != 1:
        return await asyncio.gather(*listed, return_exceptions=True)
    try:
        return [await listed[0]]
    except Exception as error:  # noqa: BLE001 - the caller decides
        return [error]
