"""A whole server in a thread of this process, on a real socket, whose faults are recorded.

After each request it checks the longest uninterrupted work of the event loop's thread (processor time, so that a busy
machine proves nothing) and the growth of the process's memory. It also looks for tracebacks and errors in the log,
for forged lines of a client, and for a missing answer.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import re
import socket
import struct
import threading
import time
from pathlib import Path

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.server import Broker
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.server.limits import Limits
from simulator.loop import SimulatedEntropy
from simulator.loop_watchdog import LoopWatchdog

LOOP_SECONDS_MAX = 0.25
"""Limit of processor time without a rest: ten times that of any honest request."""
REQUEST_BYTES_MAX = 400 << 20
"""Limit of the process's growth during one request, including the client's own copies.

Decoding the largest batch, and an answer of the largest size, stay below it.
"""
KEPT_BYTES_MAX = 300 << 20
"""Limit of the process's growth at the end."""
ANSWER_SECONDS = 60.0
PATIENCE_SECONDS = 0.15
"""The wait for answers that the server may hold back as long as the request says."""

LIMITS = Limits(
    buffered_bytes_max=64 << 20, memtables_bytes_max=32 << 20, memtable_bytes=4 << 20,
    transcoded_cache_bytes=8 << 20, scan_lease_seconds=20.0,
)  # fmt: skip
CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "datalake.iceberg.warehouse": "/nowhere",
    "auto.create.topics.enable": "false",
    "kv.block.cache.bytes": str(16 << 20),
}
ALLOWED_ERRORS: tuple[str, ...] = ()
"""Regular expressions of lines at ERROR that are expected."""

_PEAK = re.compile(rb"VmHWM:\s+(\d+)")
_NEXT = struct.pack(">hhih", 18, 0, -7, -1)
"""A request behind one that has no answer."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")


class Memory:
    """The process's resident memory now, and the most since `begin`."""

    def begin(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self.start = self._peak()

    def grown(self) -> int:
        """Bytes, at the worst moment since `begin`."""
        return self._peak() - self.start

    @staticmethod
    def _peak() -> int:
        found = _PEAK.search(Path("/proc/self/status").read_bytes())
        assert found is not None
        return int(found[1]) << 10


def settled() -> int:
    """Return the resident bytes after all free memory was given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    memory = Memory()
    memory.begin()
    return memory.start


_CLIENTS = ("kafka", "aiokafka")
"""Loggers of clients, which other tests of the process may have left behind."""


class Complaints(logging.Handler):
    """Lines that should not have been logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.split(".")[0] in _CLIENTS:
            return
        text = record.getMessage()
        if record.exc_info:
            trace = logging.Formatter().formatException(record.exc_info)
            self.found.append(f"a traceback in the log: {text[:500]}\n{trace[-3000:]}")
        elif record.levelno >= logging.ERROR and not any(re.search(each, text) for each in ALLOWED_ERRORS):
            self.found.append(f"an error in the log: {text[:500]}")
        elif _CONTROL.search(text):
            self.found.append(f"control characters in the log: {text[:500]!r}")


class WatchedServer:
    """`start` it on a folder, `check` after each request, `stop` it; the folder can be started on again."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._complaints = Complaints()
        self._memory = Memory()
        self.port = 0

    def start(self) -> None:
        self._level = logging.getLogger("headrace").level
        logging.getLogger("headrace").setLevel(logging.INFO)
        logging.getLogger().addHandler(self._complaints)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fuzzed server", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(120)
        self.quiet()

    async def _start(self) -> None:
        self._watchdog = LoopWatchdog(stall_seconds=0.1)
        self.extension = TableExtension(LIMITS)
        config = BrokerConfig(CONFIG, self.extension.broker_configs())
        self.broker = Broker(
            config, data_dir=self._data_dir, port=0, extensions=[self.extension], entropy=SimulatedEntropy(0)
        )
        await self.broker.start()
        self.port = self.broker.port
        await self._watchdog.__aenter__()

    async def _stop(self) -> None:
        await self._watchdog.__aexit__(None, None, None)
        await self.broker.stop()

    def stop(self) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(120)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(30)
            self._loop.close()
            logging.getLogger().removeHandler(self._complaints)
            logging.getLogger("headrace").setLevel(self._level)

    def until_published(self, topic: str, index: int) -> None:
        """Wait: rows written with acks 0 or 1 become visible a little later."""
        ends = time.monotonic() + ANSWER_SECONDS
        partition = self.broker.context.replicas.partition(topic, index)
        while partition.high_watermark < partition.log.log_end_offset:
            if time.monotonic() > ends:
                raise UnansweredError(
                    f"rows of {topic}-{index} are not published within {ANSWER_SECONDS:.0f} s"
                )
            time.sleep(0.001)

    def quiet(self) -> None:
        """Forget all faults so far, and begin now."""
        self._complaints.found.clear()
        asyncio.run_coroutine_threadsafe(self._forget(), self._loop).result(ANSWER_SECONDS)
        self._memory.begin()

    async def _forget(self) -> None:
        self._watchdog.reset()

    def check(self) -> str | None:
        """Return the first fault since `quiet`, or None."""
        # The loop's work is measured at its next beat, a millisecond from now.
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.003), self._loop).result(ANSWER_SECONDS)
        found = list(self._complaints.found)
        worked = self._watchdog.longest_cpu_seconds
        if worked > LOOP_SECONDS_MAX:
            found.append(f"the event loop worked for {worked:.2f} s at one go: {self._watchdog.report()}")
        grown = self._memory.grown()
        if grown > REQUEST_BYTES_MAX:
            found.append(f"the process grew by {grown >> 20} MiB")
        if not self._thread.is_alive():
            found.append("the event loop has ended")
        return "\n".join(found) or None


class UnansweredError(Exception):
    """The request was not answered, and the connection was not closed."""


class Wire:
    """One connection, made when it is needed. Frames go without their length."""

    def __init__(self, server: WatchedServer) -> None:
        self._server = server
        self._socket: socket.socket | None = None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, *frames: bytes) -> None:
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._server.port), ANSWER_SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(ANSWER_SECONDS)
        self._socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))

    def ask(self, frame: bytes, *, answered: bool = True, may_wait: bool = False) -> bytes | None:
        """Return the answer; None if the server closed the connection, may wait and does, or owes no answer."""
        try:
            if not answered:
                self.send(frame, _NEXT)
                self._check_whose(self._receive(ANSWER_SECONDS), _NEXT)
                return None
            self.send(frame)
            answer = self._receive(PATIENCE_SECONDS if may_wait else ANSWER_SECONDS)
            self._check_whose(answer, frame)
            return answer
        except TimeoutError:
            self.close()
            if may_wait:
                return None
            raise UnansweredError(f"no answer within {ANSWER_SECONDS:.0f} s") from None
        except (ConnectionError, EOFError):
            self.close()
            return None

    def _check_whose(self, answer: bytes, frame: bytes) -> None:
        if answer[:4] != frame[4:8]:
            self.close()
            raise UnansweredError(
                f"the answer has the correlation id {answer[:4].hex()} and not {frame[4:8].hex()}"
            )

    def _receive(self, seconds: float) -> bytes:
        assert self._socket is not None
        self._socket.settimeout(seconds)
        size = struct.unpack(">i", self._exactly(4))[0]
        self._socket.settimeout(ANSWER_SECONDS)
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        assert self._socket is not None
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            count = self._socket.recv_into(view[at:])
            if not count:
                raise EOFError
            at += count
        return bytes(data)
