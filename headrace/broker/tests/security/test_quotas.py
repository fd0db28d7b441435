"""Quotas: their scope, their precision, allowed settings, their store, and the wait of clients over them."""

from __future__ import annotations

import asyncio
import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.api.throttling import Throttling
from headrace.broker.net.reply import Peer, Pending
from headrace.broker.runtime.slices import Slices, Work
from headrace.broker.runtime.usage import USAGE, ChargingExecutor, Usage, charged
from headrace.broker.security.principal import Principal, Session
from headrace.broker.security.quotas.model import Entity, Quota, changed
from headrace.broker.security.quotas.quotas import Quotas
from headrace.broker.security.quotas.store import ROOT, QuotaStore
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.headers import RequestHeader, encode_request_header, encode_response_header
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.tablelayer.server.extension import TableExtension
from simulator.direct import direct_broker

LEVELS: list[dict[str, str]] = [
    {"user": "ann", "client_id": "c"},
    {"user": "ann", "client_id": ""},
    {"user": "ann"},
    {"user": "", "client_id": "c"},
    {"user": "", "client_id": ""},
    {"user": ""},
    {"client_id": "c"},
    {"client_id": ""},
]
"""Kafka's levels, the one that goes before all others first (KIP-55)."""


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# -- the limit that holds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("level", range(8))
def test_the_first_level_that_is_set_holds(level: int) -> None:
    quotas = Quotas(Time())
    for place in range(level, 8):
        quotas.set(Entity(**LEVELS[place]), {Quota.PRODUCER: place + 1.0})
    for place in range(8):
        quotas.set(Entity(**LEVELS[place]), quotas.limits.get(Entity(**LEVELS[place]), {}))
    found = quotas.limit_of(Quota.PRODUCER, "ann", "c")
    assert found is not None
    scope, limit = found
    assert limit == level + 1
    assert scope == (
        "ann" if "user" in LEVELS[level] else None,
        "c" if "client_id" in LEVELS[level] else None,
    )
    assert quotas.limit_of(Quota.CONSUMER, "ann", "c") is None


def test_a_quota_is_shared_within_its_entity() -> None:
    time = Time()

    def wait(entity: Entity, *users: tuple[str, str]) -> list[bool]:
        quotas = Quotas(time)
        quotas.set(entity, {Quota.PRODUCER: 100})
        return [quotas.used(Quota.PRODUCER, *who, 150) > 0 for who in users]

    assert wait(Entity(user="ann"), ("ann", "a"), ("ann", "b"), ("bob", "a")) == [False, True, False]
    assert wait(Entity(user=""), ("ann", "a"), ("bob", "a"), ("ann", "b")) == [False, False, True]
    assert wait(Entity(client_id="a"), ("ann", "a"), ("bob", "a"), ("ann", "b")) == [False, True, False]
    assert wait(Entity(user="", client_id=""), ("ann", "a"), ("bob", "a"), ("ann", "b")) == [
        False,
        False,
        False,
    ]


def test_without_a_limit_nothing_is_counted_and_a_removed_one_holds_no_more() -> None:
    quotas = Quotas(Time())
    assert not quotas.is_set
    quotas.set(Entity(user="ann"), {Quota.PRODUCER: 1, Quota.CONSUMER: 1})
    quotas.set(Entity(ip="10.0.0.1"), {Quota.CONNECTION: 1})
    assert quotas.is_set
    quotas.replace({Entity(user="ann"): {Quota.CONSUMER: 1}})
    assert quotas.limit_of(Quota.PRODUCER, "ann", "") is None
    assert quotas.connected("10.0.0.1") == 0
    assert quotas.used(Quota.PRODUCER, "ann", "", 1e9) == 0
    quotas.replace({})
    assert not quotas.is_set


# -- precision ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_any_half_minute_is_within_a_tenth_of_the_limit(seed: int) -> None:
    """A client sends as soon as it may, requests of up to a fifth of a second's worth, with pauses."""
    chance, time = random.Random(seed), Time()
    quotas, limit = Quotas(time), 1_000_000.0
    quotas.set(Entity(client_id="c"), {Quota.PRODUCER: limit})
    sent: list[tuple[float, float]] = []
    while time.now < 1200:
        size = chance.uniform(1, limit / 5)
        sent.append((time.now, size))
        time.now += quotas.used(Quota.PRODUCER, "ann", "c", size)
        time.now += chance.choice(
            (0.0, 0.0, 0.0, 0.001, 5.0 if time.now < 1100 and chance.random() < 0.05 else 0)
        )
    for begin in range(1000, 1170):
        total = sum(size for at, size in sent if begin <= at < begin + 30)
        assert total <= 1.1 * 30 * limit, (seed, begin)
    busy = sum(size for at, size in sent if 1150 <= at < 1180)
    assert busy >= 0.9 * 30 * limit, seed


def test_a_request_quota_delays_a_second_at_most() -> None:
    quotas = Quotas(Time())
    quotas.set(Entity(user="ann"), {Quota.REQUEST: 10, Quota.PRODUCER: 10})
    assert quotas.used(Quota.REQUEST, "ann", "", 1000) == 1.0
    assert quotas.used(Quota.PRODUCER, "ann", "", 1000) > 90


def test_connections_of_an_address_are_counted_where_they_are_admitted() -> None:
    time = Time()
    quotas = Quotas(time)
    quotas.set(Entity(ip="10.0.0.1"), {Quota.CONNECTION: 5})
    quotas.set(Entity(ip=""), {Quota.CONNECTION: 100})
    admitted = 0
    for _ in range(1000):
        admitted += not quotas.connected("10.0.0.1")
        time.now += 0.01
    assert 50 <= admitted <= 62  # ten seconds, and the burst of two
    assert quotas.connected("::ffff:10.0.0.1") > 0
    assert quotas.connected("10.0.0.2") == 0


def test_changes_of_topics_are_refused_or_waited_for() -> None:
    time = Time()
    quotas = Quotas(time)
    quotas.set(Entity(user="ann"), {Quota.MUTATION: 2})
    assert quotas.may_mutate("ann", "", 30, strict=True)  # the rest is enough to begin
    assert quotas.mutation_wait("ann", "") == pytest.approx(4)  # there were 2 * 11
    assert not quotas.may_mutate("ann", "", 1, strict=True)
    assert quotas.may_mutate("ann", "", 1, strict=False)
    assert quotas.mutation_wait("ann", "") == pytest.approx(4.5)
    time.now += 4.5
    assert quotas.may_mutate("ann", "", 1, strict=True)
    assert quotas.may_mutate("bob", "", 1000, strict=True)


def test_quota_buckets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.security.quotas.quotas._BUCKETS_MAX", 10)
    time = Time()
    quotas = Quotas(time)
    quotas.set(Entity(client_id=""), {Quota.PRODUCER: 100})
    for number in range(1000):
        assert quotas.used(Quota.PRODUCER, "ann", f"c{number}", 1) == 0
        time.now += 1
    assert len(quotas._buckets) <= 11
    quotas.used(Quota.PRODUCER, "ann", "debtor", 10_000)
    for number in range(20):
        quotas.used(Quota.PRODUCER, "ann", f"d{number}", 1)
        time.now += 1
    assert quotas.used(Quota.PRODUCER, "ann", "debtor", 1) > 0, "the debt is not forgotten"


def test_names_that_are_made_up_cost_no_search_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.security.quotas.quotas._BUCKETS_MAX", 10)
    time, searches = Time(), []
    quotas = Quotas(time)
    monkeypatch.setattr(quotas, "_forget_unused", searches.append)
    quotas.set(Entity(client_id=""), {Quota.PRODUCER: 100})
    for number in range(1000):
        quotas.used(Quota.PRODUCER, "ann", f"c{number}", 10_000)
        time.now += 0.01
    assert 8 <= len(searches) <= 11


# -- permitted settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        ([], "empty"),
        ([("group", "g")], "Unhandled"),
        ([("user", "")], "Empty user"),
        ([("user", "a"), ("user", "b")], "twice"),
        ([("ip", "10.0.0.1"), ("user", "a")], "combination"),
        ([("user", "x" * 1001)], "characters"),
    ],
)
def test_a_malformed_quota_entity_is_refused(pairs: list[tuple[str, str | None]], complaint: str) -> None:
    with pytest.raises(KafkaError, match=complaint) as caught:
        Entity.of(pairs)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("entity", "key", "value", "complaint"),
    [
        (Entity(user="a"), "connection_creation_rate", 1, "Invalid configuration key"),
        (Entity(ip="10.0.0.1"), "producer_byte_rate", 1, "Invalid configuration key"),
        (Entity(user="a"), "nonsense", 1, "Invalid configuration key"),
        (Entity(user="a"), "producer_byte_rate", 0, "greater than 0"),
        (Entity(user="a"), "producer_byte_rate", -1, "greater than 0"),
        (Entity(user="a"), "request_percentage", float("nan"), "greater than 0"),
        (Entity(user="a"), "producer_byte_rate", float("inf"), "greater than 0"),
        (Entity(user="a"), "producer_byte_rate", 1.5, "fractional"),
        (Entity(user="a"), "consumer_byte_rate", 1e30, "too large"),
        (Entity(ip="10.0.0.1"), "connection_creation_rate", 2**31, "too large"),
        (Entity(ip="no address"), "connection_creation_rate", 1, "not a valid IP"),
    ],
)
def test_a_malformed_quota_limit_is_refused(entity: Entity, key: str, value: float, complaint: str) -> None:
    with pytest.raises(KafkaError, match=complaint):
        changed(entity, {}, [(key, value, False)])


def test_quota_operations_change_only_named_limits() -> None:
    limits = {Quota.PRODUCER: 1.0, Quota.CONSUMER: 2.0}
    after = changed(
        Entity(user="a"), limits, [("producer_byte_rate", 0, True), ("request_percentage", 12.5, False)]
    )
    assert after == {Quota.CONSUMER: 2.0, Quota.REQUEST: 12.5}
    assert limits == {Quota.PRODUCER: 1.0, Quota.CONSUMER: 2.0}
    with pytest.raises(KafkaError, match="twice"):
        changed(
            Entity(user="a"), limits, [("producer_byte_rate", 1, False), ("producer_byte_rate", 2, False)]
        )


# -- where they are kept -----------------------------------------------------------------------------------


async def test_concurrent_quota_changes_are_all_kept(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store")
    first, second = QuotaStore(store, Quotas(Time())), QuotaStore(store, Quotas(Time()))
    await first.load()
    await second.load()
    ann = Entity(user="ann", client_id="a/b %")

    async def set_limit(quotas: QuotaStore, entity: Entity, key: Quota, value: float) -> None:
        await quotas.alter(entity, lambda limits: changed(entity, limits, [(key, value, False)]))

    keys = itertools.cycle((Quota.PRODUCER, Quota.CONSUMER, Quota.REQUEST))
    await asyncio.gather(*(set_limit(each, ann, next(keys), 7) for each in [first, second] * 3))
    await second.alter(Entity(user=""), lambda _: {Quota.REQUEST: 1.0})
    await first.alter(Entity(user=""), lambda _: {})
    third = QuotaStore(store, Quotas(Time()))
    await third.load()
    expected = {ann: {Quota.PRODUCER: 7.0, Quota.CONSUMER: 7.0, Quota.REQUEST: 7.0}}
    assert third.quotas.limits == expected == first.quotas.limits
    await store.close()


async def test_quota_changes_of_another_broker_are_followed(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store")
    first, second = QuotaStore(store, Quotas(Time())), QuotaStore(store, Quotas(Time()))
    following = asyncio.create_task(second.run())
    await asyncio.sleep(0)
    await first.alter(Entity(user="ann"), lambda _: {Quota.PRODUCER: 5.0})
    async with asyncio.timeout(60):
        while not second.quotas.is_set:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert second.quotas.limits == first.quotas.limits
    following.cancel()
    await store.close()


async def test_quota_changes_before_following_are_found(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store")
    first, second = QuotaStore(store, Quotas(Time())), QuotaStore(store, Quotas(Time()))
    await first.load()
    await second.load()
    entity = Entity(user="ann")
    await first.alter(entity, lambda _: {Quota.PRODUCER: 5.0})
    following = asyncio.create_task(second.run())
    for _ in range(10):  # the store takes its turns: by then it has answered the other, too
        await store.get(ROOT)
    assert second.quotas.limits == {entity: {Quota.PRODUCER: 5.0}}
    following.cancel()
    await store.close()


async def test_the_number_of_quota_entities_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.broker.security.quotas.store.ENTITIES_MAX", 2)
    store = EmbeddedStore(tmp_path / "store")
    quotas = QuotaStore(store, Quotas(Time()))
    for name in "ab":
        await quotas.alter(Entity(user=name), lambda _: {Quota.PRODUCER: 5.0})
    with pytest.raises(KafkaError, match="more than 2"):
        await quotas.alter(Entity(user="c"), lambda _: {Quota.PRODUCER: 5.0})
    await quotas.alter(Entity(user="a"), lambda _: {})
    await quotas.alter(Entity(user="c"), lambda _: {Quota.PRODUCER: 5.0})
    await store.close()


# -- through the APIs --------------------------------------------------------------------------------------


def entry(entity: dict[str, str | None], **limits: float | None) -> EntryData:
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in limits.items()],
    )


async def described(broker: Any, *components: tuple[str, int, str | None], strict: bool = False) -> list[Any]:
    request = DescribeClientQuotasRequest(
        components=[
            ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components
        ],
        strict=strict,
    )
    answer = await broker.send(request)
    assert answer.error_code == 0
    return [
        (
            {each.entity_type: each.entity_name for each in found.entity},
            {each.key: each.value for each in found.values},
        )
        for found in answer.entries
    ]


ANN, ANYBODY, BOTH, ADDRESS = (
    {"user": "ann"},
    {"user": None},
    {"user": "ann", "client-id": None},
    {"ip": "10.0.0.1"},
)


async def test_limits_are_set_shown_by_filters_and_kept(tmp_path: Path) -> None:
    async with direct_broker(tmp_path) as broker:
        request = AlterClientQuotasRequest(
            entries=[
                entry(ANN, producer_byte_rate=100, request_percentage=12.5),
                entry(ANYBODY, consumer_byte_rate=7),
                entry(BOTH, producer_byte_rate=1),
                entry(ADDRESS, connection_creation_rate=3),
                entry({"user": ""}, producer_byte_rate=1),
                entry({"user": "bob"}, producer_byte_rate=0.5),
                entry({"user": "eve"}, producer_byte_rate=1),
                entry({"user": "eve"}, producer_byte_rate=2),
            ]
        )
        trial = AlterClientQuotasRequest(entries=request.entries, validate_only=True)
        codes = [0] * 4 + [ErrorCode.INVALID_REQUEST] * 4
        assert [each.error_code for each in (await broker.send(trial)).entries] == codes
        assert await described(broker) == []
        answer = await broker.send(request)
        assert [each.error_code for each in answer.entries] == codes
        assert all(each.error_message for each in answer.entries[4:])
    async with direct_broker(tmp_path) as broker:
        ann = (ANN, {"producer_byte_rate": 100.0, "request_percentage": 12.5})
        anybody, both = (ANYBODY, {"consumer_byte_rate": 7.0}), (BOTH, {"producer_byte_rate": 1.0})
        address = (ADDRESS, {"connection_creation_rate": 3.0})
        everything = await described(broker)
        assert len(everything) == 4
        assert all(each in everything for each in (ann, anybody, both, address))
        assert await described(broker, ("user", 0, "ann")) == [ann, both]
        assert await described(broker, ("user", 0, "ann"), strict=True) == [ann]
        assert await described(broker, ("user", 1, None)) == [anybody]
        assert await described(broker, ("user", 2, None), ("client-id", 2, None)) == [both]
        assert await described(broker, ("client-id", 1, None)) == [both]
        assert await described(broker, ("client-id", 1, None), strict=True) == []
        assert await described(broker, ("ip", 2, None)) == [address]
        assert await described(broker, ("user", 0, "nobody")) == []
        removed = entry(ANN, producer_byte_rate=None, request_percentage=None)
        await broker.send(AlterClientQuotasRequest(entries=[removed]))
        assert await described(broker, ("user", 0, "ann"), strict=True) == []


async def limit(broker: Any, entity: dict[str, str | None], **limits: float) -> None:
    answer = await broker.send(AlterClientQuotasRequest(entries=[entry(entity, **limits)]))
    assert answer.entries[0].error_code == 0


async def test_changes_of_topics_count_and_are_refused_when_too_many(tmp_path: Path) -> None:
    async with direct_broker(tmp_path) as broker:
        await limit(broker, {"client-id": "test"}, controller_mutation_rate=0.001)

        async def create(name: str, version: int, *, validate_only: bool = False) -> Any:
            topic = CreatableTopic(name=name, num_partitions=2, replication_factor=1)
            request = CreateTopicsRequest(topics=[topic], validate_only=validate_only)
            return await broker.send(request, version)

        assert (await create("tried", 7, validate_only=True)).throttle_time_ms == 0
        first = await create("a", 7)
        assert first.topics[0].error_code == 0
        assert first.throttle_time_ms == 0, "its client would wait until the next one is accepted"
        second = await create("b", 7)
        assert second.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert second.throttle_time_ms > 0
        older = await create("c", 5)
        assert older.topics[0].error_code == 0
        assert older.throttle_time_ms > second.throttle_time_ms
        grow = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=3, assignments=None)])
        assert (await broker.send(grow)).results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        delete = DeleteTopicsRequest(topics=[DeleteTopicState(name="a")])
        assert (await broker.send(delete)).responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert broker.context.metadata.topic("a") is not None
        assert broker.context.metadata.topic("a").partition_count == 2
        assert broker.context.metadata.topic("b") is None


async def test_every_answer_with_a_throttle_time_tells_it(tmp_path: Path) -> None:
    """In all versions of all APIs, also those of tables, it is written where the version has it, and nothing else
    changes.
    """
    async with direct_broker(tmp_path, extensions=[TableExtension()]) as broker:
        declarations = list(broker.broker.dispatcher.declarations)
        quotas = Quotas(Time())
        quotas.set(Entity(user="ann"), {Quota.REQUEST: 1e-9})
        throttling = Throttling(quotas, declarations, iter(range(10**6)).__next__)
        told = 0
        for declaration in declarations:
            for version in range(declaration.min_version, declaration.max_version + 1):
                kind = declaration.response
                header = encode_response_header(1, kind.header_version(version))
                try:
                    parts = [header + b"".join(kind().encode_parts(version))]
                except Exception:  # noqa: BLE001 - an answer that has to name something
                    continue
                request = encode_request_header(
                    RequestHeader(declaration.key, version, 1, "c"),
                    declaration.request.header_version(version),
                )
                peer = Peer(1, "h", 1, "L", Session(Principal("User", "ann"), "L"))
                before = kind.decode(parts[0], version, None, len(header))
                answer = throttling.answer(lambda peer, frame, parts=parts: parts, peer, request)
                assert peer.throttle_seconds == 1.0
                after = kind.decode(answer[0], version, None, len(header))
                field = kind.FIELDS.get("throttle_time_ms")
                if field is not None and version in field.versions:
                    told += 1
                    assert after.throttle_time_ms == 1000, (kind, version)
                    after.throttle_time_ms = before.throttle_time_ms
                assert after == before, (kind, version)
        assert told > 250


async def test_bytes_of_writes_and_reads_count_repeated_ones_too(tmp_path: Path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        for _ in range(3):
            await broker.produce("t", [b"x" * 1000])
        await limit(broker, {"client-id": "test"}, producer_byte_rate=1000, consumer_byte_rate=1000)
        waits = []
        for _ in range(6):
            broker.peer.throttle_seconds = 0.0
            await broker.produce("t", [b"x" * 1000])
            waits.append(broker.peer.throttle_seconds)
        assert waits[0] == 0.0
        assert waits[-1] > 3.0
        assert waits == sorted(waits)
        broker.peer.throttle_seconds = 0.0
        await broker.fetch("t", 0)
        assert broker.peer.throttle_seconds > 3.0


async def test_an_unauthenticated_client_has_no_quota(tmp_path: Path) -> None:
    quotas = Quotas(Time())
    quotas.set(Entity(client_id=""), {Quota.REQUEST: 1e-9})
    throttling = Throttling(quotas, (), iter(range(100)).__next__)
    peer = Peer(1, "h", 1, "L", None)
    frame = encode_request_header(RequestHeader(ProduceRequest.API_KEY, 9, 1, "c"), 2)
    assert throttling.answer(lambda peer, frame: [b"x"], peer, frame) == [b"x"]
    assert peer.throttle_seconds == 0.0


# -- work in threads ---------------------------------------------------------------------------------------


async def test_thread_time_counts_for_its_request() -> None:
    """The time in threads, in steps of a coroutine and in slices counts for its request, and for no other."""
    time, threads = Time(), Time()
    quotas = Quotas(time)
    quotas.set(Entity(user=""), {Quota.REQUEST: 1})
    slices = Slices(time)

    def thread_work() -> None:
        threads.now += 0.5

    def sliced() -> Work[None]:
        for _ in range(5):
            time.now += 0.25
            yield

    async def answered() -> list[bytes]:
        time.now += 1  # a step
        await asyncio.get_running_loop().run_in_executor(pool, thread_work)
        await slices.run(sliced())
        time.now += 2  # another step
        return [b"answer"]

    def answerer(peer: Peer, frame: bytes | memoryview) -> Pending:
        time.now += 4  # the call itself
        return Pending(charged(answered(), time), lambda outcome: outcome.result())

    throttling = Throttling(quotas, (), time)
    used: list[tuple[str, float]] = []

    def note(quota: Quota, user: str, client_id: str, amount: float) -> float:
        used.append((user, amount))
        return 0.0

    quotas.used = note  # type: ignore[method-assign]
    frame = encode_request_header(RequestHeader(ProduceRequest.API_KEY, 9, 1, "c"), 2)
    with ThreadPoolExecutor(2) as inner:
        pool = ChargingExecutor(inner, threads)
        for name in ("ann", "bob"):
            peer = Peer(1, "h", 1, "L", Session(Principal("User", name), "L"))
            answer = throttling.answer(answerer, peer, frame)
            assert isinstance(answer, Pending)
            future = asyncio.ensure_future(answer.outcome)
            time.now += 100  # other requests are served
            await future
            assert answer.finish(future) == [b"answer"]
        assert USAGE.get() is None
        await asyncio.get_running_loop().run_in_executor(pool, thread_work)
    assert used == [("ann", 100 * 8.75), ("bob", 100 * 8.75)]


async def test_a_request_that_is_cancelled_before_it_begins_leaves_nothing_behind() -> None:
    async def never() -> None:
        raise AssertionError

    USAGE.set(Usage())
    task = asyncio.ensure_future(charged(never(), Time()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    USAGE.set(None)


async def test_batches_that_are_opened_in_threads_count(tmp_path: Path) -> None:
    """Through a whole broker: a topic with another compression has each batch decompressed and compressed again."""
    async with direct_broker(tmp_path) as broker:
        await limit(broker, {"client-id": "test"}, request_percentage=1e9)
        used = []
        broker.broker.dispatcher._quotas.used = lambda quota, user, client, amount: used.append(amount) or 0.0
        await broker.create_topic("opened", compression_type="gzip")
        executor = broker.context.executor
        assert isinstance(executor, ChargingExecutor)
        seconds = iter(range(0, 10**6, 50))
        executor._thread_time = lambda: float(next(seconds))
        await broker.produce("opened", [b"x" * 100_000])
        assert used[-1] >= 50 * 100
