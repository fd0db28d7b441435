"""CreateTopics, DeleteTopics, CreatePartitions, the three config APIs, InitProducerId."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.alter_configs import AlterableConfig as ReplacedConfig
from headrace.protocol.messages.alter_configs import AlterConfigsRequest
from headrace.protocol.messages.alter_configs import AlterConfigsResource as ReplacedResource
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from simulator.direct import DirectBroker, direct_broker

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def creatable(
    name: str, partitions: int = 1, replicas: int = 1, config=None, assignments=()
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()],
        assignments=[CreatableReplicaAssignment(partition_index=i, broker_ids=b) for i, b in assignments],
    )


async def create(
    broker: DirectBroker, *topics: CreatableTopic, version: int = 7, validate_only: bool = False
):
    response = await broker.send(
        CreateTopicsRequest(topics=list(topics), validate_only=validate_only), version
    )
    return response.topics


# -- CreateTopics ----------------------------------------------------------------------------------------


async def test_a_created_topic_is_answered_with_its_id_and_configuration(tmp_path) -> None:
    async with direct_broker(tmp_path, {"num.partitions": "3"}) as broker:
        (result,) = await create(broker, creatable("t", -1, -1, {"retention.ms": "5000"}))
        image = broker.context.metadata.topic("t")
        assert (result.error_code, result.topic_id, result.num_partitions) == (0, image.topic_id, 3)
        assert result.replication_factor == 1
        config = {entry.name: (entry.value, entry.config_source) for entry in result.configs}
        assert config["retention.ms"] == ("5000", 1)
        assert config["segment.bytes"][1] == 5
        for version in range(2, 8):
            (result,) = await create(broker, creatable(f"v{version}"), version=version)
            assert result.error_code == 0


@pytest.mark.parametrize("version", range(2, 8))
async def test_create_topics_by_version(tmp_path, version) -> None:
    async with direct_broker(tmp_path, {"num.partitions": "3"}) as broker:
        (result,) = await create(broker, creatable("t", 2, 1, {"retention.ms": "5000"}), version=version)
        image = broker.context.metadata.topic("t")
        assert (result.error_code, image.partition_count) == (0, 2)
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (2, 1)
            assert {entry.name: entry.value for entry in result.configs}["retention.ms"] == "5000"
        else:
            assert not result.configs
        assert result.topic_id == (image.topic_id if version >= 7 else uuid.UUID(int=0))
        (result,) = await create(broker, creatable("defaults", -1, -1), version=version)
        assert result.error_code == 0, "clients may say -1 from version 4 on; before that Kafka takes it too"
        assert broker.context.metadata.topic("defaults").partition_count == 3
        (result,) = await create(broker, creatable("dry"), version=version, validate_only=True)
        assert result.error_code == 0
        assert broker.context.metadata.topic("dry") is None
        (result,) = await create(broker, creatable("many", 1, 3), version=version)
        assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (creatable("bad name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (creatable(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (creatable(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (creatable("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (creatable("__consumer_offsets"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (creatable("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (creatable("t", 0), ErrorCode.INVALID_PARTITIONS),
        (creatable("t", -2), ErrorCode.INVALID_PARTITIONS),
        (creatable("t", 10**9), ErrorCode.INVALID_PARTITIONS),
        (creatable("t", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
        (creatable("t", config={"retention.mss": "1"}), ErrorCode.INVALID_CONFIG),
        (creatable("t", config={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (creatable("t", config={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (creatable("t", config={"cleanup.policy": "compost"}), ErrorCode.INVALID_CONFIG),
        (creatable("t", config={"remote.storage.enable": "true"}), ErrorCode.INVALID_CONFIG),
        (creatable("t", 1, 1, assignments=[(0, [0])]), ErrorCode.INVALID_REQUEST),
        (creatable("t", -1, -1, assignments=[(0, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (creatable("t", -1, -1, assignments=[(0, [0]), (2, [0])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_a_topic_that_cannot_be_created_is_refused_with_a_reason(tmp_path, topic, code) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("there")
        (result,) = await create(broker, topic)
        assert result.error_code == code
        assert result.error_message
        assert [image.name for image in broker.context.metadata.topics()] == ["there"]


ILLEGAL = "it contains a character other than ASCII alphanumerics, '.', '_' and '-'"


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        (creatable("bad name"), f"Topic name is invalid: 'bad name' is illegal, {ILLEGAL}"),
        (creatable("there"), "Topic 'there' already exists."),
        (creatable("there", config={"retention.ms": "soon"}), "Topic 'there' already exists."),
        (creatable("the_re"), "Topic 'the_re' collides with existing topic: the.re"),
        (creatable("t", -2), "Number of partitions was set to an invalid non-positive value."),
        (creatable("t", 1, 0), "Replication factor must be larger than 0, or -1 to use the default value."),
        (
            creatable("t", 1, 3),
            "The target replication factor of 3 cannot be reached because only 1 broker(s)",
        ),
        (creatable("t", config={"foo.bar": "1"}), "Unknown topic config name: foo.bar"),
        (
            creatable("t", config={"retention.ms": None}),
            "Null value not supported for topic configs: retention.ms",
        ),
        *(
            (creatable("t", config={name: text}), f"Invalid value {text} for configuration {name}: {problem}")
            for name, text, problem in (
                ("retention.ms", "abc", "Not a number of type LONG"),
                ("retention.ms", "-5", "Value must be at least -1"),
                ("segment.bytes", "99999999999", "Not a number of type INT"),
                ("preallocate", "maybe", "Expected value to be either true or false"),
                ("min.cleanable.dirty.ratio", "2", "Value must be no more than 1"),
                ("cleanup.policy", "foo", "String must be one of: compact, delete"),
                (
                    "compression.type",
                    "br",
                    "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
                ),
            )
        ),
        (
            creatable("t", -1, -1, assignments=[(0, [8])]),
            "includes broker 8, but no such broker is registered.",
        ),
        (creatable("t", -1, -1, assignments=[(0, [0, 0])]), "includes the broker 0 more than once."),
    ],
)
async def test_refused_topics_have_kafkas_error_messages(tmp_path, topic, words) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("there")
        await broker.create_topic("the.re")
        (result,) = await create(broker, topic)
        assert words in result.error_message


async def test_other_refusals_in_kafkas_words(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 5)

        async def grown(name: str, count: int) -> str | None:
            topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
            return (await broker.send(CreatePartitionsRequest(topics=[topic]))).results[0].error_message

        assert await grown("t", 2) == (
            "Topic currently has 5 partitions, which is higher than the requested 2."
        )
        assert await grown("t", 5) == "Topic already has 5 partition(s)."
        unknown = "This server does not host this topic-partition. The topic 'no' does not exist."
        assert await grown("no", 2) == unknown
        deleted = await broker.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="no")]))
        assert deleted.responses[0].error_message == unknown


async def test_assignments_twins_and_dry_runs(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        (result,) = await create(broker, creatable("assigned", -1, -1, assignments=[(1, [0]), (0, [0])]))
        assert (result.error_code, result.num_partitions) == (0, 2)
        results = await create(broker, creatable("twin"), creatable("twin"), creatable("single"))
        assert [r.error_code for r in results] == [ErrorCode.INVALID_REQUEST] * 2 + [0]
        (result,) = await create(broker, creatable("dry", 4), validate_only=True)
        assert (result.error_code, result.num_partitions) == (0, 4)
        assert broker.context.metadata.topic("dry") is None
        (result,) = await create(broker, creatable("single"), validate_only=True)
        assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


# -- DeleteTopics ----------------------------------------------------------------------------------------


async def test_topics_are_deleted_by_name_and_by_id(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        for version in range(1, 6):
            await broker.create_topic("t")
            await broker.produce("t", [b"x"])
            request = DeleteTopicsRequest(topic_names=["t", "missing"])
            codes = [r.error_code for r in (await broker.send(request, version)).responses]
            assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        image = await broker.create_topic("t")
        request = DeleteTopicsRequest(
            topics=[
                DeleteTopicState(name=None, topic_id=image.topic_id),
                DeleteTopicState(name=None, topic_id=uuid.uuid4()),
                DeleteTopicState(name="t", topic_id=image.topic_id),
            ]
        )
        responses = (await broker.send(request, 6)).responses
        assert [r.error_code for r in responses] == [
            0,
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.INVALID_REQUEST,
        ]
        assert responses[0].name == "t"
        assert broker.context.metadata.topics() == []
        await broker.create_topic("t")
        assert (await broker.produce("t", [b"new"])).base_offset == 0
    assert [p.name for p in tmp_path.iterdir() if p.is_dir() and p.name != "extensions"] == ["t-0"]


async def test_many_topics_are_deleted_by_few_transactions_of_the_store(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        metadata = broker.context.metadata
        names = [f"t{number}" for number in range(100)]
        images = [await broker.create_topic(name) for name in names]
        wanted = [DeleteTopicState(name=name) for name in (*names[:50], "missing", "t0")]
        wanted += [DeleteTopicState(name=None, topic_id=image.topic_id) for image in images[49:]]
        store = broker.context.store
        before = store.changes
        responses = (await broker.send(DeleteTopicsRequest(topics=wanted), 6)).responses
        codes = [each.error_code for each in responses]
        unknown, unknown_id = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID
        assert codes == [0] * 50 + [unknown, unknown, unknown_id] + [0] * 50
        assert metadata.topics() == []
        async with asyncio.timeout(60):
            while await store.children("/deleted"):  # noqa: ASYNC110 - the removal is another task
                await asyncio.sleep(0.005)
        assert store.changes - before < 10, "they wait for the disk once for many topics"
        assert await broker.context.topics.delete_topics(images[:0]) == []
        (error,) = await broker.context.topics.delete_topics(images[:1])
        assert getattr(error, "code", None) == unknown
        await broker.create_topic("t1")
        (error,) = await broker.context.topics.delete_topics(images[1:2])
        assert getattr(error, "code", None) == unknown, "one of the same name is another topic"
        assert metadata.topic("t1") is not None
    assert [p.name for p in tmp_path.iterdir() if p.is_dir() and p.name != "extensions"] == []


async def test_deletion_can_be_switched_off_and_never_hits_internal_topics(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("__consumer_offsets")
        response = await broker.send(DeleteTopicsRequest(topic_names=["__consumer_offsets"]), 5)
        assert response.responses[0].error_code == ErrorCode.INVALID_REQUEST
    async with direct_broker(tmp_path, {"delete.topic.enable": "false"}) as broker:
        await broker.create_topic("t")
        response = await broker.send(DeleteTopicsRequest(topic_names=["t"]), 5)
        assert response.responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED
        assert broker.context.metadata.topic("t") is not None


# -- CreatePartitions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "assignments", "code"),
    [
        (5, None, 0),
        (2, None, ErrorCode.INVALID_PARTITIONS),
        (1, None, ErrorCode.INVALID_PARTITIONS),
        (4, [[0], [0]], 0),
        (4, [[0]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_partitions_are_added_and_usable(tmp_path, count, assignments, code) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 2)
        topic = CreatePartitionsTopic(
            name="t",
            count=count,
            assignments=None
            if assignments is None
            else [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments],
        )
        for validate_only in (True, False):
            request = CreatePartitionsRequest(topics=[topic], validate_only=validate_only)
            (result,) = (await broker.send(request)).results
            assert result.error_code == code
            if validate_only:
                assert broker.context.metadata.topic("t").partition_count == 2
        if not code:
            assert (await broker.produce("t", [b"x"], partition=count - 1)).error_code == 0
    async with direct_broker(tmp_path) as broker:
        assert broker.context.metadata.topic("t").partition_count == (2 if code else count)


# -- configurations --------------------------------------------------------------------------------------


async def described(broker: DirectBroker, kind: int, name: str, keys=None, version: int = 4, **options):
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    response = await broker.send(DescribeConfigsRequest(resources=[resource], **options), version)
    result = response.results[0]
    return result.error_code, {entry.name: entry for entry in result.configs}


async def test_names_that_make_the_same_metric_collide_and_others_do_not(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        for name in ("a.b_c", "a.b-c", "aXb_c", "A.B_C", "a" * 249, "._-" + "z" * 246):
            (result,) = await create(broker, creatable(name))
            assert result.error_code == 0, name
            await broker.produce(name, [b"x"])
        for name in ("a_b_c", "a.b.c", "_.-" + "z" * 246):
            (result,) = await create(broker, creatable(name))
            assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert "collides" in result.error_message
        (result,) = await create(broker, creatable("a.b_c"))
        assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_many_topics_are_made_by_one_transaction_and_each_has_its_own_answer(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("old")
        store, calls = broker.context.store, []
        transact = store.transact

        async def counted(operations) -> None:
            calls.append(len(operations))
            await transact(operations)

        store.transact = counted
        wanted = [creatable(f"t{i}", 1 + i % 3) for i in range(30)]
        bad = [
            (creatable("old"), ErrorCode.TOPIC_ALREADY_EXISTS),
            (creatable("no/name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (creatable("none", 0), ErrorCode.INVALID_PARTITIONS),
            (creatable("odd", config={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
            (creatable("a_b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ]
        special = creatable("a.b", config={"retention.ms": "77"})
        results = await create(broker, *wanted[:15], special, *(topic for topic, _ in bad), *wanted[15:])
        assert calls == [
            1 + 31 * 3
        ]  # the controller's epoch; of each topic itself, its states, and one chunk of them
        assert [result.error_code for result in results] == [0] * 16 + [code for _, code in bad] + [0] * 15
        for topic, result in zip(wanted, results[:15] + results[21:], strict=True):
            image = broker.context.metadata.topic(topic.name)
            assert (result.name, result.topic_id) == (topic.name, image.topic_id)
            assert result.num_partitions == image.partition_count == topic.num_partitions
            assert {c.name: c.value for c in result.configs}["retention.ms"] == "604800000"
        assert {c.name: c.value for c in results[15].configs}["retention.ms"] == "77"
        assert broker.context.metadata.topic("odd") is None
    async with direct_broker(tmp_path) as broker:
        assert len(broker.context.metadata.topics()) >= 32
        assert (await broker.produce("t2", [b"x"], partition=2)).error_code == 0


KAFKAS_TOPIC_CONFIGS = """cleanup.policy compression.gzip.level compression.lz4.level compression.type
compression.zstd.level delete.retention.ms file.delete.delay.ms flush.messages flush.ms
follower.replication.throttled.replicas index.interval.bytes leader.replication.throttled.replicas
local.retention.bytes local.retention.ms max.compaction.lag.ms max.message.bytes message.timestamp.after.max.ms
message.timestamp.before.max.ms message.timestamp.type min.cleanable.dirty.ratio min.compaction.lag.ms
min.insync.replicas preallocate remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable
retention.bytes retention.ms segment.bytes segment.index.bytes segment.jitter.ms segment.ms
unclean.leader.election.enable"""


async def test_the_topic_configurations_are_those_of_kafka_4_3(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        _, entries = await described(broker, TOPIC, "t", include_documentation=True)
        assert {*KAFKAS_TOPIC_CONFIGS.split(), "durability"} == set(entries)
        for name, entry in entries.items():  # its own default is always accepted
            assert entry.documentation
            assert await alter(broker, (name, SET, entry.value)) == 0, name
        _, of_broker = await described(broker, BROKER, "0")
        for name in entries:
            synonym = broker.context.config.topic_synonym(name)
            assert synonym == name or synonym in of_broker


async def test_describe_configs_gives_every_configuration_with_its_source(tmp_path) -> None:
    async with direct_broker(tmp_path, {"log.segment.bytes": "5000000"}) as broker:
        await broker.create_topic("t", retention_ms="77")
        for version in range(1, 5):
            code, entries = await described(broker, TOPIC, "t", version=version, include_synonyms=True)
            assert code == 0
            assert set(entries) == set(broker.context.metadata.topic_configs.log_keys)
            _, without_names = await described(broker, TOPIC, "t", [], version)
            assert without_names.keys() == entries.keys(), "no names mean all, as in Kafka"
            seen = {name: (entries[name].value, entries[name].config_source) for name in entries}
            assert seen["retention.ms"] == ("77", 1)
            assert seen["segment.bytes"] == ("5000000", 4)
            assert seen["cleanup.policy"] == ("delete", 5)
            assert [s.source for s in entries["segment.bytes"].synonyms] == [4, 5]
        assert entries["retention.ms"].config_type == 5
        _, entries = await described(broker, TOPIC, "t", ["retention.ms"], include_documentation=True)
        assert list(entries) == ["retention.ms"]
        assert entries["retention.ms"].documentation
        for name in ("", "0"):
            code, entries = await described(broker, BROKER, name)
            assert code == 0
            assert entries["log.segment.bytes"].value == "5000000"
            assert entries["node.id"].read_only
            assert not entries["log.segment.bytes"].read_only
        assert (await described(broker, BROKER, "9"))[0] == ErrorCode.INVALID_REQUEST
        assert (await described(broker, 16, "0"))[0] == ErrorCode.INVALID_REQUEST
        assert (await described(broker, TOPIC, "missing"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def alter(broker: DirectBroker, *operations, name: str = "t", kind: int = TOPIC, **options) -> int:
    configs = [AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in operations]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    response = await broker.send(IncrementalAlterConfigsRequest(resources=[resource], **options))
    return response.responses[0].error_code


async def test_incremental_changes_apply_at_once_and_survive_a_restart(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", retention_ms="77", segment_bytes="1000")
        await broker.produce("t", [b"x"])
        log = broker.context.replicas.partition("t", 0).log
        assert await alter(broker, ("retention.ms", SET, "88"), validate_only=True) == 0
        assert log.config.retention_ms == 77
        assert await alter(broker, ("retention.ms", SET, "88"), ("segment.bytes", DELETE, None)) == 0
        assert (log.config.retention_ms, log.config.segment_bytes) == (88, 1 << 30)
        assert await alter(broker, ("cleanup.policy", APPEND, "delete,compact")) == 0
        assert log.config.cleanup_policy == ("delete", "compact")
        assert await alter(broker, ("cleanup.policy", SUBTRACT, "delete")) == 0
        assert log.config.cleanup_policy == ("compact",)
        assert await alter(broker, ("cleanup.policy", SUBTRACT, "compact")) == 0  # nothing goes (KIP-1161)
        assert (log.config.cleanup_policy, log.config.retention.age_ms_max) == ((), -1)
    async with direct_broker(tmp_path) as broker:
        assert broker.context.metadata.topic("t").config["retention.ms"] == "88"
        assert "segment.bytes" not in broker.context.metadata.topic("t").config


async def test_internal_topics_take_only_replica_configurations(tmp_path) -> None:
    """kafka-reassign-partitions does the same: it sets throttles, and removes them from everything it has moved."""
    name = "__consumer_offsets"
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic(name, retention_ms="-1")
        throttled = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
        for key, value in ((throttled[0], "0:0"), (throttled[1], "*"), ("min.insync.replicas", "2")):
            assert await alter(broker, (key, SET, value), name=name) == 0
            assert broker.context.metadata.topic(name).config[key] == value
        for change in (
            ("retention.ms", SET, "1"),
            ("retention.ms", DELETE, None),
            ("cleanup.policy", APPEND, "delete"),
        ):
            assert (
                await alter(broker, (throttled[0], SET, ""), change, name=name) == ErrorCode.POLICY_VIOLATION
            )
        assert broker.context.metadata.topic(name).config[throttled[0]] == "0:0", "all or nothing"
        assert await alter(broker, *((key, DELETE, None) for key in throttled), name=name) == 0
        assert broker.context.metadata.topic(name).config == {
            "min.insync.replicas": "2",
            "retention.ms": "-1",
        }


async def test_appending_to_a_list_starts_from_the_change_before(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        first = alter(broker, ("cleanup.policy", APPEND, "compact"))
        second = alter(broker, ("cleanup.policy", SUBTRACT, "delete"))
        assert await asyncio.gather(first, second) == [0, 0]
        assert broker.context.metadata.topic("t").config["cleanup.policy"] == "compact"


@pytest.mark.parametrize(
    ("operations", "options", "code"),
    [
        ([("retention.ms", SET, "soon")], {}, ErrorCode.INVALID_CONFIG),
        ([("no.such", SET, "1")], {}, ErrorCode.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], {}, ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, None)], {}, ErrorCode.INVALID_REQUEST),
        ([("retention.ms", 9, "1")], {}, ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], {}, ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1")], {"name": "missing"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([("num.partitions", SET, "1")], {"name": "0", "kind": BROKER}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_refused_changes_change_nothing(tmp_path, operations, options, code) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", retention_ms="77")
        changed = [*operations, ("segment.ms", SET, "99")]
        assert await alter(broker, *changed, **options) == code
        assert broker.context.metadata.topic("t").config == {"retention.ms": "77"}


async def test_alter_configs_replaces_everything(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", retention_ms="77", segment_bytes="1000")
        resource = ReplacedResource(
            resource_type=TOPIC,
            resource_name="t",
            configs=[ReplacedConfig(name="flush.messages", value="5")],
        )
        response = await broker.send(AlterConfigsRequest(resources=[resource]))
        assert response.responses[0].error_code == 0
        assert broker.context.metadata.topic("t").config == {"flush.messages": "5"}


# -- producer ids ----------------------------------------------------------------------------------------


async def test_a_producer_id_is_never_given_twice(tmp_path) -> None:
    seen = []
    for _ in range(3):
        async with direct_broker(tmp_path) as broker:
            answers = await asyncio.gather(
                *(broker.send(InitProducerIdRequest(transactional_id=None), v) for v in range(6))
            )
            assert {(a.error_code, a.producer_epoch) for a in answers} == {(0, 0)}
            seen += [a.producer_id for a in answers]
    assert len(set(seen)) == len(seen) == 18
    assert min(seen) >= 0
