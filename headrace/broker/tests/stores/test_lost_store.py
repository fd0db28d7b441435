"""Answers to clients while the coordination store is unreachable: a retriable error, and no failure of the broker.

Afterwards the same requests are carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.runtime.ports import (
    StoreOperation,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
    SystemClock,
)
from headrace.broker.security.rights import Operation, ResourceType
from headrace.broker.security.sasl.scram import ScramMechanism, salted_password
from headrace.broker.server import Broker
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.broker.stores.zookeeper import ZooKeeperStore
from headrace.broker.tests.security.people import SECURED, client, creation
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.create_acls import CreateAclsRequest
from headrace.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.schema import ApiMessage
from simulator.coordination import SimulatedEnsemble
from simulator.direct import DirectBroker, direct_broker
from simulator.stores import eventually
from simulator.zookeeper import LONG_SESSIONS, running_zookeeper

CONFIG = {
    **SECURED,
    "delegation.token.secret.key": "of-all-brokers",
    "auto.create.topics.enable": "true",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
SALT = b"1234567890abcdefghijklmno"
LOST = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


class LosableStore(EmbeddedStore):
    """A store that loses its session on request: before a request, or during the first transaction."""

    is_lost = False
    is_lost_under_transactions = False
    carries_out = False
    """Whether a transaction is carried out although the session is lost during it."""

    def _check(self) -> None:
        if self.is_lost:
            raise StoreUnavailableError("the session is lost")

    async def get(self, path: str) -> Any:
        self._check()
        return await super().get(path)

    async def get_many(self, paths: Sequence[str]) -> Any:
        self._check()
        return await super().get_many(paths)

    async def children(self, path: str) -> list[str]:
        self._check()
        return await super().children(path)

    async def transact(self, operations: Sequence[StoreOperation]) -> list[str]:
        self._check()
        if not self.is_lost_under_transactions:
            return await super().transact(operations)
        self.is_lost = True
        if self.carries_out:
            await super().transact(operations)
        raise StoreOutcomeUnknownError("the session is lost under a transaction")

    def heal(self) -> None:
        self.is_lost = self.is_lost_under_transactions = False


def config(kind: int, name: str, key: str, value: str) -> IncrementalAlterConfigsRequest:
    changed = AlterableConfig(name=key, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[changed])
    return IncrementalAlterConfigsRequest(resources=[resource])


def everything() -> DeleteAclsFilter:
    return DeleteAclsFilter(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )


def new_user() -> AlterUserScramCredentialsRequest:
    user = ScramCredentialUpsertion(
        name="ann",
        mechanism=1,
        iterations=4096,
        salt=SALT,
        salted_password=salted_password(ScramMechanism.SHA_256, "pass", SALT, 4096),
    )
    return AlterUserScramCredentialsRequest(deletions=[], upsertions=[user])


def quota() -> AlterClientQuotasRequest:
    entry = EntryData(
        entity=[EntityData(entity_type="user", entity_name="ann")],
        ops=[OpData(key="producer_byte_rate", value=1e6, remove=False)],
    )
    return AlterClientQuotasRequest(entries=[entry])


CHANGES: dict[str, Callable[[], ApiMessage]] = {
    "CreateTopics": lambda: CreateTopicsRequest(
        topics=[CreatableTopic(name="new", num_partitions=1, replication_factor=1)]
    ),
    "DeleteTopics": lambda: DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")]),
    "CreatePartitions": lambda: CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="t", count=3, assignments=None)]
    ),
    "IncrementalAlterConfigs of a topic": lambda: config(2, "t", "retention.ms", "77777"),
    "IncrementalAlterConfigs of a broker": lambda: config(4, "0", "log.cleaner.backoff.ms", "14000"),
    "IncrementalAlterConfigs of a group": lambda: config(32, "g", "consumer.session.timeout.ms", "50000"),
    "CreateAcls": lambda: CreateAclsRequest(creations=[creation(Operation.READ, ResourceType.TOPIC, "new")]),
    "DeleteAcls": lambda: DeleteAclsRequest(filters=[everything()]),
    "AlterClientQuotas": quota,
    "AlterUserScramCredentials": new_user,
    "CreateDelegationToken": lambda: CreateDelegationTokenRequest(max_lifetime_ms=-1),
}
OTHERS: dict[str, tuple[Callable[[], ApiMessage], ErrorCode]] = {
    "InitProducerId": (
        lambda: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ),
    "InitProducerId of a transactional id": (
        lambda: InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000),
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ),
    "FindCoordinator": (
        lambda: FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]),
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ),
    "Metadata": (
        lambda: MetadataRequest(
            topics=[MetadataRequestTopic(name="auto"), MetadataRequestTopic(name="t")],
            allow_auto_topic_creation=True,
        ),
        ErrorCode.LEADER_NOT_AVAILABLE,
    ),
}


def codes(message: Any) -> Iterator[int]:
    """Return every error code of an answer."""
    for name, field in type(message).FIELDS.items():
        value = getattr(message, name)
        if name == "error_code":
            yield value
        elif field.kind == "array" and field.element.structure is not None:
            for each in value or ():
                yield from codes(each)


@asynccontextmanager
async def losable_broker(folder: Path) -> AsyncIterator[tuple[LosableStore, DirectBroker]]:
    store = LosableStore(folder / "store")
    await store.open()
    async with direct_broker(folder / "data", CONFIG, store=store) as broker:
        await broker.create_topic("t", 2)
        await broker.create_topic("gone")
        admin = client(broker, "admin")
        made = await admin.send(
            CreateAclsRequest(creations=[creation(Operation.READ, ResourceType.TOPIC, "t")])
        )
        assert set(codes(made)) == {0}
        yield store, admin
        store.heal()


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return requests that failed for an unexpected reason."""
    return [
        record.getMessage() for record in caplog.records if record.exc_info and record.name == "headrace.api"
    ]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_that_cannot_be_made_is_to_be_repeated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    async with losable_broker(tmp_path) as (store, admin):
        store.is_lost = True
        assert set(codes(await admin.send(CHANGES[change]()))) == {ErrorCode.NOT_CONTROLLER}
        store.heal()
        assert set(codes(await admin.send(CHANGES[change]()))) == {0}
    assert not failures(caplog)


@pytest.mark.parametrize("carries_out", [True, False])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_with_an_unknown_outcome_times_out(
    tmp_path: Path, change: str, carries_out: bool
) -> None:
    """REQUEST_TIMED_OUT: no client takes it for a refusal. The outcome is known when the store is back."""
    async with losable_broker(tmp_path) as (store, admin):
        store.is_lost_under_transactions, store.carries_out = True, carries_out
        assert set(codes(await admin.send(CHANGES[change]()))) == {ErrorCode.REQUEST_TIMED_OUT}
        store.heal()
        again = set(codes(await admin.send(CHANGES[change]())))
        done = {
            "CreateTopics": ErrorCode.TOPIC_ALREADY_EXISTS,
            "DeleteTopics": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        if not carries_out:
            assert again == {0}
        else:
            assert again <= {0, done.get(change, 0), ErrorCode.INVALID_PARTITIONS}


@pytest.mark.parametrize("lost_before", [True, False])
@pytest.mark.parametrize("request_of", OTHERS)
async def test_producers_and_consumers_are_told_to_ask_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, request_of: str, lost_before: bool
) -> None:
    build, expected = OTHERS[request_of]
    async with losable_broker(tmp_path) as (store, admin):
        store.is_lost = lost_before
        store.is_lost_under_transactions = True
        assert set(codes(await admin.send(build()))) - {0} == {expected}
        store.heal()

        async def served() -> bool:
            return set(codes(await admin.send(build()))) == {0}

        await eventually(served, "a journal that was just made is read")
    assert not failures(caplog)


@pytest.mark.parametrize(
    "name", ["CreateTopics", "DeleteTopics", "CreatePartitions", "IncrementalAlterConfigs of a topic"]
)
async def test_a_store_that_cannot_be_read_fails_each_named_change(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_broker(tmp_path / "data", CONFIG) as broker:
        admin = client(broker, "admin")

        async def refreshed() -> None:
            raise StoreUnavailableError("the store is lost")

        monkeypatch.setattr(broker.context.following, "refreshed", refreshed)
        assert list(codes(await admin.send(CHANGES[name]()))) == [ErrorCode.NOT_CONTROLLER]


@pytest.mark.slow
@pytest.mark.xdist_group("zookeeper")
async def test_while_zookeeper_is_gone_clients_are_told_to_ask_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_zookeeper(tmp_path / "zookeeper", settings=LONG_SESSIONS) as server:
        store = ZooKeeperStore(f"{server.address}/headrace", clock=SystemClock(), session_timeout_ms=30_000)
        await store.open()
        async with direct_broker(tmp_path / "data", CONFIG, store=store) as broker:
            admin = client(broker, "admin")
            await broker.create_topic("t", 2)
            await broker.create_topic("gone")
            await admin.send(CHANGES["CreateAcls"]())
            session, store._session_timeout = store._session_timeout, 2.0  # the timeout of each answer
            server.kill()
            asked = {**CHANGES, "InitProducerId": OTHERS["InitProducerId"][0]}
            asked["CreateAcls"] = lambda: CreateAclsRequest(
                creations=[creation(Operation.WRITE, ResourceType.TOPIC, "new")]
            )
            answers = await asyncio.gather(*(admin.send(build()) for build in asked.values()))
            told = {name: set(codes(answer)) for name, answer in zip(asked, answers, strict=True)}
            store._session_timeout = session
            server.start()

            for name, build in asked.items():

                async def made(build: Callable[[], ApiMessage] = build) -> bool:
                    return not {*codes(await admin.send(build()))} & {*LOST}

                await eventually(made, f"{name} is carried out")
    producers = told.pop("InitProducerId")
    assert producers == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    for name, found in told.items():
        assert len(found) == 1, name
        assert found <= {ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT}, name
    assert not failures(caplog)


class LostFrom:
    """A store that is lost from its `at`-th request on."""

    def __init__(self, store: Any, at: int) -> None:
        self._store = store
        self.left = at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("get", "get_many", "children", "transact"):
            return found
        self.left -= 1
        if self.left > 0:
            return found

        async def lost(*_: Any) -> Any:
            raise (StoreOutcomeUnknownError if name == "transact" else StoreUnavailableError)("it is gone")

        return lost


async def test_a_start_that_loses_the_store_ends_with_a_sentence_wherever_it_was(tmp_path: Path) -> None:
    ensemble = SimulatedEnsemble(SystemClock())

    async def why_not(at: int) -> str:
        store = LostFrom(await ensemble.connect(), at)
        broker = Broker(BrokerConfig({"node.id": "1"}), data_dir=tmp_path, port=0, store=store)
        try:
            async with asyncio.timeout(60):
                await broker.start()
        except ConfigError as error:
            return str(error)
        await broker.stop()
        return ""

    for at in (1, 2, 3, 5, 8, 12, 17, 23):
        told = await why_not(at)
        assert (
            "the coordination store was lost while this broker started (it is gone): start it again" in told
        )
    assert await why_not(10**6) == "", "and nothing of it is in the way of the next one"
