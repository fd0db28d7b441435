"""TLS without a socket, against the standard library's client side, and the order of its handshakes."""

from __future__ import annotations

import random
import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.net.handshakes import HandshakeQueue
from headrace.broker.net.limits import Limits
from headrace.broker.net.tls import TlsError, TlsStream
from simulator.certificates import Identity, identity

AUTHORITY = identity("authority")
SERVER = identity("localhost", AUTHORITY)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> ssl.SSLContext:
    return server_context(tmp_path_factory.mktemp("tls"))


def server_context(folder, own: Identity = SERVER) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.write(folder, "server"))
    return context


def client_context(version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
    context.minimum_version = context.maximum_version = version
    return context


class Client:
    """The other side: plain bytes in `sent` and out of `read`, encrypted ones through `incoming` and `outgoing`."""

    def __init__(self, version: ssl.TLSVersion) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = client_context(version).wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def handshake(self) -> bool:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def read(self) -> bytes:
        found = b""
        while True:
            try:
                found += self.tls.read(1 << 16)
            except ssl.SSLWantReadError:
                return found


def shake(server: ssl.SSLContext, version: ssl.TLSVersion, size: int = 1 << 20) -> tuple[TlsStream, Client]:
    """Run a handshake whose messages come in pieces of `size` bytes."""
    stream, client = TlsStream(server), Client(version)
    is_done = [False, False]
    for _ in range(10):
        is_done[0] = is_done[0] or client.handshake()
        sent = client.outgoing.read()
        for start in range(0, len(sent), size):
            stream.received(memoryview(sent)[start : start + size])
            is_done[1] = is_done[1] or stream.handshake()
        client.incoming.write(stream.outgoing())
        if all(is_done):
            return stream, client
    raise AssertionError("the handshake does not end")


def drain(stream: TlsStream, room: int) -> bytes:
    found, buffer = b"", memoryview(bytearray(room))
    while count := stream.read_into(buffer):
        found += buffer[:count]
    return found


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@settings(max_examples=60, deadline=None)
@given(
    version=st.sampled_from(VERSIONS),
    step=st.integers(1, 600),
    writes=st.lists(st.integers(1, 70_000), max_size=6),
    cuts=st.lists(st.integers(1, 30_000), min_size=1, max_size=20),
    room=st.integers(1, 40_000),
    seed=st.integers(0, 2**32),
)
def test_tls_data_arrives_whole_in_pieces_of_any_size(
    server, version, step, writes, cuts, room, seed
) -> None:
    stream, client = shake(server, version, step)
    chance = random.Random(seed)
    sent = b""
    for size in writes:
        data = chance.randbytes(size)
        client.tls.write(data)
        sent += data
    encrypted = memoryview(client.outgoing.read())
    got, position = b"", 0
    while position < len(encrypted):
        cut = cuts[position % len(cuts)]
        stream.received(encrypted[position : position + cut])
        got += drain(stream, room)
        position += cut
    assert got == sent
    assert not stream.is_closed

    answers = b""
    for size in writes:
        data = chance.randbytes(size)
        stream.write(data)
        answers += data
    client.incoming.write(stream.outgoing())
    assert client.read() == answers
    assert not stream.has_outgoing


@pytest.mark.parametrize("version", VERSIONS)
def test_close_notify_is_sent_and_received(server, version) -> None:
    stream, client = shake(server, version)
    client.read()
    client.tls.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    stream.received(memoryview(client.outgoing.read()))
    assert drain(stream, 100) == b"last"
    assert stream.is_closed
    stream.close()
    client.incoming.write(stream.outgoing())
    client.tls.unwrap()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_changed_byte_ends_the_stream(server, version) -> None:
    stream, client = shake(server, version)
    client.tls.write(b"x" * 1000)
    encrypted = bytearray(client.outgoing.read())
    encrypted[500] ^= 1
    stream.received(memoryview(encrypted))
    with pytest.raises(TlsError, match="TLS failed"):
        drain(stream, 2000)


def test_a_second_handshake_on_the_same_connection_is_refused() -> None:
    """OpenSSL would shake hands again and again for a client of TLS 1.2 that asks; the context forbids it."""
    from headrace.broker.security.tls.listener_tls import TlsSettings, load_tls
    from headrace.broker.security.tls.stores import Store

    keys = Store("ssl.keystore", "PEM", None, None, SERVER.certificate_pem, SERVER.key_pem())
    trusted = Store("ssl.truststore", "PEM", None, None, AUTHORITY.certificate_pem)
    context = load_tls(
        TlsSettings("SSL", keys, trusted, "none", "DEFAULT", ("TLSv1.2",), (), False, False)
    ).context
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), changes=st.integers(1, 8), is_cut=st.booleans())
def test_no_bytes_of_a_handshake_raise_anything_else(server, seed, changes, is_cut) -> None:
    """Bit flips, inserted and lost bytes in both messages of a client, and noise."""
    chance = random.Random(seed)
    stream, client = TlsStream(server), Client(chance.choice(VERSIONS))
    try:
        for _ in range(3):
            try:
                client.handshake()
            except ssl.SSLError:
                break
            sent = bytearray(client.outgoing.read())
            if chance.random() < 0.6:
                for _ in range(changes):
                    where = chance.randrange(len(sent) + 1)
                    sent[where : where + chance.randrange(2)] = chance.randbytes(chance.randrange(3))
            if is_cut:
                del sent[chance.randrange(len(sent) + 1) :]
            stream.received(memoryview(bytes(sent)))
            if stream.handshake():
                drain(stream, 1000)
                break
            client.incoming.write(stream.outgoing())
    except TlsError as error:
        refused = str(error)
    else:
        refused = ""
    assert "\n" not in refused
    assert len(refused) < 400


@pytest.mark.parametrize(
    "first",
    [
        b"\x00\x00\x00\x14\x00\x12\x00\x03\x00\x00\x00\x01\x00\x04test\x00\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\n\r\n",
    ],
)
def test_a_plaintext_client_is_recognized(server, first) -> None:
    stream = TlsStream(server)
    stream.received(memoryview(first))
    with pytest.raises(TlsError, match="it does not use TLS, and this listener requires it"):
        stream.handshake()


# -- turns -------------------------------------------------------------------------------------------------

LIMITS = Limits(
    handshakes_per_second_max=20,
    handshakes_per_address_per_second_max=5,
    handshakes_pending_max=40,
    handshakes_pending_per_address_max=30,
)


def test_handshakes_of_an_address_are_limited_without_delaying_others() -> None:
    queue: HandshakeQueue[tuple[str, int]] = HandshakeQueue()
    assert all(queue.arrive(("busy", number), "busy", LIMITS) for number in range(30))
    assert not queue.arrive(("busy", 30), "busy", LIMITS)
    assert all(queue.arrive(("calm", number), "calm", LIMITS) for number in range(2))
    first = list(queue.due(100.0, LIMITS))
    assert [one for one in first if one[0] == "calm"] == [("calm", 0), ("calm", 1)]
    assert [number for address, number in first if address == "busy"] == [0, 29, 1, 28, 2]
    assert list(queue.due(100.1, LIMITS)) == []
    assert list(queue.due(100.2, LIMITS)) == [("busy", 27)]
    assert len(list(queue.due(200.0, LIMITS))) == 5
    assert queue.pending_count == 32


def test_a_new_client_waits_two_turns_behind_many_of_its_address() -> None:
    queue: HandshakeQueue[int] = HandshakeQueue()
    for number in range(29):
        queue.arrive(number, "a", LIMITS)
    assert len(list(queue.due(0.0, LIMITS))) == 5
    queue.arrive(100, "a", LIMITS)
    assert 100 in list(queue.due(0.4, LIMITS))
    left = [each for second in range(1, 6) for each in queue.due(float(second), LIMITS)]
    assert len(left) == 23
    assert left[-5:] == sorted(left[-5:]), "a line of one second keeps its order"
    assert not queue.is_waited_for


def test_handshakes_of_all_addresses_are_limited_per_second_and_pending() -> None:
    queue: HandshakeQueue[int] = HandshakeQueue()
    taken = [queue.arrive(number, f"10.0.0.{number}", LIMITS) for number in range(45)]
    assert taken == [True] * 40 + [False] * 5
    assert list(queue.due(0.0, LIMITS)) == list(range(20))
    queue.leave(0, "10.0.0.0")
    assert queue.arrive(45, "10.0.0.45", LIMITS)
    assert list(queue.due(0.5, LIMITS)) == list(range(20, 30))


def test_the_oldest_that_is_half_open_gives_way_to_another_of_its_address() -> None:
    queue: HandshakeQueue[int] = HandshakeQueue()
    for number in range(30):
        assert queue.arrive(number, "a", LIMITS, asks=number > 2)
    assert list(queue.due(0.0, LIMITS)) == [3, 29, 4, 28, 5], "silent ones take no turns"
    assert not queue.arrive(30, "a", LIMITS)
    assert queue.oldest("a", LIMITS, lambda one: one in (2, 4)) == 2
    assert queue.oldest("a", LIMITS, lambda one: False) is None, "the server works on all"
    queue.leave(2, "a")
    assert queue.arrive(30, "a", LIMITS)
    assert queue.pending_count == 30


def test_beyond_the_total_limit_the_busiest_address_loses_a_handshake() -> None:
    queue: HandshakeQueue[tuple[str, int]] = HandshakeQueue()
    for address, count in (("few", 10), ("many", 25), ("some", 5)):
        for number in range(count):
            assert queue.arrive((address, number), address, LIMITS)
    assert not queue.arrive(("new", 0), "new", LIMITS)
    assert queue.oldest("new", LIMITS, bool) == ("many", 0)


def test_a_client_that_leaves_the_handshake_queue_is_skipped() -> None:
    queue: HandshakeQueue[int] = HandshakeQueue()
    for number in range(3):
        queue.arrive(number, "a", LIMITS)
    queue.leave(1, "a")
    assert list(queue.due(0.0, LIMITS)) == [0, 2]
    assert not queue.is_waited_for
    queue.leave(0, "a")
    queue.leave(2, "a")
    assert queue.pending_count == 0


def test_allowances_of_many_addresses_are_forgotten() -> None:
    queue: HandshakeQueue[int] = HandshakeQueue()
    wide = Limits()
    for number in range(20_000):
        queue.arrive(number, str(number), wide)
        queue.leave(next(iter(queue.due(number / 100, wide))), str(number))
    assert len(queue._addresses) < 2000
