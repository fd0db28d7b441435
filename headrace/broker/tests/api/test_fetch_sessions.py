"""Fetch sessions (KIP-227): the pure cache, and a client with a session that sees the same as one without."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.api import fetch_sessions
from headrace.broker.api.fetch_sessions import FetchSessions, SessionPartition
from headrace.broker.runtime.slices import finish
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from simulator.direct import direct_broker, encode_request, values_of

LONG_MS = 600_000
SOON = 60.0  # seconds in which something that should happen at once has happened, on a busy machine


def entries(count: int, topic: str = "t") -> list[SessionPartition]:
    named = FetchTopic(topic=topic)
    return [SessionPartition(named, FetchPartition(partition=index)) for index in range(count)]


def cache(slots: int = 10) -> FetchSessions[SessionPartition]:
    return FetchSessions(slots, random.Random(1).random)


def resume(sessions, session_id, epoch, *, version=12, now=0.0, topics=(), forgotten=()):
    request = FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=list(topics),
        forgotten_topics_data=list(forgotten),
    )
    return finish(sessions.resume(request, version, now, SessionPartition))


# -- the pure cache --------------------------------------------------------------------------------------


def test_epochs_must_follow_each_other_and_wrap_to_one() -> None:
    sessions = cache()
    session_id = finish(sessions.begin(entries(1), by_id=False, now=0))
    session = resume(sessions, session_id, 1)
    for wrong in (1, 3, 100):
        with pytest.raises(KafkaError) as raised:
            resume(sessions, session_id, wrong)
        assert raised.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert resume(sessions, session_id, 2) is session
    session.epoch = 2**31 - 1
    resume(sessions, session_id, 2**31 - 1)
    assert session.epoch == 1


def test_an_unknown_session_and_one_of_the_other_kind_are_named() -> None:
    sessions = cache()
    by_name = finish(sessions.begin(entries(1), by_id=False, now=0))
    by_id = finish(sessions.begin(entries(1), by_id=True, now=0))
    for session_id, version, code in [
        (max(by_name, by_id) + 1, 12, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, 12, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (by_name, 13, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
        (by_id, 12, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ]:
        with pytest.raises(KafkaError) as raised:
            resume(sessions, session_id, 1, version=version)
        assert raised.value.code == code
    assert resume(sessions, by_name, 1) is not None  # a refusal changes nothing


def test_partitions_are_added_changed_and_forgotten_and_an_empty_session_ends() -> None:
    sessions = cache()
    session_id = finish(sessions.begin(entries(2), by_id=False, now=0))
    added = FetchTopic(topic="u", partitions=[FetchPartition(partition=7)])
    changed = FetchTopic(topic="t", partitions=[FetchPartition(partition=1, fetch_offset=9)])
    session = resume(sessions, session_id, 1, topics=[added, changed])
    assert [(entry.topic.topic, entry.request.partition) for entry in session.partitions.values()] == [
        ("t", 0),
        ("t", 1),
        ("u", 7),
    ]
    assert session.partitions["t", 1].request.fetch_offset == 9
    forgotten = [
        ForgottenTopic(topic="t", partitions=[0, 1, 5]),
        ForgottenTopic(topic="never", partitions=[0]),
    ]
    session = resume(sessions, session_id, 2, forgotten=forgotten)
    assert list(session.partitions) == [("u", 7)]
    assert sessions.partition_count == 1
    assert resume(sessions, session_id, 3, forgotten=[ForgottenTopic(topic="u", partitions=[7])]) is None
    assert (len(sessions), sessions.partition_count) == (0, 0)


def test_only_changes_are_answered_and_partitions_with_records_go_last() -> None:
    sessions = cache()
    session_id = finish(sessions.begin(entries(3), by_id=False, now=0))
    session = resume(sessions, session_id, 1)
    first, second, third = session.partitions.values()

    def told(*answers):
        return finish(session.changes(answers))

    def answer(high_watermark=5, **fields):
        return PartitionData(high_watermark=high_watermark, log_start_offset=0, **fields)

    assert told((first, answer(), 0), (second, answer(), 10), (third, answer(), 0)) == [first, second, third]
    assert list(session.partitions.values()) == [first, third, second]
    assert told((first, answer(), 0), (second, answer(), 0), (third, answer(6), 0)) == [third]
    assert told((first, answer(error_code=3), 0)) == [first]
    assert told((first, answer(error_code=3), 0)) == [first]  # for as long as it lasts
    assert told((first, answer(), 0)) == [first]  # and its end is news
    assert told((first, answer(), 0)) == []
    assert told((first, answer(diverging_epoch=EpochEndOffset()), 0)) == [first]
    moved = PartitionData(high_watermark=5, log_start_offset=3)
    assert told((first, moved, 0)) == [first]
    assert told((first, moved, 0)) == []


def test_slots_are_taken_from_the_unused_then_from_the_smaller_ones_that_had_their_time() -> None:
    sessions = cache(slots=2)
    old = finish(sessions.begin(entries(5), by_id=False, now=0))
    small = finish(sessions.begin(entries(1), by_id=False, now=0))
    assert finish(sessions.begin(entries(100), by_id=False, now=1)) == 0  # no session is old enough yet
    for epoch, now in enumerate((60.0, 119.0, 121.0), start=1):
        resume(sessions, old, epoch, now=now)
        resume(sessions, small, epoch, now=now)
    assert finish(sessions.begin(entries(1), by_id=False, now=122)) == 0  # not larger than the smallest
    larger = finish(sessions.begin(entries(2), by_id=False, now=122))
    with pytest.raises(KafkaError):
        resume(sessions, small, 4, now=122)
    assert len(sessions) == 2
    resume(sessions, old, 4, now=200)
    newest = finish(sessions.begin(entries(1), by_id=False, now=243))  # `larger` was not used for 121 s
    assert newest
    with pytest.raises(KafkaError):
        resume(sessions, larger, 1, now=243)
    resume(sessions, old, 5, now=243)
    sessions.end(old)
    sessions.end(old)
    assert (len(sessions), sessions.partition_count) == (1, 1)


def test_no_session_without_slots_or_for_an_empty_fetch() -> None:
    assert finish(cache(slots=0).begin(entries(1), by_id=False, now=0)) == 0
    assert finish(cache().begin([], by_id=False, now=0)) == 0


def test_the_partitions_of_all_sessions_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 100)
    sessions = cache()
    session_id = finish(sessions.begin(entries(60), by_id=False, now=0))
    assert finish(sessions.begin(entries(60), by_id=False, now=0)) == 0
    refused = sessions.begin(entries(60), by_id=False, now=0)
    with pytest.raises(StopIteration):  # before its partitions are remembered
        next(refused)
    many = FetchTopic(topic="x", partitions=[FetchPartition(partition=index) for index in range(60)])
    with pytest.raises(KafkaError) as raised:
        resume(sessions, session_id, 1, topics=[many])
    assert raised.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.partition_count) == (0, 0)
    slow = sessions.begin(entries(60), by_id=False, now=0)
    next(slow)
    other_id = finish(sessions.begin(entries(60), by_id=False, now=0))
    assert other_id
    assert finish(slow) == 0
    sessions.end(other_id)
    session_id = finish(sessions.begin(entries(1), by_id=False, now=0))
    for epoch in range(1, 200):  # names that came and went do not stay
        topic = FetchTopic(topic=f"n{epoch}", partitions=[FetchPartition(partition=0)])
        gone = ForgottenTopic(topic=f"n{epoch}", partitions=[0])
        session = resume(sessions, session_id, epoch, topics=[topic], forgotten=[gone])
    assert len(session.topics) < 25


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["begin", "resume", "end"]), st.integers(1, 4), st.integers(0, 90)),
        max_size=40,
    ),
    slots=st.integers(0, 3),
)
def test_eviction_follows_kafkas_rule(steps, slots) -> None:
    """Evictions are compared with the rule written over a plain list of sessions."""
    sessions = cache(slots)
    model: list[dict] = []
    now = 0.0
    for what, size, wait in steps:
        now += wait
        if what == "begin":
            room = len(model) < slots
            if not room and model:
                oldest = min(model, key=lambda session: session["used"])
                grown = [session for session in model if session["ripe"] and session["size"] < size]
                if now - oldest["used"] > 120:
                    model.remove(oldest)
                    room = True
                elif grown:
                    model.remove(min(grown, key=lambda session: (session["size"], session["id"])))
                    room = True
            session_id = finish(sessions.begin(entries(size), by_id=False, now=now))
            assert bool(session_id) == room
            if room:
                model.append(
                    {"id": session_id, "size": size, "created": now, "used": now, "ripe": False, "epoch": 1}
                )
        elif model:
            session = model[size % len(model)]
            if what == "end":
                sessions.end(session["id"])
                model.remove(session)
            else:
                resume(sessions, session["id"], session["epoch"], now=now)
                session["epoch"] += 1
                model.remove(session)  # the order of use, for those used at the same moment
                model.append(session)
                session["used"] = now
                session["ripe"] = now - session["created"] > 120
        assert set(sessions._sessions) == {session["id"] for session in model}
        assert sessions.partition_count == sum(session["size"] for session in model)


# -- in a broker -----------------------------------------------------------------------------------------


class SessionClient:
    """Java's FetchSessionHandler: it names only changed partitions, and keeps the last values for the others."""

    def __init__(self, broker, version: int, topic_ids: dict[str, uuid.UUID]) -> None:
        self.broker, self.version, self.topic_ids = broker, version, topic_ids
        self.names = {topic_id: name for name, topic_id in topic_ids.items()}
        self.wanted: dict[tuple[str, int], int] = {}
        self.sent: dict[tuple[str, int], int] = {}
        self.told: dict[tuple[str, int], tuple[int, int, int]] = {}
        self.session_id = self.epoch = 0

    def topics(self, kind, partitions):
        by_topic: dict[str, list] = {}
        for (name, _), value in partitions:
            by_topic.setdefault(name, []).append(value)
        return [
            kind(topic=name, topic_id=self.topic_ids[name], partitions=values)
            for name, values in by_topic.items()
        ]

    async def fetch(self, *, max_wait_ms: int = 0, max_bytes: int = 1 << 20) -> dict[tuple[str, int], list]:
        """Records by partition; offsets advance past them."""
        changed = {key: offset for key, offset in self.wanted.items() if self.sent.get(key) != offset}
        forgotten = [key for key in self.sent if key not in self.wanted]
        full = self.epoch == 0
        asked = self.wanted if full else changed
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=self.topics(
                FetchTopic,
                [
                    (key, FetchPartition(partition=key[1], fetch_offset=offset, partition_max_bytes=1 << 20))
                    for key, offset in asked.items()
                ],
            ),
            forgotten_topics_data=[]
            if full
            else self.topics(ForgottenTopic, [(key, key[1]) for key in forgotten]),
        )
        response = await self.broker.send(request, self.version)
        if response.error_code:
            self.session_id = self.epoch = 0
            self.sent.clear()
            self.told.clear()
            return await self.fetch(max_wait_ms=max_wait_ms, max_bytes=max_bytes)
        if full:
            self.session_id = response.session_id
            self.told.clear()
        self.sent = dict(self.wanted)
        self.epoch = self.epoch + 1 if self.session_id else 0
        records = {}
        for key in forgotten:
            self.told.pop(key, None)
        for topic in response.responses:
            name = topic.topic or self.names[topic.topic_id]
            for part in topic.partitions:
                key = (name, part.partition_index)
                assert key in self.wanted, "a forgotten partition was told"
                self.told[key] = (part.error_code, part.high_watermark, part.log_start_offset)
                found = values_of(part.records) if part.records else []
                records[key] = [pair for pair in found if pair[0] >= self.wanted[key]]
                if found:
                    self.wanted[key] = found[-1][0] + 1
        return records


@settings(max_examples=30, deadline=None)
@given(
    version=st.sampled_from([7, 11, 12, 13, 17]),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["produce", "fetch", "fetch", "toggle", "seek", "trim", "lose", "small"]),
            st.integers(0, 3),
        ),
        max_size=25,
    ),
)
def test_a_session_answers_like_a_full_fetch(version, steps, tmp_path_factory) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path_factory.mktemp("d")) as broker:
            ids = {name: (await broker.create_topic(name, 2)).topic_id for name in "ab"}
            keys = [(name, index) for name in "ab" for index in range(2)]
            client = SessionClient(broker, version, ids)
            client.wanted = {keys[0]: 0, keys[2]: 0}
            for what, number in steps:
                key = keys[number]
                if what == "produce":
                    await broker.produce(key[0], [b"x" * 50], partition=key[1])
                elif what == "toggle":
                    if len(client.wanted) == 1 and key in client.wanted:
                        continue
                    if client.wanted.pop(key, None) is None:
                        client.wanted[key] = 0
                elif what == "seek" and key in client.wanted:
                    client.wanted[key] = number
                elif what == "trim":
                    partition = broker.context.replicas.partition(*key)
                    partition.log  # noqa: B018 - opened
                    partition.delete_records(min(number, partition.high_watermark))
                elif what == "lose":
                    client.epoch += number % 2  # a request that never arrived
                elif what in ("fetch", "small"):
                    before = dict(client.wanted)
                    records = await client.fetch(max_bytes=60 if what == "small" else 1 << 20)
                    full = SessionClient(broker, version, ids)
                    full.wanted = dict(before)
                    expected = await full.fetch()
                    assert client.told == {key: full.told[key] for key in before}
                    if what == "fetch":
                        assert {key: found for key, found in records.items() if found} == {
                            key: found for key, found in expected.items() if found
                        }

    asyncio.run(test())


def both_partitions(**options) -> FetchRequest:
    parts = [FetchPartition(partition=index, partition_max_bytes=1000) for index in range(2)]
    return FetchRequest(min_bytes=1, topics=[FetchTopic(topic="t", partitions=parts)], **options)


async def test_a_fetch_of_a_session_waits_and_answers_only_new_records(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 2)
        first = await broker.send(both_partitions(max_wait_ms=0, session_epoch=0), 12)
        assert first.session_id != 0
        assert [part.partition_index for part in first.responses[0].partitions] == [0, 1]
        again = FetchRequest(max_wait_ms=LONG_MS, min_bytes=1, session_id=first.session_id, session_epoch=1)
        task = asyncio.ensure_future(broker.send(again, 12))
        await asyncio.sleep(0.02)
        assert not task.done()
        await broker.produce("t", [b"now"], partition=1)
        async with asyncio.timeout(SOON):
            answer = await task
        (part,) = answer.responses[0].partitions
        assert (part.partition_index, values_of(part.records)) == (1, [(0, b"now")])
        assert answer.session_id == first.session_id


async def test_a_later_fetch_of_the_session_takes_over_from_one_that_waits(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 2)
        first = await broker.send(both_partitions(max_wait_ms=0, session_epoch=0), 12)
        common = {"max_wait_ms": LONG_MS, "min_bytes": 1, "session_id": first.session_id}
        older = asyncio.ensure_future(broker.send(FetchRequest(session_epoch=1, **common), 12))
        await asyncio.sleep(0.01)
        twin = await broker.send(FetchRequest(session_epoch=1, **common), 12)
        assert twin.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        newer = asyncio.ensure_future(broker.send(FetchRequest(session_epoch=2, **common), 12))
        async with asyncio.timeout(SOON):
            assert (await older).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
            await broker.produce("t", [b"now"])
            answer = await newer
        assert values_of(answer.responses[0].partitions[0].records) == [(0, b"now")]
        assert not broker.context.replicas.partition("t", 1)._waiters


async def test_the_last_fetch_of_a_session_ends_it(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 2)
        session_id = (await broker.send(both_partitions(max_wait_ms=0, session_epoch=0), 12)).session_id
        last = await broker.send(both_partitions(max_wait_ms=0, session_id=session_id, session_epoch=-1), 12)
        assert (last.error_code, last.session_id, len(last.responses[0].partitions)) == (0, 0, 2)
        gone = await broker.send(FetchRequest(session_id=session_id, session_epoch=1), 12)
        assert (gone.error_code, gone.session_id, gone.responses) == (
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            0,
            [],
        )
        # the same with epoch 0, which begins another one
        one = (await broker.send(both_partitions(max_wait_ms=0, session_epoch=0), 12)).session_id
        two = (
            await broker.send(both_partitions(max_wait_ms=0, session_id=one, session_epoch=0), 12)
        ).session_id
        assert two not in (0, one)
        gone = await broker.send(FetchRequest(session_id=one, session_epoch=1), 12)
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_session_by_id_notices_that_its_topic_went_and_came_again(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        old = await broker.create_topic("t", 2)
        request = both_partitions(max_wait_ms=0, session_epoch=0)
        request.topics[0].topic_id = old.topic_id
        session_id = (await broker.send(request, 13)).session_id
        await broker.context.topics.delete_topic("t")
        codes = []
        for epoch in (1, 2):
            answer = await broker.send(FetchRequest(session_id=session_id, session_epoch=epoch), 13)
            assert answer.responses[0].topic_id == old.topic_id
            codes.append({part.error_code for part in answer.responses[0].partitions})
            await (broker.create_topic("t", 2) if epoch == 1 else asyncio.sleep(0))
        assert codes == [{ErrorCode.UNKNOWN_TOPIC_ID}, {ErrorCode.INCONSISTENT_TOPIC_ID}]


async def test_an_idle_session_costs_no_answers(tmp_path) -> None:
    async with direct_broker(tmp_path, {"max.incremental.fetch.session.cache.slots": "1"}) as broker:
        await broker.create_topic("t", 2)
        session_id = (await broker.send(both_partitions(max_wait_ms=0, session_epoch=0), 12)).session_id
        assert (await broker.send(both_partitions(max_wait_ms=0, session_epoch=0), 12)).session_id == 0
        for epoch in (1, 2, 3):
            answer = await broker.send(FetchRequest(session_id=session_id, session_epoch=epoch), 12)
            assert (answer.session_id, answer.responses) == (session_id, [])


async def test_a_consumer_at_the_end_hears_that_the_start_has_moved_there(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 2)
        await broker.produce("t", [b"0", b"1"])
        request = both_partitions(max_wait_ms=0, session_epoch=0)
        request.topics[0].partitions[0].fetch_offset = 2
        session_id = (await broker.send(request, 12)).session_id
        broker.context.replicas.partition("t", 0).delete_records(2)
        answer = await broker.send(FetchRequest(session_id=session_id, session_epoch=1), 12)
        (part,) = answer.responses[0].partitions
        assert (part.partition_index, part.log_start_offset, part.high_watermark) == (0, 2, 2)


@pytest.mark.parametrize("forgotten", [0, 1_000], ids=["decoded at once", "decoded in slices"])
async def test_a_fetch_that_is_cancelled_as_it_would_begin_to_wait_leaves_nothing_behind(
    tmp_path, forgotten
) -> None:
    """Its slices are done, and their result, a coroutine, was not taken when its connection is lost."""
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        wanted = [FetchTopic(topic="t", partitions=[FetchPartition(partition=0)])]
        first = FetchRequest(session_epoch=0, max_wait_ms=0, topics=wanted)
        session_id = (await broker.send(first, 12)).session_id
        dispatcher = broker.broker.dispatcher
        slices = dispatcher._slices
        clock, enqueue = slices._clock, slices._enqueue

        def lost_when_done(work):
            future = enqueue(work)
            future.add_done_callback(lost)
            return future

        def lost(future):
            if asyncio.iscoroutine(future.result()):
                outcome.cancel()

        slices._clock = itertools.count().__next__  # each slice is one step
        slices._enqueue = lost_when_done
        later = FetchRequest(session_id=session_id, session_epoch=1, max_wait_ms=LONG_MS, min_bytes=1)
        later.forgotten_topics_data = [ForgottenTopic(topic="other", partitions=[*range(forgotten)])]
        pending = dispatcher(broker.peer, encode_request(later, 12, 1, "test"))
        outcome = asyncio.ensure_future(pending.outcome)
        with pytest.raises(asyncio.CancelledError):
            await outcome
        slices._clock, slices._enqueue = clock, enqueue
        gc.collect()  # a coroutine that was never awaited warns when it is collected
        assert not dispatcher._declarations[FetchRequest.API_KEY].handler.__self__._in_session
