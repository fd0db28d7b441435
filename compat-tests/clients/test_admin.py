"""Administration with three clients: topics, configurations, groups."""

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as PythonNewTopic

from simulator.three_brokers import REPLICAS


@pytest.fixture
def admin(server):
    return AdminClient({"bootstrap.servers": server.address})


def produce(server, topic, count, partition=0):
    producer = Producer({"bootstrap.servers": server.address})
    for index in range(count):
        producer.produce(topic, b"%d" % index, partition=partition)
    assert producer.flush(60) == 0


class TestConfluent:
    def test_topics(self, admin, unique):
        topic = unique("topic")
        admin.create_topics([NewTopic(topic, 2, REPLICAS)])[topic].result(60)
        assert set(admin.list_topics(topic, timeout=60).topics[topic].partitions) == {0, 1}
        with pytest.raises(KafkaException) as raised:
            admin.create_topics([NewTopic(topic, 2, REPLICAS)])[topic].result(60)
        assert raised.value.args[0].name() == "TOPIC_ALREADY_EXISTS"
        admin.create_partitions([NewPartitions(topic, 5)])[topic].result(60)
        assert len(admin.list_topics(topic, timeout=60).topics[topic].partitions) == 5
        admin.delete_topics([topic])[topic].result(60)
        assert topic not in admin.list_topics(timeout=60).topics
        with pytest.raises(KafkaException) as raised:
            admin.delete_topics([topic])[topic].result(60)
        assert raised.value.args[0].name() == "UNKNOWN_TOPIC_OR_PART"

    def test_bad_topics_are_refused_with_a_reason(self, admin, unique):
        good = unique("topic")
        bad = {
            "no/slash": NewTopic("no/slash", 1, REPLICAS),
            good: NewTopic(good, 1, REPLICAS, config={"retention.ms": "soon"}),
        }
        for name, new in bad.items():
            with pytest.raises(KafkaException) as raised:
                admin.create_topics([new])[name].result(60)
            assert raised.value.args[0].str()
        assert good not in admin.list_topics(timeout=60).topics

    def test_configs(self, admin, unique):
        topic = unique("topic")
        admin.create_topics([NewTopic(topic, 1, REPLICAS, config={"retention.ms": "1000000"})])[topic].result(
            60
        )

        def described():
            resource = ConfigResource(ResourceType.TOPIC, topic)
            return admin.describe_configs([resource])[resource].result(60)

        assert described()["retention.ms"].value == "1000000"
        assert described()["max.message.bytes"].is_default
        change = ConfigResource(
            ResourceType.TOPIC,
            topic,
            incremental_configs=[
                ConfigEntry("retention.ms", "2000000", incremental_operation=AlterConfigOpType.SET)
            ],
        )
        admin.incremental_alter_configs([change])[change].result(60)
        assert described()["retention.ms"].value == "2000000"

    def test_cluster(self, admin, server):
        cluster = admin.describe_cluster().result(60)
        addresses = {f"{node.host}:{node.port}" for node in cluster.nodes}
        assert addresses == set(server.address.split(","))
        assert f"{cluster.controller.host}:{cluster.controller.port}" in addresses

    def test_offsets(self, admin, server, unique):
        topic = unique("topic")
        admin.create_topics([NewTopic(topic, 1, REPLICAS)])[topic].result(60)
        produce(server, topic, 10)
        part = TopicPartition(topic, 0)
        for spec, expected in [(OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 10)]:
            assert admin.list_offsets({part: spec})[part].result(60).offset == expected
        admin.delete_records([TopicPartition(topic, 0, 4)])[TopicPartition(topic, 0, 4)].result(60)
        assert admin.list_offsets({part: OffsetSpec.earliest()})[part].result(60).offset == 4

    def test_groups(self, admin, server, unique):
        topic, group = unique("topic"), unique("group")
        admin.create_topics([NewTopic(topic, 1, REPLICAS)])[topic].result(60)
        consumer = Consumer({"bootstrap.servers": server.address, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
        consumer.close()
        assert group in {found.group_id for found in admin.list_consumer_groups().result(60).valid}
        assert admin.describe_consumer_groups([group])[group].result(60).state.name == "EMPTY"
        admin.delete_consumer_groups([group])[group].result(60)
        assert group not in {found.group_id for found in admin.list_consumer_groups().result(60).valid}


class TestKafkaPython:
    @pytest.fixture
    def admin(self, server):
        client = KafkaAdminClient(bootstrap_servers=server.address)
        yield client
        client.close()

    def test_topics(self, admin, unique):
        topic = unique("topic")
        admin.create_topics([PythonNewTopic(topic, 3, REPLICAS)])
        assert topic in admin.list_topics()
        (described,) = admin.describe_topics([topic])
        assert len(described["partitions"]) == 3
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()

    def test_groups(self, admin, server, unique):
        topic, group = unique("topic"), unique("group")
        admin.create_topics([PythonNewTopic(topic, 1, REPLICAS)])
        consumer = Consumer({"bootstrap.servers": server.address, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
        consumer.close()
        offsets = admin.list_group_offsets([group])[group]
        assert {(part.topic, part.partition): found.offset for part, found in offsets.items()} == {
            (topic, 0): 7
        }
        admin.delete_groups([group])
        assert group not in str(admin.list_groups())


async def test_aiokafka(server, unique):
    topic = unique("topic")
    admin = AIOKafkaAdminClient(bootstrap_servers=server.address)
    await admin.start()
    try:
        await admin.create_topics([AioNewTopic(topic, 2, REPLICAS)])
        assert topic in await admin.list_topics()
        (described,) = await admin.describe_topics([topic])
        assert len(described["partitions"]) == 2
        await admin.delete_topics([topic])
        assert topic not in await admin.list_topics()
    finally:
        await admin.close()
