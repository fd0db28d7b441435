"""TLS listeners over real loopback sockets: the promises of plain ones, and the limits for strangers."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

import pytest

from headrace.broker.net.limits import Limits
from headrace.broker.net.listener import Network
from headrace.broker.net.tls import TlsError
from headrace.broker.security.principal import ANONYMOUS, Principal, Session
from headrace.broker.tests.net.test_connection import Stood, close, frame, read_frame, run, until
from simulator.certificates import identity

AUTHORITY = identity("authority")
SERVER = identity("localhost", AUTHORITY, rsa_bits=2048)
CLIENT = identity("ann", AUTHORITY)


class Encryption:
    """The encryption of a listener that accepts clients without a certificate, or with one signed by the authority."""

    def __init__(self, folder) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(SERVER.write(folder, "server"))
        self.context.load_verify_locations(cadata=AUTHORITY.certificate_pem)
        self.context.verify_mode = ssl.CERT_OPTIONAL
        self.refusal = ""

    def admit(self, stream) -> Principal:
        if self.refusal:
            raise TlsError(self.refusal)
        return ANONYMOUS if stream.peer_certificate() is None else Principal("User", "CN=ann")


@pytest.fixture(scope="module")
def encryption(tmp_path_factory) -> Encryption:
    return Encryption(tmp_path_factory.mktemp("tls"))


def client_context(folder=None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
    if folder is not None:
        context.load_cert_chain(CLIENT.write(folder, "client"))
    return context


@asynccontextmanager
async def network(answerer, encryption, *, with_sasl=False, in_thread=True, **limits):
    threads = ThreadPoolExecutor(1) if in_thread else None
    net = Network(answerer, Limits(**limits), loop=asyncio.get_running_loop(), handshakes_in=threads)
    net.bind("127.0.0.1", 0, name="SECURE", encryption=encryption, with_sasl=with_sasl)
    net.bind("127.0.0.1", 0, name="PLAIN", with_sasl=with_sasl)
    net.start_listening()
    try:
        yield net
    finally:
        net.close()
        await asyncio.sleep(0)
        if threads is not None:
            threads.shutdown()


def echo(peer, body):
    return [bytes(body)]


def connect(net, context=None):
    return asyncio.open_connection(
        "127.0.0.1",
        net.port,
        ssl=context or client_context(),
        server_hostname="localhost",
        limit=1 << 20,
    )


class FileRegion:
    def __init__(self, file, position: int, size: int) -> None:
        self.file, self.position, self.size = file, position, size

    def fileno(self) -> int:
        return self.file.fileno()


@pytest.mark.parametrize("in_thread", [True, False])
@pytest.mark.parametrize("scratch", [64, 256 * 1024])
def test_frames_of_all_sizes_come_whole_and_in_order(encryption, scratch, in_thread) -> None:
    bodies = [os.urandom(size) for size in (1, 40, 5000, 70_000, 300_000, 3)]

    async def test() -> None:
        async with network(echo, encryption, in_thread=in_thread, scratch_bytes=scratch) as net:
            reader, writer = await connect(net)
            for body in bodies:
                writer.write(frame(body))
            for body in bodies:
                assert await read_frame(reader) == body
            await close(writer)
            await until(lambda: net.connection_count == 0)
            assert net.pending_handshakes == 0

    run(test)


def test_regions_of_files_are_encrypted_with_what_is_around_them(encryption, tmp_path) -> None:
    data = os.urandom(1_500_000)
    path = tmp_path / "segment"
    path.write_bytes(data)

    async def test() -> None:
        with path.open("rb") as file:

            def answerer(peer, body):
                return [
                    b"head",
                    FileRegion(file, 1000, 1_200_000),
                    bytearray(b"mid"),
                    FileRegion(file, 3, 7),
                    b"end",
                ]

            async with network(answerer, encryption) as net:
                reader, writer = await connect(net)
                writer.write(frame(b"a") + frame(b"b"))
                for _ in range(2):
                    expected = b"head" + data[1000:1_201_000] + b"mid" + data[3:10] + b"end"
                    assert await read_frame(reader) == expected
                await close(writer)

    run(test)


def test_a_region_beyond_its_file_ends_the_connection(encryption, tmp_path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"x" * 100)

    async def test() -> None:
        with path.open("rb") as file:
            async with network(lambda peer, body: [b"h", FileRegion(file, 0, 500)], encryption) as net:
                _, writer = await connect(net)
                writer.write(frame(b"a"))
                await until(lambda: net.connection_count == 0)
                with suppress(ssl.SSLError):  # the rest came after its close
                    await close(writer)

    run(test)


def test_a_slow_reader_gets_everything_and_is_held_up_meanwhile(encryption) -> None:
    body = os.urandom(400_000)
    asked = []

    def answerer(peer, _):
        asked.append(1)
        return [body]

    async def test() -> None:
        async with network(answerer, encryption, send_buffer_bytes=8192) as net:
            reader, writer = await connect(net)
            writer.write(frame(b"x") * 30)
            await until(lambda: len(asked) >= 3)
            await asyncio.sleep(0.05)
            assert len(asked) < 10
            for _ in range(30):
                assert await read_frame(reader) == body
            await close(writer)

    run(test)


def test_a_broker_that_stops_waits_until_what_is_encrypted_has_left(encryption) -> None:
    body = os.urandom(200_000)

    def connect_slowly(port: int) -> ssl.SSLSocket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", port))
        secure = client_context().wrap_socket(sock, server_hostname="localhost")
        secure.sendall(frame(b"x"))
        return secure

    def read_all(sock: ssl.SSLSocket) -> bytes:
        found = b""
        while len(found) < 4 + len(body):
            found += sock.recv(1 << 16)
        return found

    async def test() -> None:
        asked = asyncio.Event()

        def answerer(peer, _):
            asked.set()
            return [body]

        async with network(answerer, encryption, send_buffer_bytes=4096) as net:
            loop = asyncio.get_running_loop()
            sock = await loop.run_in_executor(None, connect_slowly, net.port)
            await asked.wait()
            drained = asyncio.ensure_future(net.drain(60))
            await asyncio.sleep(0.05)
            assert not drained.done()
            assert await loop.run_in_executor(None, read_all, sock) == frame(body)
            await drained
            sock.close()

    run(test)


def test_the_principal_comes_from_the_certificate(encryption, tmp_path) -> None:
    sessions: list[Session] = []

    def answerer(peer, body):
        sessions.append(peer.session)
        return [b"ok"]

    async def test() -> None:
        async with network(answerer, encryption) as net:
            for context in (client_context(), client_context(tmp_path)):
                reader, writer = await connect(net, context)
                writer.write(frame(b"x"))
                await read_frame(reader)
                await close(writer)

    run(test)
    assert [(str(each.principal), each.listener, each.mechanism) for each in sessions] == [
        ("User:ANONYMOUS", "SECURE", "SSL"),
        ("User:CN=ann", "SECURE", "SSL"),
    ]


def test_a_sasl_listener_ignores_the_certificates_principal(encryption, tmp_path) -> None:
    sessions = []

    async def test() -> None:
        async with network(lambda peer, _: sessions.append(peer.session), encryption, with_sasl=True) as net:
            _, writer = await connect(net, client_context(tmp_path))
            writer.write(frame(b"x"))
            await until(lambda: sessions)
            await close(writer)

    run(test)
    assert sessions == [None]


@pytest.mark.parametrize("listener", [0, 1])
def test_frames_before_authentication_are_limited_in_size(encryption, listener) -> None:
    def answerer(peer, body):
        peer.session = Session(Principal("User", "ann"), peer.listener)
        return [struct.pack(">i", len(body))]

    async def test() -> None:
        async with network(answerer, encryption, with_sasl=True) as net:
            port = net.listeners[listener].port
            context = None if listener else client_context()
            name = None if listener else "localhost"
            for first, is_taken in ((512 * 1024, True), (512 * 1024 + 1, False)):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=context, server_hostname=name
                )
                writer.write(frame(b"x" * first))
                if is_taken:
                    assert await read_frame(reader) == struct.pack(">i", first)
                    writer.write(frame(b"x" * 3_000_000))
                    assert await read_frame(reader) == struct.pack(">i", 3_000_000)
                else:
                    with suppress(ConnectionError):
                        assert await reader.read() == b""
                await close(writer)

    run(test)


def test_a_mismatch_of_tls_and_plaintext_closes_with_one_log_line(encryption, caplog) -> None:
    caplog.set_level(logging.DEBUG, "headrace.net")

    async def test() -> None:
        async with network(echo, encryption) as net:
            plain_reader, plain_writer = await asyncio.open_connection("127.0.0.1", net.port)
            plain_writer.write(frame(b"\x00\x12\x00\x03\x00\x00\x00\x01\x00\x04test"))
            await plain_reader.read()
            await close(plain_writer)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(
                    "127.0.0.1", net.listeners[1].port, ssl=client_context(), server_hostname="localhost"
                )
            await until(lambda: net.connection_count == 0)

    run(test)
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [line.getMessage().partition(": ")[2] for line in lines] == [
        "the TLS handshake failed: it does not use TLS, and this listener requires it",
        "it uses TLS, and this listener does not",
    ]
    assert not any(line.exc_info for line in lines)


def test_a_client_without_a_principal_is_closed_before_its_request(encryption, tmp_path, caplog) -> None:
    asked = []

    async def test() -> None:
        async with network(lambda peer, body: asked.append(body), encryption) as net:
            encryption.refusal = "no rule matches"
            try:
                reader, writer = await connect(net, client_context(tmp_path))
                writer.write(frame(b"x"))
                with suppress(ConnectionError):
                    assert await reader.read() == b""
                await close(writer)
            finally:
                encryption.refusal = ""

    run(test)
    assert asked == []
    assert "no rule matches" in caplog.text


async def _last_words(net, listener: int, context=None, sent: bytes = b"") -> None:
    """Connect, send, and wait until the broker closes."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1",
        net.listeners[listener].port,
        ssl=context,
        server_hostname="localhost" if context else None,
    )
    writer.write(sent)
    with suppress(ConnectionError):
        assert await reader.read() == b""
    await close(writer)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00"])
def test_a_handshake_has_a_deadline(encryption, caplog, sent) -> None:
    async def test() -> None:
        async with network(echo, encryption, handshake_seconds_max=0.1) as net:
            await _last_words(net, 0, sent=sent)
            assert net.pending_handshakes == 0

    run(test)
    assert caplog.text.count("it has not completed the TLS handshake in 0.1 s") == 1


def test_authentication_has_a_deadline_with_tls_and_without(encryption, caplog) -> None:
    async def test() -> None:
        limits = {"handshake_seconds_max": 15, "authentication_seconds_max": 15.25}
        async with network(echo, encryption, with_sasl=True, **limits) as net:
            await _last_words(net, 0, client_context())
        async with network(echo, encryption, with_sasl=True, authentication_seconds_max=0.125) as net:
            await _last_words(net, 1)

    run(test)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "it has not authenticated in 0.25 s",
        "it has not authenticated in 0.125 s",
    ]


def test_handshakes_beyond_the_rate_wait_and_a_full_queue_drops_the_oldest(
    encryption,
) -> None:
    limits = {
        "handshakes_per_address_per_second_max": 2,
        "handshakes_pending_per_address_max": 4,
        "handshake_seconds_max": 60,
    }

    async def test() -> None:
        async with network(echo, encryption, **limits) as net:
            clock = net.loop = Stood(net.loop)
            waiting = []
            for number in range(5):
                sock = socket.create_connection(("127.0.0.1", net.port))
                sock.setblocking(False)
                waiting.append(sock)
                await until(lambda number=number: net._next_id == number + 1)
                assert net.pending_handshakes == min(number + 1, 4)
            with waiting.pop(0) as oldest, suppress(ConnectionError):
                assert await asyncio.get_running_loop().sock_recv(oldest, 1) == b""
            shaken = [
                asyncio.ensure_future(
                    asyncio.open_connection(sock=sock, ssl=client_context(), server_hostname="localhost")
                )
                for sock in waiting
            ]
            for served in (2, 3, 4):
                await asyncio.gather(*shaken[:served])
                await until(lambda served=served: net.pending_handshakes == 4 - served)
                await asyncio.sleep(0.1)
                assert [each.done() for each in shaken] == [True] * served + [False] * (4 - served)
                clock.now += 0.5
            for each in shaken:
                await close((await each)[1])

    run(test)


def test_silent_peers_delay_no_other(encryption) -> None:
    limits = {"handshakes_per_address_per_second_max": 1, "handshakes_pending_per_address_max": 20}

    async def test() -> None:
        async with network(echo, encryption, **limits) as net:
            net.loop = Stood(net.loop)
            silent = []
            for number in range(30):
                silent.append((await asyncio.open_connection("127.0.0.1", net.port))[1])
                await until(lambda number=number: net._next_id == number + 1)
            reader, writer = await connect(net)
            writer.write(frame(b"served"))
            assert await read_frame(reader) == b"served"
            assert net.pending_handshakes == 19
            for each in (writer, *silent):
                await close(each)

    run(test)


def test_a_client_that_goes_amid_its_handshake_leaves_nothing(encryption) -> None:
    async def test() -> None:
        async with network(echo, encryption) as net:
            for cut in (1, 5, 100, 400):
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                tls = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
                with suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                _, writer = await asyncio.open_connection("127.0.0.1", net.port)
                writer.write(outgoing.read()[:cut])
                await writer.drain()
                await close(writer)
            await until(lambda: net.connection_count == 0)
            assert net.pending_handshakes == 0
            assert not net._deadlines
            reader, writer = await connect(net)
            writer.write(frame(b"still"))
            assert await read_frame(reader) == b"still"
            await close(writer)

    run(test)
