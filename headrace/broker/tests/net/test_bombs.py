"""Batches that grow when they are decompressed, and clients that disconnect in every way: bounded, and others do not
wait.

Compacted topics decompress every batch of a client, so their producers choose how much work that is.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import socket
import struct
import threading
import time

import pytest

from headrace.broker.log.partition_log import PartitionLog
from headrace.protocol.errors import ErrorCode
from headrace.protocol.records.compression import (
    MAX_DECOMPRESSED_BYTES,
    Compression,
    DecompressedTooLarge,
    compress,
    decompress,
)
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import HEADER_SIZE, write_crc
from simulator.direct import direct_broker, values_of

MIB = 1 << 20
SEED = 1


def bomb(codec: Compression, body: bytes) -> bytes:
    """A batch of one record whose compressed part is `body`."""
    head = bytearray(build_batch([Record(b"k", b"v" * 100, (), int(time.time() * 1000))], compression=codec))
    batch = head[:HEADER_SIZE] + body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, int(codec))
    write_crc(batch)
    return bytes(batch)


async def test_many_bombs_at_once_leave_threads_to_others(tmp_path, monkeypatch) -> None:
    """Batches that decompress to many bytes wait for each other on the event loop: a thread has at most one of them."""
    busy, most = 0, 0
    lock = threading.Lock()
    original = PartitionLog.prepare

    def prepare(self, batch, *, large=True):
        nonlocal busy, most
        if not large:
            return original(self, batch, large=False)
        with lock:
            busy += 1
            most = max(most, busy)
        try:
            return original(self, batch)
        finally:
            with lock:
                busy -= 1

    monkeypatch.setattr(PartitionLog, "prepare", prepare)
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("compacted", cleanup_policy="compact")
        kind, body = bodies()["gzip"]
        batch = bomb(kind, body)
        answers = await asyncio.gather(*(broker.produce("compacted", batch) for _ in range(6)))
        assert [answer.error_code for answer in answers] == [ErrorCode.MESSAGE_TOO_LARGE] * 6
        assert most == 1


def test_a_refused_bomb_keeps_no_memory() -> None:
    with pytest.raises(DecompressedTooLarge) as refused:
        decompress(Compression.GZIP, gzip.compress(bytes(16 * MIB), 9), max_bytes=8 * MIB)
    error: BaseException | None = refused.value
    kept = []
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            kept.append(trace.tb_frame.f_locals.get("output"))
            trace = trace.tb_next
        error = error.__context__
    assert not any(each is not None for each in kept)


def bodies() -> dict[str, tuple[Compression, bytes]]:
    """Return small bodies that decompress to more than is allowed, or to as much as fits into a legal batch."""
    zeros = bytes(16 * MIB)
    part = gzip.compress(zeros, 9)
    blocks = compress(Compression.SNAPPY, zeros)
    return {
        "gzip": (Compression.GZIP, part * (MAX_DECOMPRESSED_BYTES // len(zeros) + 4)),
        "zstd": (Compression.ZSTD, compress(Compression.ZSTD, bytes(MAX_DECOMPRESSED_BYTES + MIB))),
        "lz4": (Compression.LZ4, compress(Compression.LZ4, bytes(200 * MIB))),
        "snappy": (Compression.SNAPPY, blocks),
    }


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4", "snappy"])
def test_f7_a_bomb_for_a_compacted_topic_is_refused_and_the_loop_goes_on(
    tmp_path, monkeypatch, codec
) -> None:
    original, others_were_served = PartitionLog.prepare, threading.Event()

    def prepare(self, batch, **options):
        assert others_were_served.wait(60), "other clients wait for the bomb"
        return original(self, batch, **options)

    monkeypatch.setattr(PartitionLog, "prepare", prepare)

    async def test() -> None:
        async with direct_broker(tmp_path, {"message.max.bytes": str(32 * MIB)}) as broker:
            await broker.create_topic("compacted", cleanup_policy="compact")
            await broker.create_topic("plain")
            kind, body = bodies()[codec]
            batch = bomb(kind, body)
            ticks = 0

            async def beat() -> None:
                nonlocal ticks
                while True:
                    ticks += 1
                    assert (await broker.produce("plain", [b"x"])).error_code == 0
                    if ticks >= 5:
                        others_were_served.set()
                    await asyncio.sleep(0.002)

            beating = asyncio.ensure_future(beat())
            await asyncio.sleep(0)
            answer = await broker.produce("compacted", batch)
            beating.cancel()
            fits = codec == "snappy"  # and is not a record
            assert answer.error_code == (ErrorCode.INVALID_RECORD if fits else ErrorCode.MESSAGE_TOO_LARGE)
            assert answer.error_message
            assert ticks >= 5, "other clients waited for the bomb"
            good = build_batch([Record(b"k", b"good", (), int(time.time() * 1000))], compression=kind)
            assert (await broker.produce("compacted", good)).error_code == 0
            fetched = await broker.fetch("compacted", 0)
            records = fetched.records.read() if hasattr(fetched.records, "read") else fetched.records
            assert values_of(records) == [(0, b"good")]

    asyncio.run(test())


def reset(sock: socket.socket) -> None:
    """Disconnect with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def test_f8_resets_and_half_closed_connections_leave_nothing_behind(tmp_path) -> None:
    """Hundreds of connections end in the middle of a frame, of an answer or of a long poll, by RST or by closing one
    direction.

    A client that has sent more requests than it waits for is not read from, and its end is found all the same.
    """
    ask = struct.pack(">ihhih", 10, 18, 0, 7, -1)
    fetch = struct.pack(">hhih", 1, 4, 8, -1) + struct.pack(">iiiib", -1, 30_000, 1, MIB, 0)
    fetch += struct.pack(">ih", 1, 1) + b"t" + struct.pack(">iiqi", 1, 0, 0, MIB)
    long_poll = struct.pack(">i", len(fetch)) + fetch

    async def test() -> None:
        config = {"socket.listen.backlog.size": "500", "connections.max.idle.ms": "1000"}
        async with direct_broker(tmp_path, config) as broker:
            await broker.create_topic("t")
            chance = random.Random(SEED)
            tasks = len(asyncio.all_tasks())
            for _ in range(400):
                sock = socket.create_connection(("127.0.0.1", broker.broker.port))
                sock.setblocking(False)
                what = chance.choice([ask, ask * 20, long_poll, ask + long_poll, long_poll + ask])
                sock.send(what[: chance.choice([len(what), chance.randrange(len(what))])])
                if chance.random() < 0.5:
                    await asyncio.sleep(0)
                if chance.random() < 0.5:
                    reset(sock)
                else:
                    sock.shutdown(socket.SHUT_WR)
                    await asyncio.sleep(0)
                    sock.close()
            async with asyncio.timeout(100):
                while broker.broker.network.connection_count or len(asyncio.all_tasks()) > tasks:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    asyncio.run(test())


async def test_requests_before_a_half_close_are_answered(tmp_path) -> None:
    ask = struct.pack(">ihhih", 10, 18, 0, 7, -1)
    async with direct_broker(tmp_path) as broker:
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", broker.broker.port))
            await loop.sock_sendall(sock, ask * 3)
            sock.shutdown(socket.SHUT_WR)
            answers = b""
            while part := await loop.sock_recv(sock, 1 << 16):
                answers += part
            (size,) = struct.unpack_from(">i", answers)
            assert len(answers) == 3 * (4 + size)
