"""Prepared requests over plain sockets: the speed of a server without the limits of a client library.

Requests are encoded once and sent again and again; only the lengths of answers are read. Written records are checked
afterwards by the log's end, so that answers with errors cannot pass for work.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, repeat

from bench.processes import Server
from headrace.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.schema import ApiMessage

PRODUCE_VERSION, FETCH_VERSION, LIST_OFFSETS_VERSION, METADATA_VERSION = 11, 12, 7, 9
NEW_TOPIC_SECONDS = 10.0
"""Maximum time until a leader knows a topic that was just created."""
LATEST = -1
_LENGTH = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Load:
    """The result of one run. `server_cpu_s` is the server's user and system time."""

    requests: int
    seconds: float
    server_cpu_s: float
    received_bytes: int

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds

    @property
    def cpu_us(self) -> float:
        """Server CPU microseconds per request."""
        return self.server_cpu_s / self.requests * 1e6


def frame(request: ApiMessage, version: int) -> bytes:
    header = encode_request_header(
        RequestHeader(request.API_KEY, version, 1, "bench"), request.header_version(version)
    )
    body = request.encode(version)
    return _LENGTH.pack(len(header) + len(body)) + header + body


def batch(records: int, size: int) -> bytes:
    """Return one uncompressed batch of `records` values of `size` random bytes."""
    now = int(time.time() * 1000)
    return build_batch([Record(None, os.urandom(size), (), now) for _ in range(records)])


def produce_frame(topic: str, partitions: Iterable[int], records: bytes, acks: int = 1) -> bytes:
    """Return a request with the same batch for each of the partitions."""
    data = [PartitionProduceData(index=partition, records=records) for partition in partitions]
    return frame(
        ProduceRequest(
            acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
        ),
        PRODUCE_VERSION,
    )


def fetch_frame(topic: str, partitions: Iterable[int], offset: int, max_bytes: int) -> bytes:
    """Return a full fetch that does not wait."""
    wanted = [
        FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        for partition in partitions
    ]
    return frame(
        FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=max_bytes,
            session_epoch=-1,
            topics=[FetchTopic(topic=topic, partitions=wanted)],
            forgotten_topics_data=[],
        ),
        FETCH_VERSION,
    )


def list_offsets_frame(topic: str, partitions: Iterable[int], timestamp: int = LATEST) -> bytes:
    wanted = [
        ListOffsetsPartition(partition_index=partition, timestamp=timestamp) for partition in partitions
    ]
    return frame(
        ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=wanted)]),
        LIST_OFFSETS_VERSION,
    )


def metadata_frame(topics: list[str] | None) -> bytes:
    named = None if topics is None else [MetadataRequestTopic(name=topic) for topic in topics]
    return frame(MetadataRequest(topics=named), METADATA_VERSION)


def again(request: bytes) -> Iterator[bytes]:
    """Repeat a request without end."""
    return repeat(request)


def connect(server: Server) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def ask(sock: socket.socket, request: bytes) -> bytes:
    """Send one request; return its answer without the length."""
    sock.sendall(request)
    stream = sock.makefile("rb", buffering=1 << 16)
    head = stream.read(4)
    if len(head) < 4:
        raise RuntimeError("the server closed the connection instead of answering")
    return stream.read(_LENGTH.unpack(head)[0])


def end_offsets(server: Server, topic: str, partitions: Iterable[int], wait_s: float = 0.0) -> int:
    """Return the sum of the partitions' end offsets; ask again for `wait_s` while one of them has an error.

    Raise RuntimeError if it still has one then.
    """
    request = list_offsets_frame(topic, partitions)
    version = ListOffsetsResponse.header_version(LIST_OFFSETS_VERSION)
    deadline = time.perf_counter() + wait_s
    with connect(server) as sock:
        while True:
            answer = ask(sock, request)
            _, position = decode_response_header(answer, version)
            response = ListOffsetsResponse.decode(answer, LIST_OFFSETS_VERSION, None, position)
            found = [partition for topic_ in response.topics for partition in topic_.partitions]
            failed = [partition for partition in found if partition.error_code]
            if not failed:
                return sum(partition.offset for partition in found)
            if time.perf_counter() > deadline:
                raise RuntimeError(
                    f"{server.name}: ListOffsets of {topic} failed for {len(failed)} partitions: {failed[:1]}"
                )
            time.sleep(0.01)


class _Driver:
    """One connection with a fixed number of requests under way."""

    def __init__(self, sock: socket.socket, requests: Iterator[bytes]) -> None:
        self.sock = sock
        self.requests = requests
        self.unsent = b""
        self.head = b""
        self.missing = 0  # bytes of the answer that is being received
        self.answered = 0

    def send(self, data: bytes) -> None:
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        self.unsent = data[sent:]

    def received(self, view: memoryview) -> int:
        """Count the answers that end in `view`."""
        position, end, ended = 0, len(view), 0
        while position < end:
            if self.missing:
                step = min(self.missing, end - position)
                self.missing -= step
                position += step
            elif not self.head and end - position >= 4:
                self.missing = _LENGTH.unpack_from(view, position)[0]
                position += 4
            else:
                step = min(4 - len(self.head), end - position)
                self.head += view[position : position + step]
                position += step
                if len(self.head) == 4:
                    self.missing = _LENGTH.unpack(self.head)[0]
                    self.head = b""
            if not self.missing and not self.head:
                ended += 1
        self.answered += ended
        return ended


def drive(
    servers: Server | Sequence[Server],
    requests: list[Iterable[bytes]],
    under_way: int,
    seconds: float = float("inf"),
) -> Load:
    """Run one connection for each of `requests`, to the servers in turn, `under_way` of its requests at a time.

    It ends with the requests or, if that is earlier, after `seconds`. Requests under way at that time are answered.
    """
    if isinstance(servers, Server):
        servers = [servers]
    name = servers[0].name
    processes = {server.port: server for server in servers}.values()
    poll = select.epoll()
    drivers: dict[int, _Driver] = {}
    for source, server in zip(requests, cycle(servers)):
        sock = connect(server)
        sock.setblocking(False)
        drivers[sock.fileno()] = _Driver(sock, iter(source))
        poll.register(sock.fileno(), select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    buffer = memoryview(bytearray(1 << 20))
    sent = received = answered = 0
    cpu, started = sum(server.cpu_seconds() for server in processes), time.perf_counter()
    deadline = started + seconds

    def send_next(driver: _Driver) -> int:
        if time.perf_counter() > deadline:
            return 0
        request = next(driver.requests, None)
        if request is None:
            return 0
        if driver.unsent:
            driver.unsent += request
        else:
            driver.send(request)
        return 1

    for driver in drivers.values():
        for _ in range(under_way):
            sent += send_next(driver)
    while answered < sent:
        for fd, event in poll.poll(30) or [(-1, 0)]:
            if fd < 0:
                raise RuntimeError(f"{name}: {sent - answered} requests unanswered for 30 s")
            driver = drivers[fd]
            if event & select.EPOLLOUT and driver.unsent:
                driver.send(driver.unsent)
            if not event & select.EPOLLIN:
                continue
            while True:
                try:
                    count = driver.sock.recv_into(buffer)
                except BlockingIOError:
                    break
                if not count:
                    raise RuntimeError(f"{name} closed a connection")
                received += count
                ended = driver.received(buffer[:count])
                answered += ended
                for _ in range(ended):
                    sent += send_next(driver)
                if count < len(buffer):
                    break
    elapsed = time.perf_counter() - started
    cpu = sum(server.cpu_seconds() for server in processes) - cpu
    for driver in drivers.values():
        driver.sock.close()
    poll.close()
    return Load(answered, elapsed, cpu, received)


def produce(
    server: Server,
    topic: str,
    partitions: int,
    connections: int,
    under_way: int,
    seconds: float,
    *,
    records: int,
    size: int,
) -> Load:
    """Send the same batch from every connection, its partition in turn, and check the log's end."""
    data = batch(records, size)
    before = end_offsets(server, topic, range(partitions), NEW_TOPIC_SECONDS)
    sources: list[Iterable[bytes]] = [
        again(produce_frame(topic, [number % partitions], data)) for number in range(connections)
    ]
    load = drive(server, sources, under_way, seconds)
    written = end_offsets(server, topic, range(partitions)) - before
    if written != load.requests * records:
        raise RuntimeError(
            f"{server.name}: {load.requests * records} records acknowledged, {written} are there"
        )
    return load


def fill(server: Server, topic: str, size: int) -> None:
    """Bring partition 0 of the topic to at least `size` bytes more."""
    request = produce_frame(topic, [0], batch(900, 1_000))
    drive(server, [repeat(request, -(-size // 900_000))], 4)


def fetch(server: Server, topic: str, records: int, written: int, *, batches: int) -> Load:
    """Read partition 0, `written` batches of `records` records of 1 KB, `batches` of them with each request.

    One connection has four requests under way. The total length is checked.
    """
    size_max = batches * (records * 1_100 + 200)
    requests = [
        fetch_frame(topic, [0], first * records, size_max) for first in range(0, written - batches, batches)
    ]
    load = drive(server, [requests], 4)
    expected = len(requests) * batches * records * 1_000
    if load.received_bytes < expected:
        raise RuntimeError(f"{server.name}: {load.received_bytes} of {expected} bytes fetched")
    return load


def write_to_all(server: Server, topic: str, partitions: int, timeout_s: float = 60.0) -> None:
    """Write one record to each partition, again and again to those that do not accept it yet."""
    records = batch(1, 100)
    missing = list(range(partitions))
    deadline = time.perf_counter() + timeout_s
    version = ProduceResponse.header_version(PRODUCE_VERSION)
    with connect(server) as sock:
        while missing:
            answer = ask(sock, produce_frame(topic, missing, records))
            _, position = decode_response_header(answer, version)
            response = ProduceResponse.decode(answer, PRODUCE_VERSION, None, position)
            told = [partition for topic_ in response.responses for partition in topic_.partition_responses]
            missing = [partition.index for partition in told if partition.error_code]
            if missing and time.perf_counter() > deadline:
                raise RuntimeError(f"{server.name}: {len(missing)} partitions of {topic} accept nothing")
