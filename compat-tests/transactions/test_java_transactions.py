"""A Java 4.3 producer with transactions version 2 behind a network that delivers late; `kafka-transactions`."""

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from java_tools import OPTIONS, JavaTools
from late_proxy import END, LateProxy

from simulator.three_brokers import REPLICAS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

PRODUCE = 0
SOURCE = Path(__file__).with_name("VersionTwo.java")
NONE, OUT_OF_ORDER, INVALID_EPOCH, PRODUCER_FENCED = 0, 45, 47, 90
TRANSACTIONS = 24


@pytest.fixture(scope="module")
def java():
    return JavaTools()


def produce(java, *arguments):
    command = [java.java, *OPTIONS, "-cp", f"{java.jars}/*", str(SOURCE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def create(address, topic):
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, 1, REPLICAS)])[topic].result(30)


def read(address, topic, isolation="read_committed"):
    """Return all values up to the last stable offset, or to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    while True:
        message = consumer.poll(30)
        assert message is not None, f"the end of {topic} was not reached; {values}"
        if message.error():
            consumer.close()
            return values
        values.append(message.value().decode())


def error_of(key, version, answer):
    """Return the error code of an answer to Produce 13 or EndTxn 5, given without its length."""
    body = answer[5:]  # correlation id, no tags
    if key == END:
        return struct.unpack_from(">ih", body)[1]
    assert (key, version) == (PRODUCE, 13)
    assert (body[0], body[17]) == (2, 2), "one topic, one partition"
    return struct.unpack_from(">ih", body, 18)[1]


@pytest.mark.one_process("a proxy holds back what goes to it")
def test_e4_version_2_of_java_nothing_late_is_written_or_ends_anything(own_server, java):
    """Copies of Produce and EndTxn arrive after the epoch was raised and the next transaction has begun."""
    own_server.kill()
    proxy = LateProxy(own_server.port, [PRODUCE, END], END)
    own_server.settings["advertised.listeners"] = f"127.0.0.1:{proxy.port}"
    own_server.start()
    try:
        address = f"127.0.0.1:{proxy.port}"
        create(address, "t")
        produce(java, address, "t", "tx", str(TRANSACTIONS))
        expected = [f"{n}.{part}" for n in range(TRANSACTIONS) if n % 3 != 2 for part in range(3)]
        assert read(address, "t") == expected
        everything = [f"{n}.{part}" for n in range(TRANSACTIONS) for part in range(3)]
        assert read(address, "t", "read_uncommitted") == everything, "nothing is there twice"
        found = {key: [error_of(*each) for each in proxy.answers if each[0] == key] for key in (PRODUCE, END)}
        print({key: {code: codes.count(code) for code in set(codes)} for key, codes in found.items()})
        # NONE: a copy of the open transaction's own batch, which is answered as a duplicate.
        assert set(found[PRODUCE]) == {NONE, INVALID_EPOCH}
        assert len(found[END]) >= 10
        assert set(found[END]) == {PRODUCER_FENCED}
    finally:
        proxy.close()


@pytest.mark.one_process("its journal of transactions is taken away")
def test_kafka_transactions_lists_describes_finds_and_aborts(own_server, java):
    address = own_server.address
    at = ["--bootstrap-server", address]
    for topic in ("known", "forgotten"):
        create(address, topic)

    def tool(*arguments):
        printed = java.run("TransactionsCommand", *at, *arguments)
        print(" ".join(arguments), "\n" + printed)
        return printed

    produce(java, address, "known", "ended", "3")
    produce(java, address, "known", "hang", "2")
    listed = tool("list")
    assert re.search(r"^ended\s+0\s+\d+\s+CompleteAbort", listed, re.M)
    assert re.search(r"^hang\s+0\s+\d+\s+Ongoing", listed, re.M)
    described = tool("describe", "--transactional-id", "hang")
    assert re.search(r"\sOngoing\s.*known-0", described)
    producers = tool("describe-producers", "--topic", "known", "--partition", "0")
    assert len(re.findall(r"^\d+\s", producers, re.M)) == 2

    # The coordinator forgets a transaction that is open: its journal is lost.
    produce(java, address, "forgotten", "hang", "1")
    own_server.kill()
    lost = list((own_server.directory / "data").glob("__transaction_state-*"))
    assert lost
    for folder in lost:
        shutil.rmtree(folder)
    own_server.start()
    assert "hang" not in tool("list")
    assert read(address, "forgotten") == []
    found = tool("find-hanging", "--broker-id", "0", "--max-transaction-timeout", "0")
    assert re.search(r"^forgotten\s+0\s", found, re.M)
    hanging = re.findall(r"^(\w+)\s+(\d+)\s+\d+\s+\d+\s+-?\d+\s+(\d+)\s", found, re.M)
    assert hanging, found
    for topic, partition, start in hanging:
        tool("abort", "--topic", topic, "--partition", partition, "--start-offset", start)
    assert not re.search(
        r"^(known|forgotten)\s",
        tool("find-hanging", "--broker-id", "0", "--max-transaction-timeout", "0"),
        re.M,
    )
    assert read(address, "forgotten") == []
    produce(java, address, "forgotten", "heir", "1")
    assert read(address, "forgotten") == ["0.0", "0.1", "0.2"]
