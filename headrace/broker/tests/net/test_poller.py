"""Both ways to watch sockets keep the same promises: a watched socket gets its events, another one does not."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys

import pytest

from headrace.broker.net import poller
from headrace.broker.net.limits import Limits
from headrace.broker.net.listener import Network

KINDS = [asyncio.SelectorEventLoop] + ([poller.ServerLoop] if sys.platform == "linux" else [])


def run(kind, main) -> None:
    with asyncio.Runner(loop_factory=kind) as runner:
        runner.run(main)


class Owner:
    """Count events, and read all available bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.read = self.written = 0
        self.data = b""

    def on_readable(self) -> None:
        self.read += 1
        self.data += self.sock.recv(1000)

    def on_writable(self) -> None:
        self.written += 1


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0.001)


def watched_by(watched) -> dict:
    return watched._watchers if isinstance(watched, poller.LoopPoller) else watched._owners


def with_pair(kind, test) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        watched = poller.make_poller(asyncio.get_running_loop())
        try:
            async with asyncio.timeout(60):
                await test(watched, Owner(ours), theirs)
        finally:
            if ours.fileno() in watched_by(watched):
                watched.remove(ours.fileno())
            ours.close()
            theirs.close()

    run(kind, main())


@pytest.mark.parametrize("kind", KINDS)
def test_events_are_delivered_only_while_watched(kind) -> None:
    async def test(watched, owner, theirs) -> None:
        fd = owner.sock.fileno()
        watched.add(fd, owner)
        theirs.send(b"one")
        await turns()
        assert (owner.data, owner.written) == (b"one", 0)
        watched.change(fd, reading=False, writing=True)
        theirs.send(b"two")
        await turns()
        assert owner.data == b"one"
        assert owner.written > 0
        written = owner.written
        watched.change(fd, reading=True, writing=False)
        await turns()
        assert (owner.data, owner.written) == (b"onetwo", written)
        watched.remove(fd)
        theirs.send(b"three")
        await turns()
        assert owner.data == b"onetwo"

    with_pair(kind, test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hang_up_is_not_reported_while_nothing_is_watched(kind) -> None:
    async def test(watched, owner, theirs) -> None:
        fd = owner.sock.fileno()
        watched.add(fd, owner)
        watched.change(fd, reading=False, writing=False)
        theirs.close()
        await turns()
        assert (owner.read, owner.written) == (0, 0)
        watched.change(fd, reading=True, writing=False)
        await turns()
        assert owner.read > 0

    with_pair(kind, test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_socket_gets_no_event_of_the_same_round(kind) -> None:
    async def test(watched, owner, theirs) -> None:
        second, other = socket.socketpair()
        second.setblocking(False)

        class Closing(Owner):
            def on_readable(self) -> None:
                super().on_readable()
                for each in (owner, closing):
                    if each is not self and each.sock.fileno() >= 0:
                        watched.remove(each.sock.fileno())
                        each.sock.close()

        owner = Closing(owner.sock)
        closing = Closing(second)
        watched.add(owner.sock.fileno(), owner)
        watched.add(second.fileno(), closing)
        theirs.send(b"x")
        other.send(b"x")
        await turns()
        assert owner.read + closing.read == 1
        other.close()

    with_pair(kind, test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_answers_with_either_poller(kind) -> None:
    bodies = [b"a", os.urandom(3_000_000), b"b" * 5000, b"c"]

    async def test() -> None:
        net = Network(lambda peer, body: [bytes(body)], Limits(), loop=asyncio.get_running_loop())
        net.bind("127.0.0.1", 0)
        net.start_listening()
        try:
            async with asyncio.timeout(60):
                reader, writer = await asyncio.open_connection("127.0.0.1", net.port, limit=1 << 20)
                for body in bodies:
                    writer.write(struct.pack(">i", len(body)) + body)
                await asyncio.sleep(0.05)  # answers of megabytes wait for us: the socket is full
                for body in bodies:
                    size = struct.unpack(">i", await reader.readexactly(4))[0]
                    assert await reader.readexactly(size) == body
                writer.close()
                await writer.wait_closed()
        finally:
            net.close()
            await asyncio.sleep(0)

    run(kind, test())
