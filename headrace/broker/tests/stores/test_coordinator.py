"""Ends of sessions, of processes and of the coordinator, without processes."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.runtime.ports import (
    CreateNode,
    StoreError,
    StoreOperation,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
    SystemClock,
)
from headrace.broker.stores import coordinated, coordinator
from headrace.broker.stores.coordinated import CoordinatedStore
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.broker.stores.messages import (
    Answer,
    Beat,
    Begin,
    Call,
    Request,
    Transact,
    decode_request,
    frame,
    raw,
    read_frame,
)
from headrace.protocol.errors import ErrorCode, KafkaError
from simulator.coordinated import coordinated_stores
from simulator.stores import DEADLINE, eventually

CLOCK = SystemClock()
LEADER = [CreateNode("/leader", ephemeral=True)]


async def test_the_nodes_of_a_killed_process_go_at_once_and_its_transactions_stay(tmp_path: Path) -> None:
    async with coordinated_stores(tmp_path / "meta.db", 2, session_seconds=3600) as (_, (killed, other)):
        told = asyncio.Event()
        other.watch("/leader", told.set)
        made = asyncio.create_task(killed.transact([*LEADER, CreateNode("/stays", b"x")]))
        await asyncio.sleep(0)  # it is sent, and not answered
        killed._writer.transport.abort()
        with pytest.raises(StoreOutcomeUnknownError):
            await made

        async def gone() -> bool:
            return await other.get("/stays") is not None and await other.get("/leader") is None

        await eventually(gone, "the session of a killed process is over")
        async with asyncio.timeout(DEADLINE):
            await told.wait()


async def test_a_silent_session_ends_and_its_lease_has_ended_before(tmp_path: Path) -> None:
    async with coordinated_stores(tmp_path / "meta.db", 2, session_seconds=0.3) as (_, (silent, other)):
        told = asyncio.Event()
        silent.watch("/leader", told.set)
        await silent.transact(LEADER)
        session, told_before = silent.session, asyncio.Event()
        silent._tasks.pop().cancel()  # its beats
        other.watch("/leader", told_before.set)

        async def gone() -> bool:
            return await other.get("/leader") is None

        await eventually(gone, "the node of a silent session is gone")
        assert silent.lease_end() < CLOCK.monotonic()
        async with asyncio.timeout(DEADLINE):
            await told_before.wait()

        told.clear()
        silent._tasks.append(asyncio.create_task(silent._keep_beating()))
        with pytest.raises(StoreUnavailableError):
            await silent.transact([CreateNode("/x")])
        async with asyncio.timeout(DEADLINE):
            await told.wait()
        assert silent.session != session
        assert await silent.get("/x") is None
        told.clear()
        await silent.transact(LEADER)
        async with asyncio.timeout(DEADLINE):
            await told.wait()  # the watch goes on in the next session
        node = await silent.get("/leader")
        assert node is not None
        assert node.owner == silent.session


async def test_an_older_session_outlives_a_younger_one(tmp_path: Path) -> None:
    async with coordinated_stores(tmp_path / "meta.db", 2, session_seconds=3600) as (_, (older, younger)):
        await older.transact(LEADER)
        await younger.transact([CreateNode("/other", ephemeral=True)])
        await younger.close()
        assert await older.get("/leader") is not None
        assert await older.get("/other") is None


async def test_no_session_ends_while_the_coordinator_stands_still(tmp_path: Path) -> None:
    async with coordinated_stores(tmp_path / "meta.db", 1, session_seconds=0.3) as (_, (store,)):
        await store.transact(LEADER)
        session = store.session
        time.sleep(0.6)  # noqa: ASYNC251 - the loop of both stands still
        assert store.lease_end() < CLOCK.monotonic()
        await asyncio.sleep(0.06)
        node = await store.get("/leader")
        assert node is not None
        assert node.owner == store.session == session


async def test_a_request_of_a_session_that_is_over_changes_nothing(tmp_path: Path) -> None:
    async with coordinated_stores(tmp_path / "meta.db", 1, session_seconds=3600) as (_, (store,)):
        late = Request(1_000_000, store.session, Transact(tuple(LEADER)))
        store._writer.write(frame(Request(999_999, 0, Begin())))
        store._writer.write(frame(late))
        store._session = -1  # so that only the coordinator's knowledge counts
        with pytest.raises(StoreUnavailableError):
            await store.get("/leader")

        async def is_back() -> bool:
            try:
                return await store.get("/leader") is None
            except StoreUnavailableError:
                return False

        await eventually(is_back, "another session has begun, and the late node is not there")


async def test_a_request_that_waits_while_its_session_ends_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinator, "REQUESTS_MAX", 1)
    goes_on = asyncio.Event()

    class Slow(EmbeddedStore):
        async def transact_as(self, session: int, operations: Sequence[StoreOperation]) -> list[str]:
            async with asyncio.timeout(DEADLINE):
                await goes_on.wait()
            return await super().transact_as(session, operations)

    async with coordinated_stores(Slow(tmp_path / "meta.db"), 2, session_seconds=0.2) as (_, (slow, other)):
        slow._tasks.pop().cancel()  # its beats
        asked = [slow.transact([CreateNode("/first")]), slow.transact(LEADER)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(each) for each in outcomes} == {StoreOutcomeUnknownError}

        async def over() -> bool:
            return "its session is over" in caplog.text

        await eventually(over, "the session of the silent process is over")
        goes_on.set()

        async def done() -> bool:
            return await other.get("/first") is not None

        await eventually(done, "the first request, which was under way, is carried out")
        await asyncio.sleep(0.1)
        assert await other.get("/leader") is None


async def test_a_session_ends_when_the_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinator, "_AGAIN_SECONDS", 0.01)

    class Full(EmbeddedStore):
        left = 3

        async def end(self, session: int) -> None:
            self.left -= 1
            if self.left > 0:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
            await super().end(session)

    async with coordinated_stores(Full(tmp_path / "meta.db"), 2, session_seconds=3600) as (_, (one, other)):
        await one.transact(LEADER)
        await one.close()
        assert await other.get("/leader") is None
    assert caplog.text.count("the disk is full; it is tried again") == 2


async def test_a_full_disk_refuses_a_transaction(tmp_path: Path) -> None:
    class Full(EmbeddedStore):
        async def transact_as(self, session: int, operations: Sequence[StoreOperation]) -> list[str]:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

    async with coordinated_stores(Full(tmp_path / "meta.db"), 1, session_seconds=3600) as (_, (store,)):
        with pytest.raises(StoreUnavailableError, match="the disk is full"):
            await store.transact(LEADER)


async def test_a_change_counts_when_it_can_be_read(tmp_path: Path) -> None:
    """A process that hears of a change, reads, and finds the old state would not look again."""
    under_way = asyncio.Event()

    class Slow(EmbeddedStore):
        async def transact_as(self, session: int, operations: Sequence[StoreOperation]) -> list[str]:
            async with asyncio.timeout(DEADLINE):
                await under_way.wait()
            return await super().transact_as(session, operations)

    async with coordinated_stores(Slow(tmp_path / "meta.db"), 2, session_seconds=3600) as (_, (one, other)):
        await other.get("/")
        before = other.changes
        change = asyncio.create_task(one.transact([CreateNode("/a")]))
        assert await other.get("/a") is None
        assert other.changes == before
        under_way.set()
        await change
        assert await other.get("/a") is not None
        assert other.changes != before


async def test_a_failure_in_the_coordinator_has_an_unknown_outcome(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(EmbeddedStore):
        async def transact_as(self, session: int, operations: Sequence[StoreOperation]) -> list[str]:
            raise RuntimeError("a defect")

    async with coordinated_stores(Broken(tmp_path / "meta.db"), 1, session_seconds=3600) as (_, (store,)):
        with pytest.raises(StoreOutcomeUnknownError, match="a defect"):
            await store.transact(LEADER)
    assert "a request of a broker process failed" in caplog.text


async def test_a_request_that_is_too_long_is_refused_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinated, "REQUEST_BYTES_MAX", 1000)
    async with coordinated_stores(tmp_path / "meta.db", 1, session_seconds=3600) as (_, (store,)):
        with pytest.raises(StoreError, match="limit of 1,000"):
            await store.transact([CreateNode("/large", bytes(1000))])
        assert await store.get("/large") is None


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02ab"], ids=["too long", "no request"])
async def test_a_process_that_sends_anything_else_is_cut_off(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with coordinated_stores(tmp_path / "meta.db", 2, session_seconds=3600) as (_, (wrong, other)):
        await wrong.transact(LEADER)
        lost = asyncio.Event()
        wrong._on_lost = lost.set
        wrong._writer.write(data)
        async with asyncio.timeout(DEADLINE):
            await lost.wait()
        assert await other.get("/leader") is None
    assert "what is not a request" in caplog.text


async def begin_only(end: socket.socket, *, closes: bool) -> None:
    """A coordinator that answers the beginning of a session, and then nothing."""
    reader, writer = await asyncio.open_connection(sock=end)
    while (data := await read_frame(reader)) is not None:
        request = decode_request(data)
        if isinstance(request.call, Begin):
            writer.write(frame(Answer(request.number, 0, raw(7))))
        elif closes:
            break
    writer.close()


@pytest.mark.parametrize("closes", [True, False], ids=["ended", "silent"])
async def test_without_an_answer_the_outcome_of_a_transaction_is_unknown(closes: bool) -> None:
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(begin_only(ours, closes=closes))
    lost: list[bool] = []
    store = CoordinatedStore(theirs, clock=CLOCK, session_seconds=0.2, on_lost=lambda: lost.append(True))
    await store.open()
    asked: list[Any] = [store.transact(LEADER), store.get("/leader")]
    errors = [type(each) for each in await asyncio.gather(*asked, return_exceptions=True)]
    assert errors == [StoreOutcomeUnknownError, StoreUnavailableError]

    async def ended() -> bool:
        return store.lease_end() < CLOCK.monotonic()

    await eventually(ended, "the lease is over")
    assert lost == [True] * closes
    if closes:
        with pytest.raises(StoreUnavailableError):  # nothing was sent
            await store.transact(LEADER)
    await store.close()
    await serving


async def test_an_answer_that_cannot_be_read_is_the_loss_of_the_coordinator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(begin_only(ours, closes=False))
    lost = asyncio.Event()
    store = CoordinatedStore(theirs, clock=CLOCK, session_seconds=3600, on_lost=lost.set)
    await store.open()
    whole = frame(Answer(1, 0, raw(7)))
    ours.send(whole[:4] + b"x" * (len(whole) - 4))
    async with asyncio.timeout(DEADLINE):
        await lost.wait()
    assert "an answer of the coordinator cannot be read" in caplog.text
    with pytest.raises(StoreUnavailableError):
        await store.get("/leader")
    await store.close()
    await serving


async def test_the_lease_goes_on_after_a_fault_in_a_beat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with coordinated_stores(tmp_path / "meta.db", 1, session_seconds=0.5) as (_, (store,)):
        ask, faults = store._ask, [ValueError("a defect")]

        async def faulty(call: Call) -> Any:
            if faults and isinstance(call, Beat):
                raise faults.pop()
            return await ask(call)

        monkeypatch.setattr(store, "_ask", faulty)

        async def failed() -> bool:
            return not faults

        await eventually(failed, "a beat has failed")
        before = store.lease_end()

        async def renewed() -> bool:
            return store.lease_end() > before

        await eventually(renewed, "the lease is renewed again")
    assert "the next attempt follows" in caplog.text


def test_every_request_is_decoded_as_it_was() -> None:
    calls: list[Call] = [Begin(), Transact((*LEADER, CreateNode("/a", b"\x00", sequence=True)))]
    for number, call in enumerate(calls):
        request = Request(number, 3, call)
        assert decode_request(frame(request)[4:]) == request
