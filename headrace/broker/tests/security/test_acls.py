"""ACLs as clients create, list and remove them, and their store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.broker.configs.authorization import AUTHORIZERS
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.runtime.ports import StoreUnavailableError, SystemClock
from headrace.broker.runtime.slices import Slices
from headrace.broker.security.acl.model import Acl, AclFilter, PatternType, Permission
from headrace.broker.security.acl.rules import AclRules
from headrace.broker.security.acl.store import ROOT, AclStore
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.broker.tests.security.people import (
    SECURED,
    allow,
    client,
    creation,
    grant,
    revoke_all,
    secured_broker,
)
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from headrace.protocol.messages.describe_acls import DescribeAclsRequest
from simulator.coordination import SimulatedEnsemble
from simulator.direct import direct_broker
from simulator.world import World

CLUSTER, TOPIC, GROUP = ResourceType.CLUSTER, ResourceType.TOPIC, ResourceType.GROUP
PREFIXED, LITERAL = PatternType.PREFIXED, PatternType.LITERAL
EVERYTHING = AclFilter(1, 1, None, None, None, 1, 1)


def described(response) -> set[tuple[object, ...]]:
    assert (response.error_code, response.error_message) == (0, None)
    return {
        (resource.resource_type, resource.pattern_type, resource.resource_name, acl.principal, acl.host,
         acl.operation, acl.permission_type)
        for resource in response.resources
        for acl in resource.acls
    }  # fmt: skip


def ask(**parts) -> DescribeAclsRequest:
    return DescribeAclsRequest(
        **{
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": None,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
            **parts,
        }
    )


async def test_acls_are_created_described_and_deleted(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as admin:
        await grant(
            admin,
            creation(Operation.READ, TOPIC, "orders"),
            creation(Operation.READ, TOPIC, "or", kind=PREFIXED, who="User:bob", host="10.0.0.1"),
            creation(Operation.ALL, GROUP, "*", permission=Permission.DENY),
            creation(Operation.READ, TOPIC, "orders"),
        )
        assert described(await admin.send(ask())) == {
            (TOPIC, LITERAL, "orders", "User:ann", "*", Operation.READ, Permission.ALLOW),
            (TOPIC, PREFIXED, "or", "User:bob", "10.0.0.1", Operation.READ, Permission.ALLOW),
            (GROUP, LITERAL, "*", "User:ann", "*", Operation.ALL, Permission.DENY),
        }
        about = await admin.send(
            ask(
                resource_type_filter=TOPIC,
                resource_name_filter="orders",
                pattern_type_filter=PatternType.MATCH,
            )
        )
        assert {each[2] for each in described(about)} == {"orders", "or"}
        deleted = await admin.send(
            DeleteAclsRequest(
                filters=[
                    DeleteAclsFilter(
                        resource_type_filter=TOPIC, resource_name_filter=None, pattern_type_filter=1,
                        principal_filter="User:bob", host_filter=None, operation=1, permission_type=1,
                    ),
                    DeleteAclsFilter(resource_type_filter=9, operation=1, permission_type=1),
                ]
            )
        )  # fmt: skip
        bobs, wrong = deleted.filter_results
        assert [(acl.resource_name, acl.principal, acl.host) for acl in bobs.matching_acls] == [
            ("or", "User:bob", "10.0.0.1")
        ]
        assert wrong.error_code == ErrorCode.INVALID_REQUEST
        assert len(described(await admin.send(ask()))) == 2
        assert await revoke_all(admin) == 2
        assert described(await admin.send(ask())) == set()


async def test_invalid_acls_are_refused_and_the_others_created(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as admin:
        made = await admin.send(
            CreateAclsRequest(
                creations=[
                    creation(Operation.READ, TOPIC, "t"),
                    creation(Operation.READ, CLUSTER, "mine"),
                    AclCreation(
                        resource_type=2,
                        resource_name="t",
                        principal="ann",
                        host="*",
                        operation=3,
                        permission_type=3,
                    ),
                ]
            )
        )
        assert [result.error_code for result in made.results] == [0, 42, 42]
        assert CLUSTER_NAME in made.results[1].error_message
        assert len(described(await admin.send(ask()))) == 1


async def test_acl_changes_need_alter_on_the_cluster(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as admin:
        ann = client(admin, "ann")
        refused = await ann.send(
            CreateAclsRequest(creations=[creation(Operation.ALL, CLUSTER, CLUSTER_NAME)])
        )
        assert refused.results[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert (await ann.send(ask())).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        await allow(admin, Operation.DESCRIBE, CLUSTER, CLUSTER_NAME)
        assert len(described(await ann.send(ask()))) == 1
        refused = await ann.send(DeleteAclsRequest(filters=[DeleteAclsFilter(), DeleteAclsFilter()]))
        assert [each.error_code for each in refused.filter_results] == [
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        ] * 2
        await allow(admin, Operation.ALTER, CLUSTER, CLUSTER_NAME)
        assert await revoke_all(ann) == 2
        assert (await ann.send(ask())).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_acls_survive_a_kill(tmp_path: Path) -> None:
    with World(7, tmp_path) as world:
        member = world.add(0, SECURED)

        async def scenario() -> None:
            await member.start()
            await grant(
                client(member.direct, "admin"),
                creation(Operation.READ, TOPIC, "a"),
                creation(Operation.READ, TOPIC, "a/b %", kind=PREFIXED),
                creation(Operation.READ, GROUP, "käse"),
                creation(Operation.READ, TOPIC, "gone"),
            )
            gone = DeleteAclsFilter(
                resource_type_filter=TOPIC, resource_name_filter="gone", pattern_type_filter=LITERAL,
                principal_filter=None, host_filter=None, operation=1, permission_type=1,
            )  # fmt: skip
            await client(member.direct, "admin").send(DeleteAclsRequest(filters=[gone]))
            await member.restart()
            kept = described(await client(member.direct, "admin").send(ask()))
            assert {each[:3] for each in kept} == {
                (TOPIC, LITERAL, "a"), (TOPIC, PREFIXED, "a/b %"), (GROUP, LITERAL, "käse"),
            }  # fmt: skip
            await allow(client(member.direct, "admin"), Operation.WRITE, TOPIC, "a", "b")
            await member.restart()
            assert await revoke_all(client(member.direct, "admin")) == 5

        world.run(scenario())


# -- the store ---------------------------------------------------------------------------------------------


def acl(name: str, permission: int = Permission.ALLOW) -> Acl:
    return Acl(TOPIC, LITERAL, name, "User:ann", "*", Operation.READ, permission)


def kept_in(store) -> tuple[AclStore, asyncio.Queue[None]]:
    """With a list that gets an item for each change of its rules."""
    changes: asyncio.Queue[None] = asyncio.Queue()
    return AclStore(store, AclRules(), lambda: changes.put_nowait(None), Slices()), changes


async def test_concurrent_acl_changes_are_all_kept(tmp_path: Path) -> None:
    """Each finds that the other one was first, reads, and decides again."""
    store = EmbeddedStore(tmp_path / "store")
    first, _ = kept_in(store)
    second, _ = kept_in(store)
    await first.load()
    await second.load()
    await asyncio.gather(
        *(acls.create([acl(f"{number}"), acl("same")]) for number, acls in enumerate([first, second] * 3))
    )
    assert await first.delete([AclFilter(TOPIC, LITERAL, "2", None, None, 1, 1)]) == [[acl("2")]]
    await second.create([acl("last")])
    await first.create([acl("same")])
    third, _ = kept_in(store)
    await third.load()
    names = {"0", "1", "3", "4", "5", "same", "last"}
    assert {each.name for each in third.rules} == names == {each.name for each in second.rules}
    await store.close()


async def test_acl_changes_of_another_broker_are_followed(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store")
    first, _ = kept_in(store)
    second, changes = kept_in(store)
    await second.load()
    following = asyncio.create_task(second.run())
    await first.create([acl("t"), acl("u")])
    for _ in range(2):
        await changes.get()
    assert len(second.rules) == 2
    await first.delete([EVERYTHING])
    for _ in range(2):
        await changes.get()
    assert len(second.rules) == 0
    following.cancel()
    await store.close()


async def test_cve_2024_27309_one_acl_that_goes_takes_no_other_along(tmp_path: Path) -> None:
    """One of several ACLs of a resource, denials among them, is removed: for the broker that removes it, those that
    follow, and later readers.
    """
    store = EmbeddedStore(tmp_path / "store")
    first, _ = kept_in(store)
    second, changes = kept_in(store)
    of_eve = replace(acl("t"), principal="User:eve", permission=Permission.DENY)
    others = [replace(acl("t"), principal=f"User:u{number}") for number in range(3)]
    await first.create([acl("t"), of_eve, *others])
    await second.load()
    following = asyncio.create_task(second.run())
    left = {acl("t"), of_eve, *others}
    for gone in (acl("t"), others[0]):
        left.remove(gone)
        assert await first.delete([AclFilter(TOPIC, LITERAL, "t", gone.principal, None, 1, 1)]) == [[gone]]
        async with asyncio.timeout(60):
            while set(second.rules) != left:
                await changes.get()
        third, _ = kept_in(store)
        await third.load()
        assert set(first.rules) == set(third.rules) == left
    following.cancel()
    await store.close()


async def test_acl_changes_during_a_store_outage_are_found_later(tmp_path: Path) -> None:
    class Flaky(EmbeddedStore):
        fails = False

        async def get(self, path):
            if self.fails:
                raise StoreUnavailableError("lost")
            return await super().get(path)

    store = Flaky(tmp_path / "store")
    first, _ = kept_in(store)
    second, _ = kept_in(store)
    await second.load()
    following = asyncio.create_task(second.run())
    await asyncio.sleep(0)
    store.fails = True
    await first.create([acl("t")])
    with pytest.raises(StoreUnavailableError):
        await following
    store.fails = False
    following = asyncio.create_task(second.run())
    for _ in range(10):  # the store takes its turns: by then it has answered the other, too
        await store.get(ROOT)
    assert set(second.rules) == {acl("t")}
    following.cancel()
    await store.close()


async def test_a_change_whose_outcome_is_unknown_is_decided_again() -> None:
    """The connection is lost under every transaction: some were carried out, some were not."""
    for seed in range(12):
        ensemble = SimulatedEnsemble(SystemClock(), seed=seed, delays=(0.0, 0.0005))
        store, sane = await ensemble.connect(), await ensemble.connect()
        acls, _ = kept_in(store)
        await acls.load()
        making = asyncio.create_task(acls.create([acl("t"), acl("u")]))
        await asyncio.sleep(ensemble.random.uniform(0, 0.0015))
        ensemble.cut(store)
        await asyncio.sleep(0)
        ensemble.heal(store)
        try:
            await making
        except Exception:  # noqa: BLE001 - the store could not be asked: the next attempt shall do
            await acls.create([acl("t"), acl("u")])
        other, _ = kept_in(sane)
        await other.load()
        assert set(other.rules) == set(acls.rules) == {acl("t"), acl("u")}, seed
        await store.close()
        await sane.close()


async def test_no_right_appears_during_a_change_of_acls(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store")
    seen: list[bool] = []
    rules = AclRules()
    question = ("User:ann", "h", Operation.READ, TOPIC, "t")
    acls = AclStore(store, rules, lambda: seen.append(bool(rules.decide(*question))), Slices())
    await acls.create([acl("t"), acl("t", Permission.DENY)])
    await acls.delete([EVERYTHING])
    assert seen == [False] * 4
    await store.close()


async def test_the_number_of_acls_is_bounded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("headrace.broker.security.acl.store.ACLS_MAX", 3)
    monkeypatch.setattr("headrace.broker.security.acl.store.CHANGED_TOGETHER_MAX", 2)
    store = EmbeddedStore(tmp_path / "store")
    acls, _ = kept_in(store)
    with pytest.raises(KafkaError, match="the maximum is 2"):
        await acls.create([acl("a"), acl("b"), acl("c")])
    await acls.create([acl("a"), acl("b")])
    with pytest.raises(KafkaError, match="more than 3"):
        await acls.create([acl("c"), acl("d")])
    await acls.create([acl("c"), acl("a")])
    with pytest.raises(KafkaError, match="more than 2"):
        await acls.delete([EVERYTHING])
    assert len(acls.rules) == 3
    await store.close()


async def test_a_pattern_is_one_node(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store")
    acls, _ = kept_in(store)
    await acls.create([acl("a"), acl("a", Permission.DENY), acl("x/y")])
    assert await store.children(ROOT) == ["2:3:a", "2:3:x%2Fy"]
    node = await store.get(f"{ROOT}/2:3:a")
    assert node is not None
    assert len(json.loads(node.data)) == 2
    await acls.delete([AclFilter(TOPIC, LITERAL, "a", None, None, 1, 1)])
    assert await store.children(ROOT) == ["2:3:x%2Fy"]
    await store.close()


# -- the configuration -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AUTHORIZERS)
async def test_kafkas_authorizers_are_this_one(tmp_path: Path, name: str) -> None:
    async with direct_broker(tmp_path, {"authorizer.class.name": name}) as broker:
        assert (await broker.send(ask())).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("authorizer.class.name", "com.example.Ranger", "this authorizer is not offered"),
        ("super.users", "ann;User:bob", "'ann' is not a principal"),
        ("super.users", "User:", "User:ann;User:bob"),
    ],
)
def test_an_invalid_authorizer_configuration_is_named(name, value, words) -> None:
    with pytest.raises(ConfigError, match=words):
        BrokerConfig({name: value})


async def test_super_users_and_access_without_acl(tmp_path: Path) -> None:
    config = {"super.users": "User:admin; User:CN=a,O=b ;", "allow.everyone.if.no.acl.found": "true"}
    async with secured_broker(tmp_path, config) as admin:
        await allow(admin, Operation.READ, CLUSTER, CLUSTER_NAME)
        assert (await client(admin, "CN=a,O=b").send(ask())).error_code == 0
        assert (await client(admin, "zoe").send(ask())).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        await revoke_all(admin)
        assert (await client(admin, "zoe").send(ask())).error_code == 0
