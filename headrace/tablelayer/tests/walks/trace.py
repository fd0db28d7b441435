"""Trace a broker's work for one request: each call of a function of the project, in order, in every thread.

The request goes over a real socket to a broker in this process, on the event loop that servers use. Slow work has one
thread, and no request outlasts its first slice, so that the order of calls is always the same. The sender's calls,
turns of the event loop without a request, and calls that some versions of Python do not report (comprehensions, kernels
of numba's) are left out.
"""

from __future__ import annotations

import asyncio
import dis
import functools
import gc
import inspect
import socket
import struct
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest import mock

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.runtime import slices
from headrace.broker.server import Broker
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.tests.server.tables import LAKES
from simulator.cluster import direct_cluster
from simulator.direct import DirectBroker

ROOT = Path(__file__).resolve().parents[4]
FOLDERS = (f"{ROOT / 'headrace'}/",)
NOT_SERVED = ("/tests/", "/testing/")
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
WAITING = ("headrace/broker/net/poller.py", "SocketSelector.select")
ANSWER_S = 30
SLICE_S = 1.0
"""The first slice of a request, whose calls take several times as long when they are traced."""


@dataclass(frozen=True)
class Call:
    """A call. `path` begins at the root of the project, with `/`. `function` is qualified, without enclosing functions.

    `depth` is the number of the project's functions below it on its thread's stack. `resumed`: a coroutine or generator
    goes on.
    """

    thread: int
    depth: int
    path: str
    function: str
    resumed: bool


class Tracer:
    """Sees the calls of all threads started while it is installed; keeps those between `start` and `stop`."""

    def __init__(self) -> None:
        self._calls: list[Call] | None = None
        self._depths: dict[int, int] = {}
        self._waiting: Call | None = None  # the event loop's, which may have begun to wait before the trace
        self._lock = threading.Lock()

    @contextmanager
    def installed(self) -> Iterator[None]:
        before, before_in_threads = sys.getprofile(), threading.getprofile()
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(before_in_threads)

    def start(self) -> None:
        with self._lock:
            waiting = self._waiting
            self._depths = {} if waiting is None else {waiting.thread: 1}
            self._calls = [] if waiting is None else [waiting]

    def stop(self) -> list[Call]:
        with self._lock:
            calls, self._calls = self._calls or [], None
        return without_waiting(calls)

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        path = project_path(code.co_filename)
        is_kernel = "__name__" not in frame.f_globals
        if path is None or is_kernel or code.co_name in COMPREHENSIONS:
            return
        thread = threading.get_ident()
        function = code.co_qualname.rpartition("<locals>.")[2]
        resumed = frame.f_lasti > first_instruction(code)
        with self._lock:
            depth = 0 if self._calls is None else self._depths.get(thread, 0)
            call = Call(thread, depth, path, function, resumed) if event == "call" else None
            if (path, function) == WAITING:
                self._waiting = call
            if self._calls is None:
                return
            if call is None:
                self._depths[thread] = max(0, depth - 1)  # what began before the trace may end in it
            else:
                self._depths[thread] = depth + 1
                self._calls.append(call)


@functools.cache
def project_path(filename: str) -> str | None:
    """Return the path from the project's root, or None outside of the project and in its tests."""
    if not filename.startswith(FOLDERS) or any(part in filename for part in NOT_SERVED):
        return None
    return Path(filename).relative_to(ROOT).as_posix()


@functools.cache
def first_instruction(code: CodeType) -> int:
    """Return the position up to which an instruction belongs to entering the function, not to resuming it."""
    if not code.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        return sys.maxsize
    entering = (
        each.offset
        for each in dis.get_instructions(code)
        if each.opname == "RESUME" and not (each.arg or 0) & 3
    )
    return next(entering, 0)


def without_waiting(calls: list[Call]) -> list[Call]:
    """Without the turns of the event loop in which no connection was ready."""
    kept = []
    for index, call in enumerate(calls):
        if (call.path, call.function) == WAITING:
            served = next((each for each in calls[index + 1 :] if each.thread == call.thread), None)
            if served is None or served.depth <= call.depth:
                continue
        kept.append(call)
    return kept


class TracedBroker(DirectBroker):
    """A broker that gets each frame over a socket of its own; `calls` are those of the last one."""

    def __init__(self, broker: Broker, tracer: Tracer) -> None:
        super().__init__(broker)
        self.calls: list[Call] = []
        self._tracer = tracer

    async def send_frame(self, frame: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self._exchange, frame, loop)

    def _exchange(self, frame: bytes, loop: asyncio.AbstractEventLoop) -> bytes:
        with socket.create_connection((self.broker.host, self.broker.port), timeout=ANSWER_S) as connection:
            wait_for_turns(loop)
            self._tracer.start()
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            (size,) = struct.unpack(">i", read(connection, 4))
            answer = read(connection, size)
            wait_for_turns(loop)  # the answer is here before the server has ended what it does at the moment
            self.calls = self._tracer.stop()
        return answer


def wait_for_turns(loop: asyncio.AbstractEventLoop, count: int = 2) -> None:
    """Wait until the event loop has done its present work, and the work that follows from it."""
    for _ in range(count):
        turn = threading.Event()
        loop.call_soon_threadsafe(turn.set)
        if not turn.wait(ANSWER_S):
            raise TimeoutError("the event loop does not come round")


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the broker has closed the connection")
        data += piece
    return data


@contextmanager
def _tracing() -> Iterator[Tracer]:
    """Install a tracer. Brokers that start in the meantime are traced in all their threads."""
    tracer = Tracer()
    collects = gc.isenabled()
    with mock.patch.object(slices, "FIRST_SLICE_SECONDS", SLICE_S), tracer.installed():
        gc.disable()  # what it finds would be called in the middle of anything
        try:
            yield tracer
        finally:
            if collects:
                gc.enable()


@asynccontextmanager
async def traced_broker(data_dir: Path, extension: TableExtension) -> AsyncIterator[TracedBroker]:
    """A broker with tables, to be run by `broker.net.poller.run_server`."""
    config = BrokerConfig(LAKES, extension.broker_configs())
    with _tracing() as tracer, ThreadPoolExecutor(1, thread_name_prefix="slow work") as executor:
        server = Broker(config, data_dir=data_dir, port=0, extensions=[extension], executor=executor)
        await server.start()
        try:
            yield TracedBroker(server, tracer)
        finally:
            await server.stop()


@asynccontextmanager
async def traced_leader(folder: Path, topic: str) -> AsyncIterator[TracedBroker]:
    """The leader of a topic with two replicas; the calls of its follower, in the same process, are traced too."""
    with _tracing() as tracer:
        async with direct_cluster(folder, 2, config={"default.replication.factor": "2"}) as cluster:
            await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
            await cluster.brokers[1].create_topic(topic)
            await cluster.agreed(lambda broker: broker.context.metadata.leader(topic, 0) is not None)
            leader = cluster.brokers[1].context.metadata.leader(topic, 0)
            yield TracedBroker(cluster.brokers[leader.broker_id].broker, tracer)
