"""Records of Kafka producers that tables refuse: answered, counted, kept for questions, and set aside."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.security.rights import Operation, ResourceType
from headrace.broker.tests.security.people import SECURED, allow, client
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.records.decode import decode_records
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import iter_headers
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.ddl import parse
from headrace.tablelayer.tests.server.tables import Table, Tables, tables

KEYED = "id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED"
LETTERS = "bad-fruit"
OPTION = {"table.kafka.dead-letter-topic": LETTERS}


def text(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


async def produce(table: Table, *values: Any, partition: int = 0, keyed: bool = False, **options: Any) -> Any:
    """Values as JSON, bytes as they are; a header numbers them, and keys if they are to have some."""
    records = [
        Record(
            b"%d" % index if keyed else None, text(value), (("n", b"%d" % index),), 1_750_000_000_000 + index
        )
        for index, value in enumerate(values)
    ]
    topic = table.definition.path.topic
    return await table.broker.produce(topic, build_batch(records, **options), partition=partition)


async def letters(
    broker: Any, topic: str = LETTERS
) -> list[tuple[bytes | None, bytes | None, int, dict[str, bytes]]]:
    """(key, value, time, headers) of each record in the dead-letter topic."""
    answer = await broker.fetch(topic, 0)
    assert answer.error_code == 0
    found = []
    for position, header in iter_headers(answer.records or b""):
        records = decode_records(memoryview(answer.records)[position : position + header.size])
        for index, (key, value, time) in enumerate(
            zip(records.keys(), records.values(), records.timestamps.tolist(), strict=True)
        ):
            found.append((key, value, time, dict(records.headers(index))))
    return found


async def refused(broker: Any, topic: str | None = None) -> list[m.RefusedTable]:
    answer = await broker.send(m.ListRefusedRequest(topic=topic))
    assert answer.error_code == 0, answer.error_message
    return answer.tables


async def counted(all_tables: Tables) -> dict[tuple[str, ...], float]:
    return (await all_tables.broker.context.metrics.gather()).get("headrace_table_refused_records_total", {})


async def test_a_refused_batch_is_told_counted_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(KEYED)
        assert await refused(all_tables.broker) == []
        assert await counted(all_tables) == {("default.t", "INVALID_RECORD"): 0}
        with caplog.at_level(logging.WARNING, "headrace.api"):
            answer = await produce(table, {"id": 1}, {"id": "a\nb"})
        assert answer.error_code == ErrorCode.INVALID_RECORD
        said = [each for each in caplog.records if "default.t-0 was refused" in each.getMessage()]
        assert "INVALID_RECORD: record 1 of the batch" in said[0].getMessage()
        assert "\n" not in said[0].getMessage()
        assert said[0].__dict__["kind"] == "refused records of default.t", (
            "of each topic so many lines a minute"
        )
        (found,) = await refused(all_tables.broker)
        (record,) = found.records
        assert (found.table, found.count, record.topic, record.partition, record.index) == (
            "default.t", 1, "default.t", 0, 1,
        )  # fmt: skip
        assert (record.code, record.dead_letter) == ("INVALID_RECORD", False)
        assert "'id'" in record.reason
        assert await counted(all_tables) == {("default.t", "INVALID_RECORD"): 1}
        for _ in range(60):
            await produce(table, b"{")
        (found,) = await refused(all_tables.broker, "default.t")
        assert (found.count, len(found.records)) == (61, 50)
        assert await counted(all_tables) == {("default.t", "INVALID_RECORD"): 61}
        assert await table.count() == 0


@pytest.mark.parametrize("buckets", [1, 3])
async def test_bad_records_go_to_the_dead_letter_topic_and_the_batch_goes_on(
    tmp_path: Path, buckets: int
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(KEYED, buckets=buckets, given=OPTION)
        values: list[Any] = [{"id": n} for n in range(100)]
        bad = {0: b"{", 7: {"id": "seven"}, 8: [8], 50: {"name": "no id"}, 99: b"\xff"}
        for index, value in bad.items():
            values[index] = value
        who = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        answer = await produce(table, *values, keyed=True, **who)
        assert answer.error_code == 0, answer.error_message
        assert sum([await table.count(bucket) for bucket in range(buckets)]) == 95
        found = await letters(all_tables.broker)
        assert [(key, value) for key, value, _, _ in found] == [
            (b"%d" % index, text(value)) for index, value in bad.items()
        ]
        assert [time for _, _, time, _ in found] == [1_750_000_000_000 + index for index in bad]
        headers = found[1][3]
        assert headers["n"] == b"7"
        assert headers["__connect.errors.topic"] == b"default.t"
        assert headers["__connect.errors.partition"] == b"0"
        assert b"'id'" in headers["__connect.errors.exception.message"]
        (table_refused,) = await refused(all_tables.broker)
        assert [each.index for each in table_refused.records] == sorted(bad, reverse=True)
        assert all(each.dead_letter for each in table_refused.records)
        assert await counted(all_tables) == {("default.t", "dead-letter"): 5}
        # The same batch again is a repeat: nothing is written twice, also no dead letter.
        again = await produce(table, *values, keyed=True, **who)
        assert (again.error_code, again.base_offset) == (0, answer.base_offset)
        assert len(await letters(all_tables.broker)) == 5
        # The sequence counts the refused records, too.
        answer = await produce(table, {"id": 1000}, **{**who, "base_sequence": 100})
        assert answer.error_code == 0, answer.error_message


async def test_a_batch_of_bad_records_alone_leaves_its_sequence(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT", given=OPTION)
        who = {"producer_id": 7, "producer_epoch": 0}
        assert (await produce(table, *[b"{"] * 200, base_sequence=0, **who)).error_code == 0
        assert len(await letters(all_tables.broker)) == 200
        assert (await produce(table, {"id": 1}, base_sequence=200, **who)).error_code == 0
        assert (await produce(table, {"id": 1}, base_sequence=2000, **who)).error_code != 0


async def test_records_that_the_merge_refuses_become_dead_letters(tmp_path: Path) -> None:
    columns = "id INT, n TINYINT, PRIMARY KEY (id) NOT ENFORCED"
    async with tables(tmp_path) as all_tables:
        given = {**OPTION, "table.merge-engine": "aggregation", "fields.n.agg": "sum"}
        table = await all_tables.create(columns, given=given)
        answer = await produce(table, {"id": 1, "n": 100}, b"{", {"id": 1, "n": 100}, {"id": 2, "n": 1})
        assert answer.error_code == 0, answer.error_message
        assert {row["id"]: row["n"] for row in await table.state()} == {1: 100, 2: 1}
        assert [headers["n"] for _, _, _, headers in await letters(all_tables.broker)] == [b"1", b"2"]


async def test_rows_of_partitions_go_on_as_well(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        (statement,) = parse(
            f"CREATE TABLE t (dt STRING, id INT) PARTITIONED BY (dt) WITH ('{next(iter(OPTION))}' = '{LETTERS}')"
        )
        table = await all_tables.create_as(statement.definition)
        answer = await produce(
            table, {"dt": "a", "id": 1}, {"dt": "a.b", "id": 2}, b"{", {"dt": "b", "id": 3}
        )
        assert answer.error_code == 0, answer.error_message
        assert sorted(headers["n"] for _, _, _, headers in await letters(all_tables.broker)) == [b"1", b"2"]
        assert [await (await all_tables.open(f"t.{name}")).count() for name in "ab"] == [1, 1]


async def test_without_a_dead_letter_topic_a_bad_record_refuses_its_batch(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        await all_tables.create("id INT", name="other")
        table = await all_tables.create("id INT", given={"table.kafka.dead-letter-topic": "default.other"})
        answer = await produce(table, {"id": 1}, b"{")
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "record 1 of the batch" in answer.error_message
        assert "default.other is a table" in answer.error_message
        assert await table.count() == 0
        (found,) = await refused(all_tables.broker)
        assert [each.dead_letter for each in found.records] == [False]
        context = all_tables.broker.context
        await context.topics.alter_config("default.t", {"table.kafka.dead-letter-topic": None})
        assert (await produce(table, {"id": 1}, b"{")).error_code == ErrorCode.INVALID_RECORD


async def test_setting_a_dead_letter_topic_needs_write_on_it(tmp_path: Path) -> None:
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    name = next(iter(OPTION))

    async def all_ways(ann: Any) -> list[int]:
        """The error codes of setting the option by each API that can."""
        config = AlterableConfig(name=name, config_operation=0, value=LETTERS)
        resource = AlterConfigsResource(resource_type=2, resource_name="default.t", configs=[config])
        altered = await ann.send(IncrementalAlterConfigsRequest(resources=[resource]))
        created = await ann.send(
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name="default.u",
                        num_partitions=1,
                        replication_factor=1,
                        configs=[
                            CreatableTopicConfig(name="table.schema", value="id INT"),
                            CreatableTopicConfig(name=name, value=LETTERS),
                        ],
                    )
                ]
            )
        )
        (statement,) = parse(f"CREATE TABLE v (id INT) WITH ('{name}' = '{LETTERS}')")
        made = await ann.send(m.CreateTableRequest(definition=statement.definition.to_json()))
        table = Table(ann, (await Tables(ann, None).open("t")).definition)  # type: ignore[arg-type]
        try:
            await table.alter(f"SET ('{name}' = '{LETTERS}')")
            changed = 0
        except AssertionError:
            changed = int(denied)
        return [altered.responses[0].error_code, created.topics[0].error_code, made.error_code, changed]

    async with tables(tmp_path, SECURED) as all_tables:
        all_tables.broker = admin = client(all_tables.broker, "admin")
        await all_tables.create("id INT")
        ann = client(admin, "ann")
        for operation in (Operation.ALTER, Operation.ALTER_CONFIGS, Operation.DESCRIBE, Operation.CREATE):
            await allow(admin, operation, ResourceType.TOPIC, "default.t", "default.u", "default.v")
        assert await all_ways(ann) == [denied] * 4
        await allow(admin, Operation.WRITE, ResourceType.TOPIC, LETTERS)
        assert await all_ways(ann) == [0] * 4


async def test_reasons_of_refused_batches_need_read_on_the_table(tmp_path: Path) -> None:
    async with tables(tmp_path, SECURED) as all_tables:
        all_tables.broker = admin = client(all_tables.broker, "admin")
        table = await all_tables.create("id INT")
        await produce(table, {"id": "secret"})
        ann = client(admin, "ann")
        await allow(admin, Operation.DESCRIBE, ResourceType.TOPIC, "default.t")
        assert await refused(ann) == []
        assert (await ann.send(m.ListRefusedRequest(topic="default.t"))).error_code == (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
        await allow(admin, Operation.READ, ResourceType.TOPIC, "default.t")
        assert len(await refused(ann)) == 1
