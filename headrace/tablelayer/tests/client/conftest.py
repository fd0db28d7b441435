"""A server of the wire protocol for tests: real sockets and real messages, behaviour given by the test."""

import asyncio
import itertools
import selectors
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.server import Broker
from headrace.protocol.headers import decode_request_header, encode_response_header
from headrace.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.tablelayer.client import ClientConfig, Connection, connect

TABLE_ID = UUID(int=7)


class HangUp(Exception):  # noqa: N818
    """Raised by a handler: the connection ends without an answer."""


class Silence(Exception):  # noqa: N818
    """Raised by a handler: no answer, the connection stays."""


class FakeServer:
    """A server that answers each request class with a function of the request, and a client's first requests by
    itself.
    """

    def __init__(self, partitions: int = 2, port: int = 0) -> None:
        self.handlers: dict[type, Callable[[Any], Any]] = {
            ApiVersionsRequest: self.api_versions,
            MetadataRequest: self.metadata,
            InitProducerIdRequest: self.init_producer_id,
        }
        self.partitions = partitions
        self.requests: list[Any] = []
        self.connections = 0
        self.next_producer_id = 100
        self.port = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> "FakeServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                answer = await self.answer(frame)
                if answer is not None:
                    writer.write(len(answer).to_bytes(4, "big") + answer)
                    await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError, HangUp):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def answer(self, frame: bytes) -> bytes | None:
        key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
        kind = next(kind for kind in self.handlers if key == kind.API_KEY)
        header, position = decode_request_header(frame, kind.header_version(version))
        request = kind.decode(frame[position:], version)
        self.requests.append(request)
        try:
            response = self.handlers[kind](request)
            if asyncio.iscoroutine(response):
                response = await response
        except Silence:
            return None
        return encode_response_header(
            header.correlation_id, type(response).header_version(version)
        ) + response.encode(version)

    def api_versions(self, _: Any) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=kind.API_KEY, min_version=kind.MIN_VERSION, max_version=kind.MAX_VERSION)
                for kind in self.handlers
            ]
        )

    def metadata(self, request: Any) -> MetadataResponse:
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)],
            topics=[
                MetadataResponseTopic(
                    name=topic.name,
                    topic_id=TABLE_ID,
                    partitions=[
                        MetadataResponsePartition(partition_index=p, leader_id=1)
                        for p in range(self.partitions)
                    ],
                )
                for topic in request.topics
            ],
        )

    def init_producer_id(self, _: Any) -> InitProducerIdResponse:
        self.next_producer_id += 1
        return InitProducerIdResponse(producer_id=self.next_producer_id, producer_epoch=0)


class _Waits(selectors.DefaultSelector):
    """The time without work."""

    SLICE_SECONDS = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.seconds += 1e-6
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        wait = self.SLICE_SECONDS if timeout is None else min(timeout, self.SLICE_SECONDS)
        began = time.monotonic()
        found = super().select(wait)
        self.seconds += min(time.monotonic() - began, wait)
        return found


class PatientLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes only while it waits, and not while it works or is kept from working.

    So a client and a server that share it are late for each other only on purpose, however busy the machine is.
    """

    def __init__(self) -> None:
        self._waits = _Waits()
        super().__init__(self._waits)

    def time(self) -> float:
        return self._waits.seconds


def run(coroutine: Any, loop: Callable[[], asyncio.AbstractEventLoop] = PatientLoop) -> Any:
    """Run a test's coroutine; a test never waits longer than this."""

    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await coroutine

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(bounded())


@pytest.fixture
def impatient() -> ClientConfig:
    """Return settings with which failures are noticed quickly."""
    return ClientConfig(
        connect_timeout_ms=1_000,
        request_timeout_ms=300,
        delivery_timeout_ms=3_000,
        retry_backoff_ms=1,
        retry_backoff_max_ms=10,
    )


@pytest.fixture
def fake() -> Callable[..., Any]:
    """Run a fake server. One that is to come back has a port of `free_port`."""
    import contextlib

    @contextlib.asynccontextmanager
    async def serve(partitions: int = 2, port: int = 0) -> AsyncIterator[FakeServer]:
        server = await FakeServer(partitions, port).start()
        try:
            yield server
        finally:
            await server.stop()

    return serve


@pytest.fixture
def tools() -> Any:
    """Names of this file for tests: HangUp, Silence, TABLE_ID, run."""
    import types

    return types.SimpleNamespace(HangUp=HangUp, Silence=Silence, TABLE_ID=TABLE_ID, run=run)


class BrokerThread:
    """The real server in a thread of this process."""

    def __init__(self, data: Path, limits: Any = None, config: Mapping[str, str] | None = None) -> None:
        """`limits`: `tablelayer.server.limits.Limits`, the usual ones if None."""
        self._data = data
        self._config = dict(config or {})
        self._limits = limits
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test broker", daemon=True)
        self.address = ""

    def start(self) -> "BrokerThread":
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        self.address = f"127.0.0.1:{port}"
        return self

    async def _start(self) -> int:
        from headrace.tablelayer.server.extension import TableExtension

        self._extension = extension = TableExtension(self._limits)
        given = {"log.initial.task.delay.ms": "600000", **self._config}
        config = BrokerConfig.load(given, None, extension.broker_configs())
        self._broker = Broker(config, data_dir=self._data, port=0, extensions=[extension])
        await self._broker.start()
        return self._broker.port

    def open_scans(self) -> int:
        """Return the scans of states that the server keeps open."""
        scans = self._extension._scans
        return 0 if scans is None else len(scans._open)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._broker.stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


@pytest.fixture(scope="session")
def broker_thread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    broker = BrokerThread(tmp_path_factory.mktemp("broker")).start()
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def server_address(broker_thread: BrokerThread) -> str:
    return broker_thread.address


@pytest.fixture(scope="session")
def connection(server_address: str) -> Iterator[Connection]:
    with connect(server_address) as connection:
        yield connection


@pytest.fixture
def make_table(connection: Connection) -> Iterator[Callable[[str], Any]]:
    """`make_table("(id INT, PRIMARY KEY (id) NOT ENFORCED) WITH (...)")` opens a new table, dropped at the end."""
    made = []

    def make(columns_and_options: str) -> Any:
        name = f"t{next(_names)}"
        connection.execute(f"CREATE TABLE {name} {columns_and_options}")
        made.append(name)
        return connection.table(name)

    yield make
    for name in made:
        connection.admin.drop_table(name)


_names = itertools.count()
