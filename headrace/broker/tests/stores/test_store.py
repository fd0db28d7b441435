"""The embedded store against a model, and across restarts and kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.groups.group_configs import GroupConfigs
from headrace.broker.metadata.broker_configs import ALL_BROKERS, BrokerConfigs
from headrace.broker.metadata.nodes import OwnedNodes, modify, modify_all
from headrace.broker.metadata.producer_ids import BLOCK_SIZE, ProducerIds
from headrace.broker.runtime.ports import (
    BadVersionError,
    CheckNode,
    CreateNode,
    DeleteNode,
    Node,
    NodeExistsError,
    NoNodeError,
    SetNode,
    StoreError,
)
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.protocol.errors import ErrorCode, KafkaError


class Model:
    """ZooKeeper's rules over a dict."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {}

    def transact(self, operations) -> type[Exception] | None:
        nodes = dict(self.nodes)
        for op in operations:
            if isinstance(op, CreateNode):
                if op.path in nodes:
                    return NodeExistsError
                parts = op.path.split("/")[1:]
                for depth in range(1, len(parts)):
                    nodes.setdefault("/" + "/".join(parts[:depth]), (b"", 0))
                nodes[op.path] = (op.data, 0)
                continue
            if op.path not in nodes:
                return NoNodeError
            _, version = nodes[op.path]
            if op.version != version:
                return BadVersionError
            if isinstance(op, SetNode):
                nodes[op.path] = (op.data, version + 1)
            elif isinstance(op, DeleteNode):
                if any(path.startswith(op.path + "/") for path in nodes):
                    return StoreError
                del nodes[op.path]
        self.nodes = nodes
        return None

    def children(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return sorted(
            other[len(prefix) :]
            for other in self.nodes
            if other.startswith(prefix) and "/" not in other[len(prefix) :]
        )


paths = st.lists(st.sampled_from(["a", "b", "b-c", "z"]), min_size=1, max_size=3).map(
    lambda parts: "/" + "/".join(parts)
)
versions = st.sampled_from([0, 0, 0, 1, 2])
operations = st.one_of(
    st.builds(CreateNode, paths, st.binary(max_size=4)),
    st.builds(SetNode, paths, st.binary(max_size=4), versions),
    st.builds(DeleteNode, paths, versions),
    st.builds(CheckNode, paths, versions),
)


@settings(max_examples=60, deadline=None)
@given(transactions=st.lists(st.lists(operations, min_size=1, max_size=4), max_size=12))
def test_the_store_equals_its_model(transactions, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("store") / "meta.db"
    model = Model()

    async def check(store: EmbeddedStore) -> None:
        for node, (data, version) in model.nodes.items():
            assert await store.get(node) == Node(data, version)
        for parent in ["/", "/a", "/b", "/b/a", "/z"]:
            assert await store.children(parent) == model.children(parent)

    async def test() -> None:
        store = EmbeddedStore(path)
        for transaction in transactions:
            expected = model.transact(transaction)
            if expected is None:
                await store.transact(transaction)
            else:
                with pytest.raises(StoreError) as caught:
                    await store.transact(transaction)
                assert type(caught.value) is expected
        await check(store)
        await store.close()
        again = EmbeddedStore(path)
        await check(again)
        await again.close()

    asyncio.run(test())


@pytest.mark.parametrize("path", ["", "a", "/a/", "/a//b"])
def test_bad_paths_are_refused(path, tmp_path) -> None:
    async def test() -> None:
        store = EmbeddedStore(tmp_path / "meta.db")
        with pytest.raises(StoreError):
            await store.transact([CreateNode(path)])
        await store.close()

    asyncio.run(test())


WRITER = """
import asyncio, sys
from pathlib import Path
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.broker.runtime.ports import CreateNode, SetNode
async def main():
    store = EmbeddedStore(Path(sys.argv[1]))
    await store.transact([CreateNode("/n", b"0"), CreateNode("/m", b"0")])
    for i in range(1, 100000):
        await store.transact([SetNode(path, str(i).encode(), i - 1) for path in ("/n", "/m")])
        print(i, flush=True)
asyncio.run(main())
"""


def test_acknowledged_transactions_survive_a_kill_whole(tmp_path) -> None:
    path = tmp_path / "meta.db"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acknowledged = 0
    for line in process.stdout:
        acknowledged = int(line)
        if acknowledged == 30:
            os.kill(process.pid, signal.SIGKILL)
    process.stdout.close()
    process.wait()

    async def test() -> None:
        store = EmbeddedStore(path)
        first, second = await store.get("/n"), await store.get("/m")
        assert first is not None
        assert first.data == second.data
        assert int(first.data) >= acknowledged >= 30
        await store.close()

    asyncio.run(test())


def in_store(test: Callable[[EmbeddedStore], Awaitable[None]], tmp_path) -> None:
    async def main() -> None:
        store = EmbeddedStore(tmp_path / "meta.db")
        await store.open()
        try:
            await test(store)
        finally:
            await store.close()

    asyncio.run(main())


def test_a_transaction_that_cannot_be_carried_out_leaves_nothing(tmp_path) -> None:
    async def test(store: EmbeddedStore) -> None:
        await store.transact([CreateNode("/a/b")])
        await store.transact([SetNode("/a/b", b"0", 0)])
        outdated, early = SetNode("/a/b", b"2", 1), SetNode("/a/b", b"2", 7)
        for last in (DeleteNode("/a", 0), SetNode("/none", b"", 0), outdated, early, CreateNode("/a/b")):
            with pytest.raises(StoreError):
                await store.transact([CreateNode("/new"), SetNode("/a/b", b"1", 1), last])
            assert await store.get("/new") is None
            assert await store.get("/a/b") == Node(b"0", 1)

    in_store(test, tmp_path)


def test_sequences_count_for_each_parent(tmp_path) -> None:
    async def test(store: EmbeddedStore) -> None:
        made = [
            (await store.transact([CreateNode(f"{parent}/n-", sequence=True)]))[0]
            for parent in ("/a", "/b", "/a")
        ]
        assert made == ["/a/n-0000000000", "/b/n-0000000000", "/a/n-0000000001"]

    in_store(test, tmp_path)


def test_watches_of_a_node_see_children_created_with_their_parents(tmp_path) -> None:
    async def test(store: EmbeddedStore) -> None:
        told: list[str] = []
        for path in ("/a", "/a/b", "/a/b/c", "/other"):
            store.watch(path, lambda path=path: told.append(path))
        await store.transact([CreateNode("/a/b/c")])
        await asyncio.sleep(0)
        assert sorted(told) == ["/a", "/a/b", "/a/b/c"]

    in_store(test, tmp_path)


def test_a_producer_id_is_given_out_once_over_blocks_and_restarts(tmp_path) -> None:
    async def test(store: EmbeddedStore) -> None:
        first, second, third = (ProducerIds(store) for _ in range(3))
        given = [await first.allocate() for _ in range(2 * BLOCK_SIZE + 1)]
        given += [await ids.allocate() for ids in (second, third, first)]
        assert len(set(given)) == len(given)

    in_store(test, tmp_path)


@pytest.mark.parametrize(
    "blind",
    [lambda: SetNode("/a", b"", -1), lambda: DeleteNode("/a", -1), lambda: CheckNode("/a", -1)],
    ids=["set", "delete", "check"],
)
def test_an_operation_that_names_no_version_cannot_be_made(blind) -> None:
    with pytest.raises(ValueError, match="read the node first"):
        blind()


def test_a_modification_applies_to_the_newest_value(tmp_path) -> None:
    async def test(store: EmbeddedStore) -> None:
        await asyncio.gather(
            *(modify(store, "/n", lambda old, name=name: (old or b"") + name) for name in (b"a", b"b", b"c"))
        )
        node = await store.get("/n")
        assert node is not None
        assert sorted(node.data) == sorted(b"abc")
        assert await modify(store, "/n", lambda _: None) is None
        assert await modify(store, "/n", lambda _: None) is None
        assert await store.get("/n") is None

    in_store(test, tmp_path)


def test_several_nodes_are_changed_together_or_one_by_one_when_another_process_is_in_between(
    tmp_path,
) -> None:
    async def test(store: EmbeddedStore) -> None:
        await store.transact([CreateNode("/a", b"1"), CreateNode("/b", b"2"), CreateNode("/c", b"3")])
        before = store.changes
        await modify_all(store, ["/a", "/b", "/no"], lambda old: old and old + b"+")
        assert [node and node.data for node in await store.get_many(["/a", "/b", "/no"])] == [
            b"1+", b"2+", None,
        ]  # fmt: skip
        assert store.changes - before == 1
        real = store.get_many

        async def get_many(paths: Sequence[str]) -> list[Node | None]:
            nodes = await real(paths)
            await store.transact([SetNode("/b", b"other", 1)])
            return nodes

        store.get_many = get_many  # type: ignore[method-assign]
        await modify_all(store, ["/a", "/b", "/c"], lambda old: None if old == b"3" else old and old + b"-")
        assert [node and node.data for node in await real(["/a", "/b", "/c"])] == [b"1+-", b"other-", None]

    in_store(test, tmp_path)


def test_an_overtaken_writer_is_refused_and_reads_again(tmp_path) -> None:
    async def test(store: EmbeddedStore) -> None:
        one, other = OwnedNodes(store, "/owned"), OwnedNodes(store, "/owned")
        await one.write("n", b"1")
        for overtaken in (other, one):
            with pytest.raises(KafkaError, match="/owned/n was changed by another broker") as refused:
                await overtaken.write("n", b"late")
            assert refused.value.code is ErrorCode.NOT_COORDINATOR
            found = await overtaken.read("n")
            await overtaken.write("n", (found or b"") + b"2")
        assert await other.read("n") == b"122"
        await one.delete("n")
        await one.delete("n")
        assert await one.children() == []
        with pytest.raises(KafkaError, match="another broker"):
            await other.write("n", b"late")

    in_store(test, tmp_path)


def test_configurations_that_another_broker_sets_are_not_lost(tmp_path) -> None:
    async def test(store: EmbeddedStore) -> None:
        configs = [BrokerConfigs(store, BrokerConfig(), broker_id) for broker_id in range(2)]
        groups = [GroupConfigs(store, BrokerConfig()) for _ in range(2)]
        broker = {"log.retention.ms": "5000", "log.roll.ms": "3000"}
        group = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "6000"}
        for each, (name, text) in zip(configs, broker.items(), strict=True):
            await each.alter(ALL_BROKERS, lambda _, change={name: text}: change)
        for each, (name, text) in zip(groups, group.items(), strict=True):
            await each.alter("g", lambda _, change={name: text}: change)
        assert groups[1].explicit("g") == group
        again = BrokerConfigs(store, BrokerConfig(), 2)
        await again.load()
        assert again.explicit(ALL_BROKERS) == broker

    in_store(test, tmp_path)


def test_a_configuration_that_a_newer_broker_sets_does_not_end_the_following(tmp_path, caplog) -> None:
    """Unknown and invalid configurations are logged; the others count, now and from then on."""

    async def test(store: EmbeddedStore) -> None:
        config = BrokerConfig()
        configs, told = BrokerConfigs(store, config, 0), asyncio.Semaphore(0)
        await configs.load()

        async def heard() -> None:
            told.release()

        async def newer_sets(**changes: str) -> None:
            def added(data: bytes | None) -> bytes:
                return json.dumps({**json.loads(data or b"{}"), **changes}).encode()

            await modify(store, "/broker-configs/default", added, root="/broker-configs")
            async with asyncio.timeout(60):
                await told.acquire()

        configs.listeners.append(heard)
        following = asyncio.create_task(configs.run())
        try:
            await newer_sets(**{"of.a.newer.version": "7", "log.retention.ms": "5000", "log.roll.ms": "soon"})
            assert config["log.retention.ms"] == 5000
            assert config["log.roll.ms"] is None
            assert "ignoring log.roll.ms, of.a.newer.version" in caplog.text
            await newer_sets(**{"log.roll.ms": "3000"})
            assert config["log.roll.ms"] == 3000
            await configs.alter(ALL_BROKERS, lambda _: {"log.retention.ms": "6000"})
            await told.acquire()
            assert config["log.retention.ms"] == 6000
            assert configs.explicit(ALL_BROKERS)["of.a.newer.version"] == "7", (
                "it is that broker's to take away"
            )
            await newer_sets(**{"log.segment.bytes": "2000000"})
            assert config["log.segment.bytes"] == 2_000_000
            assert not following.done()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        with pytest.raises(ConfigError, match="newer version"):
            await BrokerConfigs(store, BrokerConfig(), 2).load()

    in_store(test, tmp_path)


def test_a_transaction_is_synced_before_it_is_over(tmp_path) -> None:
    """With these settings SQLite promises that each commit ends with an fsync of the log."""

    async def test() -> None:
        store = EmbeddedStore(tmp_path / "meta.db")
        await store.open()
        await store.transact([CreateNode("/a")])
        settings = await store._run(
            lambda connection: [
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
            ]
        )
        assert settings == ["wal", 2]  # 2 is FULL; NORMAL (1) may lose the last commits with the power
        await store.close()

    asyncio.run(test())
