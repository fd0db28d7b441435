"""Every coordination store keeps the promises of the port, with one session or several."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.runtime.ports import (
    CreateNode,
    StoreError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
    SystemClock,
)
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.broker.stores.zookeeper import REQUEST_BYTES_MAX, ZooKeeperStore
from simulator.coordinated import coordinated_stores
from simulator.coordination import SimulatedEnsemble
from simulator.stores import DEADLINE, SharedStoreConformance, StoreConformance, eventually
from simulator.zookeeper import LONG_SESSIONS, ZooKeeperServer, running_zookeeper

CLOCK = SystemClock()
SESSION_MS = 30_000


class TestEmbedded(StoreConformance):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "meta.db"

    @asynccontextmanager
    async def store(self) -> AsyncIterator[EmbeddedStore]:
        store = EmbeddedStore(self.path)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    def test_the_lease_of_the_embedded_store_has_no_end(self) -> None:
        assert EmbeddedStore(self.path).lease_end() == math.inf

    @pytest.mark.parametrize("clean", [True, False])
    def test_ephemeral_nodes_are_gone_after_a_restart(self, clean: bool) -> None:
        async def first() -> None:
            store = EmbeddedStore(self.path)
            await store.transact([CreateNode("/ids/0", ephemeral=True), CreateNode("/stays", b"x")])
            if clean:
                await store.close()

        async def second() -> None:
            async with self.store() as store:
                assert await store.children("/ids") == []
                assert await store.children("/") == ["ids", "stays"]
                await store.transact([CreateNode("/ids/0", ephemeral=True)])

        asyncio.run(first())
        asyncio.run(second())


class TestSimulated(SharedStoreConformance):
    @asynccontextmanager
    async def stores(self, count: int) -> AsyncIterator[list[Any]]:
        ensemble = SimulatedEnsemble(CLOCK, seed=count)
        opened = [await ensemble.connect(session_timeout_ms=SESSION_MS) for _ in range(count)]
        try:
            yield opened
        finally:
            for store in opened:
                await store.close()

    async def test_a_silent_session_ends_and_its_lease_has_ended_before(self) -> None:
        ensemble = SimulatedEnsemble(CLOCK, seed=1)
        silent = await ensemble.connect(session_timeout_ms=300)
        other = await ensemble.connect(session_timeout_ms=SESSION_MS)
        await silent.transact([CreateNode("/leader", ephemeral=True)])
        session = silent.session
        ensemble.cut(silent)
        with pytest.raises(StoreUnavailableError):
            await silent.get("/leader")
        with pytest.raises(StoreOutcomeUnknownError):
            await silent.transact([CreateNode("/x")])

        async def gone() -> bool:
            return await other.get("/leader") is None

        await eventually(gone, "the node of a silent session is gone")
        assert silent.lease_end() < CLOCK.monotonic()
        ensemble.heal(silent)
        assert silent.session != session
        for store in (silent, other):
            await store.close()

    async def test_a_session_that_was_given_up_is_told_to_every_watch(self) -> None:
        ensemble = SimulatedEnsemble(CLOCK, seed=1)
        store = await ensemble.connect()
        told = asyncio.Event()
        store.watch("/controller", told.set)
        before = store.session
        ensemble.expire(store)
        async with asyncio.timeout(DEADLINE):
            await told.wait()
        assert store.session != before
        await store.close()


class TestCoordinated(SharedStoreConformance):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "meta.db"

    @asynccontextmanager
    async def stores(self, count: int) -> AsyncIterator[list[Any]]:
        async with coordinated_stores(self.path, count, session_seconds=SESSION_MS / 1000) as (_, opened):
            yield opened


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper"), settings=LONG_SESSIONS) as server:
        yield server


@pytest.mark.slow
@pytest.mark.xdist_group("zookeeper")
class TestZooKeeper(SharedStoreConformance):
    @pytest.fixture(autouse=True)
    def server(self, zookeeper: ZooKeeperServer) -> None:
        self.zookeeper = zookeeper

    def connection(self, chroot: str) -> ZooKeeperStore:
        return ZooKeeperStore(f"{self.zookeeper.address}{chroot}", clock=CLOCK, session_timeout_ms=SESSION_MS)

    @asynccontextmanager
    async def stores(self, count: int) -> AsyncIterator[list[Any]]:
        chroot = f"/tests/{uuid.uuid4().hex}"
        opened = [self.connection(chroot) for _ in range(count)]
        for store in opened:
            await store.open()
        try:
            yield opened
        finally:
            for store in opened:
                await store.close()

    def test_a_transaction_that_zookeeper_would_not_take_is_refused(self) -> None:
        async def test(store: ZooKeeperStore) -> None:
            with pytest.raises(StoreError, match="limit of 1,000,000"):
                await store.transact([CreateNode("/large", bytes(REQUEST_BYTES_MAX))])
            await store.transact([CreateNode("/fits", bytes(REQUEST_BYTES_MAX - 100))])
            node = await store.get("/fits")
            assert node is not None
            assert len(node.data) == REQUEST_BYTES_MAX - 100

        self.run(test)

    @pytest.mark.parametrize(("apart_ms", "told"), [(3_600_000, "ahead of"), (-3_600_000, "behind"), (0, "")])
    async def test_a_clock_that_is_wrong_is_told_of_once(
        self, apart_ms: int, told: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Apart(SystemClock):
            def time_ms(self) -> int:
                return super().time_ms() + apart_ms

        path = f"/tests/{uuid.uuid4().hex}"
        store = ZooKeeperStore(
            f"{self.zookeeper.address}{path}", clock=Apart(), session_timeout_ms=SESSION_MS
        )
        await store.open()
        try:
            await store.transact([CreateNode("/stays")])
            assert path not in caplog.text
            assert "clock" not in caplog.text
            for name in "ab":
                await store.transact([CreateNode(f"/{name}", ephemeral=True)])
        finally:
            await store.close()
        lines = [
            each.getMessage() for each in caplog.records if "this machine's clock is" in each.getMessage()
        ]
        assert [f" s {told} that of ZooKeeper" in line for line in lines] == [True] * bool(apart_ms)

    async def test_a_path_that_is_only_looked_at_is_not_made(self) -> None:
        path = f"/tests/{uuid.uuid4().hex}/below"
        looking = ZooKeeperStore(f"{self.zookeeper.address}{path}", clock=CLOCK, makes_path=False)
        await looking.open()
        assert await looking.children("/") == []
        assert await looking.get("/cluster/id") is None
        await looking.close()
        above = self.connection("/tests")
        await above.open()
        assert path.split("/")[2] not in await above.children("/")
        await above.close()

    async def test_an_address_without_zookeeper_is_named(self) -> None:
        store = ZooKeeperStore("127.0.0.1:1", clock=CLOCK, connect_timeout_ms=300)
        with pytest.raises(StoreUnavailableError, match=r"no ZooKeeper server answered at 127.0.0.1:1"):
            await store.open()

    async def test_the_lease_ends_before_the_session_of_a_silent_ensemble_and_both_come_back(
        self, tmp_path: Path
    ) -> None:
        session_ms = 6_000
        with running_zookeeper(tmp_path / "zookeeper", settings=LONG_SESSIONS) as server:
            store = ZooKeeperStore(f"{server.address}/h", clock=CLOCK, session_timeout_ms=session_ms)
            await store.open()
            await store.transact([CreateNode("/leader", ephemeral=True), CreateNode("/stays")])
            told = asyncio.Event()
            store.watch("/leader", told.set)

            async def lease_is_there() -> bool:
                return CLOCK.monotonic() < store.lease_end() <= CLOCK.monotonic() + session_ms / 1000

            await eventually(lease_is_there, "there is a lease for less than a session")
            server.kill()
            silent = CLOCK.monotonic()
            ends = []

            async def lease_is_over() -> bool:
                ends.append(store.lease_end())
                return ends[-1] <= CLOCK.monotonic()

            await eventually(lease_is_over, "the lease ends without an answer")
            assert max(ends) - silent < 0.9 * session_ms / 1000
            with pytest.raises(StoreUnavailableError):
                await store.get("/leader")
            with pytest.raises(StoreOutcomeUnknownError):
                await store.transact([CreateNode("/x")])
            server.start()

            told.clear()
            await eventually(lease_is_there, "the lease is back")
            async with asyncio.timeout(DEADLINE):
                await told.wait()
            assert "stays" in await store.children("/")
            await store.close()
