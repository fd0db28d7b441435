"""The outcome of a failed call (done, not done or unknown), and the reason why it took long."""

import asyncio
import logging
from collections import Counter
from uuid import UUID

import pyarrow as pa
import pytest

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.tablelayer.client import (
    ClientConfig,
    ConnectionFailed,
    ConnectionLost,
    OutcomeUnknown,
    RequestTimeout,
    TableError,
    connect_async,
    errors,
)
from headrace.tablelayer.client.wire.retry import Backoff, Deadline, error_of
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.model.messages import (
    AppendRowsRequest,
    AppendRowsResponse,
    CreateDatabaseRequest,
    CreateDatabaseResponse,
    ListDatabasesRequest,
    ListDatabasesResponse,
    WrittenBucket,
)
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.text import parse_type
from headrace.tablelayer.server.catalog.catalog import no_table_with_id

ROWS = pa.table({"id": [1, 2, 3]})
QUICK = ClientConfig(
    connect_timeout_ms=1_000,
    request_timeout_ms=200,
    delivery_timeout_ms=600,
    retry_backoff_ms=1,
    retry_backoff_max_ms=10,
)


def definition(tools):
    schema = Schema.of([("id", parse_type("BIGINT"))])
    return StoredTable(TablePath("db", "t"), schema, bucket_count=1, table_id=tools.TABLE_ID)


def test_kinds_of_errors_are_distinct():
    """`except ConnectionFailed` means that nothing was done."""
    assert issubclass(ConnectionLost, OutcomeUnknown)
    assert issubclass(RequestTimeout, OutcomeUnknown)
    classes = [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.ClientError) and each is not errors.ClientError
    ]
    kinds = [each for each in classes if each.__bases__[0] is errors.ClientError]
    assert {ConnectionFailed, OutcomeUnknown} <= set(kinds)
    for each in classes:
        assert len([kind for kind in kinds if issubclass(each, kind)]) == 1


@pytest.fixture
def three_attempts(monkeypatch):
    """Let a call's time be over after its third attempt, however long they took."""
    pauses = Counter()

    async def pause(_, deadline):
        pauses[deadline] += 1
        if pauses[deadline] == 3:
            deadline._at = asyncio.get_running_loop().time()

    monkeypatch.setattr(Backoff, "pause", pause)


@pytest.mark.usefixtures("three_attempts")
def test_an_unknown_outcome_outlasts_a_later_failed_attempt(fake, tools):
    """The first request was sent; then the server is gone, and the last attempt does not reach it."""

    async def scenario(ask, request, expected):
        async with fake() as server:

            async def dies(_):
                await server.stop()
                raise tools.HangUp

            server.handlers[request] = dies
            connection = await connect_async(server.address)
            with pytest.raises(expected) as caught:
                await ask(connection)
            assert len([each for each in server.requests if isinstance(each, request)]) == 1
            await connection.close()
            return caught.value

    error = tools.run(
        scenario(
            lambda c: c.admin.create_database("d", if_not_exists=True), CreateDatabaseRequest, OutcomeUnknown
        )
    )
    assert "may or may not have been carried out" in str(error)
    assert "cannot connect" in str(error)
    tools.run(scenario(lambda c: c.admin.create_database("d"), CreateDatabaseRequest, ConnectionLost))
    tools.run(scenario(lambda c: c.admin.list_databases(), ListDatabasesRequest, ConnectionFailed))


@pytest.mark.usefixtures("three_attempts")
def test_an_unknown_outcome_outlasts_a_retriable_error(fake, tools):
    async def scenario():
        async with fake() as server:
            codes = iter([ErrorCode.REQUEST_TIMED_OUT])
            server.handlers[CreateDatabaseRequest] = lambda _: CreateDatabaseResponse(
                error_code=next(codes, ErrorCode.NOT_LEADER_OR_FOLLOWER), error_message="not now"
            )
            connection = await connect_async(server.address)
            with pytest.raises(OutcomeUnknown, match="not now"):
                await connection.admin.create_database("d", if_not_exists=True)
            with pytest.raises(KafkaError) as caught:
                await connection.admin.create_database("d", if_not_exists=True)
            assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            codes = iter([ErrorCode.REQUEST_TIMED_OUT, TableErrorCode.DATABASE_EXISTS])
            with pytest.raises(TableError, match="not now"):  # what the server decides is known
                await connection.admin.create_database("d", if_not_exists=True)
            await connection.close()

    tools.run(scenario())


def test_an_answer_that_makes_no_sense_leaves_the_outcome_unknown(fake, tools):
    async def scenario():
        async with fake() as server:
            server.handlers[CreateDatabaseRequest] = lambda _: ApiVersionsResponse(error_code=17)
            server.handlers[ListDatabasesRequest] = lambda _: ListDatabasesResponse(databases=["a"])
            connection = await connect_async(server.address, QUICK)
            with pytest.raises(
                OutcomeUnknown, match="answered CreateDatabaseRequest with a malformed message"
            ):
                await connection.admin.create_database("d")
            assert await connection.admin.list_databases() == ["a"]
            await connection.close()

    tools.run(scenario())


def test_a_write_on_a_closed_connection_has_an_unknown_outcome(fake, tools):
    async def scenario():
        async with fake() as server:
            arrived = asyncio.Event()

            def silent(_):
                arrived.set()
                raise tools.Silence

            server.handlers[AppendRowsRequest] = silent
            connection = await connect_async(server.address, ClientConfig(max_in_flight=1))
            table = connection.open_table(definition(tools))
            under_way = asyncio.create_task(table.append(ROWS))
            await arrived.wait()
            waiting = asyncio.create_task(table.append(ROWS))
            while len(table._open.parts._whole.writer._lanes[0].queue) < 1:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0)
            await connection.close()
            for write, kind, text in (
                (under_way, OutcomeUnknown, "may or may not be written"),
                (waiting, ConnectionFailed, "was closed"),
            ):
                with pytest.raises(kind, match=text):
                    await write

    tools.run(scenario())


def test_rows_that_were_sent_once_are_not_reported_as_unwritten(fake, tools):
    async def scenario():
        async with fake() as server, await connect_async(server.address, QUICK) as connection:

            async def dies(_):
                await server.stop()
                raise tools.HangUp

            server.handlers[AppendRowsRequest] = dies
            with pytest.raises(RequestTimeout, match="may or may not be written; the last error was"):
                await connection.open_table(definition(tools)).append(ROWS)

    tools.run(scenario())


def as_a_whole(code):
    return lambda: AppendRowsResponse(error_code=code, error_message="refused")


def for_the_bucket(code):
    return lambda: AppendRowsResponse(
        buckets=[WrittenBucket(bucket=0, error_code=code, error_message="refused")]
    )


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (as_a_whole(ErrorCode.TOPIC_AUTHORIZATION_FAILED), OutcomeUnknown),
        (as_a_whole(TableErrorCode.NOT_A_LOG_TABLE), OutcomeUnknown),
        (as_a_whole(TableErrorCode.TABLE_NOT_FOUND), TableError),  # the rows are gone with their table
        (for_the_bucket(TableErrorCode.SCHEMA_CHANGED), TableError),  # the server has looked for a repetition
        (None, OutcomeUnknown),
    ],
    ids=["right", "kind", "dropped", "bucket", "older server"],
)
def test_a_refused_repetition_may_have_been_written_before(fake, tools, refusal, expected):
    """The answer to the first attempt is lost, and then the request is refused, or cannot be sent."""

    async def scenario():
        async with fake() as server, await connect_async(server.address) as connection:

            def older(_):
                answer = server.api_versions(_)
                for each in answer.api_keys:
                    if each.api_key == AppendRowsRequest.API_KEY:
                        each.max_version = 0
                return answer

            def first(_):
                if refusal is None:
                    server.handlers[ApiVersionsRequest] = older
                server.handlers[AppendRowsRequest] = lambda _: refusal()
                raise tools.HangUp

            server.handlers[AppendRowsRequest] = first
            with pytest.raises(expected, match=r"refused|older than this client"):
                await connection.open_table(definition(tools)).append(ROWS, checked=True)
            sent = [each for each in server.requests if isinstance(each, AppendRowsRequest)]
            assert len(sent) == (1 if refusal is None else 2)

    tools.run(scenario())


@pytest.mark.parametrize("refused", [as_a_whole, for_the_bucket])
@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, 9_999])
def test_rows_of_a_write_in_which_the_server_fails_may_be_written(fake, tools, refused, code):
    """The failure, or a code that the client does not know, may come after the rows were logged."""

    async def scenario():
        async with fake() as server, await connect_async(server.address) as connection:
            server.handlers[AppendRowsRequest] = lambda _: refused(code)()
            with pytest.raises(OutcomeUnknown, match=r"refused; \d+ rows may or may not be written"):
                await connection.open_table(definition(tools)).append(ROWS)

    tools.run(scenario())


def test_the_servers_reason_is_logged_and_raised(fake, tools, caplog, monkeypatch):
    """A full disk: the writer tries again until the deadline, as Kafka's producers do, and logs it."""
    monkeypatch.setattr("headrace.tablelayer.client.write.writer._WARN_AFTER_SECONDS", 0.1)
    reason = "the disk is full; free space"

    async def scenario():
        async with fake() as server, await connect_async(server.address, QUICK) as connection:
            patience = []

            def full(request):
                patience.append(request.timeout_ms)
                answer = WrittenBucket(
                    bucket=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR, error_message=reason
                )
                return AppendRowsResponse(buckets=[answer])

            server.handlers[AppendRowsRequest] = full
            with pytest.raises(KafkaError, match=reason) as caught:
                await connection.open_table(definition(tools)).append(ROWS)
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert caught.value.code.retriable
            assert "3 rows for bucket 0 of db.t were not written within 600 ms" in str(caught.value)
            assert len(patience) > 2
            assert all(each <= 180 for each in patience), "the server answers before the client gives up"
            assert patience[-1] < patience[0]

    with caplog.at_level(logging.WARNING, "headrace.client"):
        tools.run(scenario())
    (warning,) = caplog.messages
    assert reason in warning
    assert "bucket 0 of db.t" in warning


async def test_no_attempt_gets_the_last_millisecond() -> None:
    """It could only replace the reason of the attempts before it by an unknown outcome."""
    for _ in range(5):
        deadline = Deadline(3.9)
        await Backoff(ClientConfig(retry_backoff_ms=1000)).pause(deadline)
        assert deadline.passed


def test_the_error_of_a_dropped_table_names_it() -> None:
    told = no_table_with_id(UUID(int=7))
    assert "default.gone" in str(error_of(told.code, told.message, doing="look up in default.gone"))
