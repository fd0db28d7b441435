"""Tiering rounds: one holder, epochs that only rise, offsets that never go back, a restart loses nothing."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from headrace.broker.runtime.ports import (
    BadVersionError,
    CreateNode,
    DeleteNode,
    Node,
    NodeExistsError,
    SetNode,
    StoreOperation,
)
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.server.lake.machine import Candidate, Timing
from headrace.tablelayer.server.lake.tiering import LakeRounds

ORDERS, ITEMS = UUID(int=1), UUID(int=2)


class Store:
    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}

    async def get(self, path: str) -> Node | None:
        await asyncio.sleep(0)
        return self.nodes.get(path)

    async def children(self, path: str) -> list[str]:
        return sorted(name.rsplit("/", 1)[1] for name in self.nodes if name.rsplit("/", 1)[0] == path)

    async def transact(self, operations: list[StoreOperation]) -> None:
        await asyncio.sleep(0)
        for operation in operations:
            match operation:
                case CreateNode(path, data):
                    if path in self.nodes:
                        raise NodeExistsError(path)
                    self.nodes[path] = Node(data, 0)
                case SetNode(path, data, version):
                    if self.nodes[path].version != version:
                        raise BadVersionError(path)
                    self.nodes[path] = Node(data, version + 1)
                case DeleteNode(path, version):
                    assert self.nodes.pop(path).version == version

    async def close(self) -> None: ...


class Time:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def time_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


def orders(freshness_ms: int = 60_000) -> Candidate:
    return Candidate(ORDERS, freshness_ms)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def rounds(time: Time) -> LakeRounds:
    return LakeRounds(Store(), time, Timing(lease=10_000))


async def test_one_holder_until_the_lease_ends(rounds: LakeRounds, time: Time) -> None:
    assert await rounds.begin("a", [orders()], force=True) == (ORDERS, 1)
    assert await rounds.begin("b", [orders()], force=True) is None
    time.seconds += 9
    rounds.heartbeat(ORDERS, 1)
    time.seconds += 9
    assert await rounds.begin("b", [orders()], force=True) is None
    time.seconds += 2
    assert await rounds.begin("b", [orders()], force=True) == (ORDERS, 2)
    with pytest.raises(TableError, match="newest round is 2"):
        rounds.heartbeat(ORDERS, 1)
    with pytest.raises(TableError, match="newest round is 2"):
        await rounds.commit(ORDERS, 1, 7, {0: 5})


async def test_concurrent_requests_for_a_round_grant_it_once(rounds: LakeRounds) -> None:
    answers = await asyncio.gather(*(rounds.begin(worker, [orders()], force=True) for worker in "abc"))
    assert sorted(map(str, answers)) == sorted(map(str, [(ORDERS, 1), None, None]))


async def test_a_round_that_could_not_be_noted_was_not_given(time: Time) -> None:
    class FullStore(Store):
        full = True

        async def transact(self, operations: list[StoreOperation]) -> None:
            if self.full:
                raise OSError("the disk is full")
            await super().transact(operations)

    store = FullStore()
    rounds = LakeRounds(store, time, Timing(lease=10_000))
    with pytest.raises(OSError, match="the disk is full"):
        await rounds.begin("a", [orders()], force=True)
    store.full = False
    granted = await rounds.begin("b", [orders()], force=True)
    assert granted is not None, "no worker has it"
    rounds.heartbeat(*granted)


async def test_an_overtaken_server_grants_nothing_and_reads_again(time: Time) -> None:
    store = Store()
    old, new = (LakeRounds(store, time, Timing(lease=10_000)) for _ in range(2))
    assert await old.begin("a", [orders()], force=True) == (ORDERS, 1)
    await new.load()
    assert await new.begin("b", [orders()], force=True) == (ORDERS, 2)
    await new.commit(ORDERS, 2, 5, {0: 30})
    with pytest.raises(KafkaError, match="changed by another broker") as refused:
        await old.commit(ORDERS, 1, 4, {0: 20})
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    assert old.tiered_offset(ORDERS, 0) == 30
    with pytest.raises(TableError):
        old.heartbeat(ORDERS, 1)
    assert await old.begin("a", [orders()], force=True) == (ORDERS, 3)


async def test_reading_other_rounds_does_not_undo_a_pending_write(time: Time) -> None:
    store = Store()
    one, other = (LakeRounds(store, time, Timing(lease=10_000)) for _ in range(2))
    assert await one.begin("a", [orders()], force=True) == (ORDERS, 1)
    await asyncio.gather(one._read_on(), one.commit(ORDERS, 1, 5, {0: 30}))
    assert one.tiered_offset(ORDERS, 0) == 30
    await other.load()
    assert other.tiered_offset(ORDERS, 0) == 30
    assert await other.begin("b", [orders()], force=True) == (ORDERS, 2)
    outcomes = await asyncio.gather(one._read_on(), one.commit(ORDERS, 1, 6, {0: 40}), return_exceptions=True)
    assert isinstance(outcomes[1], KafkaError), "it was overtaken while it waited"
    assert one.round_of(ORDERS) is None
    assert one.tiered_offset(ORDERS, 0) == 30


async def test_the_same_worker_may_begin_again_and_fences_itself(rounds: LakeRounds) -> None:
    assert await rounds.begin("a", [orders()], force=True) == (ORDERS, 1)
    assert await rounds.begin("a", [orders()], force=True) == (ORDERS, 2)
    with pytest.raises(TableError):
        rounds.heartbeat(ORDERS, 1)


async def test_a_commit_is_recorded_and_never_goes_back(rounds: LakeRounds, time: Time) -> None:
    await rounds.begin("a", [orders()], force=True)
    await rounds.commit(ORDERS, 1, 99, {0: 10, 1: 4})
    assert rounds.tiered_offset(ORDERS, 0) == 10
    assert rounds.tiered_offset(ORDERS, 2) == 0
    assert rounds.state(ORDERS).snapshot_id == 99
    rounds.give_back(ORDERS, 1, None)
    with pytest.raises(TableError, match="is over"):
        await rounds.commit(ORDERS, 1, 99, {0: 11})
    assert await rounds.begin("b", [orders()], force=True) == (ORDERS, 2)
    with pytest.raises(TableError, match="up to offset 10; 9 is lower"):
        await rounds.commit(ORDERS, 2, 100, {0: 9})
    await rounds.commit(ORDERS, 2, 100, {0: 12})
    assert dict(rounds.state(ORDERS).offsets) == {0: 12, 1: 4}


async def test_freshness_decides_which_table_is_due_and_the_longest_waiting_is_first(
    rounds: LakeRounds, time: Time
) -> None:
    both = [orders(), Candidate(ITEMS, 5_000)]
    first = await rounds.begin("a", both, force=False)
    assert first == (ORDERS, 1)
    await rounds.commit(ORDERS, 1, 1, {0: 1})
    rounds.give_back(ORDERS, 1, None)
    assert await rounds.begin("a", both, force=False) == (ITEMS, 1)
    await rounds.commit(ITEMS, 1, 1, {0: 1})
    rounds.give_back(ITEMS, 1, None)
    assert await rounds.begin("a", both, force=False) is None
    time.seconds += 5
    assert await rounds.begin("a", both, force=False) == (ITEMS, 2)
    assert await rounds.begin("a", [orders()], force=False) is None
    assert await rounds.begin("a", [orders()], force=True) == (ORDERS, 2)


async def test_epochs_and_offsets_survive_a_restart_and_leases_do_not(time: Time) -> None:
    store = Store()
    before = LakeRounds(store, time)
    await before.begin("a", [orders()], force=True)
    await before.commit(ORDERS, 1, 5, {0: 3})
    await before.begin("a", [orders()], force=True)

    after = LakeRounds(store, time)
    await after.load()
    assert after.tiered_offset(ORDERS, 0) == 3
    with pytest.raises(TableError, match="is over"):
        await after.commit(ORDERS, 2, 6, {0: 4})
    assert await after.begin("b", [orders()], force=True) == (ORDERS, 3)


async def test_a_dropped_table_is_forgotten(time: Time) -> None:
    store = Store()
    rounds = LakeRounds(store, time)
    await rounds.begin("a", [orders()], force=True)
    await rounds.forget(ORDERS)
    await rounds.forget(ORDERS)
    assert set(store.nodes) == {"/lake"}, "where it is noted that something has changed"
    assert rounds.state(ORDERS).epoch == 0
