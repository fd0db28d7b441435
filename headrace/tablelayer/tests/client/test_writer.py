"""The writer over real sockets to a fake server that fails in every way: each row is applied exactly once."""

import asyncio
import random
import struct
import time
from collections import defaultdict, deque

import pyarrow as pa
import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.records.header import verify_crc
from headrace.tablelayer.client import RequestTimeout, TableError, connect_async
from headrace.tablelayer.client.config import ClientConfig
from headrace.tablelayer.client.write import pieces
from headrace.tablelayer.client.write.writer import Writer
from headrace.tablelayer.model.batches.batch import ArrowBatch
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.model.messages import AppendRowsRequest, AppendRowsResponse, WrittenBucket
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.text import parse_type


class Log:
    """Buckets with idempotent producers, as the server keeps them; faults by a seeded die."""

    def __init__(self, tools, schema, seed=0, fault_rate=0.0):
        self.tools, self.schema = tools, schema
        self.dice = random.Random(seed)
        self.fault_rate = fault_rate
        self.rows = defaultdict(list)
        self.recent = defaultdict(lambda: deque(maxlen=5))
        self.refuse = set()
        self.batches = 0

    def handle(self, request):
        fault = self.dice.random() < self.fault_rate and self.dice.choice(
            ["hang up before", "hang up after", "silent after", "not leader", "buffer"]
        )
        if fault == "hang up before":
            raise self.tools.HangUp
        if fault in ("not leader", "buffer"):
            code = (
                ErrorCode.NOT_LEADER_OR_FOLLOWER if fault == "not leader" else TableErrorCode.BUFFER_EXHAUSTED
            )
            answers = [WrittenBucket(bucket=b.bucket, error_code=code) for b in request.buckets]
            return AppendRowsResponse(buckets=answers)
        answers = [self.write(entry) for entry in request.buckets]
        if fault == "hang up after":
            raise self.tools.HangUp
        if fault == "silent after":
            raise self.tools.Silence
        return AppendRowsResponse(buckets=answers)

    def write(self, entry):
        self.batches += 1
        assert verify_crc(entry.batch)
        batch = ArrowBatch.parse(entry.batch)
        header = batch.header
        recent = self.recent[entry.bucket, header.producer_id]
        for sequence, end in recent:
            if sequence == header.base_sequence:
                return WrittenBucket(
                    bucket=entry.bucket, base_offset=end - header.record_count, end_offset=end
                )
        expected = recent[-1][0] + batch.header.record_count * 0 + self.counts[recent[-1]] if recent else 0
        if header.base_sequence != expected:
            return WrittenBucket(bucket=entry.bucket, error_code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        values = batch.to_record_batch(self.schema).column("id").to_pylist()
        if self.refuse & set(values):
            return WrittenBucket(
                bucket=entry.bucket, error_code=TableErrorCode.INVALID_ROW, error_message="row 0: not wanted"
            )
        self.rows[entry.bucket].extend(values)
        end = len(self.rows[entry.bucket])
        recent.append((header.base_sequence, end))
        self.counts[header.base_sequence, end] = header.record_count
        return WrittenBucket(bucket=entry.bucket, base_offset=end - header.record_count, end_offset=end)

    @property
    def counts(self):
        return self.__dict__.setdefault("_counts", {})

    @property
    def all_rows(self):
        return [value for rows in self.rows.values() for value in rows]


def definition(tools, buckets):
    schema = Schema.of([("id", parse_type("BIGINT")), ("text", parse_type("STRING"))])
    return StoredTable(TablePath("db", "t"), schema, bucket_count=buckets, table_id=tools.TABLE_ID)


def rows(first, count):
    return pa.table({"id": list(range(first, first + count)), "text": ["x" * 50] * count})


@pytest.mark.parametrize("seed", range(6))
def test_every_row_is_written_once_and_in_order_through_faults(fake, tools, impatient, seed):
    async def scenario():
        async with fake(partitions=3) as server:
            table_definition = definition(tools, 3)
            log = Log(tools, table_definition.schema.arrow(), seed, fault_rate=0.3)
            server.handlers[AppendRowsRequest] = log.handle
            config = ClientConfig(
                request_timeout_ms=100,
                delivery_timeout_ms=15_000,
                retry_backoff_ms=1,
                retry_backoff_max_ms=5,
                batch_size_bytes=2_000,
            )
            async with await connect_async(server.address, config) as connection:
                table = connection.open_table(table_definition)
                results = await asyncio.gather(
                    *(table.append(rows(start, 400)) for start in (0, 1_000, 2_000))
                )
            expected = [start + i for start in (0, 1_000, 2_000) for i in range(400)]
            assert sorted(log.all_rows) == expected
            for bucket_rows in log.rows.values():
                for start in (0, 1_000, 2_000):
                    mine = [value for value in bucket_rows if start <= value < start + 1_000]
                    assert mine == sorted(mine)
            ends = {bucket: max(r.end_offsets.get(bucket, 0) for r in results) for bucket in log.rows}
            assert ends == {bucket: len(values) for bucket, values in log.rows.items()}

    tools.run(scenario())


def test_a_pause_that_ends_while_lanes_are_asked_is_over(fake, tools, monkeypatch):
    """Its end lies between the look at the lanes and the wait: nothing else would wake the sender for it."""
    asked = Writer._ready_by_leader

    def stand_still():
        time.sleep(0.02)  # longer than any pause, and in the loop's thread, as on a busy machine

    async def slowly(writer):
        ready = await asked(writer)
        if not ready:
            stand_still()
        return ready

    monkeypatch.setattr(Writer, "_ready_by_leader", slowly)

    async def scenario():
        async with fake(partitions=1) as server:
            table_definition = definition(tools, 1)
            log = Log(tools, table_definition.schema.arrow())
            refusals = iter([True] * 5)

            def handle(request):
                if next(refusals, False):
                    code = TableErrorCode.BUFFER_EXHAUSTED
                    return AppendRowsResponse(buckets=[WrittenBucket(bucket=0, error_code=code)])
                return log.handle(request)

            server.handlers[AppendRowsRequest] = handle
            config = ClientConfig(delivery_timeout_ms=3_000, retry_backoff_ms=1, retry_backoff_max_ms=5)
            async with await connect_async(server.address, config) as connection:
                result = await connection.open_table(table_definition).append(rows(0, 4))
            assert result.end_offsets == {0: 4}
            assert log.all_rows == [0, 1, 2, 3]

    tools.run(scenario(), asyncio.SelectorEventLoop)


def test_a_refused_batch_fails_its_call_only(fake, tools, impatient):
    async def scenario():
        async with fake(partitions=1) as server:
            table_definition = definition(tools, 1)
            log = Log(tools, table_definition.schema.arrow())
            log.refuse = {5}
            server.handlers[AppendRowsRequest] = log.handle
            async with await connect_async(server.address, impatient) as connection:
                table = connection.open_table(table_definition)
                results = await asyncio.gather(
                    table.append(rows(0, 4)),
                    table.append(rows(4, 4)),
                    table.append(rows(8, 4)),
                    return_exceptions=True,
                )
                after = await table.append(rows(12, 4))
            assert isinstance(results[1], TableError)
            assert results[1].code is TableErrorCode.INVALID_ROW
            assert "0 of 4 rows were written" in results[1].__notes__[0]
            assert sorted(log.all_rows) == [*range(4), *range(8, 16)]
            assert after.end_offsets == {0: 12}

    tools.run(scenario())


def test_no_acknowledgement_in_time_is_an_unknown_outcome_and_the_next_write_works(fake, tools):
    async def scenario():
        async with fake(partitions=1) as server:
            table_definition = definition(tools, 1)
            log = Log(tools, table_definition.schema.arrow())
            quiet = True

            def handle(request):
                answer = log.handle(request)
                if quiet:
                    raise tools.Silence
                return answer

            server.handlers[AppendRowsRequest] = handle
            config = ClientConfig(request_timeout_ms=60, delivery_timeout_ms=300, retry_backoff_ms=1)
            async with await connect_async(server.address, config) as connection:
                table = connection.open_table(table_definition)
                with pytest.raises(RequestTimeout, match="may or may not be written"):
                    await table.append(rows(0, 2))
                quiet = False
                await table.append(rows(2, 2))
            assert log.all_rows == [0, 1, 2, 3], "written once although it was sent again and again"
            assert log.batches > 2

    tools.run(scenario())


def test_a_cancelled_write_sends_nothing_more_and_leaves_the_table_usable(fake, tools, impatient):
    async def scenario():
        async with fake(partitions=1) as server:
            table_definition = definition(tools, 1)
            log = Log(tools, table_definition.schema.arrow())
            gate = asyncio.Event()

            async def slow(request):
                await gate.wait()
                return log.handle(request)

            server.handlers[AppendRowsRequest] = slow
            config = ClientConfig(request_timeout_ms=5_000, batch_size_bytes=1_000)
            async with await connect_async(server.address, config) as connection:
                table = connection.open_table(table_definition)
                write = asyncio.create_task(table.append(rows(0, 1_000)))
                await asyncio.sleep(0.1)
                write.cancel()
                await asyncio.gather(write, return_exceptions=True)
                gate.set()
                await table.append(rows(5_000, 3))
            written = log.all_rows
            assert written[-3:] == [5_000, 5_001, 5_002]
            assert written[:-3] == list(range(len(written) - 3)), "only the batches in flight"
            assert len(written) - 3 < 200

    tools.run(scenario())


def test_a_writer_ahead_of_the_server_waits(fake, tools):
    """Never much more than `buffer_size_bytes` encoded and waiting."""

    async def scenario():
        async with fake(partitions=1) as server:
            table_definition = definition(tools, 1)
            log = Log(tools, table_definition.schema.arrow())
            waiting = []

            async def slow(request):
                waiting.append(table._open.parts._whole.writer._buffered_bytes)
                await asyncio.sleep(0.002)
                return log.handle(request)

            server.handlers[AppendRowsRequest] = slow
            config = ClientConfig(batch_size_bytes=2_000, buffer_size_bytes=20_000)
            async with await connect_async(server.address, config) as connection:
                table = connection.open_table(table_definition)
                await table.append(rows(0, 4_000))
            assert log.all_rows == list(range(4_000))
            assert 8_000 < max(waiting) < 40_000

    tools.run(scenario())


def test_the_stamped_header_is_the_identity_given_by_the_server(fake, tools, impatient):
    async def scenario():
        async with fake(partitions=1) as server:
            seen = []

            def handle(request):
                data = bytes(request.buckets[0].batch)
                seen.append(struct.unpack_from(">qhi", data, 43))
                return log.handle(request)

            table_definition = definition(tools, 1)
            log = Log(tools, table_definition.schema.arrow())
            server.handlers[AppendRowsRequest] = handle
            async with await connect_async(server.address, impatient) as connection:
                table = connection.open_table(table_definition)
                await table.append(rows(0, 3))
                await table.append(rows(3, 4))
            assert seen == [(101, 0, 0), (101, 0, 3)]

    tools.run(scenario())


def test_a_batch_has_no_more_rows_than_a_server_takes(fake, tools, monkeypatch):
    monkeypatch.setattr(pieces, "ROWS_PER_MESSAGE_MAX", 100)

    async def scenario():
        async with fake(partitions=1) as server:
            table_definition = definition(tools, 1)
            log = Log(tools, table_definition.schema.arrow())
            server.handlers[AppendRowsRequest] = log.handle
            async with await connect_async(server.address) as connection:
                await connection.open_table(table_definition).append(rows(0, 450))
            assert sorted(log.counts.values()) == [50, 100, 100, 100, 100]
            assert log.all_rows == list(range(450))

    tools.run(scenario())
