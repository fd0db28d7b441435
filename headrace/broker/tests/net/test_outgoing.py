"""Outgoing connections: answers in order, a slow peer, and every way in which a connection ends."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from headrace.broker.net.limits import Limits
from headrace.broker.net.listener import Network
from headrace.broker.net.outgoing import OutgoingConnection
from headrace.broker.net.reply import Pending
from headrace.broker.tests.net.test_connection import network, run, until


async def connected(net: Network) -> OutgoingConnection:
    return await net.connect("127.0.0.1", net.port)


def test_answers_belong_to_the_requests_in_their_order() -> None:
    def answer(peer, body):
        if len(body) % 3:
            return [bytes(body)]
        later = asyncio.get_running_loop().create_task(asyncio.sleep(0.002))
        whole = bytes(body)
        return Pending(later, lambda done: [whole])

    async def test() -> None:
        async with network(answer) as net:
            connection = await connected(net)
            requests = [bytes([number]) * (1 + number % 7) for number in range(60)]
            answers = await asyncio.gather(
                *(connection.ask([request[:1], request[1:] + b"."]) for request in requests)
            )
            assert [bytes(each) for each in answers] == [request + b"." for request in requests]

    run(test)


def test_large_requests_and_answers_pass_in_parts() -> None:
    async def test() -> None:
        async with network(
            lambda peer, body: [bytes(body)], send_buffer_bytes=8192, receive_buffer_bytes=8192
        ) as net:
            connection = await connected(net)
            sizes = [3_000_000, 1, 1_500_000]
            answers = await asyncio.gather(*(connection.ask([bytes([size % 251]) * size]) for size in sizes))
            for size, each in zip(sizes, answers, strict=True):
                assert each == bytes([size % 251]) * size
                if isinstance(each, memoryview):
                    connection.release(each)
            assert await connection.ask([b"and on"]) == b"and on"

    run(test)


def test_waiting_requests_fail_when_the_other_end_closes() -> None:
    async def test() -> None:
        async with network(
            lambda peer, body: Pending(asyncio.sleep(60), lambda done: None, may_cancel=True)
        ) as net:
            connection = await connected(net)
            answers = [connection.ask([b"x"]) for _ in range(3)]
            await until(lambda: net.requests)
            (served,) = net._connections
            served.close("enough")
            for answer in answers:
                with pytest.raises(ConnectionError, match="closed by the other end"):
                    await answer
            assert connection.closed
            with pytest.raises(ConnectionError, match="has ended"):
                connection.ask([b"y"])
            assert not net._outgoing

    run(test)


def test_an_abandoned_answer_is_not_reported_when_the_connection_ends() -> None:
    async def test() -> None:
        said: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
        async with network(
            lambda peer, body: Pending(asyncio.sleep(60), lambda done: None, may_cancel=True)
        ) as net:
            connection = await connected(net)
            connection.ask([b"x"])
            connection.close("enough")
            gc.collect()
        assert said == []

    run(test)


def test_an_abandoned_answer_is_not_given_to_the_next_request() -> None:
    async def test() -> None:
        async with network(lambda peer, body: [bytes(body)]) as net:
            connection = await connected(net)
            unwanted = connection.ask([b"1"])
            wanted = connection.ask([b"2"])
            unwanted.cancel()
            assert await wanted == b"2"

    run(test)


def test_an_unrequested_answer_closes_the_connection() -> None:
    async def test() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        net = Network(lambda peer, body: None, Limits(), loop=asyncio.get_running_loop())
        try:
            connection = await net.connect("127.0.0.1", listening.getsockname()[1])
            theirs, _ = listening.accept()
            with theirs:
                theirs.sendall(b"\x00\x00\x00\x01a")
                async with asyncio.timeout(60):
                    while not connection.closed:  # noqa: ASYNC110 - nothing tells
                        await asyncio.sleep(0.001)
        finally:
            net.close()
            listening.close()

    run(test)


def test_a_closed_port_refuses_the_connection() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        net = Network(lambda peer, body: None, Limits(), loop=asyncio.get_running_loop())
        with pytest.raises(ConnectionRefusedError):
            await net.connect("127.0.0.1", port)
        net.close()

    run(test)


def test_the_end_of_the_process_ends_what_it_has_opened() -> None:
    async def test() -> None:
        async with network(
            lambda peer, body: Pending(asyncio.sleep(60), lambda done: None, may_cancel=True)
        ) as net:
            connection = await connected(net)
            answer = connection.ask([b"x"])
            net.close()
            with pytest.raises(ConnectionError, match="the broker stops"):
                await answer

    run(test)
