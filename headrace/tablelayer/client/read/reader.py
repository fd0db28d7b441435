"""Reads by key and counts: lookup, prefix lookup, limit, count, extremes, offsets.

All of these can be repeated, so transient failures are retried until the call's deadline (`bucket_requests.py`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from headrace.protocol.errors import ErrorCode
from headrace.tablelayer.client.names import several
from headrace.tablelayer.client.read.answers import Extremes, LookupResult, nullable_schema, reorder
from headrace.tablelayer.client.read.bucket_requests import BucketRequests
from headrace.tablelayer.client.read.offsets import EARLIEST, LATEST, Moment, list_offsets, time_ms
from headrace.tablelayer.client.read.state import snapshot_pieces
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import Deadline, raise_for, together
from headrace.tablelayer.client.wire.routes import TableRoutes
from headrace.tablelayer.client.write.split import buckets_of, split_by_bucket
from headrace.tablelayer.model.batches.extremes import check_ordered
from headrace.tablelayer.model.batches.ipc import decode_answer, encode_ipc
from headrace.tablelayer.model.errors import TableError, TableErrorCode
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
from headrace.tablelayer.model.table.definition import StoredTable

_limit_numbers = itertools.count(1)


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
        self._requests = BucketRequests(cluster, self._topic, self._routes)

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
                answers = await self._requests.ask_any(list(left), send, doing="look up in")
            else:
                answers = await self._requests.ask(
                    list(left), send, doing="look up in", changes=insert_if_absent
                )
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
                ask = self._requests.ask_any if self._asks_any else self._requests.ask
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
        answers = await self._requests.ask(range(self._definition.bucket_count), send, doing=doing)
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
                answer = (await self._requests.ask([bucket], send, doing=doing))[bucket]
                found.insert(0, decode_answer(answer.rows, answer_schema))
            rows += found
            total += sum(each.num_rows for each in found)
        return reorder(pa.Table.from_batches(rows, schema=answer_schema).slice(0, count), order)

    async def _first_rows(
        self, bucket: int, ids: list[int] | None, schema: pa.Schema, count: int, condition: bytes | None
    ) -> list[pa.RecordBatch]:
        """Return the first rows (that match) of a primary-key bucket, if they are more than one answer can have."""
        self._requests.must_wait()
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

        answers = await self._requests.ask(
            range(self._definition.bucket_count), send, doing="count the rows of"
        )
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

        answers = await self._requests.ask(
            range(self._definition.bucket_count), send, doing="find extremes of"
        )
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
        found = await self.offsets(moment + 1 if moment >= 0 else "earliest", buckets)
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
        answers = await self._requests.ask(
            buckets,
            lambda *asked: list_offsets(self._cluster, self._topic, timestamp, *asked),
            doing="find offsets of",
        )
        return {bucket: answers[bucket].offset for bucket in sorted(answers)}
