"""Rules R1 to R6, R11, R12 and R16 through the wire, on a real broker."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.server import stored_message
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.store.tablet import Tablet
from headrace.tablelayer.tests.server.tables import Row, Table, replay, tables
from headrace.tablelayer.tests.server.test_kafka_view import consume

COLUMNS = "id INT, price DOUBLE, name STRING, PRIMARY KEY (id) NOT ENFORCED"


def row(key: int, price: float | None = 1.0, name: str | None = "a") -> Row:
    return {"id": key, "price": price, "name": name}


def hold_stores(table: Table, *, after: bool = False, reached: asyncio.Event | None = None) -> asyncio.Event:
    """Hold back stores (or, with `after`, publishing) until the event is set. `reached` is set when something is
    held back.
    """
    services, release = table.partition.hooks.services, asyncio.Event()
    real = services.run

    def run(work: Any, *arguments: Any) -> asyncio.Future[Any]:
        is_store = getattr(work, "__func__", None) is Tablet.store
        return asyncio.ensure_future(held(work, *arguments)) if is_store else real(work, *arguments)

    async def held(work: Any, *arguments: Any) -> Any:
        result = await real(work, *arguments) if after else None
        if reached is not None:
            reached.set()
        await release.wait()
        return result if after else await real(work, *arguments)

    services.run = run
    table.partition.hooks.tablet.store_at_once = lambda count: False
    return release


def wide(user: int, item: int, **values: Any) -> Row:
    empty = {"recommended": None, "impressions": None, "clicks": None}
    return {"user_id": user, "item_id": item, **empty, **values}


async def unchanged(table: Table, write: Awaitable[Any], code: int, *words: str) -> None:
    """Check that the write is refused with this code and message, and has no effect."""
    log = table.partition.log
    before = log.log_end_offset, await table.changelog(), await table.state(), await table.count()
    answer = await write
    assert answer.error_code == code, answer.error_message
    assert all(each in answer.error_message for each in words), answer.error_message
    after = log.log_end_offset, await table.changelog(), await table.state(), await table.count()
    assert after == before
    assert table.partition.hooks.services.budget.used == 0


async def test_r1_1_rows_of_a_batch_see_the_earlier_ones(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(("+", row(1, name="a")), ("+", row(2)), ("+", row(1, name="b")))
        assert await table.changelog() == [
            ("+I", row(1, name="a")), ("+I", row(2)), ("-U", row(1, name="a")), ("+U", row(1, name="b")),
        ]  # fmt: skip


async def test_r1_2_one_write_batch_is_one_changelog_batch(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(("+", row(1)), ("+", row(2)))
        await table.put(("+", row(1)), ("+", row(3)))
        assert [batch.header.record_count for batch in await table.scan()] == [2, 3]


async def test_r1_3_each_emitted_row_takes_one_offset_and_the_answer_carries_the_end(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        first = await table.put(("+", row(1)), ("+", row(2)))
        assert (first.base_offset, first.end_offset) == (0, 2)
        second = await table.put(("+", row(1)), ("+", row(3)))  # a full update takes two
        assert (second.base_offset, second.end_offset) == (2, 5)
        assert table.partition.log.log_end_offset == 5
        wal = await all_tables.create(COLUMNS, name="wal", changelog_image="WAL")
        await wal.put(("+", row(1)))
        third = await wal.put(("+", row(1)))
        assert (third.base_offset, third.end_offset) == (1, 2)


async def test_r1_4_a_batch_that_changes_nothing_advances_the_sequence(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        who = {"producer_id": 7, "producer_epoch": 0}
        answer = await table.put(("-", row(1)), ("-", row(2)), base_sequence=0, **who)
        assert answer.error_code == 0
        assert answer.end_offset == answer.base_offset + 1
        answer = await table.put(("+", row(1)), base_sequence=2, **who)
        assert answer.error_code == 0, answer.error_message
        assert await table.changelog() == [("+I", row(1))]


async def test_r1_5_an_error_anywhere_leaves_no_effect(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT, n INT NOT NULL, s CHAR(2), PRIMARY KEY (id) NOT ENFORCED")
        good = {"id": 1, "n": 1, "s": "ab"}
        for bad, words in (
            ({"id": 2, "n": None, "s": "a"}, "column 'n'"),
            ({"id": 2, "n": 1, "s": "abc"}, "'s'"),
        ):
            await unchanged(table, table.put(("+", good), ("+", bad)), TableErrorCode.INVALID_ROW, words)
        await unchanged(
            table,
            table.put(("+", good), ("+", {"id": None, "n": 1, "s": "a"})),
            TableErrorCode.INVALID_ROW,
            "column 'id'",
        )
        assert await table.state() == []

        def no_append(*_: Any, **__: Any) -> None:
            raise OSError(28, "no space")

        log = table.partition.log
        log.append, real = no_append, log.append
        assert (await table.put(("+", good))).error_code != 0
        log.append = real
        await table.put(("+", {**good, "n": 2}))  # nothing of the failed one may be in the buffer
        assert await table.changelog() == [("+I", {**good, "n": 2})]


async def test_r1_5_damaged_batches_are_refused(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        batch = bytearray(table.batch([row(1)]))
        batch[-1] ^= 1
        await unchanged(table, table.put_batch(bytes(batch)), ErrorCode.CORRUPT_MESSAGE, "CRC")
        await unchanged(table, table.put_batch(b"x" * 20), ErrorCode.CORRUPT_MESSAGE, "Arrow")
        await unchanged(
            table,
            table.put_batch(table.batch([row(1), row(2)], changes=[3, 1])),
            TableErrorCode.INVALID_ROW,
            "upserts",
        )
        two = table.batch([row(1)]) + table.batch([row(2)])
        await unchanged(table, table.put_batch(two), ErrorCode.CORRUPT_MESSAGE, "bytes follow the batch")


async def test_r1_6_a_write_beyond_the_buffer_is_refused_before_any_effect(tmp_path: Path) -> None:
    async with tables(tmp_path, limits=Limits(buffered_bytes_max=1000)) as all_tables:
        table = await all_tables.create(COLUMNS)
        batches = [table.batch([row(key)]) for key in range(8)]
        answers = await asyncio.gather(*map(table.put_batch, batches))
        refused = [each for each in answers if each.error_code]
        assert refused
        assert {each.error_code for each in refused} == {TableErrorCode.BUFFER_EXHAUSTED}
        assert len(await table.changelog()) == len(batches) - len(refused)
        assert (await table.put(("+", row(99)))).error_code == 0  # there is room again


async def test_r1_1_a_merge_sees_the_newest_of_the_writes_that_are_not_stored_yet(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(("+", row(2, 0.0)))
        release = hold_stores(table)
        table.partition.hooks.services.can_write_at_once = lambda: False  # few rows are merged in another way
        for price in (1.0, 2.0):
            assert (await table.put_batch(table.batch([row(1, price)]), acks=1)).error_code == 0
        third = asyncio.ensure_future(table.put(("+", row(1, 3.0)), ("+", row(2, 3.0)), ("+", row(3, 3.0))))
        await asyncio.sleep(0.05)
        release.set()
        assert (await third).error_code == 0
        assert await table.changelog(1) == [
            ("+I", row(1, 1.0)), ("-U", row(1, 1.0)), ("+U", row(1, 2.0)),
            ("-U", row(1, 2.0)), ("+U", row(1, 3.0)), ("-U", row(2, 0.0)), ("+U", row(2, 3.0)),
            ("+I", row(3, 3.0)),
        ]  # fmt: skip
        assert await table.state() == [row(1, 3.0), row(2, 3.0), row(3, 3.0)]


@pytest.mark.parametrize("image", ["FULL", "WAL"])
async def test_r2_the_table_of_operations(tmp_path: Path, image: str) -> None:
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


async def test_r2_1_insert_delete_insert_in_one_batch(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(("+", row(1, name="x")), ("-", row(1)), ("+", row(1, name=None)))
        assert await table.changelog() == [
            ("+I", row(1, name="x")), ("-D", row(1, name="x")), ("+I", row(1, name=None)),
        ]  # fmt: skip


async def test_r2_2_a_null_in_a_nullable_column_is_stored_as_null(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(("+", row(1)))
        await table.put(("+", row(1, None, None)))
        assert await table.lookup({"id": 1}) == [row(1, None, None)]
        assert await table.changelog(1) == [("-U", row(1)), ("+U", row(1, None, None))]


async def test_r2_3_a_key_column_is_never_null(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(("+", row(1)))
        for sign in "+-":
            await unchanged(
                table,
                table.put(("+", row(2)), (sign, {"id": None, "price": 1.0, "name": "a"})),
                TableErrorCode.INVALID_ROW,
                "row 1, column 'id': null",
            )
        await unchanged(
            table,
            table.put(("+", {"id": None, "name": "a"}), columns=["id", "name"]),
            TableErrorCode.INVALID_ROW,
            "column 'id'",
        )


async def test_r2_4_zeros_of_both_signs_are_one_key_and_so_are_all_nans(tmp_path: Path) -> None:
    other_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k DOUBLE, v INT, PRIMARY KEY (k) NOT ENFORCED")
        for v, k in enumerate((0.0, -0.0, float("nan"), other_nan)):
            await table.put(("+", {"k": k, "v": v}))
        assert [(str(row["k"]), row["v"]) for row in await table.state()] == [("-0.0", 1), ("nan", 3)]
        assert [row and row["v"] for row in await table.lookup({"k": 0.0}, {"k": -0.0})] == [1, 1]
        records = await consume(table)
        assert [key for _, key, _, _ in records] == [b'{"k":0}'] * 2 + [b'{"k":"NaN"}'] * 2
        assert [value for _, _, value, _ in records][:2] == [b'{"k":0,"v":0}', b'{"k":-0,"v":1}']


async def test_r2_a_delete_uses_only_its_key_and_upserts_beside_it_are_checked(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id INT, n INT NOT NULL, s CHAR(2), PRIMARY KEY (id) NOT ENFORCED")
        # CHAR counts characters, not bytes.
        assert (await table.put(("+", {"id": 1, "n": 1, "s": "éß"}))).error_code == 0
        nothing = {"n": None, "s": None}
        write = table.put(("-", {"id": 1, **nothing}), ("+", {"id": 2, **nothing}))
        await unchanged(table, write, TableErrorCode.INVALID_ROW, "row 1, column 'n'")
        assert (await table.put(("-", {"id": 1, **nothing}))).error_code == 0
        assert await table.state() == []


async def test_r2_the_example_of_the_documentation(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k INT, v1 DOUBLE, v2 STRING, PRIMARY KEY (k) NOT ENFORCED")
        apple, banana = {"k": 1, "v1": 2.0, "v2": "apple"}, {"k": 1, "v1": 4.0, "v2": "banana"}
        for operation in (("+", apple), ("+", banana), ("-", {"k": 1, "v1": None, "v2": None})):
            await table.put(operation)
        assert await table.changelog() == [("+I", apple), ("-U", apple), ("+U", banana), ("-D", banana)]


async def test_r2_delete_absent_key_emits_nothing(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(("+", row(1)))
        await table.put(("-", row(9)), ("-", row(1)), ("-", row(1)))
        assert await table.changelog() == [("+I", row(1)), ("-D", row(1))]
        assert await table.count() == 0


async def test_r3_1_a_repeat_gets_the_original_answer_and_has_no_effect(tmp_path: Path) -> None:
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


async def test_r3_2_a_gap_is_out_of_order_and_an_unknown_writer_starts_at_0(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        who = {"producer_id": 5, "producer_epoch": 0}
        await unchanged(
            table,
            table.put(("+", row(1)), base_sequence=3, **who),
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            "begin with 0",
        )
        assert (await table.put(("+", row(1)), base_sequence=0, **who)).error_code == 0
        await unchanged(
            table,
            table.put(("+", row(2)), base_sequence=2, **who),
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            "the last sequence was 0",
        )


async def test_r3_3_a_duplicate_found_after_merging_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    """The batch is sent again while the first one is under way: both are merged before either is known to be a
    duplicate.
    """
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(("+", row(1, 1.0)))
        bucket = table.partition.hooks
        bucket._duplicate = lambda writer: None  # the check before merging sees nothing
        batch = table.batch([row(1, 2.0), row(2)], producer_id=5, producer_epoch=0, base_sequence=0)
        answers: list[Any] = await asyncio.gather(*(table.put_batch(batch) for _ in range(3)))
        assert {(each.error_code, each.base_offset, each.end_offset) for each in answers} == {(0, 1, 4)}
        await table.put(("+", row(2, 9.0)))
        assert await table.changelog() == [
            ("+I", row(1, 1.0)), ("-U", row(1, 1.0)), ("+U", row(1, 2.0)), ("+I", row(2)),
            ("-U", row(2)), ("+U", row(2, 9.0)),
        ]  # fmt: skip
        assert await table.state() == [row(1, 2.0), row(2, 9.0)]
        again: Any = await table.put_batch(batch)  # its rows are not the newest any more
        assert (again.error_code, again.base_offset, again.end_offset) == (0, 1, 4)
        await table.put(("+", row(3)))
        assert await table.state() == [row(1, 2.0), row(2, 9.0), row(3)]
        assert bucket.services.budget.used == 0


async def test_r3_4_writer_state_survives_a_restart(tmp_path: Path) -> None:
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


async def test_r4_1_an_unknown_schema_id_is_an_error(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await unchanged(
            table, table.put(("+", row(1)), schema_id=9), TableErrorCode.UNKNOWN_SCHEMA_ID, "schema 9"
        )


async def test_r5_1_ignored_deletes_are_a_success(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS, delete_behavior="IGNORE")
        assert (await table.put(("+", row(1)), ("-", row(1)), ("+", row(2)))).error_code == 0
        assert await table.changelog() == [("+I", row(1)), ("+I", row(2))]


async def test_r5_2_disabled_deletes_fail_the_batch_even_of_absent_keys(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS, delete_behavior="DISABLE")
        await unchanged(
            table, table.put(("+", row(1)), ("-", row(9))), TableErrorCode.DELETION_DISABLED, "DISABLE"
        )
        assert await table.state() == []


async def test_r5_3_the_option_on_a_log_table_fails_the_create(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        with pytest.raises(KafkaError, match=r"table\.delete\.behavior.*log table"):
            await all_tables.broker.context.topics.create_topic(
                "default.log", 1, {"table.schema": "id INT", "table.delete.behavior": "IGNORE"}
            )


WIDE = (
    "user_id INT, item_id INT, recommended DATE, impressions INT, clicks INT, "
    "PRIMARY KEY (user_id, item_id) NOT ENFORCED"
)


async def test_r6_1_the_targets_have_the_key(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k INT, a INT, b INT, PRIMARY KEY (k) NOT ENFORCED")
        for ids, words in (([1, 2], "key column 'k'"), ([0, 2, 9], "id 9"), ([], "no columns are given"),
                           ([1, 0], "the table's order")):  # fmt: skip
            await unchanged(
                table,
                table.put_batch(table.batch([{"k": 1, "a": 1, "b": 1}]), target_columns=ids),
                TableErrorCode.INVALID_TARGET_COLUMNS,
                words,
            )


async def test_r6_2_columns_outside_of_the_targets_are_nullable(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k INT, a INT, b INT NOT NULL, PRIMARY KEY (k) NOT ENFORCED")
        await unchanged(
            table,
            table.put_batch(table.batch([{"k": 1, "a": 1, "b": 1}]), target_columns=[0, 1]),
            TableErrorCode.INVALID_TARGET_COLUMNS,
            "'b' is NOT NULL",
        )
        # A NOT NULL column among the targets is fine, as long as it has a value.
        await unchanged(
            table,
            table.put(("+", {"k": 1, "b": None}), columns=["k", "b"]),
            TableErrorCode.INVALID_ROW,
            "column 'b'",
        )
        assert (await table.put(("+", {"k": 1, "b": 5}), columns=["k", "b"])).error_code == 0
        await unchanged(
            table,
            table.put(("-", {"k": 1, "b": 5}), columns=["k", "b"]),
            TableErrorCode.INVALID_ROW,
            "would clear column 'b'",  # R6.7
        )


async def test_r6_3_all_columns_as_targets_are_an_ordinary_upsert(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(WIDE)
        everything = ["user_id", "item_id", "recommended", "impressions", "clicks"]
        await table.put(("+", wide(1, 1, clicks=1, impressions=4)))
        await table.put(("+", wide(1, 1, clicks=2)), columns=everything)
        assert await table.state() == [wide(1, 1, clicks=2)]
        await table.put(("-", wide(1, 1)), columns=everything)  # and a delete of them all an ordinary delete
        assert await table.changelog(3) == [("-D", wide(1, 1, clicks=2))]


async def test_r6_4_an_absent_row_gets_nulls_where_there_are_no_defaults(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(WIDE)
        await table.put(
            ("+", {"user_id": 1, "item_id": 1, "clicks": 3}), columns=["user_id", "item_id", "clicks"]
        )
        assert await table.changelog() == [("+I", wide(1, 1, clicks=3))]


async def test_r6_4_an_absent_row_gets_the_defaults_of_columns_outside_of_the_targets(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(
            "k INT, a INT DEFAULT 7, b INT, n STRING NOT NULL DEFAULT 'x', PRIMARY KEY (k) NOT ENFORCED"
        )
        await table.put(("+", {"k": 1, "b": 1}), ("+", {"k": 1, "b": 2}), columns=["k", "b"])
        first, second = ({"k": 1, "a": 7, "b": b, "n": "x"} for b in (1, 2))
        assert await table.changelog() == [("+I", first), ("-U", first), ("+U", second)]
        await table.put(("+", {"k": 1, "a": None}), columns=["k", "a"])
        # A null that exists stays, also behind a row that is created.
        await table.put(("+", {"k": 0, "b": 9}), ("+", {"k": 1, "b": 3}), columns=["k", "b"])
        await table.put(("+", {"k": 2}), columns=["k"])
        assert await table.state() == [
            {"k": 0, "a": 7, "b": 9, "n": "x"}, {"k": 1, "a": None, "b": 3, "n": "x"},
            {"k": 2, "a": 7, "b": None, "n": "x"},
        ]  # fmt: skip


async def test_r6_7_a_default_keeps_the_row_that_a_partial_write_of_the_same_batch_has_made(
    tmp_path: Path,
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k INT, a INT DEFAULT 7, b INT, PRIMARY KEY (k) NOT ENFORCED")
        await table.put(("+", {"k": 1, "a": None, "b": 1}))
        clear, write = {"k": 1, "b": None}, {"k": 1, "b": 2}
        await table.put(("-", clear), ("+", write), ("-", clear), columns=["k", "b"])
        stored, made, kept = ({"k": 1, "a": a, "b": b} for a, b in ((None, 1), (7, 2), (7, None)))
        assert await table.changelog() == [
            ("+I", stored), ("-D", stored), ("+I", made), ("-U", made), ("+U", kept),
        ]  # fmt: skip
        assert await table.state() == [kept]


@pytest.mark.parametrize("engine", [None, "aggregation"])
async def test_r6_10_an_update_sets_columns_of_rows_that_are_there_and_makes_none(
    tmp_path: Path, engine: str | None
) -> None:
    async with tables(tmp_path) as all_tables:
        given = {} if engine is None else {"table.merge-engine": engine, "fields.a.agg": "sum"}
        table = await all_tables.create(
            "k INT, a INT, b INT NOT NULL, PRIMARY KEY (k) NOT ENFORCED", given=given
        )
        await table.put(("+", {"k": 1, "a": 1, "b": 5}), ("+", {"k": 3, "a": 3, "b": 6}))
        answer = await table.put(
            *(("+", {"k": k, "a": a}) for k, a in ((1, 2), (2, 9), (1, 4), (2, 8))),
            columns=["k", "a"],
            update=True,
        )
        assert answer.error_code == 0, answer.error_message
        assert await table.changelog(2) == [
            ("-U", {"k": 1, "a": 1, "b": 5}), ("+U", {"k": 1, "a": 2, "b": 5}),
            ("-U", {"k": 1, "a": 2, "b": 5}), ("+U", {"k": 1, "a": 4, "b": 5}),
        ]  # fmt: skip
        assert await table.state() == [{"k": 1, "a": 4, "b": 5}, {"k": 3, "a": 3, "b": 6}]
        assert await table.count() == 2
        whole = await table.put(("+", {"k": 4, "a": 4, "b": 4}), ("+", {"k": 3, "a": 0, "b": 0}), update=True)
        assert whole.error_code == 0
        assert (await table.state())[1:] == [{"k": 3, "a": 0, "b": 0}]
        await unchanged(
            table,
            table.put(("-", {"k": 1, "a": None}), columns=["k", "a"], update=True),
            TableErrorCode.INVALID_ROW,
            "must not have deletes",
        )


async def test_r6_5_a_present_row_keeps_its_other_columns_and_a_null_overwrites(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(WIDE)
        full = wide(1, 1, impressions=5, clicks=3)
        await table.put(("+", full))
        for clicks in (4, None):
            await table.put(
                ("+", {"user_id": 1, "item_id": 1, "clicks": clicks}),
                columns=["user_id", "item_id", "clicks"],
            )
        four, none = wide(1, 1, impressions=5, clicks=4), wide(1, 1, impressions=5)
        assert await table.changelog(1) == [("-U", full), ("+U", four), ("-U", four), ("+U", none)]


async def test_r6_the_examples_of_the_documentation_come_out_to_the_letter(tmp_path: Path) -> None:
    """Partial updates of T(k, v1, v2), and recommendations, impressions and clicks in one wide table."""
    from datetime import date

    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(
            "k INT, v1 DOUBLE, v2 STRING, PRIMARY KEY (k) NOT ENFORCED", name="small"
        )
        await table.put(("+", {"k": 1, "v1": 2.0}), ("+", {"k": 2, "v1": 3.0}), columns=["k", "v1"])
        await table.put(("+", {"k": 1, "v2": "t1"}), ("+", {"k": 2, "v2": "t2"}), columns=["k", "v2"])
        first, second = {"k": 1, "v1": 2.0, "v2": None}, {"k": 2, "v1": 3.0, "v2": None}
        assert await table.changelog() == [
            ("+I", first), ("+I", second), ("-U", first), ("+U", {**first, "v2": "t1"}),
            ("-U", second), ("+U", {**second, "v2": "t2"}),
        ]  # fmt: skip
        table = await all_tables.create(WIDE)
        day = date(2025, 1, 1)
        steps: list[tuple[str, list[tuple[int, int, Any]]]] = [
            ("recommended", [(101, 1001, day), (102, 1002, day)]),
            ("impressions", [(101, 1001, 1), (103, 1003, 1)]),
            ("clicks", [(101, 1001, 1), (102, 1002, 1)]),
        ]
        expected: list[tuple[str, Row]] = []
        rows: dict[tuple[int, int], Row] = {}
        for column, values in steps:
            await table.put(
                *(("+", {"user_id": user, "item_id": item, column: value}) for user, item, value in values),
                columns=["user_id", "item_id", column],
            )
            for user, item, value in values:
                old = rows.get((user, item))
                rows[user, item] = new = {**(old or wide(user, item)), column: value}
                expected += [("+I", new)] if old is None else [("-U", old), ("+U", new)]
        assert await table.changelog() == expected
        assert await table.state() == [
            wide(101, 1001, recommended=day, impressions=1, clicks=1),
            wide(102, 1002, recommended=day, clicks=1), wide(103, 1003, impressions=1),
        ]  # fmt: skip


async def test_r6_the_wide_table_example_comes_out_row_for_row(tmp_path: Path) -> None:
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


async def test_r6_6_the_key_alone_inserts_a_row_of_nulls_once(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(WIDE)
        key = ["user_id", "item_id"]
        await table.put(("+", {"user_id": 1, "item_id": 1}), ("+", {"user_id": 1, "item_id": 1}), columns=key)
        await table.put(("+", wide(1, 2, clicks=3)))
        await table.put(*(("+", {"user_id": 1, "item_id": item}) for item in (1, 2)), columns=key)
        assert await table.changelog() == [("+I", wide(1, 1)), ("+I", wide(1, 2, clicks=3))]


async def test_r6_7_a_partial_delete_clears_its_columns_and_the_row_with_the_last_of_them(
    tmp_path: Path,
) -> None:
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


async def test_r6_8_writers_of_disjoint_columns_converge(tmp_path: Path) -> None:
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


async def test_r11_writes_with_acks_all_are_visible_and_acks_0_is_not_answered(tmp_path: Path) -> None:
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


async def test_r11_all_waits_for_the_store_and_1_for_the_log_only(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        release = hold_stores(table)
        assert (await table.put_batch(table.batch([row(1)]), acks=1)).error_code == 0
        waiting = asyncio.ensure_future(table.put_batch(table.batch([row(2)]), acks=-1))
        try:
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
            assert table.partition.high_watermark == 0
        finally:
            release.set()
        assert (await waiting).error_code == 0
        assert table.partition.high_watermark == 2


async def test_r11_too_few_replicas_is_said_before_the_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        monkeypatch.setattr(type(table.partition), "replica_count", 3)
        await all_tables.broker.context.topics.alter_config("default.t", {"min.insync.replicas": "2"})
        await unchanged(table, table.put(("+", row(1))), ErrorCode.NOT_ENOUGH_REPLICAS, "min.insync")


async def test_r12_1_nothing_is_seen_before_it_is_stored(tmp_path: Path) -> None:
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
        waiting = asyncio.ensure_future(table.put(("+", row(2, 5.0))))  # sees the write that is not stored
        await asyncio.sleep(0.05)
        assert not waiting.done()
        release.set()
        await waiting
        assert await table.changelog(1) == [("+I", row(2)), ("-U", row(2)), ("+U", row(2, 5.0))]
        assert await table.lookup({"id": 2}) == [row(2, 5.0)]
        assert replay(await table.changelog(), ["id"]).keys() == {(1,), (2,)}


async def test_r12_1_a_lookup_that_saw_more_than_is_published_waits_for_it(tmp_path: Path) -> None:
    stored_message.warm()  # then it is tried at once
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        reached = asyncio.Event()
        release = hold_stores(table, after=True, reached=reached)
        try:
            assert (await table.put_batch(table.batch([row(1)]), acks=1)).error_code == 0
            # With acks=1 a lookup may come while the row is only in the log.
            await asyncio.wait_for(reached.wait(), 30)
            looking = asyncio.ensure_future(table.lookup({"id": 1}))
            done, _ = await asyncio.wait([looking], timeout=0.3)
            assert not done
            assert table.partition.high_watermark == 0
        finally:
            release.set()
        assert await looking == [row(1)]
        assert table.partition.high_watermark == 1


async def test_r12_2_the_changelog_replayed_gives_the_table_after_every_batch(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        for operations in (
            [("+", row(1)), ("+", row(2))], [("-", row(1)), ("+", row(1, 2.0)), ("+", row(2, 3.0))],
            [("-", row(2)), ("-", row(2)), ("-", row(3))], [("+", row(2)), ("+", row(2)), ("-", row(1))],
        ):  # fmt: skip
            await table.put(*operations)
            state = {(each["id"],): each for each in await table.state()}
            assert replay(await table.changelog(), ["id"]) == state


async def test_r12_3_the_row_count_is_inserts_less_deletes(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        for name, image in (("full", "FULL"), ("wal", "WAL")):
            table = await all_tables.create(COLUMNS, name=name, changelog_image=image)
            await table.put(*(("+", row(key)) for key in range(7)), ("+", row(3)), ("-", row(3)))
            await table.put(("-", row(4)), ("-", row(99)), ("+", row(3)))
            changes = [change for change, _ in await table.changelog()]
            assert changes.count("+I") - changes.count("-D") == 6 == await table.count()
    async with tables(tmp_path) as all_tables:
        assert await (await all_tables.open("full")).count() == 6


async def test_r16_kinds_are_checked(tmp_path: Path) -> None:
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
