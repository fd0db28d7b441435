"""Numbers and texts that no honest client sends, field by field, to the table APIs: each is answered, without a
traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.net.reply import CloseConnection
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.tests.server.tables import LAKES, Tables, run, tables

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
FORGED = "w\n2026-01-01 00:00:00 ERROR headrace: all is lost\x1b[2J\r" + "x" * 5000


async def answer_to(all_tables: Tables, request: Any, version: int | None = None) -> Any:
    try:
        return await all_tables.broker.send(request, version)
    except (KafkaError, CloseConnection) as error:
        return error


PARTS: dict[Any, Any] = {
    m.ScanLogRequest: m.ScanLogBucket,
    m.LookupRequest: lambda: m.LookupBucket(keys=b""),
    m.PrefixLookupRequest: lambda: m.PrefixLookupBucket(prefixes=b""),
    m.AppendRowsRequest: lambda: m.WriteBucket(batch=b""),
    m.PutRowsRequest: lambda: m.WriteBucket(batch=b""),
    m.StageRowsRequest: None,
    m.LimitScanRequest: None,
    m.CountRowsRequest: None,
    m.LakeBeginRequest: None,
    m.LakeHeartbeatRequest: None,
    m.LakeEndRequest: None,
    m.LakeCommitRequest: m.LakeOffset,
    m.ScanSnapshotRequest: None,
    m.AlterTableRequest: None,
}


def requests_of(kind: Any, table: Any) -> Iterator[tuple[Any, str]]:
    """Return requests about a table with one unusual number, and the number's name."""
    part = PARTS[kind]
    for holder in (kind, *([type(part())] if part else ())):
        for name, field in holder.FIELDS.items():
            bits = BITS.get(field.kind)
            for value in () if bits is None else (-(1 << bits - 1), -2, -1, 0, 1, (1 << bits - 1) - 1):
                if name.endswith("_ms") and value > 1:
                    continue  # it would be waited for
                request = kind()
                if "table_id" in kind.FIELDS:
                    request.table_id = table.table_id
                one = part() if part else 0
                if "buckets" in kind.FIELDS:
                    request.buckets = [one]
                if "offsets" in kind.FIELDS:
                    request.offsets = [one]
                setattr(request if holder is kind else one, name, value)
                yield request, f"{name}={value}"
    for name in ("buckets", "columns", "extremes"):
        if name in kind.FIELDS and (name != "buckets" or part is None):
            for value in (-(1 << 31), -1, 5, (1 << 31) - 1):
                request = kind()
                request.table_id = table.table_id
                if "buckets" in kind.FIELDS:
                    request.buckets = [part() if part else 0]
                setattr(request, name, [value])
                yield request, f"{name}=[{value}]"


def test_extreme_numbers_are_answered(tmp_path: Path, own_log: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            keyed = await all_tables.create("id INT, v STRING, PRIMARY KEY (id) NOT ENFORCED", name="k")
            log = await all_tables.create("id INT, v STRING", name="l")
            await keyed.put(("+", {"id": 1, "v": "a"}))
            for table in (keyed, log):
                for kind in PARTS:
                    for request, what in requests_of(kind, table):
                        answer = await answer_to(all_tables, request)
                        answers = [answer, *getattr(answer, "buckets", ())]
                        for each in answers:
                            code = getattr(each, "error_code", 0)
                            assert code != ErrorCode.UNKNOWN_SERVER_ERROR, (kind.__name__, what, answer)

    run(work)
    assert not [each for each in own_log.records if each.exc_info or each.levelno >= logging.ERROR], (
        own_log.text
    )


def test_text_of_workers_cannot_forge_log_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def work() -> None:
        async with tables(tmp_path, LAKES) as all_tables:
            table = await all_tables.create("id INT", datalake_enabled="true")
            begun = await answer_to(
                all_tables, m.LakeBeginRequest(worker=FORGED, database="default", table="t", force=True)
            )
            assert begun.granted, begun
            beat = m.LakeHeartbeatRequest(table_id=table.table_id, epoch=begun.epoch, doing=FORGED)
            assert (await answer_to(all_tables, beat)).error_code == 0
            described = await answer_to(all_tables, m.DescribeLakeRequest(table_id=table.table_id))
            for said in (described.worker, described.doing):
                assert said.isprintable()
                assert len(said) < 600
            end = m.LakeEndRequest(table_id=table.table_id, epoch=begun.epoch, failure=FORGED)
            assert (await answer_to(all_tables, end)).error_code == 0
            described = await answer_to(all_tables, m.DescribeLakeRequest(table_id=table.table_id))
            assert described.failure.isprintable()
            assert len(described.failure) < 2100

    run(work)
    lines = [each.getMessage() for each in caplog.records if "all is lost" in each.getMessage()]
    assert len(lines) == 2
    assert all(line.isprintable() and len(line) < 2200 for line in lines)


def test_old_versions_of_lake_messages_get_answers_that_they_can_carry(
    tmp_path: Path, own_log: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with tables(tmp_path, LAKES) as all_tables:
            from dataclasses import replace

            from headrace.tablelayer.model.ddl.clauses import parse_columns
            from headrace.tablelayer.model.table.definition import TableDefinition
            from headrace.tablelayer.model.table.path import TablePath

            whole = TableDefinition(
                TablePath("default", "p"),
                parse_columns("id INT, d STRING"),
                options={"table.datalake.enabled": "true"},
                partition_keys=("d",),
            )
            table = await all_tables.create_as(replace(whole))
            await answer_to(all_tables, m.CreatePartitionRequest(table_id=table.table_id, name="x"))
            await all_tables.broker.create_topic("clicks", **{"datalake.enabled": "true"})
            await all_tables.broker.produce("clicks", [b"a"])
            answer = await answer_to(all_tables, m.DescribeLakeRequest(table_id=table.table_id), 0)
            assert answer.error_code == TableErrorCode.PARTITION_NEEDED
            answer = await answer_to(all_tables, m.DescribeLakeRequest(table_id=table.table_id), 1)
            assert [each.partition for each in answer.ends] == ["x"]
            begun = await answer_to(all_tables, m.LakeBeginRequest(worker="w"), 0)
            assert not begun.granted
            begun = await answer_to(all_tables, m.LakeBeginRequest(worker="w"), 1)
            assert (begun.granted, begun.topic) == (True, "clicks")

    run(work)
    assert not [each for each in own_log.records if each.exc_info], own_log.text
