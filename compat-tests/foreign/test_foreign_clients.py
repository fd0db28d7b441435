"""Clients of other languages against a real server, and against each other's records.

Left out of `make test`: the programs are built from their registries first. `make compat` runs them and writes
COMPATIBILITY.md.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import foreign_clients
from apps.report import applications
from foreign.programs import PROGRAMS, Program, ToolMissingError, command
from foreign.report import PATH, render
from foreign.tap import Tap, advertised_by

from simulator.three_brokers import BROKERS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(180)]
COUNT = 40
FIRST_TIMESTAMP = 1_700_000_000_000
SCENARIO_SECONDS = 120
IN_PROCESS = (foreign_clients.KafkaPython, foreign_clients.Confluent, foreign_clients.Aiokafka)


@pytest.fixture(scope="session")
def tapped(tmp_path_factory, request):
    """A server behind a tap; at the end of the run the recorded usage is written to COMPATIBILITY.md."""
    make_server = request.getfixturevalue("make_server")
    free_port = request.getfixturevalue("free_port")
    process = make_server(tmp_path_factory.mktemp("tapped"))
    members = process.members if BROKERS > 1 else [process]
    upstreams = {}
    for member in members:
        port = free_port()
        upstreams[port] = member.port
        member.settings["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
        if BROKERS > 1:  # requests between brokers do not pass the tap
            inside = f"INSIDE://127.0.0.1:{free_port()}"
            member.settings |= {
                "listener.security.protocol.map": "INSIDE:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                "inter.broker.listener.name": "INSIDE",
                "listeners": f"{inside},PLAINTEXT://{member.address}",
                "advertised.listeners": f"{inside},PLAINTEXT://127.0.0.1:{port}",
            }
    tap = Tap(upstreams).start()
    tap.outcomes = {}
    process.start()
    try:
        advertised = advertised_by(process.port)
        yield tap
    finally:
        tap.stop()
        code = process.stop()
    assert tap.failures == []
    assert "Traceback" not in process.log(), process.log()
    assert code == 0
    if os.environ.get("HEADRACE_WRITE_COMPATIBILITY") and BROKERS == 1:
        PATH.write_text(render(advertised, tap.outcomes, tap.usages) + applications())


def play(tapped, program: Program, scenario: str, *arguments: object) -> list[list[str]]:
    """Return the words of the lines that a program printed; skip if its language is missing."""
    try:
        called = command(program)
    except ToolMissingError as error:
        tapped.outcomes.setdefault((program.name, scenario), f"not run: {error}")
        pytest.skip(f"{program.name}: {error}")
    tapped.outcomes[program.name, scenario] = "**failed**"
    result = subprocess.run(
        [*called, tapped.address, program.name, scenario, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SCENARIO_SECONDS,
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
    lines = [line.split(" ") for line in result.stdout.splitlines()]
    assert lines[-1] == ["done"], result.stdout[-2000:]
    return lines[:-1]


def values(lines: list[list[str]], word: str) -> list[str]:
    return [" ".join(line[1:]) for line in lines if line[0] == word]


def expected(count: int, null_header: bool) -> list[foreign_clients.Record]:
    return [
        foreign_clients.Record(
            None if i % 7 == 3 else f"key-{i}".encode(),
            None if i % 11 == 5 else b"x" * 200_000 if i == 1 else f"value-{i}-ü".encode(),
            (("n", str(i).encode()), *((("null", None),) if i % 5 == 2 and null_header else ())),
            FIRST_TIMESTAMP + i * 1000,
        )
        for i in range(count)
    ]


def parsed(lines: list[list[str]]) -> list[foreign_clients.Record]:
    def data(word: str) -> bytes | None:
        return None if word == "-" else base64.b64decode(word[1:])

    def header(word: str) -> tuple[str, bytes | None]:
        name, _, value = word.partition("=")
        return name, data(value)

    return [
        foreign_clients.Record(data(key), data(value), tuple(map(header, headers)), int(timestamp))
        for word, _, timestamp, key, value, *headers in lines
        if word == "record"
    ]


def passed(tapped, program: Program, scenario: str, note: str = "") -> None:
    tapped.outcomes[program.name, scenario] = f"passed{note}"


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name)
def program(request):
    return request.param


@pytest.fixture
def create(tapped):
    from confluent_kafka.admin import AdminClient, NewTopic

    def _create(name: str, partitions: int = 1) -> str:
        admin = AdminClient({"bootstrap.servers": tapped.address, "client.id": "fixture"})
        for future in admin.create_topics([NewTopic(name, partitions)]).values():
            future.result(10)
        return name

    return _create


def test_records_of_a_foreign_client_are_read_by_other_clients(tapped, program, create, unique):
    for codec in program.codecs:
        topic = create(unique(f"{program.name}-{codec}"))
        written = play(tapped, program, "produce", topic, codec, COUNT)
        assert values(written, "offset") == [str(i) for i in range(COUNT)]
        records = expected(COUNT, program.null_header)
        for client in IN_PROCESS:
            assert client.consume(tapped.address, [topic])[topic] == records, (codec, client.name)
    passed(tapped, program, "produce", f" ({', '.join(program.codecs)})")


def test_records_of_other_clients_are_read_by_a_foreign_client(tapped, program, create, unique):
    for codec in program.codecs:
        topic = create(unique(f"from-confluent-{codec}"))
        records = expected(COUNT, null_header=True)
        foreign_clients.Confluent.produce(tapped.address, topic, codec, records)
        read = play(tapped, program, "consume", topic, 0, COUNT, "read_uncommitted")
        assert parsed(read) == records, codec
        middle = play(tapped, program, "consume", topic, 17, COUNT - 17, "read_committed")
        assert parsed(middle) == records[17:], codec
        assert values(middle, "record")[0].startswith("17 ")
    passed(tapped, program, "consume", f" ({', '.join(program.codecs)})")


@pytest.mark.parametrize("protocol", ["range", "cooperative", "consumer"])
def test_two_members_share_a_topic(tapped, program, protocol, create, unique):
    if protocol not in program.protocols:
        pytest.skip(f"{program.name} has no {protocol} protocol")
    topic = create(unique("group"), 4)
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": tapped.address, "client.id": "fixture"})
    for i in range(COUNT):
        producer.produce(topic, b"x", partition=i % 4)
    assert producer.flush(10) == 0
    group = unique("group")
    lines = play(tapped, program, "group", topic, group, COUNT, protocol)
    assert len({line.split(" ", 1)[1] for line in values(lines, "read")}) == COUNT
    owned = [
        set(re.findall(r"\d+", " ".join(line.split(" ")[1:]).replace(":true", "")))
        for line in values(lines, "owned")
    ]
    assert [len(parts) for parts in owned] == [2, 2]
    assert owned[0] | owned[1] == {"0", "1", "2", "3"}
    if protocol == "consumer":  # it did not fall back to the classic protocol silently
        assert any(name == program.name and key == 68 for name, key, _ in tapped.usages)
    before = tapped.outcomes.get((program.name, "groups"), "")
    tapped.outcomes[program.name, "groups"] = before + (", " if before else "passed: ") + protocol
    del tapped.outcomes[program.name, "group"]


def test_offsets_by_time(tapped, program, create, unique):
    topic = create(unique("seek"))
    foreign_clients.Confluent.produce(tapped.address, topic, "none", expected(COUNT, null_header=True))
    lines = play(tapped, program, "seek", topic, FIRST_TIMESTAMP + 9_500)
    assert values(lines, "offset") == ["10"]
    assert values(lines, "beginning") == ["0"]
    assert values(lines, "end") == [str(COUNT)]
    passed(tapped, program, "seek")


def test_a_copier_in_transactions(tapped, program, create, unique):
    if not program.transactions:
        tapped.outcomes[program.name, "transact"] = "the client has none"
        pytest.skip(f"{program.name} has no transactions")
    source, target = create(unique("in")), create(unique("out"))
    records = expected(COUNT, null_header=True)
    foreign_clients.Confluent.produce(tapped.address, source, "none", records)
    lines = play(tapped, program, "transact", source, target, unique("copier"), unique("id"), COUNT)
    assert values(lines, "committed") == [str(COUNT)]
    assert read_committed(tapped.address, target) == [(record.key, record.value) for record in records]
    passed(tapped, program, "transact")


def read_committed(address: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "checker",
            "client.id": "fixture",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while True:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            break
        found.append((message.key(), message.value()))
    consumer.close()
    return found


def test_administration(tapped, program, unique):
    lines = play(tapped, program, "admin", unique("admin"), unique("admin-group"))
    assert values(lines, "partitions") == ["2", "3"]
    assert values(lines, "retention") == ["7200000", "3600000"]
    assert values(lines, "low") == ["3" if program.deletes_records else "absent"]
    assert values(lines, "offset") == ["4"]
    assert values(lines, "state") == [program.member_of_commits]
    assert values(lines, "listed") == ["true", "false"]
    passed(tapped, program, "admin")
