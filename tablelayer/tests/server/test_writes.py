"""Rules R1 to R6, R11, R12 and R16 through the wire, on a real broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from tablelayer.model import messages as m
from tablelayer.model.errors import TableErrorCode
from tablelayer.server.limits import Limits
from tablelayer.tests.server.tables import Row, Table, replay, run, tables

COLUMNS = "id INT, price DOUBLE, name STRING, PRIMARY KEY (id) NOT ENFORCED"


def row(key: int, price: float | None = 1.0, name: str | None = "a") -> Row:
    return {"id": key, "price": price, "name": name}


def hold_stores(table: Table, *, after: bool = False) -> asyncio.Event:
    """Nothing is stored (or, `after`, nothing that is stored is published) until the event is set."""
    services, release = table.partition.hooks.services, asyncio.Event()
    real = services.run

    async def held(work: Any, *arguments: Any) -> Any:
        is_store = getattr(work, "__name__", "") == "store"
        if is_store and not after:
            await release.wait()
        result = await real(work, *arguments)
        if is_store and after:
            await release.wait()
        return result

    services.run = held
    return release


def wide(user: int, item: int, **values: Any) -> Row:
    empty = {"recommended": None, "impressions": None, "clicks": None}
    return {"user_id": user, "item_id": item, **empty, **values}


async def unchanged(table: Table, answer: Any, code: int, words: str) -> None:
    """The write was refused with this code and words, and had no effect at all."""
    before = table.partition.log.log_end_offset
    assert answer.error_code == code, answer.error_message
    assert words in answer.error_message
    assert table.partition.log.log_end_offset == before
    assert table.partition.hooks.services.budget.used == 0
    assert await table.count() == len(await table.state())


def test_r1_1_rows_of_a_batch_see_the_earlier_ones(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            await table.put(("+", row(1, name="a")), ("+", row(2)), ("+", row(1, name="b")))
            assert await table.changelog() == [
                ("+I", row(1, name="a")), ("+I", row(2)), ("-U", row(1, name="a")), ("+U", row(1, name="b")),
            ]  # fmt: skip

    run(work)


def test_r1_2_and_r1_3_one_batch_is_one_changelog_batch_and_a_full_update_takes_two_offsets(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            first = await table.put(("+", row(1)), ("+", row(2)))
            assert (first.base_offset, first.end_offset) == (0, 2)
            second = await table.put(("+", row(1)), ("+", row(3)))
            assert (second.base_offset, second.end_offset) == (2, 5)
            assert [batch.header.record_count for batch in await table.scan()] == [2, 3]

    run(work)


def test_r1_4_a_batch_that_changes_nothing_advances_the_sequence(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            who = {"producer_id": 7, "producer_epoch": 0}
            answer = await table.put(("-", row(1)), ("-", row(2)), base_sequence=0, **who)
            assert answer.error_code == 0
            assert answer.end_offset == answer.base_offset + 1
            answer = await table.put(("+", row(1)), base_sequence=2, **who)
            assert answer.error_code == 0, answer.error_message
            assert await table.changelog() == [("+I", row(1))]

    run(work)


def test_r1_5_an_error_anywhere_leaves_no_effect(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(
                "id INT, n INT NOT NULL, s CHAR(2), PRIMARY KEY (id) NOT ENFORCED"
            )
            good = {"id": 1, "n": 1, "s": "ab"}
            for bad, words in (
                ({"id": 2, "n": None, "s": "a"}, "column 'n'"),
                ({"id": 2, "n": 1, "s": "abc"}, "'s'"),
            ):
                answer = await table.put(("+", good), ("+", bad))
                await unchanged(table, answer, TableErrorCode.INVALID_ROW, words)
            answer = await table.put(("+", good), ("+", {"id": None, "n": 1, "s": "a"}))
            await unchanged(table, answer, TableErrorCode.INVALID_ROW, "column 'id'")
            assert await table.state() == []

            def no_append(*_: Any, **__: Any) -> None:
                raise OSError(28, "no space")

            log = table.partition.log
            log.append, real = no_append, log.append
            assert (await table.put(("+", good))).error_code != 0
            log.append = real
            await table.put(("+", {**good, "n": 2}))  # nothing of the failed one may be in the buffer
            assert await table.changelog() == [("+I", {**good, "n": 2})]

    run(work)


def test_r1_5_damaged_batches_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            batch = bytearray(table.batch([row(1)]))
            batch[-1] ^= 1
            await unchanged(table, await table.put_batch(bytes(batch)), ErrorCode.CORRUPT_MESSAGE, "CRC")
            await unchanged(table, await table.put_batch(b"x" * 20), ErrorCode.CORRUPT_MESSAGE, "Arrow")
            answer = await table.put_batch(table.batch([row(1)], changes=[1]))
            await unchanged(table, answer, TableErrorCode.INVALID_ROW, "upserts")

    run(work)


def test_r1_6_a_write_beyond_the_buffer_is_refused_before_any_effect(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path, limits=Limits(buffered_bytes_max=1000)) as all_tables:
            table = await all_tables.create(COLUMNS)
            batches = [table.batch([row(key)]) for key in range(8)]
            answers = await asyncio.gather(*map(table.put_batch, batches))
            refused = [each for each in answers if each.error_code]
            assert refused
            assert {each.error_code for each in refused} == {TableErrorCode.BUFFER_EXHAUSTED}
            assert len(await table.changelog()) == len(batches) - len(refused)
            assert (await table.put(("+", row(99)))).error_code == 0  # there is room again

    run(work)


@pytest.mark.parametrize("image", ["FULL", "WAL"])
def test_r2_the_table_of_operations(tmp_path: Path, image: str) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS, changelog_image=image)
            for operation in (
                ("+", row(1, 2.0, "apple")), ("+", row(1, 4.0, "banana")), ("-", row(1, None, None)),
                ("-", row(1)), ("+", row(2)), ("+", row(2)),
            ):  # fmt: skip
                assert (await table.put(operation)).error_code == 0
            full = [
                ("+I", row(1, 2.0, "apple")), ("-U", row(1, 2.0, "apple")), ("+U", row(1, 4.0, "banana")),
                ("-D", row(1, 4.0, "banana")), ("+I", row(2)), ("-U", row(2)), ("+U", row(2)),
            ]  # fmt: skip
            assert await table.changelog() == [each for each in full if image == "FULL" or each[0] != "-U"]
            assert await table.state() == [row(2)]

    run(work)


def test_r2_1_insert_delete_insert_in_one_batch(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            await table.put(("+", row(1, name="x")), ("-", row(1)), ("+", row(1, name=None)))
            assert await table.changelog() == [
                ("+I", row(1, name="x")), ("-D", row(1, name="x")), ("+I", row(1, name=None)),
            ]  # fmt: skip
            assert await table.lookup({"id": 1}) == [row(1, name=None)]  # R2.2

    run(work)


def test_r2_delete_absent_key_emits_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            await table.put(("+", row(1)))
            await table.put(("-", row(9)), ("-", row(1)), ("-", row(1)))
            assert await table.changelog() == [("+I", row(1)), ("-D", row(1))]
            assert await table.count() == 0

    run(work)


def test_r3_1_a_repeat_gets_the_original_answer_and_has_no_effect(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            sent = [
                table.batch([row(1, float(n))], producer_id=5, producer_epoch=0, base_sequence=n)
                for n in range(6)
            ]
            answers = [await table.put_batch(batch) for batch in sent]
            before = await table.changelog()
            for batch, answer in list(zip(sent, answers, strict=True))[1:]:
                again: Any = await table.put_batch(batch)
                assert (again.base_offset, again.end_offset) == (answer.base_offset, answer.end_offset)
            assert await table.changelog() == before
            assert await table.lookup({"id": 1}) == [row(1, 5.0)]

    run(work)


def test_r3_2_a_gap_is_out_of_order_and_an_unknown_writer_starts_at_0(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            who = {"producer_id": 5, "producer_epoch": 0}
            answer = await table.put(("+", row(1)), base_sequence=3, **who)
            await unchanged(table, answer, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "begin with 0")
            assert (await table.put(("+", row(1)), base_sequence=0, **who)).error_code == 0
            answer = await table.put(("+", row(2)), base_sequence=2, **who)
            await unchanged(table, answer, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "")

    run(work)


def test_r3_4_writer_state_survives_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        who = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            first = await table.put(("+", row(1, 1.0)), **who)
            await table.put(("+", row(1, 2.0)))
        async with tables(tmp_path) as all_tables:
            table = await all_tables.open()
            again = await table.put(("+", row(1, 1.0)), **who)
            assert (again.base_offset, again.end_offset) == (first.base_offset, first.end_offset)
            assert await table.lookup({"id": 1}) == [row(1, 2.0)]

    run(work)


def test_r4_1_an_unknown_schema_id_is_an_error(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            answer = await table.put(("+", row(1)), schema_id=9)
            await unchanged(table, answer, TableErrorCode.UNKNOWN_SCHEMA_ID, "schema 9")

    run(work)


def test_r5_1_ignored_deletes_are_a_success(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS, delete_behavior="IGNORE")
            assert (await table.put(("+", row(1)), ("-", row(1)), ("+", row(2)))).error_code == 0
            assert await table.changelog() == [("+I", row(1)), ("+I", row(2))]

    run(work)


def test_r5_2_disabled_deletes_fail_the_batch_even_of_absent_keys(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS, delete_behavior="DISABLE")
            answer = await table.put(("+", row(1)), ("-", row(9)))
            await unchanged(table, answer, TableErrorCode.DELETION_DISABLED, "DISABLE")
            assert await table.state() == []

    run(work)


WIDE = (
    "user_id INT, item_id INT, recommended DATE, impressions INT, clicks INT, "
    "PRIMARY KEY (user_id, item_id) NOT ENFORCED"
)


def test_r6_1_and_r6_2_targets_have_the_key_and_leave_out_nullable_columns_only(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create("k INT, a INT, b INT NOT NULL, PRIMARY KEY (k) NOT ENFORCED")
            for ids, words in (
                ([1, 2], "key column 'k'"),
                ([0, 1], "'b' is NOT NULL"),
                ([0, 2, 9], "id 9"),
                ([], ""),
            ):
                answer = await table.put_batch(table.batch([{"k": 1, "a": 1, "b": 1}]), target_columns=ids)
                await unchanged(table, answer, TableErrorCode.INVALID_TARGET_COLUMNS, words)
            answer = await table.put(("+", {"k": 1, "b": None}), columns=["k", "b"])
            await unchanged(table, answer, TableErrorCode.INVALID_ROW, "column 'b'")
            assert (await table.put(("+", {"k": 1, "b": 5}), columns=["k", "b"])).error_code == 0
            answer = await table.put(("-", {"k": 1, "b": 5}), columns=["k", "b"])
            await unchanged(table, answer, TableErrorCode.INVALID_ROW, "'b'")  # R6.7

    run(work)


def test_r6_the_wide_table_example_comes_out_row_for_row(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(WIDE)
            key = {"user_id": 101, "item_id": 1001}
            await table.put(("+", {**key, "impressions": 1}), columns=["user_id", "item_id", "impressions"])
            await table.put(("+", {**key, "clicks": 1}), columns=["user_id", "item_id", "clicks"])
            await table.put(("+", {**key, "clicks": None}), columns=["user_id", "item_id", "clicks"])  # R6.5
            await table.put(("+", wide(101, 1001, clicks=7)))  # R6.3
            one, two = wide(101, 1001, impressions=1), wide(101, 1001, impressions=1, clicks=1)
            assert await table.changelog() == [
                ("+I", one), ("-U", one), ("+U", two), ("-U", two), ("+U", one),
                ("-U", one), ("+U", wide(101, 1001, clicks=7)),
            ]  # fmt: skip

    run(work)


def test_r6_6_the_key_alone_inserts_a_row_of_nulls_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(WIDE)
            key = ["user_id", "item_id"]
            await table.put(
                ("+", {"user_id": 1, "item_id": 1}), ("+", {"user_id": 1, "item_id": 1}), columns=key
            )
            await table.put(("+", wide(1, 2, clicks=3)))
            await table.put(*(("+", {"user_id": 1, "item_id": item}) for item in (1, 2)), columns=key)
            assert await table.changelog() == [("+I", wide(1, 1)), ("+I", wide(1, 2, clicks=3))]

    run(work)


def test_r6_7_a_partial_delete_clears_its_columns_and_the_row_with_the_last_of_them(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(WIDE)
            full = wide(1, 1, impressions=1, clicks=1)
            await table.put(("+", full))
            key = {"user_id": 1, "item_id": 1}
            await table.put(("-", {**key, "clicks": None}), columns=["user_id", "item_id", "clicks"])
            less = wide(1, 1, impressions=1)
            await table.put(
                ("-", {**key, "impressions": None}), ("-", {**key, "impressions": None}),
                ("-", {"user_id": 8, "item_id": 8, "impressions": None}),
                columns=["user_id", "item_id", "impressions"],
            )  # fmt: skip
            assert await table.changelog() == [("+I", full), ("-U", full), ("+U", less), ("-D", less)]
            assert await table.count() == 0

    run(work)


def test_r6_8_writers_of_disjoint_columns_converge(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(WIDE)
            writes = [
                table.put(
                    ("+", {"user_id": 1, "item_id": n % 3, column: n}), columns=["user_id", "item_id", column]
                )
                for n in range(30)
                for column in ("impressions", "clicks")
            ]
            answers = await asyncio.gather(*writes)
            assert all(answer.error_code == 0 for answer in answers)
            assert await table.state() == [
                wide(1, item, impressions=27 + item, clicks=27 + item) for item in range(3)
            ]

    run(work)


def test_r11_what_is_acknowledged_by_all_is_visible_and_0_is_not_answered(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            for key in range(20):
                await table.put(("+", row(key)))
                assert await table.lookup({"id": key}) == [row(key)]
                assert len(await table.changelog()) == key + 1
            request = m.PutRowsRequest(
                table_id=table.table_id, acks=0, timeout_ms=1000,
                buckets=[m.WriteBucket(bucket=0, batch=table.batch([row(99)]))],
            )  # fmt: skip
            assert await all_tables.broker.send(request) is None
            answer = await table.put_batch(table.batch([row(100)]), acks=1)
            assert answer.error_code == 0
            await table.put(("+", row(101)))
            assert await table.count() == 23

    run(work)


def test_r11_all_waits_for_the_store_and_1_for_the_log_only(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            release = hold_stores(table)
            assert (await table.put_batch(table.batch([row(1)]), acks=1)).error_code == 0
            waiting = asyncio.ensure_future(table.put_batch(table.batch([row(2)]), acks=-1))
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
            assert table.partition.high_watermark == 0
            release.set()
            assert (await waiting).error_code == 0
            assert table.partition.high_watermark == 2

    run(work)


def test_r11_too_few_replicas_is_said_before_the_append(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            await all_tables.broker.context.metadata.alter_config("default.t", {"min.insync.replicas": "2"})
            await unchanged(
                table, await table.put(("+", row(1))), ErrorCode.NOT_ENOUGH_REPLICAS, "min.insync"
            )

    run(work)


def test_r12_1_nothing_is_seen_before_it_is_stored(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            await table.put(("+", row(1)))
            partition, release = table.partition, hold_stores(table)
            answer = await table.put_batch(table.batch([row(2)]), acks=1)
            assert answer.end_offset == 2
            assert partition.log.log_end_offset == 2
            assert partition.high_watermark == 1
            assert await table.changelog() == [("+I", row(1))]
            assert await table.lookup({"id": 1}, {"id": 2}) == [row(1), None]
            waiting = asyncio.ensure_future(
                table.put(("+", row(2, 5.0)))
            )  # sees the write that is not stored
            await asyncio.sleep(0.05)
            assert not waiting.done()
            release.set()
            await waiting
            assert await table.changelog(1) == [("+I", row(2)), ("-U", row(2)), ("+U", row(2, 5.0))]
            assert await table.lookup({"id": 2}) == [row(2, 5.0)]
            assert replay(await table.changelog(), ["id"]).keys() == {(1,), (2,)}

    run(work)


def test_r12_1_a_lookup_that_saw_more_than_is_published_waits_for_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            release = hold_stores(table, after=True)
            assert (await table.put_batch(table.batch([row(1)]), acks=1)).error_code == 0
            looking = asyncio.ensure_future(table.lookup({"id": 1}))
            done, _ = await asyncio.wait([looking], timeout=0.3)
            assert not done
            assert table.partition.high_watermark == 0
            release.set()
            assert await looking == [row(1)]
            assert table.partition.high_watermark == 1

    run(work)


def test_r16_kinds_are_checked(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.create(COLUMNS)
            assert (await table.append([row(1)])).error_code == TableErrorCode.NOT_A_LOG_TABLE
            log = await all_tables.create("id INT, name STRING", name="log")
            answer = await log.put_batch(log.batch([{"id": 1, "name": "a"}]))
            assert answer.error_code == TableErrorCode.NOT_A_PRIMARY_KEY_TABLE
            assert (await log.append([{"id": 1, "name": "a"}])).error_code == 0
            for request in (
                m.LookupRequest(table_id=log.table_id, buckets=[]),
                m.PrefixLookupRequest(table_id=log.table_id, buckets=[]),
                m.ScanSnapshotRequest(table_id=log.table_id, bucket=0),
            ):
                answer = await all_tables.broker.send(request)
                assert answer.error_code == TableErrorCode.NOT_A_PRIMARY_KEY_TABLE

    run(work)
