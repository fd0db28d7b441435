"""The findings of the fuzzer, each with a test of its own."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.net.reply import CloseConnection
from headrace.protocol.errors import ErrorCode
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import BatchHeader
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.ddl import CreateTable, parse
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.model.options.table_options import MAX_BUCKET_COUNT
from headrace.tablelayer.model.table.evolution import changes_from_json
from headrace.tablelayer.server.api.each_bucket import each_bucket
from headrace.tablelayer.server.kafka_view.producers import PRODUCER_IDS, check_frame
from headrace.tablelayer.server.merge.forwarding import forwarded
from headrace.tablelayer.tests.server.tables import run, tables
from headrace.tablelayer.tests.server.test_hostile_batches import send
from headrace.tablelayer.tests.server.test_staged_writes import chunk_of, commit, logged, stage


@pytest.mark.parametrize("damage", ["magic", "count", "short"])
@pytest.mark.parametrize("put", [False, True])
def test_a_malformed_batch_is_a_client_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str, put: bool
) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create("id INT" + (", PRIMARY KEY (id) NOT ENFORCED" if put else ""))
            batch: Any = bytearray(table.batch([{"id": 1}], [3] if put else None))
            if damage == "magic":
                batch[16] = 12
            elif damage == "count":
                struct.pack_into(">i", batch, 57, -1)
            else:
                del batch[70:]
            answer = await send(table, bytes(batch), put=put)
            assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
            assert answer.error_message
            assert table.partition.log.log_end_offset == 0

    run(work)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_parts_of_a_request_are_begun_a_few_in_each_turn_of_the_loop() -> None:
    begun, most, turns = 0, 0, 0

    async def part(number: int) -> int:
        nonlocal begun
        begun += 1
        await asyncio.sleep(0)
        return number

    async def innocent() -> None:
        nonlocal most, turns
        while True:
            before = begun
            await asyncio.sleep(0)
            most, turns = max(most, begun - before), turns + 1

    other = asyncio.ensure_future(innocent())
    assert await each_bucket(part, range(2000)) == list(range(2000))
    other.cancel()
    assert turns > 100
    assert most <= 32


@pytest.mark.parametrize(
    "change",
    [
        {"change": "set", "options": "STRING"},
        {"change": "reset", "names": "table.log.ttl"},
        {"change": "reset", "names": [["table.log.ttl"]]},
        {"change": "add", "name": True, "type": "INT"},
        {"change": "add", "name": "c", "type": "INT", "nullable": "no"},
        {"change": "add", "name": "c", "type": 7},
        {"change": "drop", "name": None},
        {"change": "rename", "name": "id", "new_name": None},
        {"change": "modify", "name": "id", "comment": {}},
        {"change": "comment", "comment": 5},
        {"change": ["set"]},
        ["change"],
        "change",
        None,
    ],
)
async def test_a_change_of_a_table_with_a_value_of_another_type_is_refused(
    tmp_path: Path, change: Any
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT, s STRING")
        answer = await table.alter_answer(json.dumps([change]))
        assert answer.error_code == TableErrorCode.INVALID_TABLE
        assert "not a list of changes" in answer.error_message
        assert (await table.latest()).schema == table.definition.schema


async def test_a_write_without_an_answer_that_is_refused_as_a_whole_closes_the_connection(
    tmp_path: Path,
) -> None:
    """Its client expects no answer: it would take this one for the answer to its next request."""
    async with tables(tmp_path) as all_tables:
        log = await all_tables.create("id INT", name="log")
        keyed = await all_tables.create("id INT, PRIMARY KEY (id) NOT ENFORCED", name="keyed")
        row = log.batch([{"id": 1}])
        for request in (
            m.AppendRowsRequest(table_id=UUID(int=5), buckets=[m.WriteBucket(bucket=0, batch=row)]),
            m.AppendRowsRequest(table_id=keyed.table_id, buckets=[m.WriteBucket(bucket=0, batch=row)]),
            m.PutRowsRequest(table_id=log.table_id, buckets=[m.WriteBucket(bucket=0, batch=row)]),
            m.PutRowsRequest(
                table_id=keyed.table_id, write_mode=7, buckets=[m.WriteBucket(bucket=0, batch=row)]
            ),
        ):
            assert (await all_tables.broker.send(request)).error_code != 0
            request.acks = 0
            with pytest.raises(CloseConnection, match="acks=0"):
                await all_tables.broker.send(request)


async def test_a_write_without_an_answer_that_is_refused_in_a_bucket_closes_the_connection(
    tmp_path: Path,
) -> None:
    async with tables(tmp_path) as all_tables:
        log = await all_tables.create("id INT", name="log")
        request = m.AppendRowsRequest(
            table_id=log.table_id, acks=0, buckets=[m.WriteBucket(bucket=0, batch=b"no batch")]
        )
        with pytest.raises(CloseConnection, match="acks=0 to bucket 0"):
            await all_tables.broker.send(request)


def test_the_names_of_reset_options_are_a_list() -> None:
    (change,) = changes_from_json('[{"change":"reset","names":["table.log.ttl"]}]')
    assert change.names == ("table.log.ttl",)  # type: ignore[union-attr]


@pytest.mark.parametrize("zone", ["1", "Nowhere/At_all", "", "..", "/etc/passwd", "a" * 300, "\0", "Europe"])
async def test_an_unknown_time_zone_is_refused(tmp_path: Path, zone: str) -> None:
    async with tables(tmp_path) as all_tables:
        definition = {
            "database": "default", "table": "t", "options": {"table.auto-partition.time-zone": zone},
            "schema": {"schema_id": 1, "columns": [{"id": 0, "name": "id", "type": "INT"}], "primary_key": []},
        }  # fmt: skip
        answer = await all_tables.broker.send(m.CreateTableRequest(definition=json.dumps(definition)))
        assert answer.error_code == TableErrorCode.INVALID_TABLE
        assert "time zone" in answer.error_message


async def test_a_commit_names_all_that_its_attempts_have_staged_and_each_once(tmp_path: Path) -> None:
    """Otherwise the batch would be decided and could never be written, and no later one of its writer could."""
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("n BIGINT", buckets=2)
        chunks = {0: [chunk_of(1)], 1: [chunk_of(2)]}
        assert (await stage(table, 0, "a", chunks)).error_code == 0
        for named in (
            {0: [chunk_of(1)]},
            {0: [chunk_of(1)], 1: []},
            {},
            {0: [chunk_of(1)] * 2, 1: [chunk_of(2)]},
        ):
            answer = await commit(table, 0, {"a": named})
            assert answer.error_code == TableErrorCode.STAGED_ROWS_MISSING
            assert await logged(table, 2) == []
        counts = [m.StagedCount(bucket=0, count=1), m.StagedCount(bucket=1, count=1)]
        twice = m.CommitStagedRequest(
            table_id=table.table_id, writer="w", batch_id=0,
            attempts=[m.StagedAttempt(attempt="a", chunks=counts)] * 2,
        )  # fmt: skip
        answer = await table.broker.send(twice)
        assert "named twice" in answer.error_message
        assert (await commit(table, 0, {"a": chunks})).error_code == 0
        assert sorted(await logged(table, 2)) == [1, 2]


@pytest.mark.parametrize("producer_id", [2**63 - 1, 2**50, PRODUCER_IDS])
async def test_an_id_that_no_producer_can_have_is_refused_before_ids_are_derived_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, producer_id: int
) -> None:
    async with tables(tmp_path) as all_tables:
        (statement,) = parse("CREATE TABLE parted (p STRING, id INT) PARTITIONED BY (p)")
        assert isinstance(statement, CreateTable)
        made = [await all_tables.create_as(statement.definition)]
        made.append(await all_tables.create("p STRING, id INT", name="split", buckets=4, bucket_key=["id"]))
        for table in made:
            records = [Record(None, json.dumps({"p": "a", "id": n}).encode(), (), 1000) for n in range(8)]
            batch = build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0)
            answer = await table.broker.produce(str(table.definition.path), batch)
            assert answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
            assert str(producer_id) in answer.error_message
            assert table.partition.log.log_end_offset == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_ids_derived_from_producers_fit_a_header_and_are_each_for_one_producer_and_partition() -> None:
    derived = {
        forwarded(header_of(producer_id), partition, by_whole_table=whole).producer_id
        for producer_id in (0, 1, 2, 2**49, PRODUCER_IDS - 2, PRODUCER_IDS - 1)
        for partition in (0, 1, MAX_BUCKET_COUNT - 2, MAX_BUCKET_COUNT - 1)
        for whole in (False, True)
    }
    assert len(derived) == 6 * 4 * 2
    assert min(derived) >= -(2**63)
    assert max(derived) < -1


def header_of(producer_id: int) -> BatchHeader:
    return check_frame(
        memoryview(build_batch([Record(None, b"{}", (), 0)], producer_id=producer_id, producer_epoch=0))
    )
