"""Every client reads what every client writes, in every compression: keys, values, headers, timestamps, order."""

import foreign_clients as adapters
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from simulator.three_brokers import REPLICAS

pytestmark = pytest.mark.xdist_group("records")  # records that are written once are read by all
Record = adapters.Record

COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]
NOW_MS = 1_790_000_000_123
RECORDS = [
    Record(b"key", b"value", (("h", b"1"),), NOW_MS),
    Record(b"key", None, (), NOW_MS + 1),
    Record(None, b"no key", (), NOW_MS + 2),
    Record(b"", b"empty key", (), NOW_MS),
    Record(b"empty value", b"", (), NOW_MS + 3),
    Record(
        "größe".encode(),
        "naïve 日本".encode(),
        (("größe", "ü".encode()), ("again", b""), ("again", b"2")),
        NOW_MS,
    ),
    Record(b"null header", b"v", (("nothing", None),), NOW_MS + 5),
    Record(b"large", b"0123456789" * 10_000, (), NOW_MS + 6),
    *(Record(b"k%d" % index, b"v%d" % index * 20, (), NOW_MS + index) for index in range(500)),
]


def needs(client):
    if client is adapters.Kcat and client.binary is None:
        pytest.skip("the kcat binary is not installed")


@pytest.fixture(scope="module")
def written(server):
    """One topic per producing client and compression: {client: {topic: records}}."""
    admin = AdminClient({"bootstrap.servers": server.address})
    clients = [client for client in adapters.CLIENTS if getattr(client, "binary", "") is not None]
    names = {
        (client, codec): f"records-{client.name}-{codec}" for client in clients for codec in COMPRESSIONS
    }
    config = {
        "message.timestamp.before.max.ms": "9223372036854775807",
        "message.timestamp.after.max.ms": "9223372036854775807",
    }
    for created in admin.create_topics(
        [NewTopic(name, 1, REPLICAS, config=config) for name in names.values()]
    ).values():
        created.result(20)
    result = {client: {} for client in clients}
    for (client, codec), name in names.items():
        result[client][name] = client.produce(server.address, name, codec, RECORDS)
    return result


@pytest.mark.parametrize("producer", adapters.CLIENTS, ids=lambda client: client.name)
@pytest.mark.parametrize("consumer", adapters.CLIENTS, ids=lambda client: client.name)
def test_every_client_reads_every_client(server, written, producer, consumer):
    needs(producer)
    needs(consumer)
    topics = written[producer]
    found = consumer.consume(server.address, list(topics))
    for topic, expected in topics.items():
        assert len(found[topic]) == len(expected), topic
        for got, sent in zip(found[topic], expected, strict=True):
            assert got.key == sent.key, topic
            if consumer is adapters.Kcat:
                assert (got.value or b"") == (sent.value or b""), (
                    topic
                )  # its JSON shows an empty value as null
            else:
                assert got.value == sent.value, topic
            assert got.headers == sent.headers, topic
            if sent.timestamp is not None:
                assert got.timestamp == sent.timestamp, topic
