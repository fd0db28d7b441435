"""A stranger's bytes: SASL exchanges and TLS handshakes, damaged and cut in every way.

There are no sockets: bytes go into the exchange of a connection, and its frames to the SASL handler and a whole broker
behind it. HEADRACE_STRANGER_SEED and HEADRACE_STRANGER_ROUNDS choose the bytes of the long run (`-m soak`).
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.broker.api.sasl import SaslDoor
from headrace.broker.net.exchange import Exchange
from headrace.broker.net.limits import Limits
from headrace.broker.net.pool import FramePool
from headrace.broker.net.reply import Answer, CloseConnection, Peer, Pending
from headrace.broker.net.tls import TlsError, TlsStream
from headrace.broker.security.sasl.authentication import Mechanism
from headrace.broker.security.sasl.plain import PlainExchange, PlainUsers
from headrace.broker.tests.security.sasl_clients import ScramClient, credential, exchange
from headrace.protocol.headers import RequestHeader, encode_request_header
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.protocol.schema import ApiMessage
from simulator.certificates import identity
from simulator.direct import direct_broker

SEED = int(os.environ.get("HEADRACE_STRANGER_SEED", "1"))
ROUNDS = int(os.environ.get("HEADRACE_STRANGER_ROUNDS", "200000"))
PASSWORDS = {"ann": "secret-1", "bob": "secret-2"}
SCRAM_USERS = {"ann": credential("secret-1")}
LIMITS = Limits()
MEMORY_MAX = 1 << 20
"""Maximum memory of a connection before it is authenticated."""


def frame(request: ApiMessage, version: int) -> bytes:
    header = RequestHeader(request.API_KEY, version, 1, "c")
    body = encode_request_header(header, request.header_version(version)) + request.encode(version)
    return struct.pack(">i", len(body)) + body


def raw(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Damage one to four places, or return nothing."""
    if chance.random() < 0.15:
        return b""
    damage = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(damage) + 1)
        kind = chance.randrange(6)
        if kind == 0 and place < len(damage):
            damage[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            damage[place:place] = chance.randbytes(chance.randint(1, 8))
        elif kind == 2:
            del damage[place : place + chance.randint(1, 8)]
        elif kind == 3:
            damage[place : place + 4] = struct.pack(
                ">i", chance.choice((0, -1, 1, 2**31 - 1, 524288, 524289))
            )
        elif kind == 4:
            damage[place:place] = damage[: chance.randint(0, 60)]
        else:
            del damage[chance.randrange(len(damage) + 1) :]
    return bytes(damage)


class Conversation:
    """A connection to a listener with SASL, and the requests that are let through."""

    def __init__(self, inner: Callable[[Peer, bytes | memoryview], Answer]) -> None:
        self.exchange = Exchange(LIMITS, FramePool(1 << 20), memoryview(bytearray(256)))
        self.exchange.incoming.size_max = LIMITS.unauthenticated_request_bytes_max
        self.peer = Peer(7, "10.0.0.7", 1, "SASL", None)
        self.told = b""
        self.passed: set[bytes] = set()
        """API keys of requests that were let through before authentication."""
        self._inner = inner
        mechanisms = {
            "PLAIN": Mechanism(lambda: PlainExchange(PlainUsers(PASSWORDS))),
            "SCRAM-SHA-256": Mechanism(lambda: exchange(SCRAM_USERS)),
        }
        self._door = SaslDoor(self._pass, {"SASL": mechanisms}, time.monotonic, lambda: 0, lambda: 0.0)

    def _pass(self, peer: Peer, frame: bytes | memoryview) -> Answer:
        if peer.session is None:
            self.passed.add(bytes(frame[:2]))
        return self._inner(peer, frame)

    async def send(self, data: bytes, chance: random.Random) -> bool:
        """Send in pieces; return whether the connection stays open."""
        incoming = self.exchange.incoming
        try:
            while data:
                room = incoming.room()
                count = min(len(room), len(data), chance.choice((1, 3, 50, 256)))
                room[:count] = data[:count]
                del room
                data = data[count:]
                incoming.received(count)
                self.exchange.check_invariants()
                await self._answer()
        except CloseConnection:
            return False
        held = incoming._assembling
        assert held is None or len(held) <= MEMORY_MAX
        return True

    async def _answer(self) -> None:
        while (taken := self.exchange.take()) is not None:
            answer = self._door(self.peer, taken)
            if isinstance(answer, Pending):
                outcome = asyncio.ensure_future(answer.outcome)
                await asyncio.wait([outcome])
                answer = answer.finish(outcome)
            self.told = b"" if answer is None else b"".join(bytes(part) for part in answer)  # type: ignore[arg-type]
            self.exchange.answer(answer)
            if type(taken) is memoryview:
                self.exchange.incoming.release(taken)
            self.exchange.unsent.clear()


async def converse(
    talk: Conversation, chance: random.Random, password: str, damage: Callable[[bytes], bytes]
) -> None:
    """Act as a client with this password; `damage` changes each of its messages."""
    with_scram, version = chance.random() < 0.5, chance.randrange(2)

    def said(message: bytes) -> bytes:
        whole = (
            frame(SaslAuthenticateRequest(auth_bytes=message), chance.randrange(3))
            if version
            else raw(message)
        )
        return damage(whole)

    mechanism = "SCRAM-SHA-256" if with_scram else "PLAIN"
    asked = ApiVersionsRequest(client_software_name="c", client_software_version="1")
    first = damage(frame(asked, chance.randrange(5)) if chance.random() < 0.5 else b"")
    if not await talk.send(first + damage(frame(SaslHandshakeRequest(mechanism=mechanism), version)), chance):
        return
    if not with_scram:
        message = f"\0ann\0{password}".encode()
        await talk.send(said(message) + damage(frame(MetadataRequest(topics=[]), 12)), chance)
        return
    client = ScramClient("ann", password)
    if not await talk.send(said(client.first), chance):
        return
    begin = talk.told.find(b"r=")
    if begin >= 0:
        try:
            final = client.final(talk.told[begin:].rstrip(b"\0").split(b"\0")[0])
        except (ValueError, KeyError):
            return
        await talk.send(said(final) + damage(frame(MetadataRequest(topics=[]), 12)), chance)


async def talk_a_lot(tmp_path: Path, seed: int, rounds: int) -> tuple[int, int]:
    """Return the numbers of undamaged and of damaged conversations that got in."""
    whole = broken = 0
    async with direct_broker(tmp_path) as broker:
        for number in range(rounds):
            chance = random.Random(f"{seed} {number}")
            talk = Conversation(broker.broker.dispatcher)
            kind = number % 3
            try:
                if kind == 0:
                    await converse(talk, chance, "secret-1", lambda data: data)
                elif kind == 1:
                    await converse(
                        talk,
                        chance,
                        "secret-1",
                        lambda data, chance=chance: damaged(data, chance) if chance.random() < 0.4 else data,
                    )
                else:
                    await converse(
                        talk,
                        chance,
                        "wrong",
                        lambda data, chance=chance: damaged(data, chance) if chance.random() < 0.6 else data,
                    )
            except Exception as error:
                raise AssertionError(f"seed {seed}, round {number}: {error!r}") from error
            assert talk.passed <= {b"\0\x12"}, (seed, number, "nothing but ApiVersions passes before")
            session = talk.peer.session
            if kind == 2:
                assert session is None, (seed, number)
            else:
                assert session is None or str(session.principal) == "User:ann", (seed, number)
                whole += kind == 0 and session is not None
                broken += kind == 1 and session is not None
    return whole, broken


async def test_damaged_conversations_authenticate_no_client_and_raise_nothing(tmp_path: Path) -> None:
    whole, broken = await talk_a_lot(tmp_path, SEED, 1500)
    assert whole == 500, "a correct conversation succeeds"
    assert broken > 20, "some of the damage is of no importance"


# -- TLS ---------------------------------------------------------------------------------------------------


def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = identity("authority")
    path = identity("localhost", authority).write(tmp_path, "server")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    client = ssl.create_default_context(cadata=authority.certificate_pem)
    return server, client


def shake(
    server: ssl.SSLContext, client: ssl.SSLContext, damage: Callable[[int, bytes], bytes]
) -> tuple[bool, bytes]:
    """Return whether the server completes the handshake, and the bytes that it reads after that.

    `damage` gets each flight of the client, with its number. The client sends b"hello" at once.
    """
    stream = TlsStream(server)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    peer = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    is_complete, is_shaken, read, complaint = False, False, b"", ""
    room = memoryview(bytearray(100))
    for flight in range(6):
        try:
            if not is_shaken:
                peer.do_handshake()
                is_shaken = True
                peer.write(b"hello")
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            is_shaken = True  # the client gives up; its alert goes to the server
        stream.received(memoryview(damage(flight, to_server.read())))
        try:
            is_complete = is_complete or stream.handshake()
            while is_complete and (count := stream.read_into(room)):
                read += bytes(room[:count])
        except TlsError as error:
            complaint = str(error)
            stream.outgoing()
            break
        to_client.write(stream.outgoing())
    assert "\n" not in complaint
    assert len(complaint) < 400
    return is_complete, read


def shake_a_lot(tmp_path: Path, seed: int, rounds: int) -> int:
    """Return the number of damaged handshakes that were completed."""
    server, client = contexts(tmp_path)
    assert shake(server, client, lambda flight, data: data) == (True, b"hello")
    completed = 0
    for number in range(rounds):
        chance = random.Random(f"{seed} {number}")
        which = chance.choice((0, 0, 1, 2))
        try:
            is_complete, read = shake(
                server,
                client,
                lambda flight, data, which=which, chance=chance: (
                    damaged(data, chance) if flight == which and data else data
                ),
            )
        except Exception as error:
            raise AssertionError(f"seed {seed}, round {number}: {error!r}") from error
        assert b"hello".startswith(read), (seed, number)
        assert is_complete or not read
        completed += is_complete
    return completed


def test_damaged_handshakes_are_refused_in_one_line_and_nothing_is_read_that_was_not_said(
    tmp_path: Path,
) -> None:
    completed = shake_a_lot(tmp_path, SEED, 600)
    assert 0 < completed < 450, "those that were damaged before their end are not"


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_soak_stranger_bytes(tmp_path: Path) -> None:
    print(f"HEADRACE_STRANGER_SEED={SEED} HEADRACE_STRANGER_ROUNDS={ROUNDS}")
    await talk_a_lot(tmp_path / "talks", SEED, ROUNDS)
    (tmp_path / "tls").mkdir()
    shake_a_lot(tmp_path / "tls", SEED, ROUNDS // 5)
