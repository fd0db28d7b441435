"""All attacks of strangers, and of clients with few rights, on a broker, all at once.

python attackers.py PLAIN_PORT TLS_PORT SEED [burn]

The process begins at a line `go` on its standard input, pauses at `stop`, and ends with its input. After each `stop` it
prints the number of attacks of each kind, as JSON. It has one paced event loop: `PER_SECOND` is the rate of each kind.

Real attackers have machines of their own. Here they are `nice`, and with `burn` they use as much processor time in
pauses as in attacks (`Burner`). So measurements with and without attacks differ by the broker's work, not by its share
of the processor.

Attackers come from many addresses (127.0.0.2 and so on). HEADRACE_ATTACK_TIMES multiplies the rate of each kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import random
import ssl
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from headrace.protocol.headers import RequestHeader, encode_request_header
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.protocol.records.compression import Compression
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import HEADER_SIZE, write_crc
from headrace.protocol.schema import ApiMessage

HOST = "127.0.0.1"
TIMES = float(os.environ.get("HEADRACE_ATTACK_TIMES", "1"))
EVE, EVES_PASSWORD = "eve", "eve-secret"
EVES_TOPIC = "eves-own"
"""A compacted topic that eve may write to: the broker decompresses her batches."""
SOMEBODY_ELSES = "legal"
ADDRESSES = 40
ANSWER_SECONDS_MAX = 20.0
HELD_MAX = 150
"""Maximum number of open connections, for each kind of attack that holds some."""
BURST_SECONDS = 0.01
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(32))
PER_SECOND = {
    "half-open handshakes": 10,
    "slow bytes": 10,
    "garbage to TLS": 20,
    "requests without TLS": 20,
    "TLS to a plain listener": 20,
    "wrong password": 10,
    "wrong SCRAM": 10,
    "oversized frames": 20,
    "truncated frames": 20,
    "requests before authentication": 10,
    "unknown requests": 20,
    "churn": 40,
    "handshakes for nothing": 10,
    "denied produce": 60,
    "denied fetch": 30,
    "all metadata": 20,
    "large metadata": 4,
    "large offsets": 4,
    "all configurations": 4,
    "bombs": 2,
}
OF_EVE = {
    "denied produce",
    "denied fetch",
    "all metadata",
    "large metadata",
    "large offsets",
    "all configurations",
    "bombs",
}
"""Attacks of one authenticated connection each, one request after the other."""


def frame(request: ApiMessage, version: int, correlation_id: int = 1) -> bytes:
    header = RequestHeader(request.API_KEY, version, correlation_id, "attacker")
    body = encode_request_header(header, request.header_version(version)) + request.encode(version)
    return struct.pack(">i", len(body)) + body


def authenticate(message: bytes) -> bytes:
    return frame(SaslAuthenticateRequest(auth_bytes=message), 2)


def shake(mechanism: str) -> bytes:
    return frame(SaslHandshakeRequest(mechanism=mechanism), 1)


def bomb() -> bytes:
    """A few kilobytes that decompress to 300 MiB."""
    head = build_batch([Record(b"k", b"v" * 100, (), int(time.time() * 1000))], compression=Compression.GZIP)
    batch = bytearray(head[:HEADER_SIZE] + gzip.compress(bytes(8 << 20), 9) * 40)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    write_crc(batch)
    return bytes(batch)


def produce(topic: str, records: bytes) -> bytes:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])
    return frame(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data]), 9)


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, *frames: bytes) -> bytes:
        """Send frames one after the other; return the last answer."""
        answer = b""
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            for each in frames:
                self.writer.write(each)
                size = struct.unpack(">i", await self.reader.readexactly(4))[0]
                answer = await self.reader.readexactly(size)
        return answer

    async def until_closed(self) -> None:
        while await self.reader.read(65536):
            pass

    def close(self) -> None:
        self.writer.transport.abort()


class Attackers:
    def __init__(self, plain_port: int, tls_port: int, seed: int) -> None:
        self.plain_port, self.tls_port = plain_port, tls_port
        self.chance = random.Random(seed)
        self.made: Counter[str] = Counter()
        self.odd: Counter[str] = Counter()
        """Attacks with an unexpected result, such as a missing answer."""
        self.held: Counter[str] = Counter()
        self.context = ssl.create_default_context()
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE
        self.bomb = bomb()
        self.record = build_batch([Record(None, b"x" * 1000, (), int(time.time() * 1000))])
        self.eves: dict[str, Connection] = {}

    @contextlib.asynccontextmanager
    async def connected(self, port: int, *, tls: bool = False):
        address = (f"127.0.0.{self.chance.randint(2, 1 + ADDRESSES)}", 0)
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            streams = await asyncio.open_connection(
                HOST, port, local_addr=address, ssl=self.context if tls else None
            )
        connection = Connection(*streams)
        try:
            yield connection
        finally:
            connection.close()

    async def eve(self, kind: str) -> Connection:
        """Return eve's authenticated connection for this kind; it stays open."""
        connection = self.eves.get(kind)
        if connection is None or connection.reader.at_eof():
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                streams = await asyncio.open_connection(
                    HOST, self.tls_port, local_addr=("127.0.0.99", 0), ssl=self.context
                )
            connection = self.eves[kind] = Connection(*streams)
            answer = await connection.ask(shake("PLAIN"), authenticate(f"\0{EVE}\0{EVES_PASSWORD}".encode()))
            if answer[4 + 1 : 4 + 3] != b"\0\0":
                raise ConnectionError(f"eve is not let in: {answer!r}")
        return connection

    async def hold(self, kind: str, connection: Connection, data: bytes, pause: float) -> None:
        """Send byte by byte until the broker hangs up."""
        self.held[kind] += 1
        try:
            ended = asyncio.ensure_future(connection.until_closed())
            for byte in data:
                connection.writer.write(bytes([byte]))
                await asyncio.wait([ended], timeout=pause)
                if ended.done():
                    break
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
        finally:
            self.held[kind] -= 1

    # -- kinds ---------------------------------------------------------------------------------------------

    async def half_open_handshakes(self, kind: str) -> None:
        async with self.connected(self.tls_port) as connection:
            connection.writer.write(CLIENT_HELLO[: self.chance.randint(1, len(CLIENT_HELLO))])
            await self.hold(kind, connection, bytes(8), 5)

    async def slow_bytes(self, kind: str) -> None:
        port = self.chance.choice((self.plain_port, self.tls_port))
        data = frame(MetadataRequest(topics=None), 12) if port == self.plain_port else CLIENT_HELLO
        async with self.connected(port) as connection:
            await self.hold(kind, connection, data, 0.5)

    async def garbage_to_tls(self, kind: str) -> None:
        async with self.connected(self.tls_port) as connection:
            connection.writer.write(self.chance.randbytes(self.chance.randint(1, 3000)))
            await asyncio.wait_for(connection.until_closed(), ANSWER_SECONDS_MAX)

    async def requests_without_tls(self, kind: str) -> None:
        async with self.connected(self.tls_port) as connection:
            connection.writer.write(frame(ApiVersionsRequest(), 0))
            await asyncio.wait_for(connection.until_closed(), ANSWER_SECONDS_MAX)

    async def tls_to_a_plain_listener(self, kind: str) -> None:
        async with self.connected(self.plain_port) as connection:
            connection.writer.write(CLIENT_HELLO)
            await asyncio.wait_for(connection.until_closed(), ANSWER_SECONDS_MAX)

    async def wrong_password(self, kind: str) -> None:
        name = self.chance.choice(("ann", EVE, "nobody", "x" * 1000))
        async with self.connected(self.tls_port, tls=True) as connection:
            await connection.ask(shake("PLAIN"), authenticate(f"\0{name}\0wrong".encode()))
            await connection.until_closed()

    async def wrong_scram(self, kind: str) -> None:
        async with self.connected(self.tls_port, tls=True) as connection:
            first = f"n,,n={self.chance.choice(('carl', 'nobody'))},r=abcdefgh".encode()
            answer = await connection.ask(shake("SCRAM-SHA-256"), authenticate(first))
            nonce = answer[answer.index(b"r=") + 2 : answer.index(b",s=")]
            await connection.ask(authenticate(b"c=biws,r=" + nonce + b",p=" + b"QUFB" * 10 + b"QUE="))
            await connection.until_closed()

    async def oversized_frames(self, kind: str) -> None:
        size = self.chance.choice((2**31 - 1, -1, 0, 104857601, 100 << 20))
        tls = self.chance.random() < 0.3
        async with self.connected(self.tls_port if tls else self.plain_port, tls=tls) as connection:
            connection.writer.write(struct.pack(">i", size) + bytes(self.chance.randint(0, 200_000)))
            if size == 100 << 20 and not tls:
                await asyncio.sleep(1)  # the delay may be that long
            else:
                await asyncio.wait_for(connection.until_closed(), ANSWER_SECONDS_MAX)

    async def truncated_frames(self, kind: str) -> None:
        whole = frame(MetadataRequest(topics=[MetadataRequestTopic(name=f"t{n}") for n in range(50)]), 12)
        async with self.connected(self.plain_port) as connection:
            if self.chance.random() < 0.5:
                connection.writer.write(whole[: self.chance.randint(1, len(whole) - 1)])
                await asyncio.sleep(0.05)
            else:
                body = whole[4 : self.chance.randint(20, len(whole) - 1)]
                connection.writer.write(struct.pack(">i", len(body)) + body)
                await asyncio.wait_for(connection.until_closed(), ANSWER_SECONDS_MAX)

    async def requests_before_authentication(self, kind: str) -> None:
        requests = (
            frame(MetadataRequest(topics=None), 12),
            produce(SOMEBODY_ELSES, self.record),
            frame(ListGroupsRequest(), 4),
        )
        async with self.connected(self.tls_port, tls=True) as connection:
            connection.writer.write(self.chance.choice(requests))
            await asyncio.wait_for(connection.until_closed(), ANSWER_SECONDS_MAX)

    async def unknown_requests(self, kind: str) -> None:
        key, version = self.chance.choice(((999, 0), (-5, 1), (3, 99), (0, 200), (32767, 32767)))
        body = struct.pack(">hhih", key, version, 1, 3) + b"abc" + self.chance.randbytes(50)
        async with self.connected(self.plain_port) as connection:
            connection.writer.write(struct.pack(">i", len(body)) + body)
            await asyncio.wait_for(connection.until_closed(), ANSWER_SECONDS_MAX)

    async def churn(self, kind: str) -> None:
        async with self.connected(self.chance.choice((self.plain_port, self.tls_port))):
            pass

    async def handshakes_for_nothing(self, kind: str) -> None:
        async with self.connected(self.tls_port, tls=True):
            pass

    async def denied_produce(self, kind: str) -> None:
        await self.denied(kind, produce(SOMEBODY_ELSES, self.record), b"\0\x1d")

    async def denied_fetch(self, kind: str) -> None:
        topic = FetchTopic(topic=SOMEBODY_ELSES, partitions=[FetchPartition(partition=0, fetch_offset=0)])
        await self.denied(kind, frame(FetchRequest(max_wait_ms=0, topics=[topic]), 11), b"\0\x1d")

    async def denied(self, kind: str, request: bytes, code: bytes) -> None:
        answer = await (await self.eve(kind)).ask(request)
        if code not in answer:
            self.odd[f"{kind}: not denied"] += 1

    async def all_metadata(self, kind: str) -> None:
        request = MetadataRequest(topics=None, include_topic_authorized_operations=self.chance.random() < 0.5)
        if SOMEBODY_ELSES.encode() in await (await self.eve(kind)).ask(frame(request, 10)):
            self.odd[f"{kind}: shows what is not for her"] += 1

    async def large_metadata(self, kind: str) -> None:
        topics = [MetadataRequestTopic(name=f"{SOMEBODY_ELSES}-{number}") for number in range(3000)]
        await (await self.eve(kind)).ask(frame(MetadataRequest(topics=topics), 9))

    async def large_offsets(self, kind: str) -> None:
        partitions = [ListOffsetsPartition(partition_index=n, timestamp=n % 3 - 2) for n in range(3000)]
        topics = [ListOffsetsTopic(name=name, partitions=partitions) for name in (SOMEBODY_ELSES, EVES_TOPIC)]
        await (await self.eve(kind)).ask(frame(ListOffsetsRequest(topics=topics), 7))

    async def all_configurations(self, kind: str) -> None:
        resources = [
            DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
            for name in (EVES_TOPIC, SOMEBODY_ELSES) * 50
        ]
        request = DescribeConfigsRequest(
            resources=resources, include_synonyms=True, include_documentation=True
        )
        await (await self.eve(kind)).ask(frame(request, 4))

    async def bombs(self, kind: str) -> None:
        await self.denied(kind, produce(EVES_TOPIC, self.bomb), b"\0\x0a")  # MESSAGE_TOO_LARGE

    # -- all of them ---------------------------------------------------------------------------------------

    async def again_and_again(self, kind: str) -> None:
        attack: Callable[[str], Awaitable[None]] = getattr(
            self, kind.lower().replace(" ", "_").replace("-", "_")
        )
        waiting: set[asyncio.Task[None]] = set()
        try:
            while True:
                if len(waiting) < (1 if kind in OF_EVE else HELD_MAX):
                    task = asyncio.ensure_future(self.once(kind, attack))
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
                await asyncio.sleep(self.chance.uniform(0.5, 1.5) / PER_SECOND[kind] / TIMES)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def once(self, kind: str, attack: Callable[[str], Awaitable[None]]) -> None:
        self.made[kind] += 1
        try:
            await attack(kind)
        except (OSError, EOFError, ssl.SSLError) as error:
            if isinstance(error, TimeoutError):
                self.odd[f"{kind}: no answer in {ANSWER_SECONDS_MAX:g} s"] += 1
            self.forget(kind)
        except Exception as error:  # noqa: BLE001 - told at the end
            self.odd[f"{kind}: {type(error).__name__} {error}"[:200]] += 1
            self.forget(kind)

    def forget(self, kind: str) -> None:
        connection = self.eves.pop(kind, None)
        if connection is not None:
            connection.close()

    async def attack_until(self, stop: asyncio.Event) -> None:
        attacks = [asyncio.ensure_future(self.again_and_again(kind)) for kind in PER_SECOND]
        await stop.wait()
        for attack in attacks:
            attack.cancel()
        await asyncio.gather(*attacks, return_exceptions=True)
        for kind in list(self.eves):
            self.forget(kind)


class Burner:
    """Burn as much processor time per second as was used per second of attacks."""

    def __init__(self) -> None:
        self.share = 0.0
        self._began = (0.0, 0.0)

    def attacks_begin(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def attacks_end(self) -> None:
        began, cpu_began = self._began
        self.share = min(1.0, (time.process_time() - cpu_began) / (time.perf_counter() - began))

    async def burn(self) -> None:
        while True:
            until = time.process_time() + BURST_SECONDS * self.share
            while time.process_time() < until:
                sum(range(1000))
            await asyncio.sleep(BURST_SECONDS * (1 - self.share))


async def main(plain_port: int, tls_port: int, seed: int, burns: bool) -> None:
    os.sched_setscheduler(
        0, os.SCHED_OTHER, os.sched_param(0)
    )  # not in the class of the process that started this one
    os.setpriority(os.PRIO_PROCESS, 0, 15)
    attackers = Attackers(plain_port, tls_port, seed)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)  # connections that end under asyncio are intended
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    attacking: asyncio.Task[None] | None = None
    stop = asyncio.Event()
    burner = Burner()
    burning: asyncio.Task[None] | None = None
    while line := await reader.readline():
        if line.strip() == b"go":
            if burning is not None:
                burning.cancel()
            stop.clear()
            burner.attacks_begin()
            attacking = asyncio.ensure_future(attackers.attack_until(stop))
        elif attacking is not None:
            stop.set()
            await attacking
            attacking = None
            burner.attacks_end()
            burning = asyncio.ensure_future(burner.burn()) if burns else None
            told = {"made": dict(attackers.made), "odd": dict(attackers.odd), "core": burner.share}
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()
    if burning is not None:
        burning.cancel()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:4]), burns="burn" in sys.argv))
