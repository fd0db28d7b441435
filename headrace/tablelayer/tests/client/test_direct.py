"""Small reads of the blocking client in the caller's thread: they answer as the loop's do, and errors are left to
the loop.
"""

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest

from headrace.protocol.errors import DecodeError, ErrorCode
from headrace.tablelayer.client import ClientConfig, TableError, TableErrorCode, connect
from headrace.tablelayer.client.blocking import waiting
from headrace.tablelayer.client.blocking.waiting import LoopThread
from headrace.tablelayer.client.wire import direct
from headrace.tablelayer.model.messages.read import LookupRequest, LookupResponse, LookupResult
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.text import parse_type

FRUIT = "(id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num' = '3')"
ROWS = [{"id": n, "name": f"fruit {n}"} for n in range(200)]
PATIENT = ClientConfig(request_timeout_ms=60_000, retry_backoff_ms=1, retry_backoff_max_ms=10)


@pytest.fixture
def fruit(server_address, make_table):
    """A table of 200 rows, opened by a client of its own, whose next small read needs no loop."""
    path = make_table(FRUIT).path
    with connect(server_address, PATIENT) as connection:
        table = connection.table(path)
        table.upsert(ROWS)
        assert [table.lookup_one(key) for key in range(20)] == ROWS[:20]
        yield connection, table


@pytest.fixture
def without_loop(monkeypatch):
    def forbid():
        def run(self, coroutine):
            coroutine.close()
            raise AssertionError("this was left to the loop")

        monkeypatch.setattr(LoopThread, "run", run)
        return monkeypatch

    return forbid


def test_small_reads_are_made_without_the_loop(fruit, make_table, server_address, without_loop):
    connection, table = fruit
    prefixed = make_table(
        "(a INT, b INT, PRIMARY KEY (a, b) NOT ENFORCED) WITH ('bucket.num' = '3', 'bucket.key' = 'a')"
    )
    prefixed.upsert([{"a": n // 10, "b": n} for n in range(40)])
    by_prefix = connection.table(prefixed.path)
    assert by_prefix.prefix_lookup({"a": 9}).num_rows == 0
    before = connection.metrics()
    undo = without_loop()
    assert table.lookup_one(7) == table.lookup_one({"id": 7}) == ROWS[7]
    assert table.lookup_one(7, ["name"]) == {"name": "fruit 7"}
    assert table.lookup_one(999) is None
    result = table.lookup([5, 999, 1, 5])
    assert result.found.tolist() == [True, False, True, True]
    assert result.rows.column("name").to_pylist() == ["fruit 5", None, "fruit 1", "fruit 5"]
    assert by_prefix.prefix_lookup({"a": 2}).column("b").to_pylist() == [*range(20, 30)]
    assert sorted(table.limit(200).column("id").to_pylist()) == [*range(200)]
    after = connection.metrics()
    undo.undo()
    assert after.keys_looked_up - before.keys_looked_up == 8
    assert after.requests["Lookup"].count - before.requests["Lookup"].count == 5
    assert after.connections == before.connections


def test_many_threads_get_their_own_answers(fruit):
    connection, table = fruit

    def ask(seed):
        keys = [random.Random(seed).randrange(200) for _ in range(30)]
        return [table.lookup_one(key) for key in keys] == [ROWS[key] for key in keys]

    before = connection.metrics().connections
    with ThreadPoolExecutor(20) as threads:
        assert all(threads.map(ask, range(20)))
    assert connection.metrics().connections <= before + 8


def test_threads_that_come_at_the_same_time_make_no_more_connections_than_there_may_be(fruit, monkeypatch):
    connection, table = fruit
    before = connection.metrics().connections
    begin = direct.socket.create_connection
    begun = []
    all_have_begun = threading.Event()

    def connect_late(address, timeout):
        begun.append(address)
        assert all_have_begun.wait(60)
        return begin(address, timeout)

    def ask(key):
        answers = [table.lookup_one(key)]
        while len(begun) < 7:  # one connection is there
            answers.append(table.lookup_one(key))
        return set(map(str, answers))

    monkeypatch.setattr(direct.socket, "create_connection", connect_late)
    with ThreadPoolExecutor(20) as threads:
        asked = [threads.submit(ask, key) for key in range(20)]
        while sum(future.done() for future in asked) < 13:
            sleep(0.01)
        assert [table.lookup_one(key) for key in range(20)] == ROWS[:20]
        all_have_begun.set()
        assert [future.result(60) for future in asked] == [{str(row)} for row in ROWS[:20]]
    assert len(begun) == 7
    assert connection.metrics().connections == before + 7


@pytest.mark.parametrize(
    "failure", [ConnectionResetError("gone"), TimeoutError("late"), DecodeError("nonsense"), OSError("other")]
)
def test_an_answer_that_does_not_come_is_asked_for_in_the_loop(fruit, monkeypatch, failure):
    connection, table = fruit
    assert table.lookup_one(1) == ROWS[1]
    failed = []

    def receive(self):
        failed.append(self)
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(direct._Line, "_receive", receive)
        assert table.lookup_one(2) == ROWS[2]
        assert table.lookup_one(3) == ROWS[3]
    assert len(failed) == 1  # the loop is asked for a while
    monkeypatch.setattr(direct, "monotonic", lambda: float("inf"))
    assert table.lookup_one(4) == ROWS[4]
    assert connection.metrics().retries == 0


def test_an_interrupted_read_leaves_no_answer_to_the_next(fruit, monkeypatch):
    _, table = fruit
    assert table.lookup_one(1) == ROWS[1]

    def receive(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(direct._Line, "_receive", receive)
        with pytest.raises(KeyboardInterrupt):
            table.lookup_one(2)
    assert table.lookup_one(3) == ROWS[3]


def looked_up(request, code=ErrorCode.NONE, message=None):
    (bucket,) = request.buckets
    answer = LookupResult(bucket=0, found=b"\1", rows=bucket.keys)
    if code:
        answer = LookupResult(bucket=0, error_code=int(code), error_message=message)
    return LookupResponse(schema_id=0, buckets=[answer])


class Scenario:
    """A server whose n-th answer to a lookup is the n-th of `answers`, and right behind them."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.lookups = 0

    def __call__(self, request):
        self.lookups += 1
        answer = self.answers.pop(0) if self.answers else looked_up
        return answer(request)


def use(fake, tools, config, scenario, work):
    """Call `work(table, connection)` in a thread, with a server of this scenario."""
    schema = Schema.of([("id", parse_type("BIGINT"))], primary_key=("id",))
    definition = StoredTable(TablePath("db", "t"), schema, bucket_count=1, table_id=tools.TABLE_ID)

    def blocking(address):
        with connect(address, config) as connection:
            return work(connection.open_table(definition), connection)

    async def test():
        async with fake(1) as server:
            server.handlers[LookupRequest] = scenario
            return await asyncio.to_thread(blocking, server.address), server.connections

    return tools.run(test())


def test_errors_that_pass_are_waited_for_in_the_loop(fake, tools):
    def moved(request):
        return looked_up(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    scenario = Scenario(looked_up, looked_up, moved, moved)

    def work(table, connection):
        found = [table.lookup_one(key) for key in (1, 2, 3, 4)]
        return found, connection.metrics().retries

    (found, retries), connections = use(fake, tools, PATIENT, scenario, work)
    assert found == [{"id": key} for key in (1, 2, 3, 4)]
    assert (scenario.lookups, retries, connections) == (6, 1, 2)


def test_an_error_for_good_is_raised_at_once(fake, tools):
    def refused(request):
        return looked_up(request, TableErrorCode.INVALID_KEY, "no such key")

    scenario = Scenario(looked_up, refused)

    def work(table, connection):
        table.lookup_one(1)
        with pytest.raises(TableError, match="no such key") as caught:
            table.lookup_one(2)
        return caught.value.code

    assert use(fake, tools, PATIENT, scenario, work)[0] is TableErrorCode.INVALID_KEY
    assert scenario.lookups == 2


@pytest.mark.parametrize("failure", ["hangs up", "is silent"])
def test_a_server_that_does_not_answer_there_is_asked_again(fake, tools, monkeypatch, failure):
    def fail(_):
        raise tools.HangUp if failure == "hangs up" else tools.Silence

    def exchange(line, message, response, client_id, timeout_ms):
        monkeypatch.setattr(direct._Line, "exchange", patient)
        return patient(line, message, response, client_id, 100 if failure == "is silent" else timeout_ms)

    patient = direct._Line.exchange
    monkeypatch.setattr(direct._Line, "exchange", exchange)
    monkeypatch.setattr(direct, "monotonic", lambda: 1.0)  # the loop is asked from then on
    scenario = Scenario(looked_up, fail)
    found, connections = use(
        fake, tools, PATIENT, scenario, lambda table, _: [table.lookup_one(key) for key in (1, 2, 3)]
    )
    assert found == [{"id": key} for key in (1, 2, 3)]
    assert (scenario.lookups, connections) == (4, 2)


def test_a_call_that_comes_while_the_client_is_closed_is_ended(monkeypatch):
    loop = LoopThread()
    give, begun, stopped = asyncio.run_coroutine_threadsafe, threading.Event(), threading.Event()

    async def for_ever():
        await asyncio.Event().wait()

    def give_late(coroutine, to):
        if coroutine.__name__ == "for_ever":
            begun.set()
            stopped.wait(0.5)  # it is not, since it waits for us
        return give(coroutine, to)

    monkeypatch.setattr(waiting.asyncio, "run_coroutine_threadsafe", give_late)
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(loop.run, for_ever())
        assert begun.wait(60)
        loop.stop()
        stopped.set()
        with pytest.raises(RuntimeError, match="the connection is closed"):
            call.result(60)


def test_closing_ends_a_read_that_waits(fake, tools):
    asked = threading.Event()

    def silent(_):
        asked.set()
        raise tools.Silence

    def work(table, connection):
        table.lookup_one(1)
        with ThreadPoolExecutor(1) as thread:
            reading = thread.submit(table.lookup_one, 2)
            assert asked.wait(60)
            connection.close()
            with pytest.raises(RuntimeError, match="the connection is closed"):
                reading.result(60)

    use(fake, tools, PATIENT, Scenario(looked_up, silent), work)


def test_a_small_read_waits_no_longer_for_a_silent_broker_than_until_others_are_asked(fruit, monkeypatch):
    """The loop asks the others, also those that were away when brokers were last listed; a single broker is waited
    for.
    """
    connection, table = fruit
    patience, exchange = [], direct._Line.exchange

    def watched(line, message, response, client_id, timeout_ms):
        patience.append(timeout_ms)
        return exchange(line, message, response, client_id, timeout_ms)

    monkeypatch.setattr(direct._Line, "exchange", watched)
    cluster = connection._connection.cluster
    assert table.lookup_one(1) == ROWS[1]
    monkeypatch.setattr(cluster, "_numbers", {**cluster._numbers, ("127.0.0.1", 1): 77})
    assert table.lookup_one(1) == ROWS[1]
    assert patience == [PATIENT.request_timeout_ms, 1_000]
