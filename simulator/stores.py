"""The conformance suite of the CoordinationStore port, for the embedded store, ZooKeeper and the simulated ensemble.

A subclass opens the store. `SharedStoreConformance` adds tests of several sessions: two brokers, one of which ends.
Every wait has a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from headrace.broker.runtime.ports import (
    BadVersionError,
    CheckNode,
    CoordinationStore,
    CreateNode,
    DeleteNode,
    Node,
    NodeExistsError,
    NoNodeError,
    SetNode,
    StoreError,
)

DEADLINE = 60.0


async def eventually(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until the condition holds; fail with `what` after the deadline."""
    try:
        async with asyncio.timeout(DEADLINE):
            while not await holds():  # noqa: ASYNC110 - what is waited for may be another process's
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE:g} s: {what}") from None


class StoreConformance:
    """Tests of one session."""

    def store(self) -> AbstractAsyncContextManager[Any]:
        """Return an open store without nodes of the test's."""
        raise TypeError("a subclass opens the store")

    def run(self, test: Callable[[Any], Awaitable[None]]) -> None:
        async def with_store() -> None:
            async with self.store() as store:
                await test(store)

        asyncio.run(with_store())

    def test_a_node_starts_at_version_0_and_each_set_adds_one(self) -> None:
        async def test(store: CoordinationStore) -> None:
            assert await store.transact([CreateNode("/a", b"1")]) == ["/a"]
            assert await store.get("/a") == Node(b"1", 0)
            assert await store.transact([SetNode("/a", b"2", 0), SetNode("/a", b"3", 1)]) == ["/a", "/a"]
            assert await store.get("/a") == Node(b"3", 2)
            assert await store.get("/b") is None

        self.run(test)

    def test_parents_are_made(self) -> None:
        async def test(store: CoordinationStore) -> None:
            await store.transact([CreateNode("/a/b/c", b"x"), CreateNode("/a/b/d")])
            assert await store.children("/a/b") == ["c", "d"]
            assert await store.children("/a") == ["b"]
            assert await store.get("/a/b") == Node(b"", 0)
            assert await store.children("/none") == []

        self.run(test)

    def test_many_are_read_in_the_order_in_which_they_are_asked_for(self) -> None:
        async def test(store: CoordinationStore) -> None:
            await store.transact([CreateNode(f"/many/{number}", b"%d" % number) for number in range(500)])
            paths = [f"/many/{number}" for number in (499, 7, 1000, *range(300), 7)]
            found = await store.get_many(paths)
            assert found == [await store.get(path) for path in paths]
            assert found[:3] == [Node(b"499", 0), Node(b"7", 0), None]
            assert await store.get_many([]) == []

        self.run(test)

    @pytest.mark.parametrize(
        ("operation", "error"),
        [
            (CreateNode("/a"), NodeExistsError),
            (SetNode("/a", b"", 7), BadVersionError),
            (SetNode("/no", b"", 0), NoNodeError),
            (DeleteNode("/a", 7), BadVersionError),
            (DeleteNode("/no", 0), NoNodeError),
            (DeleteNode("/full", 0), StoreError),
            (CheckNode("/a", 7), BadVersionError),
            (CheckNode("/no", 0), NoNodeError),
        ],
        ids=lambda value: type(value).__name__ if not isinstance(value, type) else value.__name__,
    )
    def test_a_failed_transaction_changes_nothing(self, operation: Any, error: type[Exception]) -> None:
        async def test(store: CoordinationStore) -> None:
            await store.transact([CreateNode("/a", b"1"), CreateNode("/full/child")])
            with pytest.raises(error) as refused:
                await store.transact([SetNode("/a", b"2", 0), CreateNode("/new"), operation])
            assert isinstance(refused.value, StoreError)
            assert await store.get("/a") == Node(b"1", 0)
            assert await store.get("/new") is None
            assert await store.children("/full") == ["child"]

        self.run(test)

    @pytest.mark.parametrize(
        "blind",
        [lambda: SetNode("/a", b"2", -1), lambda: DeleteNode("/a", -1), lambda: CheckNode("/a", -1)],
        ids=["set", "delete", "check"],
    )
    def test_no_operation_takes_a_node_as_it_is(self, blind: Callable[[], Any]) -> None:
        """A version of -1, ZooKeeper's "any version", is refused: a change needs the version that was read."""

        async def test(store: CoordinationStore) -> None:
            await store.transact([CreateNode("/a", b"1")])
            with pytest.raises(ValueError, match="read the node first"):
                await store.transact([blind()])
            assert await store.get("/a") == Node(b"1", 0)

        self.run(test)

    def test_the_first_operation_that_does_not_hold_is_told(self) -> None:
        async def test(store: CoordinationStore) -> None:
            await store.transact([CreateNode("/a")])
            with pytest.raises(BadVersionError):
                await store.transact([CheckNode("/a", 3), CreateNode("/a"), SetNode("/no", b"", 0)])

        self.run(test)

    @pytest.mark.parametrize("path", ["a", "", "/a/", "//a", "/a//b"])
    def test_a_malformed_path_is_refused(self, path: str) -> None:
        async def test(store: CoordinationStore) -> None:
            with pytest.raises(StoreError, match="not a node path"):
                await store.transact([CreateNode(path)])
            with pytest.raises(StoreError, match="not a node path"):
                await store.get(path)

        self.run(test)

    def test_changes_are_noticed(self) -> None:
        async def test(store: CoordinationStore) -> None:
            await store.transact([CreateNode("/a", b"1")])
            before = store.changes
            await store.transact([SetNode("/a", b"2", 0)])
            assert store.changes != before

        self.run(test)

    def test_one_of_several_comparing_writers_wins(self) -> None:
        async def test(store: CoordinationStore) -> None:
            await store.transact([CreateNode("/count", b"0")])

            async def add() -> None:
                while True:
                    node = await store.get("/count")
                    assert node is not None
                    try:
                        await store.transact([SetNode("/count", b"%d" % (int(node.data) + 1), node.version)])
                    except BadVersionError:
                        continue
                    return

            await asyncio.gather(*(add() for _ in range(12)))
            assert await store.get("/count") == Node(b"12", 12)

        self.run(test)

    def test_numbers_of_a_sequence_grow(self) -> None:
        async def test(store: CoordinationStore) -> None:
            made = [(await store.transact([CreateNode("/queue/n-", sequence=True)]))[0] for _ in range(3)]
            assert made == sorted(set(made))
            assert all(name.startswith("/queue/n-") and name[9:].isdigit() for name in made)
            assert all(len(name) == len("/queue/n-") + 10 for name in made)
            assert await store.children("/queue") == [name.removeprefix("/queue/") for name in made]
            await store.transact([DeleteNode(made[-1], 0)])
            (after,) = await store.transact([CreateNode("/queue/n-", sequence=True)])
            assert after > made[-1]

        self.run(test)

    def test_an_ephemeral_node_has_an_owner_and_no_children(self) -> None:
        async def test(store: CoordinationStore) -> None:
            await store.transact([CreateNode("/ids/1", b"x", ephemeral=True)])
            await store.transact([CreateNode("/ids/2", ephemeral=True), CreateNode("/stays")])
            one, two, stays = [await store.get(path) for path in ("/ids/1", "/ids/2", "/stays")]
            assert one is not None
            assert two is not None
            assert stays == Node(b"", 0)
            assert one.owner == two.owner == store.session != 0
            assert 0 < one.created < two.created
            with pytest.raises(StoreError, match="ephemeral"):
                await store.transact([CreateNode("/ids/1/child")])
            await store.transact([DeleteNode("/ids/1", 0), CreateNode("/ids/1", ephemeral=True)])
            again = await store.get("/ids/1")
            assert again is not None
            assert again.created > two.created

        self.run(test)

    @pytest.mark.parametrize(
        "change",
        [
            [CreateNode("/w/new")],
            [SetNode("/w", b"2", 2)],
            [DeleteNode("/w/child", 0)],
            [DeleteNode("/w/child", 0), DeleteNode("/w", 2)],
        ],
        ids=["child made", "set", "child deleted", "deleted"],
    )
    def test_a_watch_tells_of_each_change_again_and_again(self, change: list[Any]) -> None:
        async def test(store: CoordinationStore) -> None:
            await store.transact([CreateNode("/w/child", b"1")])
            told = asyncio.Event()
            end = store.watch("/w", told.set)
            await self.settled(store, told)
            for turn in range(2):
                told.clear()
                await store.transact([SetNode("/w", b"%d" % turn, turn)])
                async with asyncio.timeout(DEADLINE):
                    await told.wait()
                await self.settled(store, told)
            told.clear()
            await store.transact(change)
            async with asyncio.timeout(DEADLINE):
                await told.wait()
            end()

        self.run(test)

    def test_a_watch_of_a_node_that_is_not_there_tells_when_it_is(self) -> None:
        async def test(store: CoordinationStore) -> None:
            told = asyncio.Event()
            store.watch("/later", told.set)
            await self.settled(store, told)
            told.clear()
            await store.transact([CreateNode("/later/child")])
            async with asyncio.timeout(DEADLINE):
                await told.wait()

        self.run(test)

    def test_a_watch_that_ended_is_silent(self) -> None:
        async def test(store: CoordinationStore) -> None:
            await store.transact([CreateNode("/w")])
            ended, going_on = asyncio.Event(), asyncio.Event()
            end = store.watch("/w", ended.set)
            store.watch("/w", going_on.set)
            await self.settled(store, going_on)
            end()
            ended.clear()
            going_on.clear()
            await store.transact([SetNode("/w", b"1", 0)])
            async with asyncio.timeout(DEADLINE):
                await going_on.wait()
            assert not ended.is_set()

        self.run(test)

    async def settled(self, store: CoordinationStore, told: asyncio.Event) -> None:
        """Wait until a watch is set, where that takes a request: two answers of the store and a turn of the loop."""
        for _ in range(3):
            await store.get("/")
            await asyncio.sleep(0.01)


class SharedStoreConformance(StoreConformance):
    """Tests that need two sessions."""

    def stores(self, count: int) -> AbstractAsyncContextManager[list[Any]]:
        """Return open stores over the same nodes, none of which is the test's."""
        raise TypeError("a subclass opens the stores")

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Any]:
        async with self.stores(1) as (store,):
            yield store

    def run_shared(self, test: Callable[[Any, Any], Awaitable[None]]) -> None:
        async def with_stores() -> None:
            async with self.stores(2) as (one, other):
                await test(one, other)

        asyncio.run(with_stores())

    def test_ephemeral_nodes_go_with_their_session_only(self) -> None:
        async def test(one: CoordinationStore, other: CoordinationStore) -> None:
            assert one.session != other.session
            await one.transact([CreateNode("/ids/1", ephemeral=True), CreateNode("/stays")])
            await other.transact([CreateNode("/ids/2", ephemeral=True)])
            told = asyncio.Event()
            other.watch("/ids", told.set)
            await self.settled(other, told)
            told.clear()
            await one.close()
            async with asyncio.timeout(DEADLINE):
                await told.wait()

            async def gone() -> bool:
                return await other.children("/ids") == ["2"]

            await eventually(gone, "the closed session's node is gone")
            assert await other.get("/stays") is not None

        self.run_shared(test)

    def test_one_of_two_is_elected(self) -> None:
        async def test(one: CoordinationStore, other: CoordinationStore) -> None:
            async def stand(store: CoordinationStore, name: bytes) -> bool:
                try:
                    await store.transact([CreateNode("/controller", name, ephemeral=True)])
                except NodeExistsError:
                    return False
                return True

            won = await asyncio.gather(stand(one, b"1"), stand(other, b"2"))
            assert sorted(won) == [False, True]

        self.run_shared(test)

    def test_a_change_of_one_is_told_to_the_other(self) -> None:
        async def test(one: CoordinationStore, other: CoordinationStore) -> None:
            await one.transact([CreateNode("/w", b"1")])
            told = asyncio.Event()
            other.watch("/w", told.set)
            await self.settled(other, told)
            told.clear()
            await one.transact([SetNode("/w", b"2", 0)])
            async with asyncio.timeout(DEADLINE):
                await told.wait()
            node = await other.get("/w")
            assert node is not None
            assert node.data == b"2"

        self.run_shared(test)

    def test_one_of_two_comparing_sessions_wins(self) -> None:
        async def test(one: CoordinationStore, other: CoordinationStore) -> None:
            await one.transact([CreateNode("/count", b"0")])

            async def add(store: CoordinationStore) -> None:
                done = 0
                while done < 10:
                    node = await store.get("/count")
                    assert node is not None
                    try:
                        await store.transact([SetNode("/count", b"%d" % (int(node.data) + 1), node.version)])
                    except BadVersionError:
                        continue
                    done += 1

            await asyncio.gather(add(one), add(other))
            node = await one.get("/count")
            assert node is not None
            assert (node.data, node.version) == (b"20", 20)

        self.run_shared(test)
