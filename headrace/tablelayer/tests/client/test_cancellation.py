"""A cancelled call leaves no tasks, batches or scans on the server behind, and loses nothing either."""

import asyncio
import contextlib
import random

import pytest

from headrace.tablelayer.client import (
    ClientConfig,
    ConnectionFailed,
    RequestTimeout,
    TableError,
    connect_async,
)
from headrace.tablelayer.client.wire.retry import together
from headrace.tablelayer.model.messages import (
    LookupRequest,
    LookupResponse,
    PutRowsRequest,
    ScanSnapshotRequest,
)

FRUIT = "(id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num' = '3')"


def own_tasks():
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def settled(before, seconds=50):
    """Wait until no task is left that was not there before."""
    left = own_tasks() - before
    if left:
        await asyncio.wait(left, timeout=seconds)
    assert own_tasks() - before == set()


def test_together_leaves_no_task_behind(tools):
    async def test():
        ended = []

        async def work(number):
            try:
                await asyncio.sleep(0 if number == 1 else 10)
                if number == 1:
                    raise TableError(1003, "gone")
                return number
            finally:
                ended.append(number)

        with pytest.raises(TableError, match="gone"):
            await together(work(number) for number in range(3))
        assert sorted(ended) == [0, 1, 2]
        ended.clear()
        waiting = asyncio.create_task(together([work(0), work(2)]))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert own_tasks() == set()
        assert await together([asyncio.sleep(0, "a"), asyncio.sleep(0, "b")]) == ["a", "b"]

    tools.run(test())


def test_a_cancelled_wait_for_a_batch_loses_no_batch(make_table, server_address, tools):
    table = make_table("(id INT)")
    path = table.path

    async def test():
        async with await connect_async(server_address) as connection:
            before = own_tasks()
            target = await connection.table(path)
            async with target.scan(start="earliest") as scan:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await anext(scan)
                await target.append([{"id": 1}])
                seen = []
                with contextlib.suppress(TimeoutError):  # unless it has come by now, without a waiting caller
                    async with asyncio.timeout(0):
                        seen += (await anext(scan)).batch.column("id").to_pylist()
                await target.append([{"id": 2}])
                while len(seen) < 2:
                    async with asyncio.timeout(50):
                        seen += (await anext(scan)).batch.column("id").to_pylist()
                assert seen == [1, 2]
                waiting = asyncio.create_task(anext(scan))
                await asyncio.sleep(0.02)
                waiting.cancel()
            await settled(before)
            async with target.scan(until="latest") as scan:
                assert [row async for batch in scan for row in batch.batch.column("id").to_pylist()] == [1, 2]
                with pytest.raises(StopAsyncIteration):
                    await anext(scan)

    tools.run(test())


def test_a_batch_that_has_arrived_outlives_a_wait_that_is_cancelled(make_table, server_address, tools):
    """Several batches come with one answer; a caller that is cancelled between two of them gets each of them later."""
    table = make_table("(id INT)")
    for number in range(20):
        table.append([{"id": number}])

    async def test():
        async with await connect_async(server_address) as connection:
            target = await connection.table(table.path)
            async with target.scan(start="earliest", until="latest") as scan:
                seen = (await anext(scan)).batch.column("id").to_pylist()
                while len(seen) < 20:
                    scan._turn_ends = 0.0  # the next one lets other tasks run
                    waiting = asyncio.create_task(anext(scan))
                    await asyncio.sleep(0)
                    waiting.cancel()
                    for batch in await asyncio.gather(waiting, return_exceptions=True):
                        if not isinstance(batch, BaseException):
                            seen += batch.batch.column("id").to_pylist()
                    seen += (await anext(scan)).batch.column("id").to_pylist()
                assert sorted(seen) == list(range(20))

    tools.run(test())


def test_cancelled_reads_leave_no_scan_on_the_server(make_table, broker_thread, tools):
    table = make_table(FRUIT)
    table.upsert([{"id": i, "name": "x" * 100} for i in range(3000)])
    path, rng = table.path, random.Random(5)

    async def test():
        config = ClientConfig(delivery_timeout_ms=10_000)
        async with await connect_async(broker_thread.address, config) as connection:
            target = await connection.table(path)
            await target.to_arrow()
            before = own_tasks()
            for _ in range(30):
                work = rng.choice([target.to_arrow, _first_of_scan(target), _first_of_snapshot(target)])
                task = asyncio.create_task(work())
                await asyncio.sleep(rng.random() * 0.02)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await settled(before)
            assert await target.count() == 3000
        assert broker_thread.open_scans() == 0

    tools.run(test())


def _first_of_scan(table):
    async def read():
        async with table.scan() as scan:
            await anext(scan)

    return read


def _first_of_snapshot(table):
    async def read():
        pieces = table.snapshot(0)
        try:
            await anext(pieces)
        finally:
            await pieces.aclose()

    return read


def test_cancelled_writes_are_written_once_or_not_at_all_and_leave_no_bytes_behind(
    make_table, server_address, tools
):
    table = make_table("(id INT) WITH ('bucket.num' = '2')")
    path, rng = table.path, random.Random(6)

    async def test():
        async with await connect_async(server_address) as connection:
            target = await connection.table(path)
            before = own_tasks()
            certain = set()
            for number in range(40):
                task = asyncio.create_task(target.append([{"id": number * 100 + i} for i in range(100)]))
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.random() * 0.01)
                    task.cancel()
                (result,) = await asyncio.gather(task, return_exceptions=True)
                if not isinstance(result, BaseException):
                    certain.add(number)
            await settled(before)
            assert connection.metrics().bytes_buffered == 0
            ids = (await target.to_arrow()).column("id").to_pylist()
            assert len(ids) == len(set(ids))
            assert {number * 100 + i for number in certain for i in range(100)} <= set(ids)

    tools.run(test())


def test_closing_ends_pending_requests(fake, impatient, tools):
    """A connection that is closed, or whose maker is cancelled, leaves no task and no socket."""

    async def test():
        async with fake() as server:
            before = own_tasks()
            making = asyncio.create_task(connect_async(server.address, impatient))
            await asyncio.sleep(0)
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
            connection = await connect_async(server.address, impatient)
            assert connection.metrics().connections == 1
            await connection.close()
            assert connection.metrics().connections == 0
            await asyncio.sleep(0.05)
            assert not [task for task in own_tasks() - before if "serve" not in repr(task)]

    tools.run(test())


def test_metrics_count_requests_retries_rows_and_repeated_batches(
    make_table, server_address, tools, monkeypatch
):
    table = make_table(FRUIT)
    path = table.path

    async def test():
        config = ClientConfig(request_timeout_ms=60_000, retry_backoff_ms=1)
        async with await connect_async(server_address, config) as connection:
            target = await connection.table(path)
            lose = {PutRowsRequest: 1, LookupRequest: 1, ScanSnapshotRequest: 1}
            from headrace.tablelayer.client.wire.connection import BrokerConnection

            real = BrokerConnection.request

            async def losing(self, message, response, *, timeout_ms):
                answer = await real(self, message, response, timeout_ms=timeout_ms)
                if lose.get(type(message), 0):
                    lose[type(message)] -= 1
                    raise RequestTimeout("lost on its way")
                return answer

            monkeypatch.setattr(BrokerConnection, "request", losing)
            await target.upsert([{"id": i, "name": "x"} for i in range(50)])
            await target.lookup([1, 2, 3])
            async with target.scan(until="latest") as scan:
                assert sum([batch.row_count async for batch in scan]) == 50
            found = connection.metrics()
        assert found.rows_written == 50
        assert found.batches_written == 3
        assert found.batches_repeated == 3
        assert found.bytes_written > 0
        assert found.bytes_buffered == 0
        assert found.keys_looked_up == 3
        assert found.rows_scanned == 50
        assert found.retries == 2
        # One that was lost, with the batches of three buckets; each bucket then pauses for itself.
        assert 2 <= found.requests["PutRows"].count <= 4
        assert found.requests["Lookup"].count == 2
        assert found.requests["Lookup"].failed == 0
        assert found.requests["Lookup"].bytes_sent > 0
        assert found.requests["Lookup"].bytes_received > 0
        assert found.connections >= 2

    tools.run(test())


def test_errors_say_whether_another_attempt_can_help(fake, impatient, tools):
    """A server that answers nothing: the outcome of a lookup is a timeout, that may be tried again."""

    async def test():
        async with fake() as server:
            server.handlers[LookupRequest] = lambda request: (_ for _ in ()).throw(tools.Silence())
            connection = await connect_async(server.address, impatient)
            try:
                with pytest.raises(RequestTimeout) as caught:
                    await connection.cluster.call(LookupRequest(), LookupResponse, doing="look")
                assert caught.value.retriable
                assert connection.metrics().requests["Lookup"].failed >= 1
                assert connection.metrics().retries >= 1
            finally:
                await connection.close()
        with pytest.raises(ConnectionFailed) as caught:
            await connect_async(server.address, impatient)
        assert caught.value.retriable

    tools.run(test())
