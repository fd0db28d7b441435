"""`topics produce|alter|add-partitions`, `groups reset|delete|delete-offsets`, `configs`: their changes, and dry
runs.
"""

import codecs
import itertools
import json
import os
import pty
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from headrace.tablelayer.client import KafkaError, OutgoingRecord, connect
from headrace.tablelayer.client.admin.produce import partition_of

ROOT = Path(__file__).resolve().parents[4]
_numbers = itertools.count()


@pytest.fixture
def connection(server):
    with connect(server) as connection:
        yield connection


@pytest.fixture
def topic(connection):
    name = f"changes{next(_numbers)}"
    connection.kafka.create_topic(name, partitions=3)
    yield name
    connection.kafka.delete_topic(name)


def good(done):
    assert done.exit_code == 0, done.output
    return done.stdout


def lines(done):
    return [json.loads(line) for line in good(done).splitlines()]


def refused(done, words, code=1):
    assert done.exit_code == code, done.output
    assert words in done.stderr


# -- produce


def test_one_record_with_key_and_headers(headrace, topic):
    done = headrace("topics", "produce", topic, "-k", "ann", "-v", '{"page": 7}', "-H", "trace=47=11")
    where = partition_of(b"ann", 3)
    assert good(done) == f"1 record written to partition {where} at offset 0\n"
    (record,) = lines(headrace("topics", "tail", topic, "-o", "json"))
    assert record.pop("timestamp") > 1.7e12
    assert record == {
        "partition": where, "offset": 0, "key": "ann", "value": '{"page": 7}', "headers": [["trace", "47=11"]],
    }  # fmt: skip
    assert good(headrace("topics", "tail", topic)) == f'{where}:0  ann  {{"page": 7}}  trace=47=11\n'


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the package that is imported
def test_keys_go_where_kafkas_java_producer_puts_them():
    from kafka.partitioner.default import murmur2

    from headrace.tablelayer.client.admin.produce import murmur2 as ours

    for key in (b"", b"a", b"ab", b"abc", b"abcd", "schlüssel-17".encode(), bytes(range(256)), b"\xff" * 9):
        assert ours(key) == murmur2(key) & 0xFFFFFFFF


def test_lines_of_a_file_and_of_standard_input(headrace, connection, topic, tmp_path):
    file = tmp_path / "events"
    file.write_bytes("".join(f"{i}\n" for i in range(12_000)).encode() + b"\xff\r\nlast")
    assert good(headrace("topics", "produce", topic, "-f", str(file), "-p", "1")) == (
        f"12002 records written to {topic}\n"
    )
    assert connection.kafka.offsets(topic) == {0: 0, 1: 12_002, 2: 0}
    tail = lines(headrace("topics", "tail", topic, "-n", "3", "-o", "json"))
    assert [each["value"] for each in tail] == ["11999", "/w==", "last"]
    assert [each.get("value_encoding") for each in tail] == [None, "base64", None]
    done = headrace("topics", "produce", topic, "-K", ":", "-o", "json", input="a:1\nb:2:3\nc:\n")
    assert [each["partition"] for each in lines(done)] == [partition_of(key, 3) for key in (b"a", b"b", b"c")]
    values = {each["key"]: each["value"] for each in lines(headrace("topics", "tail", topic, "-o", "json"))}
    assert (values["a"], values["b"], values["c"]) == ("1", "2:3", "")


def test_produce_reads_the_output_of_tail(headrace, connection, topic):
    connection.kafka.produce(
        topic, [OutgoingRecord(b"v", b"k", [("h", b"1"), ("h", None)]), OutgoingRecord(None, b"gone")]
    )
    written = good(headrace("topics", "tail", topic, "-o", "json"))
    assert good(headrace("topics", "produce", topic, "-i", "json", input=written)).startswith("2 records")
    copied = lines(headrace("topics", "tail", topic, "-o", "json"))
    assert sorted((each["key"], each["value"], str(each["headers"])) for each in copied) == [
        *[("gone", None, "[]")] * 2,
        *[("k", "v", "[['h', '1'], ['h', None]]")] * 2,
    ]


def test_a_copy_has_equal_bytes(headrace, connection, topic):
    avro = b"\0\0\0\0\x01\x06\xff"  # Confluent's framing and a value that is not UTF-8
    headers = [("h", b"\xff"), ("a", b"1"), ("h", None), ("a", b"")]
    then = int(time.time() * 1000) - 60_000
    records = [
        OutgoingRecord(avro, b"\xfe", headers, timestamp_ms=then),
        OutgoingRecord(None, b"", timestamp_ms=then + 1),
        OutgoingRecord(b"", None, timestamp_ms=then + 2),
        OutgoingRecord(b"\\xff", b"\r", timestamp_ms=then + 3),
        OutgoingRecord(None, None, timestamp_ms=then + 4),
    ]
    connection.kafka.produce(topic, records)
    written = good(headrace("topics", "tail", topic, "-o", "json"))
    copy = f"copy-of-{topic}"
    connection.kafka.create_topic(copy)
    assert good(headrace("topics", "produce", copy, "-i", "json", input=written)).startswith("5 records")
    found, _ = connection.kafka.read(copy, {0: 0})
    assert sorted((each.timestamp_ms, each.key, each.value, each.headers) for each in found) == sorted(
        (each.timestamp_ms, each.key, each.value, tuple(each.headers)) for each in records
    )
    connection.kafka.delete_topic(copy)


def test_csv_marks_base64_and_null_values(headrace, connection, topic):
    now = int(time.time() * 1000)
    connection.kafka.produce(topic, [OutgoingRecord(b"\xff", b"", [("h", b"\xfe")], now, 0)])
    connection.kafka.produce(topic, [OutgoingRecord(None, b"k", (), now, 0)])
    assert good(headrace("topics", "tail", topic, "-o", "csv")).splitlines() == [
        "partition,offset,timestamp,key,value,headers,key_encoding,value_encoding",
        f'0,0,{now},,/w==,"[[""h"", ""/g=="", ""base64""]]",utf-8,base64',
        f"0,1,{now},k,,[],utf-8,",
    ]


def test_a_record_cannot_speak_to_the_terminal(headrace, connection, topic):
    connection.kafka.produce(
        topic, [OutgoingRecord(b"a\nb\x1b[31m\xff", b"\x07", [("\x1b", b"\x1b")], None, 0)]
    )
    assert good(headrace("topics", "tail", topic)) == "0:0  \\x07  a\\nb\\x1b[31m\\xff  \\x1b=\\x1b\n"


def test_a_header_may_be_given_twice(headrace, connection, topic):
    good(headrace("topics", "produce", topic, "-v", "x", "-p", "0", "-H", "a=1", "-H", "b=", "-H", "a=2"))
    ((record,), _) = connection.kafka.read(topic, {0: 0})
    assert record.headers == (("a", b"1"), ("b", b""), ("a", b"2"))
    refused(headrace("topics", "alter", topic, "--set", "a=1", "--set", "a=2"), "two values: '1' and '2'")


def test_records_for_tables_are_checked(headrace, connection):
    name = f"checked{next(_numbers)}"
    connection.execute(f"CREATE TABLE {name} (id INT, v STRING, PRIMARY KEY (id) NOT ENFORCED)")
    table = connection.table(name)
    good(
        headrace(
            "topics", "produce", f"default.{name}", "-K", ":", input='1:{"id": 1, "v": "x"}\n2:{"id": 2}\n'
        )
    )
    good(headrace("topics", "produce", f"default.{name}", "-k", "1", "--tombstone"))
    assert table.to_arrow().to_pylist() == [{"id": 2, "v": None}]
    wrong = headrace("topics", "produce", f"default.{name}", "-v", '{"id": "many"}')
    refused(wrong, "many")
    assert "had been written" not in wrong.stderr
    right = "".join(f'{{"id": {i}}}\n' for i in range(5_000))
    late = headrace("topics", "produce", f"default.{name}", input=right + '{"id": "many"}\n')
    refused(late, "5000 records had been written before")
    assert table.count() == 5_000
    connection.admin.drop_table(name)


def test_a_retry_after_a_lost_answer_writes_once(connection, topic, monkeypatch):
    from headrace.protocol.messages.produce import ProduceRequest
    from headrace.tablelayer.client.errors import ConnectionLost

    cluster = connection._connection.cluster
    real, lost = cluster.send, []

    async def send(message, *words, **named):
        answer = await real(message, *words, **named)
        if isinstance(message, ProduceRequest) and len(lost) < 3:
            lost.append(1)
            raise ConnectionLost("the answer is lost")
        return answer

    monkeypatch.setattr(cluster, "send", send)
    places = connection.kafka.produce(topic, [OutgoingRecord(b"v", partition=0)] * 5)
    again = connection.kafka.produce(topic, [OutgoingRecord(b"v", partition=0)])
    assert (places, again, len(lost)) == ([(0, offset) for offset in range(5)], [(0, 5)], 3)
    assert connection.kafka.offsets(topic)[0] == 6


@pytest.mark.parametrize(
    ("words", "typed", "said"),
    [
        (("-k", "x"), None, "--value"),
        (("--tombstone",), None, "--key"),
        (("-v", "x", "-f", "file"), None, "not both"),
        (("-f", "no/such/file"), None, "cannot be read"),
        (("-K", ":"), "novalue\n", "line 1 has no ':'"),
        (("-i", "json"), "{}\n", "line 1 is not an object with a key or a value"),
        (("-i", "json"), "\n{\n", "line 2 is not JSON"),
        (("-i", "json"), '{"value": 1, "headers": [1]}\n', "write headers as"),
        (("-v", "x", "-p", "3"), None, "has no partition 3: it has 0 to 2"),
        (("-v", "x", "-H", "x"), None, "--header 'x' is not of the form name=value"),
    ],
)
def test_malformed_input_of_produce_is_refused(headrace, connection, topic, words, typed, said):
    refused(headrace("topics", "produce", topic, *words, input=typed), said)
    assert sum(connection.kafka.offsets(topic).values()) == 0


def test_produce_to_a_missing_topic_is_refused(headrace):
    refused(headrace("topics", "produce", "nowhere", "-v", "x"), "there is no topic nowhere")


# -- topics


def test_a_topic_is_altered_whole_or_not_at_all(headrace, connection, topic):
    alter = ("topics", "alter", topic)
    good(headrace(*alter, "--set", "retention.ms=1000", "--set", "cleanup.policy=compact"))
    assert connection.kafka.describe_topic(topic).configs == {
        "retention.ms": "1000",
        "cleanup.policy": "compact",
    }
    assert "could be altered" in good(headrace(*alter, "--unset", "retention.ms", "--dry-run"))
    refused(
        headrace(*alter, "--set", "retention.ms=5", "--set", "retention.mss=5"), "did you mean 'retention.ms'"
    )
    refused(headrace(*alter, "--set", "retention.ms=soon", "--dry-run"), "soon")
    refused(headrace(*alter), "no change was given")
    assert connection.kafka.describe_topic(topic).configs["retention.ms"] == "1000"
    good(headrace(*alter, "--unset", "retention.ms"))
    assert connection.kafka.describe_topic(topic).configs == {"cleanup.policy": "compact"}


def test_partitions_are_added(headrace, connection, topic):
    assert good(headrace("topics", "add-partitions", topic, "--to", "5", "--dry-run")) == (
        f"topic {topic} could have 5 partitions instead of 3\n"
    )
    assert len(connection.kafka.describe_topic(topic).leaders) == 3
    good(headrace("topics", "add-partitions", topic, "--to", "5"))
    assert len(connection.kafka.describe_topic(topic).leaders) == 5
    refused(headrace("topics", "add-partitions", topic, "--to", "4"), "INVALID_PARTITIONS")


def test_describe_says_the_same_as_json(headrace, connection, topic):
    connection.kafka.produce(topic, [OutgoingRecord(b"v", partition=2)])
    (described,) = lines(headrace("topics", "describe", topic, "-o", "json"))
    assert described.pop("id")
    assert described == {
        "topic": topic, "is_table": False, "table": None, "configs": {},
        "partitions": [
            {"partition": p, "leader": 0, "replicas": [0], "in_sync": [0], "offline": [], "first_offset": 0,
             "end_offset": int(p == 2)} for p in range(3)
        ],
    }  # fmt: skip


# -- groups


@pytest.fixture
def group(connection, topic):
    name = f"group-of-{topic}"
    connection.kafka.produce(topic, [OutgoingRecord(b"v", partition=p) for p in range(3) for _ in range(10)])
    connection.kafka.commit_offsets(name, topic, {0: 4, 1: 5})
    return name


def positions(connection, group):
    return {p: offset for (_, p), offset in connection.kafka.describe_group(group).positions.items()}


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (("--to", "earliest"), {0: 0, 1: 0}),
        (("--to", "latest"), {0: 10, 1: 10}),
        (("--to", "7"), {0: 7, 1: 7}),
        (("--to", "99"), {0: 10, 1: 10}),
        (("--by", "-2"), {0: 2, 1: 3}),
        (("--by", "-50"), {0: 0, 1: 0}),
        (("--to", "2000-01-01"), {0: 0, 1: 0}),
        (("--to", "2100-01-01T00:00:00"), {0: 10, 1: 10}),
        (("--to", "1", "--topic", "{topic}:1,2"), {0: 4, 1: 1, 2: 1}),
        (("--to", "1", "--topic", "{topic}"), {0: 1, 1: 1, 2: 1}),
    ],
)
def test_a_group_goes_on_elsewhere(headrace, connection, topic, group, words, after):
    words = [word.format(topic=topic) for word in words]
    before = positions(connection, group)
    dry = lines(headrace("groups", "reset", group, *words, "--dry-run", "-o", "json"))
    assert positions(connection, group) == before
    planned = {row["partition"]: row["new_offset"] for row in dry}
    assert {**before, **planned} == after
    assert {row["partition"]: row["committed_offset"] for row in dry} == {p: before.get(p) for p in planned}
    aborted = headrace("groups", "reset", group, *words, input="n\n")
    assert aborted.exit_code == 1
    assert positions(connection, group) == before
    assert good(headrace("groups", "reset", group, *words, "--yes")) == (
        f"{len(planned)} offsets of group {group} are set\n"
    )
    assert positions(connection, group) == after


def test_impossible_resets_of_a_group_are_refused(headrace, connection, topic, group):
    reset = ("groups", "reset", group, "--yes")
    refused(headrace(*reset), "--to PLACE or --by RECORDS")
    refused(headrace(*reset, "--to", "1", "--by", "1"), "--to PLACE or --by RECORDS")
    refused(headrace(*reset, "--to", "yesterday"), "is not a time")
    refused(headrace(*reset, "--to", "1", "--topic", f"{topic}:7"), "has no partition 7")
    refused(headrace(*reset, "--to", "1", "--topic", f"{topic}:x"), "TOPIC:PARTITION")
    refused(headrace(*reset, "--by", "1", "--topic", f"{topic}:2"), "no offset in partition 2")
    refused(headrace("groups", "reset", "nobody", "--to", "earliest"), "nobody")
    good(headrace("groups", "reset", f"new-{group}", "--to", "3", "--topic", topic, "--yes"))
    assert positions(connection, f"new-{group}") == {0: 3, 1: 3, 2: 3}


def test_a_group_that_is_being_read_with_is_left_alone(headrace, connection, topic, group, server):
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": server, "group.id": group, "enable.auto.commit": False})
    consumer.subscribe([topic])
    deadline = time.monotonic() + 100
    while not consumer.assignment():
        consumer.poll(0.1)
        assert time.monotonic() < deadline
    try:
        before = positions(connection, group)
        for words in (("reset", group, "--to", "earliest", "--yes"), ("delete", group, "--yes")):
            refused(headrace("groups", *words), "stop them first")
        refused(
            headrace("groups", "delete-offsets", group, "--topic", topic, "-y"), "GROUP_SUBSCRIBED_TO_TOPIC"
        )
        with pytest.raises(KafkaError, match="NON_EMPTY_GROUP"):
            connection.kafka.delete_group(group)
        (described,) = lines(headrace("groups", "describe", group, "-o", "json"))
        assert [member["client"] for member in described["members"]] == ["rdkafka"]
        assert positions(connection, group) == before
    finally:
        consumer.close()


def test_offsets_and_groups_are_forgotten(headrace, connection, topic, group):
    forget = ("groups", "delete-offsets", group, "--topic")
    assert "could be deleted" in good(headrace(*forget, f"{topic}:0", "--dry-run"))
    assert positions(connection, group) == {0: 4, 1: 5}
    good(headrace(*forget, f"{topic}:0", "--yes"))
    assert positions(connection, group) == {1: 5}
    refused(headrace(*forget, f"{topic}:0", "--yes"), "has no such offsets")
    refused(headrace("groups", "delete-offsets", group), "name the topic")
    delete = ("groups", "delete", group)
    assert good(headrace(*delete, "--dry-run")) == (
        f"group {group} and its 1 committed offsets could be deleted\n"
    )
    assert headrace(*delete, input="n\n").exit_code == 1
    assert positions(connection, group) == {1: 5}
    good(headrace(*delete, "--yes"))
    refused(headrace("groups", "describe", group), group)


# -- configurations


def test_configurations_are_listed_described_and_set(headrace, connection, topic):
    good(headrace("configs", "set", "topic", topic, "retention.ms=1234", "segment.ms=99999"))
    own = [each for each in lines(headrace("configs", "list", "-o", "json")) if each["name"] == topic]
    assert own == [
        {"kind": "topic", "name": topic, "configuration": "retention.ms", "value": "1234"},
        {"kind": "topic", "name": topic, "configuration": "segment.ms", "value": "99999"},
    ]
    (one,) = lines(headrace("configs", "describe", "topic", topic, "retention.ms", "-o", "json"))
    assert (one["value"], one["from"], one["can_be_changed"]) == ("1234", "topic", True)
    assert len(one["what_it_does"]) > 20
    some = lines(headrace("configs", "describe", "topic", topic, "-o", "json"))
    everything = lines(headrace("configs", "describe", "topic", topic, "--all", "-o", "json"))
    assert {"retention.ms", "segment.ms"} <= {each["configuration"] for each in some}
    assert len(everything) > len(some) + 10
    good(headrace("configs", "set", "topic", topic, "--unset", "retention.ms", "--dry-run"))
    assert connection.kafka.describe_topic(topic).configs["retention.ms"] == "1234"
    refused(headrace("configs", "describe", "topic", topic, "retention"), "did you mean 'retention.ms'")
    refused(headrace("configs", "set", "topic", topic, "retention.ms"), "name=value")
    refused(headrace("configs", "set", "topic", topic), "no change was given")
    refused(headrace("configs", "describe", "topic", "nowhere"), "nowhere")
    refused(headrace("configs", "describe", "cluster", "x"), "cluster", code=2)


def test_configurations_of_brokers_and_groups(headrace):
    good(headrace("configs", "set", "broker", "all", "log.retention.ms=86400000"))
    (one,) = lines(headrace("configs", "describe", "broker", "0", "log.retention.ms", "-o", "json"))
    assert (one["value"], one["from"]) == ("86400000", "all brokers")
    assert {
        "kind": "broker",
        "name": "all",
        "configuration": "log.retention.ms",
        "value": "86400000",
    } in lines(headrace("configs", "list", "-o", "json"))
    good(headrace("configs", "set", "broker", "all", "--unset", "log.retention.ms"))
    (one,) = lines(headrace("configs", "describe", "broker", "0", "log.retention.ms", "-o", "json"))
    assert one["from"] == "default"
    good(headrace("configs", "set", "group", "readers", "consumer.session.timeout.ms=50000"))
    described = lines(headrace("configs", "describe", "group", "readers", "-o", "json"))
    assert [(each["configuration"], each["value"]) for each in described] == [
        ("consumer.session.timeout.ms", "50000")
    ]
    good(headrace("configs", "set", "group", "readers", "--unset", "consumer.session.timeout.ms"))


# -- following


def test_a_table_that_is_followed_on_a_terminal_has_one_header(server, connection):
    connection.execute("CREATE TABLE followed (id INT, word STRING)")
    table = connection.table("followed")
    terminal, other = pty.openpty()
    termios.tcsetwinsize(other, (40, 110))
    words = ("tables", "tail", "followed", "--follow", "-s", server)
    own = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "headrace.tablelayer.cli.main", *words]
    with subprocess.Popen(command, stdout=other, stderr=other, cwd=ROOT, env=own) as process:
        os.close(other)
        shown, text = "", codecs.getincrementaldecoder("utf-8")()
        try:
            for row, word in (
                (1, "that needs more than eighty columns of it"),
                (2, "b"),
                (300_000, "ö"),
            ):
                table.append([{"id": row, "word": word}])
                while word not in shown.partition("word")[2]:
                    shown += text.decode(os.read(terminal, 65536))
        finally:
            process.terminate()
            os.close(terminal)
    connection.admin.drop_table("followed")
    told = shown.replace("\r", "").splitlines()
    assert [line.split()[0] for line in told] == ["change", told[1].split()[0], "+A", "+A", "+A"]
    assert set(told[1]) == {"─", " "}
    assert told[0].index("word") == told[2].index("that needs"), "columns stand below each other"
