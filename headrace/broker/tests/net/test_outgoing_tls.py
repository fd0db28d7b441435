"""Outgoing connections over TLS, and requests during their authentication."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable

import pytest

from headrace.broker.net.outgoing import OutgoingConnection
from headrace.broker.net.tls import TlsStream
from headrace.broker.tests.net import test_connection as plain
from headrace.broker.tests.net.test_connection import run, until
from headrace.broker.tests.net.test_tls_connection import (
    Encryption,
    client_context,
    echo,
    encryption,
    network,
)
from simulator.certificates import identity

__all__ = ["encryption"]


class Introduction:
    """An introduction with a TLS context or none, whose authentication is `said`."""

    def __init__(
        self,
        context: ssl.SSLContext | None,
        said: Callable[[OutgoingConnection], Awaitable[float | None]] | None = None,
    ) -> None:
        self.context = context
        self.said = said

    async def encryption(self, host: str) -> TlsStream | None:
        return None if self.context is None else TlsStream(self.context, host)

    async def introduce(self, connection: OutgoingConnection) -> float | None:
        return None if self.said is None else await self.said(connection)


def test_requests_and_answers_of_all_sizes_pass(encryption: Encryption) -> None:
    async def test() -> None:
        async with network(echo, encryption) as net:
            net.introduction = Introduction(client_context())
            connection = await net.connect("127.0.0.1", net.port)
            bodies = [os.urandom(size) for size in (1, 40, 70_000, 1_500_000, 3)]
            answers = await asyncio.gather(*(connection.ask([body[:7], body[7:]]) for body in bodies))
            for body, answer in zip(bodies, answers, strict=True):
                assert answer == body
                if isinstance(answer, memoryview):
                    connection.release(answer)
            (served,) = net._connections
            served.close("enough")
            await until(lambda: connection.closed)

    run(test)


@pytest.mark.parametrize("case", ["authority", "name", "plain"])
def test_a_server_with_a_wrong_certificate_gets_no_request(encryption: Encryption, case: str) -> None:
    async def test() -> None:
        async with network(echo, encryption) as net:
            context = client_context()
            if case == "authority":
                context = ssl.create_default_context(cadata=identity("another").certificate_pem)
            net.introduction = Introduction(context)
            host = "127.0.0.2" if case == "name" else "127.0.0.1"
            port = net.listeners[1].port if case == "plain" else net.port
            if case == "name":
                net.listeners[0].sock.close()
                listening = net.bind("127.0.0.2", 0, name="SECURE", encryption=encryption)
                listening.is_accepting = True
                listening.sock.start(5, lambda: net._on_acceptable(listening))
                port = listening.port
            with pytest.raises(ConnectionError, match="certificate" if case != "plain" else "no connection"):
                await net.connect(host, port)
            assert not net._outgoing

    run(test)


def test_requests_wait_for_each_authentication() -> None:
    seen: list[bytes] = []

    def answer(peer, body):
        seen.append(bytes(body))
        return [bytes(body)]

    async def test() -> None:
        async with plain.network(answer) as net:
            others: list[asyncio.Future] = []

            async def said(connection: OutgoingConnection) -> float | None:
                others.append(asyncio.ensure_future(connection.ask([b"request"])))
                for word in (b"hello", b"me"):
                    await connection.ask_before_others([word])
                return 0.01 if len(others) < 3 else None

            # Normally the first connection has no requests yet, because no caller has it; here there are some.
            net.introduction = Introduction(None, lambda connection: said(connection))
            await net.connect("127.0.0.1", net.port)
            await until(lambda: len(seen) == 9)
            assert seen == [b"hello", b"me", b"request"] * 3
            assert [await each for each in others] == [b"request"] * 3

    run(test)


def test_a_failed_authentication_fails_all_waiting_requests() -> None:
    async def test() -> None:
        async with plain.network(echo) as net:
            waiting: list[asyncio.Future] = []

            async def said(connection: OutgoingConnection) -> float | None:
                waiting.append(connection.ask([b"x"]))
                if len(waiting) < 2:
                    return 0.01
                raise ConnectionAbortedError("a wrong password")

            net.introduction = Introduction(None, said)
            connection = await net.connect("127.0.0.1", net.port)
            assert await waiting[0] == b"x"
            await until(lambda: connection.closed)
            with pytest.raises(ConnectionError, match="a wrong password"):
                await waiting[1]
            waiting.clear()
            waiting.append(asyncio.get_running_loop().create_future())
            with pytest.raises(ConnectionError, match="a wrong password"):
                await net.connect("127.0.0.1", net.port)
            with pytest.raises(ConnectionError, match="a wrong password"):
                await waiting[-1]
            assert not net._outgoing

    run(test)
