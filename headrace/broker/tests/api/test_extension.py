"""The extension interface, with a small extension that upper-cases records and publishes on request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from headrace.broker.configs.config_key import ConfigKey, ConfigType
from headrace.broker.context import BrokerContext
from headrace.broker.log.errors import RecordErrors
from headrace.broker.log.partition_log import AppendInfo, AppendOrigin
from headrace.broker.partitions.hooks import FetchedRecords
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.replication.following import Follower
from headrace.broker.requests.declaration import ApiDeclaration
from headrace.broker.runtime import background
from headrace.broker.security.requirement import public
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.protocol.records.decode import decode_records
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.schema import ApiMessage, int32, string
from simulator.direct import direct_broker, values_of

SOON = 60.0  # seconds in which something that should happen at once has happened, on a busy machine


class PingRequest(ApiMessage, key=10900, kind="request", versions="0-1", flexible="0+"):
    text: str = string()


class PingResponse(ApiMessage, key=10900, kind="response", versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    text: str = string()


class Shouting:
    """The hooks of one partition. With `hold`, appended records stay invisible until `release`."""

    def __init__(self, extension: ShoutExtension, partition: Partition) -> None:
        self.extension = extension
        self.partition = partition
        self.held: int | None = None
        self.floor: int | None = None
        self.events: list[str] = []

    def can_rest(self, end_offset: int) -> bool:
        self.events.append(f"asked at {end_offset}")
        return self.extension.rests

    async def start(self) -> None:
        await self.extension.may_start.wait()
        self.events.append("start")
        if "broken" in self.partition.topic.name:
            raise ValueError("this one cannot start")
        self.partition.publish_high_watermark(self.partition.log.log_end_offset)

    async def produce(self, batch: memoryview, acks: int, timeout_ms: int) -> AppendInfo:
        values = decode_records(batch).values()
        bad = [(index, f"record {index} is silent") for index, value in enumerate(values) if not value]
        if bad:
            raise RecordErrors("silence is not accepted", bad)
        info = self.partition.append(batch, AppendOrigin.CLIENT)
        if acks == -1 and not await self.partition.wait_for_high_watermark(info.last_offset + 1, timeout_ms):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "not published in time")
        return info

    def produce_at_once(self, batch: memoryview) -> AppendInfo | None:
        self.extension.offered += 1
        return self.partition.append(batch, AppendOrigin.CLIENT) if self.extension.at_once else None

    async def wait_published(self, info: AppendInfo, acks: int, timeout_ms: int) -> AppendInfo:
        self.extension.waited += 1
        self.extension.waits.set()
        if acks == -1 and not await self.partition.wait_for_high_watermark(info.last_offset + 1, timeout_ms):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "not published in time")
        return info

    async def fetch(self, offset: int, max_bytes: int, min_one: bool) -> FetchedRecords:
        await asyncio.sleep(0)
        parts = []
        size = 0
        while offset < self.partition.high_watermark:
            stored = self.partition.read(offset, 1, True).read()
            columns = decode_records(stored)
            shown = [Record(None, value.upper(), (), 1) for value in columns.values()]
            part = build_batch(shown, base_offset=int(columns.offsets[0]))
            if size + len(part) > max_bytes and not (min_one and not parts):
                break
            parts.append(part)
            size += len(part)
            offset = int(columns.offsets[-1]) + 1
        return FetchedRecords(tuple(parts), size)

    def high_watermark_candidate(self, offset: int) -> None:
        if self.extension.hold:
            self.held = offset
        else:
            self.partition.publish_high_watermark(offset)

    def release(self) -> None:
        assert self.held is not None
        self.partition.publish_high_watermark(self.held)

    def retention_floor(self) -> int | None:
        return self.floor

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        return True

    async def truncated(self, end_offset: int) -> None:
        self.events.append(f"truncated {end_offset}")

    async def close(self) -> None:
        self.events.append("close")
        await self.extension.may_close.wait()

    async def delete(self) -> None:
        self.events.append("delete")


class ShoutExtension:
    name = "shout"

    async def checkpoint(self, folder: Path) -> None:
        pass

    def judged_as(self, topic: str) -> str:
        return topic

    def __init__(self) -> None:
        self.hold = False
        self.at_once = False
        self.offered = self.waited = 0
        self.waits = asyncio.Event()
        self.rests = False
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.hooks: dict[tuple[str, int], Shouting] = {}
        self.log: list[str] = []
        self.context: BrokerContext

    def apis(self) -> list[ApiDeclaration]:
        return [ApiDeclaration(PingRequest, PingResponse, self.ping, public())]

    async def ping(self, context, request: PingRequest) -> PingResponse:
        await asyncio.sleep(0)
        return PingResponse(text=f"{request.text} from {context.client_id}")

    def broker_configs(self) -> list[ConfigKey]:
        return [ConfigKey("shout.volume", ConfigType.INT, "11", "How loud.")]

    def topic_configs(self) -> list[ConfigKey]:
        return [ConfigKey("shout", ConfigType.BOOLEAN, "false", "Whether to shout.")]

    async def validate_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> dict[str, str]:
        normal = dict(config)
        if "shout" in normal:
            normal["shout"] = normal["shout"].lower()
            if partitions > 4:
                raise KafkaError(ErrorCode.INVALID_CONFIG, "four partitions are loud enough")
        return normal

    async def validate_change(
        self, topic: TopicImage, partitions: int, config: Mapping[str, str]
    ) -> dict[str, str]:
        if topic.config.get("shout") != config.get("shout"):
            raise KafkaError(ErrorCode.INVALID_CONFIG, "shout cannot be changed")
        return await self.validate_topic(topic.name, partitions, config)

    def replicas_wanted(self, topic: str, config: Mapping[str, str]) -> int | None:
        return None

    def partition_hooks(self, partition: Partition, topic: TopicImage) -> Shouting | None:
        if topic.config.get("shout") != "true":
            return None
        hooks = self.hooks[topic.name, partition.index] = Shouting(self, partition)
        return hooks

    def replica_hooks(self, follower: Follower, topic: TopicImage) -> None:
        return None

    async def replica_removed(self, topic: TopicImage, index: int, *, with_topic: bool = False) -> None:
        """Do nothing: no state is kept."""

    def retention_floor(self, partition: Partition) -> int | None:
        return None

    async def start(self, context: BrokerContext) -> None:
        self.context = context
        self.log.append("start")

    async def run(self, context: BrokerContext) -> None:
        self.log.append("run")
        try:
            await asyncio.Event().wait()
        finally:
            self.log.append(f"stopped before {len(self.hooks)} hooks were closed")
            assert not any("close" in hooks.events for hooks in self.hooks.values())


async def test_an_extensions_api_is_advertised_and_answered(tmp_path) -> None:
    async with direct_broker(tmp_path, extensions=[ShoutExtension()]) as broker:
        named = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        advertised = {
            api.api_key: (api.min_version, api.max_version) for api in (await broker.send(named)).api_keys
        }
        assert advertised[10900] == (0, 1)
        frame_answer = await broker.send_frame(ping_frame("hello"))
        assert frame_answer.endswith(b"\x10hello from test\x00")


def ping_frame(text: str) -> bytes:
    from headrace.protocol.headers import RequestHeader, encode_request_header

    return encode_request_header(RequestHeader(10900, 1, 1, "test"), 2) + PingRequest(text=text).encode(1)


async def test_hooks_take_over_produce_and_fetch_and_plain_topics_stay_plain(tmp_path) -> None:
    async with direct_broker(tmp_path, extensions=[ShoutExtension()]) as broker:
        await broker.create_topic("loud", shout="TRUE")
        await broker.create_topic("plain")
        assert broker.context.metadata.topic("loud").config == {"shout": "true"}
        for topic in ("loud", "plain"):
            for values in ([b"a", b"b"], [b"c"]):
                assert (await broker.produce(topic, values)).error_code == 0
        assert values_of((await broker.fetch("loud")).records) == [(0, b"A"), (1, b"B"), (2, b"C")]
        assert values_of((await broker.fetch("loud", max_bytes=1)).records) == [(0, b"A"), (1, b"B")]
        assert values_of((await broker.fetch("plain")).records) == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_hooks_may_take_a_small_batch_at_once_and_its_answer_waits_for_them(tmp_path) -> None:
    extension = ShoutExtension()
    async with direct_broker(tmp_path, extensions=[extension]) as broker:
        await broker.create_topic("loud", shout="true")
        assert (await broker.produce("loud", [b"a"])).error_code == 0
        assert (extension.offered, extension.waited) == (1, 0)
        extension.at_once = True
        assert (await broker.produce("loud", [b"b"])).base_offset == 1
        assert (extension.offered, extension.waited) == (2, 0), "it was published before the answer was made"
        extension.hold = True
        held = asyncio.create_task(broker.produce("loud", [b"c"], acks=-1))
        async with asyncio.timeout(SOON):
            await extension.waits.wait()
        assert not held.done()
        extension.hooks["loud", 0].release()
        assert (await held).base_offset == 2
        extension.hold = False
        large = await broker.produce("loud", [b"x" * 60_000])
        assert (large.error_code, extension.offered) == (0, 3), "the event loop has no time for a large batch"


async def test_transactions_do_not_include_topics_of_extensions(tmp_path) -> None:
    async with direct_broker(tmp_path, extensions=[ShoutExtension()]) as broker:
        await broker.create_topic("loud", shout="true")
        await broker.create_topic("plain")
        init = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
        given = await broker.send(init)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=given.producer_id,
            v3_and_below_producer_epoch=given.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in ("loud", "plain")
            ],
        )
        answer = await broker.send(request, 3)
        codes = [t.results_by_partition[0].partition_error_code for t in answer.results_by_topic_v3_and_below]
        assert codes == [ErrorCode.NONE, ErrorCode.NONE], (
            "there is no room for a reason; the next answer has it"
        )
        options = {"producer_id": given.producer_id, "producer_epoch": 0, "base_sequence": 0}
        for version in (11, 12):
            refused = await broker.produce("loud", [b"a"], version=version, attributes=0x10, **options)
            assert refused.error_code == ErrorCode.POLICY_VIOLATION
            assert "without transactional.id" in refused.error_message
        end = EndTxnRequest(
            transactional_id="tx",
            producer_id=given.producer_id,
            producer_epoch=given.producer_epoch,
            committed=False,
        )
        assert (await broker.send(end, 3)).error_code == 0
        assert not (await broker.fetch("loud")).records
        assert (await broker.produce("loud", [b"a"])).error_code == 0


async def test_hooks_that_cannot_delete_do_not_keep_a_topic_from_being_deleted(tmp_path, monkeypatch) -> None:
    async def fails(_: Shouting) -> None:
        raise OSError("its files are busy")

    async with direct_broker(tmp_path, extensions=[ShoutExtension()]) as broker:
        await broker.create_topic("loud", shout="true")
        assert (await broker.produce("loud", [b"a"])).error_code == 0
        monkeypatch.setattr(Shouting, "delete", fails)
        await broker.context.topics.delete_topic("loud")
        monkeypatch.undo()
        await broker.create_topic("loud")
        assert (await broker.produce("loud", [b"b"])).error_code == 0
        assert values_of((await broker.fetch("loud")).records) == [(0, b"b")]


async def test_record_errors_are_told_with_their_indexes(tmp_path) -> None:
    async with direct_broker(tmp_path, extensions=[ShoutExtension()]) as broker:
        await broker.create_topic("loud", shout="true")
        answer = await broker.produce("loud", [b"a", b"", b"c", b""])
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert answer.error_message == "silence is not accepted"
        assert [(e.batch_index, e.batch_index_error_message) for e in answer.record_errors] == [
            (1, "record 1 is silent"),
            (3, "record 3 is silent"),
        ]
        assert broker.context.replicas.partition("loud", 0).log.log_end_offset == 0
        assert (await broker.produce("loud", [b""], version=7)).error_code == ErrorCode.INVALID_RECORD


async def test_nothing_above_the_published_high_watermark_is_seen_and_acks_all_waits_for_it(tmp_path) -> None:
    extension = ShoutExtension()
    async with direct_broker(tmp_path, extensions=[extension]) as broker:
        await broker.create_topic("loud", shout="true")
        hooks = extension.hooks["loud", 0]
        extension.hold = True
        leader_only = await broker.produce("loud", [b"a"], acks=1)
        assert leader_only.base_offset == 0
        answer = await broker.fetch("loud")
        assert (answer.high_watermark, bytes(answer.records)) == (0, b"")
        everyone = asyncio.ensure_future(broker.produce("loud", [b"b"]))
        waiting = asyncio.ensure_future(broker.fetch("loud", max_wait_ms=600_000))
        await asyncio.sleep(0.05)
        assert not everyone.done()
        assert not waiting.done()
        hooks.release()
        async with asyncio.timeout(SOON):
            assert (await everyone).base_offset == 1
            assert values_of((await waiting).records) == [(0, b"A"), (1, b"B")]
        with pytest.raises(RuntimeError, match="past the log's end"):
            hooks.partition.publish_high_watermark(3)
        hooks.partition.publish_high_watermark(1)  # going back is ignored
        assert hooks.partition.high_watermark == 2


async def test_acks_all_is_told_when_the_partition_fails_meanwhile(tmp_path) -> None:
    extension = ShoutExtension()
    async with direct_broker(tmp_path, extensions=[extension]) as broker:
        await broker.create_topic("loud", shout="true")
        extension.hold = True
        everyone = asyncio.ensure_future(broker.produce("loud", [b"b"]))
        await asyncio.sleep(0.02)
        broker.context.replicas.partition("loud", 0).fail("the test says so")
        async with asyncio.timeout(SOON):
            assert (await everyone).error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_an_extension_validates_its_own_topics(tmp_path) -> None:
    async with direct_broker(tmp_path, extensions=[ShoutExtension()]) as broker:
        for name, partitions, config, problem in [
            ("many", 5, {"shout": "true"}, "loud enough"),
            ("odd", 1, {"shout": "maybe"}, "either true or false"),
            ("typo", 1, {"shoot": "true"}, "did you mean 'shout'"),
        ]:
            with pytest.raises(KafkaError, match=problem):
                await broker.create_topic(name, partitions, **config)
        await broker.create_topic("loud", shout="true")
        with pytest.raises(KafkaError, match="cannot be changed"):
            await broker.context.topics.alter_config("loud", {"shout": "false"})
        with pytest.raises(KafkaError, match="loud enough"):
            await broker.context.topics.create_partitions("loud", 9)
        await broker.context.topics.create_partitions("loud", 2)
        assert (await broker.produce("loud", [b"x"], partition=1)).error_code == 0
        assert broker.context.config["shout.volume"] == 11


async def test_the_life_of_hooks(tmp_path) -> None:
    first = ShoutExtension()
    async with direct_broker(tmp_path, extensions=[first]) as broker:
        await broker.create_topic("kept", shout="true")
        await broker.create_topic("dropped", shout="true")
        await broker.produce("kept", [b"x"])
        await broker.context.topics.delete_topic("dropped")
        assert first.hooks["dropped", 0].events == ["start", "delete"]
        assert broker.context.extension_dir("shout").is_dir()
    assert first.hooks["kept", 0].events == ["start", "close"]
    assert first.log == ["start", "run", "stopped before 2 hooks were closed"]
    second = ShoutExtension()
    async with direct_broker(tmp_path, extensions=[second]) as broker:
        assert list(second.hooks) == [("kept", 0)]
        assert second.hooks["kept", 0].events == ["asked at 1", "start"]
        assert values_of((await broker.fetch("kept")).records) == [(0, b"X")]


async def test_a_partition_whose_hooks_rest_is_served_before_they_start(tmp_path) -> None:
    async with direct_broker(tmp_path, extensions=[ShoutExtension()]) as broker:
        await broker.create_topic("kept", 2, shout="true")
        await broker.produce("kept", [b"x"])
    extension = ShoutExtension()
    extension.rests = True
    extension.may_start.clear()
    async with direct_broker(tmp_path, extensions=[extension]) as broker:
        partitions = broker.context.replicas.partitions("kept")
        assert [each.high_watermark for each in partitions] == [1, 0]
        assert values_of((await broker.fetch("kept")).records) == [(0, b"X")]
        extension.may_start.set()
        hooks = [extension.hooks["kept", index] for index in (0, 1)]
        await until(lambda: all("start" in each.events for each in hooks))
        assert [each.events for each in hooks] == [["asked at 1", "start"], ["asked at 0", "start"]]
    unclean = ShoutExtension()
    unclean.rests = True
    (tmp_path / "kept-0" / "clean-shutdown").unlink()
    async with direct_broker(tmp_path, extensions=[unclean]) as broker:
        assert unclean.hooks["kept", 0].events == ["start"]
        assert values_of((await broker.fetch("kept")).records) == [(0, b"X")]


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what is waited for is another's
        await asyncio.sleep(0)


async def test_a_partition_whose_hooks_close_is_not_served_as_a_plain_one(tmp_path) -> None:
    extension = ShoutExtension()
    async with direct_broker(tmp_path, extensions=[extension]) as broker:
        await broker.create_topic("loud", shout="true")
        await broker.produce("loud", [b"x"])
        partition = broker.context.replicas.partition("loud", 0)
        extension.may_close.clear()
        closing = asyncio.ensure_future(partition.close())
        await until(lambda: "close" in extension.hooks["loud", 0].events)
        refused = await broker.produce("loud", [b"raw"])
        answer = await broker.fetch("loud")
        end_offset = partition.log.log_end_offset
        extension.may_close.set()
        await closing
        extension.hooks["loud", 0].events.clear()
    assert refused.error_code == answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not answer.records
    assert end_offset == 1


async def test_a_write_for_hooks_that_closed_is_refused(tmp_path) -> None:
    extension = ShoutExtension()
    async with direct_broker(tmp_path, extensions=[extension]) as broker:
        await broker.create_topic("loud", 2, shout="true")
        batch = build_batch([Record(None, b"x", (), broker.context.clock.time_ms())])
        data = [PartitionProduceData(index=index, records=batch) for index in range(2)]
        topic = TopicProduceData(name="loud", partition_data=data)
        produced = asyncio.ensure_future(
            broker.send(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 12)
        )
        closing = asyncio.ensure_future(broker.context.replicas.partition("loud", 0).close())
        answers = (await produced).responses[0].partition_responses
        await closing
        extension.hooks["loud", 0].events.clear()
    assert [answer.error_code for answer in answers] == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]


def test_hooks_that_cannot_start_fail_their_partition_only(tmp_path, caplog) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path, extensions=[ShoutExtension()]) as broker:
            await broker.create_topic("broken", shout="true")
            await broker.create_topic("loud", shout="true")
            answer = await broker.produce("broken", [b"x"])
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "this one cannot start" in answer.error_message
            assert (await broker.produce("loud", [b"x"])).error_code == 0

    asyncio.run(test())
    assert "this one cannot start" in caplog.text


async def test_retention_stops_at_the_floor_and_clients_cannot_delete_records(tmp_path, caplog) -> None:
    extension = ShoutExtension()
    async with direct_broker(tmp_path, extensions=[extension]) as broker:
        await broker.create_topic("loud", shout="true", retention_ms="1", segment_bytes="150")
        for _ in range(4):
            await broker.produce("loud", [b"x" * 50])
        partition = broker.context.replicas.partition("loud", 0)
        late = broker.context.clock.time_ms() + 10_000
        extension.hooks["loud", 0].floor = 2
        assert partition.apply_retention(late) == 2
        assert partition.log.log_start_offset == 2
        wanted = DeleteRecordsPartition(partition_index=0, offset=-1)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="loud", partitions=[wanted])])
        answer = (await broker.send(request)).topics[0].partitions[0]
        assert answer.error_code == ErrorCode.POLICY_VIOLATION
        assert "records of loud cannot be deleted: its extension needs them" in caplog.text
        assert partition.log.log_start_offset == 2


def test_an_extension_whose_work_fails_is_told_and_works_again_and_the_broker_goes_on(
    tmp_path, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(background, "PAUSE_SECONDS_MIN", 0.01)

    class Failing(ShoutExtension):
        works = 0

        async def run(self, context: BrokerContext) -> None:
            self.works += 1
            if self.works < 3:
                raise OSError("the lake is dry")
            await asyncio.Event().wait()

    async def test() -> None:
        extension = Failing()
        async with direct_broker(tmp_path, extensions=[extension]) as broker:
            async with asyncio.timeout(60):
                while extension.works < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await broker.create_topic("plain")
            assert (await broker.produce("plain", [b"x"])).error_code == 0
            found = await broker.context.metrics.gather()
            assert found["headrace_background_failures_total"] == {(): 2}

    asyncio.run(test())
    assert caplog.text.count("the lake is dry") >= 2


def test_work_that_is_started_once_and_fails_is_told_and_the_broker_goes_on(tmp_path, caplog) -> None:
    async def work() -> None:
        raise ValueError("it cannot be done")

    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            await asyncio.wait([broker.context.background.start(work(), "a try")])
            await broker.create_topic("plain")
            assert (await broker.produce("plain", [b"x"])).error_code == 0
            assert broker.context.background.failures == 1

    asyncio.run(test())
    assert "a try failed" in caplog.text
    assert "it cannot be done" in caplog.text


async def test_a_topic_that_its_extension_cannot_take_is_offline_and_the_broker_starts(tmp_path) -> None:
    class Refusing(ShoutExtension):
        def partition_hooks(self, partition: Partition, topic: TopicImage) -> Shouting | None:
            if topic.name == "bad":
                raise ValueError("nobody understands this")
            return super().partition_hooks(partition, topic)

    async with direct_broker(tmp_path, extensions=[ShoutExtension()]) as broker:
        for name in ("bad", "good"):
            await broker.create_topic(name, shout="true")
            assert (await broker.produce(name, [b"x"])).error_code == 0
    async with direct_broker(tmp_path, extensions=[Refusing()]) as broker:
        answer = await broker.produce("bad", [b"y"])
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "nobody understands this" in answer.error_message
        assert (await broker.produce("good", [b"y"])).base_offset == 1
    async with direct_broker(tmp_path, extensions=[ShoutExtension()]) as broker:
        assert (await broker.produce("bad", [b"y"])).base_offset == 1  # nothing was lost
