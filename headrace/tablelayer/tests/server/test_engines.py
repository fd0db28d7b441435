"""Rules R5 and R6.9 to R10 and R15 on a real broker, a test for each line."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.tests.server.oracle import bitmap32, bitmap64, bits32, bits64
from headrace.tablelayer.tests.server.tables import Row, Table, replay, tables
from headrace.tablelayer.tests.server.test_writes import unchanged

KEYED = "k INT, v INT, s STRING, PRIMARY KEY (k) NOT ENFORCED"


def options(engine: str, **more: str) -> dict[str, str]:
    named = {name.replace("__", "."): value for name, value in more.items()}
    return {"table.merge-engine": engine, **named}


def row(key: int, value: Any = 1, text: str | None = "a") -> Row:
    return {"k": key, "v": value, "s": text}


async def folded(tmp_path: Path, kind: str, function: str, *values: Any, **more: str) -> list[Any]:
    """The column's value after each write of one key."""
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(
            f"k INT, v {kind}, PRIMARY KEY (k) NOT ENFORCED",
            given={**options("aggregation", **more), "fields.v.agg": function},
        )
        for value in values:
            answer = await table.put(("+", {"k": 1, "v": value}))
            assert answer.error_code == 0, answer.error_message
        return [each["v"] for change, each in await table.changelog() if change != "-U"]


async def lookup_insert(table: Table, *keys: int) -> list[Row | None]:
    return await table.lookup(*({"k": key} for key in keys), insert_if_absent=True)


# -- R5


@pytest.mark.parametrize("engine", ["first_row", "versioned", "aggregation"])
async def test_r5_tables_with_a_merge_engine_ignore_deletes_by_default(tmp_path: Path, engine: str) -> None:
    async with tables(tmp_path) as all_tables:
        more = {"table__merge-engine__versioned__ver-column": "v"} if engine == "versioned" else {}
        table = await all_tables.create(KEYED, given=options(engine, **more))
        assert (await table.put(("+", row(1)), ("-", row(1)))).error_code == 0
        assert await table.changelog() == [("+I", row(1))]


@pytest.mark.parametrize("engine", ["first_row", "versioned", "aggregation"])
async def test_r5_2_a_merge_engine_can_disable_deletes(tmp_path: Path, engine: str) -> None:
    async with tables(tmp_path) as all_tables:
        more = {"table__merge-engine__versioned__ver-column": "v"} if engine == "versioned" else {}
        given = {**options(engine, **more), "table.delete.behavior": "DISABLE"}
        table = await all_tables.create(KEYED, given=given)
        write = table.put(("+", row(1)), ("-", row(9)))
        await unchanged(table, write, TableErrorCode.DELETION_DISABLED, "DISABLE")


# -- R6


@pytest.mark.parametrize("engine", ["first_row", "versioned"])
async def test_r6_9_no_partial_update_of_first_row_and_versioned_tables(tmp_path: Path, engine: str) -> None:
    async with tables(tmp_path) as all_tables:
        more = {"table__merge-engine__versioned__ver-column": "v"} if engine == "versioned" else {}
        table = await all_tables.create(KEYED, given=options(engine, **more))
        await unchanged(
            table,
            table.put(("+", {"k": 1, "v": 1}), columns=["k", "v"]),
            TableErrorCode.INVALID_TARGET_COLUMNS,
            f"'{engine}'",
        )


# -- R7


async def test_r7_the_first_row_stays_and_the_changelog_has_only_inserts(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(KEYED, given=options("first_row"))
        await table.put(("+", row(1, 1, "t1")), ("+", row(1, 2, "t2")), ("+", row(2, 1)))
        await table.put(("+", row(1, 3, "t3")), ("+", row(3, 1)))
        second = await table.put(("+", row(1, 3)), base_sequence=0, producer_id=4, producer_epoch=0)
        assert second.error_code == 0
        assert await table.changelog() == [
            ("+I", row(1, 1, "t1")), ("+I", row(2, 1)), ("+I", row(3, 1)),
        ]  # fmt: skip
        assert await table.state() == [row(1, 1, "t1"), row(2, 1), row(3, 1)]
        assert await table.count() == 3


# -- R8


async def test_r8_the_example_of_the_documentation(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        given = options("versioned", **{"table__merge-engine__versioned__ver-column": "ts"})
        table = await all_tables.create(
            "a INT, b STRING, ts BIGINT, PRIMARY KEY (a) NOT ENFORCED", given=given
        )
        first, newer = {"a": 1, "b": "v1", "ts": 1000}, {"a": 1, "b": "v3", "ts": 2000}
        await table.put(("+", first))
        await table.put(("+", {"a": 1, "b": "v2", "ts": 999}))
        assert await table.lookup({"a": 1}) == [first]
        await table.put(("+", newer))
        assert await table.lookup({"a": 1}) == [newer]
        await table.put(("+", {"a": 1, "b": "v4", "ts": None}))
        assert await table.lookup({"a": 1}) == [newer]
        assert await table.changelog() == [("+I", first), ("-U", first), ("+U", newer)]


async def test_r8_ties_replace_and_null_is_the_least(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        given = options("versioned", **{"table__merge-engine__versioned__ver-column": "v"})
        table = await all_tables.create(KEYED, given=given)
        for version, text in (
            (None, "a"), (None, "b"), (-(2**31), "c"), (None, "no"), (5, "d"), (5, "e"), (4, "no"),
        ):  # fmt: skip
            await table.put(("+", row(1, version, text)))
        # The same in one batch: each sees the earlier ones.
        await table.put(
            *(
                ("+", row(2, version, text))
                for version, text in ((None, "a"), (None, "b"), (3, "c"), (2, "no"))
            )
        )
        kept = [(each["k"], each["s"]) for change, each in await table.changelog() if change != "-U"]
        assert kept == [(1, "a"), (1, "b"), (1, "c"), (1, "d"), (1, "e"), (2, "a"), (2, "b"), (2, "c")]
        replay(await table.changelog(), ["k"])
        assert await table.state() == [row(1, 5, "e"), row(2, 3, "c")]


@pytest.mark.parametrize("kind", ["INT", "BIGINT", "TIMESTAMP(3)", "TIMESTAMP_LTZ(6)"])
async def test_r8_every_type_of_version(tmp_path: Path, kind: str) -> None:
    async with tables(tmp_path) as all_tables:
        given = options("versioned", **{"table__merge-engine__versioned__ver-column": "v"})
        table = await all_tables.create(f"k INT, v {kind}, n INT, PRIMARY KEY (k) NOT ENFORCED", given=given)
        import pyarrow as pa

        values = pa.array([5, 9, 7]).cast(pa.int32() if kind == "INT" else pa.int64())
        low, high, middle = values.cast(table.definition.schema.column("v").type.arrow()).to_pylist()
        for number, version in enumerate((low, high, middle)):
            await table.put(("+", {"k": 1, "v": version, "n": number}))
        assert await table.state() == [{"k": 1, "v": high, "n": 1}]


async def test_r8_the_wal_image_leaves_the_old_row_out(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        given = options("versioned", **{"table__merge-engine__versioned__ver-column": "v"})
        table = await all_tables.create(KEYED, given={**given, "table.changelog.image": "WAL"})
        for version in (1, 3, 2):
            await table.put(("+", row(1, version)))
        assert await table.changelog() == [("+I", row(1, 1)), ("+U", row(1, 3))]


# -- R9


async def test_r9_the_example_of_the_documentation(tmp_path: Path) -> None:
    import datetime

    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(
            "product_id BIGINT, price DOUBLE, sales BIGINT, last_update_time TIMESTAMP(3), "
            "PRIMARY KEY (product_id) NOT ENFORCED",
            given={**options("aggregation"), "fields.price.agg": "max", "fields.sales.agg": "sum"},
        )
        first = {"product_id": 1, "price": 23.0, "sales": 15,
                 "last_update_time": datetime.datetime(2024, 1, 1, 10)}  # fmt: skip
        second = {
            **first,
            "price": 30.2,
            "sales": 20,
            "last_update_time": datetime.datetime(2024, 1, 1, 11),
        }
        await table.put(("+", first), ("+", second))
        merged = {**second, "sales": 35}
        assert await table.state() == [merged]
        assert await table.changelog() == [("+I", first), ("-U", first), ("+U", merged)]


@pytest.mark.parametrize(
    ("kind", "function", "written", "expected"),
    [
        ("INT", "sum", [1, None, 2], [1, 1, 3]),
        ("INT", "sum", [None, 2, None], [None, 2, 2]),
        ("INT", "product", [3, None, -4], [3, 3, -12]),
        ("DOUBLE", "product", [0.9, 0.8], [0.9, 0.9 * 0.8]),
        ("INT", "max", [2, None, 1, 5], [2, 2, 2, 5]),
        ("STRING", "max", ["b", "a", "ü", "z"], ["b", "b", "ü", "ü"]),
        ("STRING", "min", ["b", None, "a", "c"], ["b", "b", "a", "a"]),
        ("DOUBLE", "min", [1.5, 2.5, -3.0], [1.5, 1.5, -3.0]),
        ("STRING", "last_value", ["a", None, "c"], ["a", None, "c"]),
        ("STRING", "last_value_ignore_nulls", ["a", None, "c"], ["a", "a", "c"]),
        ("STRING", "first_value", ["a", "b", None], ["a", "a", "a"]),
        ("STRING", "first_value", [None, "b"], [None, None]),
        ("STRING", "first_value_ignore_nulls", [None, "b", "c"], [None, "b", "b"]),
        ("STRING", "listagg", ["developer", None, "java", "flink"],
         ["developer", "developer", "developer,java", "developer,java,flink"]),
        ("BOOLEAN", "bool_and", [True, None, True, False, True], [True, True, True, False, False]),
        ("BOOLEAN", "bool_or", [False, None, False, True, False], [False, False, False, True, True]),
    ],
)  # fmt: skip
async def test_r9_each_function(
    tmp_path: Path, kind: str, function: str, written: list[Any], expected: list[Any]
) -> None:
    assert await folded(tmp_path, kind, function, *written) == expected


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("first_value", [None, None, None, None]),
        ("first_value_ignore_nulls", [None, "x", "x", "x"]),
        ("last_value", [None, "x", None, "y"]),
        ("last_value_ignore_nulls", [None, "x", "x", "y"]),
    ],
)
@pytest.mark.parametrize(
    ("kind", "x", "y"),
    [
        ("ARRAY<INT>", [1, None], []),
        ("MAP<STRING, INT>", [("a", 1), ("b", None)], [("c", 3)]),
        ("ROW<a INT, b ARRAY<STRING>>", {"a": 1, "b": None}, {"a": None, "b": ["z"]}),
    ],
)
async def test_r20_5_whole_nested_values_are_kept_and_nothing_is_merged_inside(
    tmp_path: Path, function: str, expected: list[str | None], kind: str, x: Any, y: Any
) -> None:
    values = {None: None, "x": x, "y": y}
    got = await folded(tmp_path, kind, function, None, x, None, y)
    assert got == [values[each] for each in expected]


async def test_r9_string_agg_is_listagg_and_both_take_a_delimiter(tmp_path: Path) -> None:
    for number, function in enumerate(("listagg", "string_agg")):
        more = {f"fields__v__{function}__delimiter": ";"}
        got = await folded(tmp_path / str(number), "STRING", function, "a", "b", **more)
        assert got == ["a", "a;b"]


async def test_r9_bitmaps_are_united(tmp_path: Path) -> None:
    got = await folded(tmp_path / "32", "BYTES", "rbm32", bitmap32({1, 2}), None, bitmap32({2, 3, 1 << 20}))
    assert [bits32(each) for each in got] == [{1, 2}, {1, 2}, {1, 2, 3, 1 << 20}]
    wide = [bitmap64({10, 20}), bitmap64({20, 30, 1 << 40})]
    got = await folded(tmp_path / "64", "BYTES", "rbm64", *wide)
    assert [bits64(each) for each in got] == [{10, 20}, {10, 20, 30, 1 << 40}]


async def test_r9_a_malformed_bitmap_is_refused(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(
            "k INT, v BYTES, PRIMARY KEY (k) NOT ENFORCED",
            given={**options("aggregation"), "fields.v.agg": "rbm32"},
        )
        await unchanged(
            table,
            table.put(("+", {"k": 1, "v": b"junk"})),
            TableErrorCode.INVALID_ROW,
            "row 0, column 'v': it is not a serialised",
        )


async def test_r9_1_the_first_write_is_stored_as_it_is(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(KEYED, given={**options("aggregation"), "fields.v.agg": "sum"})
        await table.put(("+", row(1, None, None)), ("+", row(2, 7, "x")))
        assert await table.changelog() == [("+I", row(1, None, None)), ("+I", row(2, 7, "x"))]


async def test_r9_2_later_writes_emit_both_images_even_if_unchanged(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(KEYED, given={**options("aggregation"), "fields.v.agg": "max"})
        await table.put(("+", row(1, 5)))
        await table.put(("+", row(1, 5)))
        assert await table.changelog() == [("+I", row(1, 5)), ("-U", row(1, 5)), ("+U", row(1, 5))]


async def test_r9_5_a_partial_update_aggregates_its_columns_alone(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(
            "k INT, a INT, b INT, PRIMARY KEY (k) NOT ENFORCED",
            given={**options("aggregation"), "fields.a.agg": "sum", "fields.b.agg": "sum"},
        )
        await table.put(("+", {"k": 1, "a": 1}), ("+", {"k": 1, "a": 2}), columns=["k", "a"])
        await table.put(("+", {"k": 1, "b": 10}), columns=["k", "b"])
        await table.put(("+", {"k": 1, "a": 4}), columns=["k", "a"])
        assert await table.state() == [{"k": 1, "a": 7, "b": 10}]


async def test_r9_6_a_full_delete_needs_allow_and_a_partial_one_clears_its_columns(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        given = {**options("aggregation"), "fields.v.agg": "sum", "table.delete.behavior": "ALLOW"}
        table = await all_tables.create(KEYED, given=given)
        await table.put(("+", row(1, 5, "x")))
        await table.put(("-", {"k": 1, "v": None}), columns=["k", "v"])
        await table.put(("+", row(1, 2, None)))
        assert await table.state() == [row(1, 2, "x")]  # the sum begins again
        await table.put(("-", row(1)), ("+", row(1, 3)), ("-", {"k": 9, "v": 0, "s": None}))
        assert await table.state() == [row(1, 3)]
        changes = [change for change, _ in await table.changelog()]
        assert changes == ["+I", "-U", "+U", "-U", "+U", "-D", "+I"]


@pytest.mark.parametrize(
    ("kind", "function", "first", "second"),
    [
        ("TINYINT", "sum", 100, 28), ("SMALLINT", "product", 2**14, 2), ("INT", "sum", -(2**31), -1),
        ("BIGINT", "sum", 2**63 - 1, 1), ("BIGINT", "product", 2**32, 2**31), ("BIGINT", "product", -(2**63), -1),
        ("DECIMAL(3, 1)", "sum", "99.9", "0.1"), ("DECIMAL(38, 0)", "sum", "9" * 38, "1"),
        ("DECIMAL(4, 2)", "product", "50.00", "2.00"),
    ],
)  # fmt: skip
async def test_r9_7_an_overflow_fails_the_batch(
    tmp_path: Path, kind: str, function: str, first: Any, second: Any
) -> None:
    from decimal import Decimal

    values = [Decimal(each) if isinstance(each, str) else each for each in (first, second)]
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(
            f"k INT, v {kind}, PRIMARY KEY (k) NOT ENFORCED",
            given={**options("aggregation"), "fields.v.agg": function},
        )
        await table.put(("+", {"k": 1, "v": values[0]}))
        await unchanged(
            table,
            table.put(("+", {"k": 2, "v": values[0]}), ("+", {"k": 1, "v": values[1]})),
            TableErrorCode.INVALID_ROW,
            f"row 1, column 'v': with {values[1]}",
            f"the {function} does not fit into {kind}",
        )
        assert await table.state() == [{"k": 1, "v": values[0]}]


async def test_r9_9_a_retry_never_counts_twice_not_even_after_a_restart(tmp_path: Path) -> None:
    given = {**options("aggregation"), "fields.v.agg": "sum"}
    who = {"producer_id": 3, "producer_epoch": 0, "base_sequence": 0}
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(KEYED, given=given)
        first = await table.put(("+", row(1, 5)), **who)
        again = await table.put(("+", row(1, 5)), **who)
        assert (again.base_offset, again.end_offset) == (first.base_offset, first.end_offset)
    async with tables(tmp_path) as all_tables:
        table = await all_tables.open()
        assert (await table.put(("+", row(1, 5)), **who)).error_code == 0
        assert await table.state() == [row(1, 5)]


async def test_r9_11_columns_omitted_by_a_partial_write_count_as_set(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(
            "k INT, a INT, b INT, c INT DEFAULT 7, d INT, PRIMARY KEY (k) NOT ENFORCED",
            given={
                "table.merge-engine": "aggregation", "fields.b.agg": "first_value", "fields.c.agg": "first_value",
                "fields.d.agg": "first_value_ignore_nulls",
            },
        )  # fmt: skip
        await table.put(("+", {"k": 1, "a": 1}), columns=["k", "a"])
        await table.put(("+", {"k": 1, "b": 5, "c": 5, "d": 5}), columns=["k", "b", "c", "d"])
        assert await table.state() == [{"k": 1, "a": 1, "b": None, "c": 7, "d": 5}]


async def test_r9_10_overwriting_replaces_the_row_past_the_functions_and_carries_deletes_out(
    tmp_path: Path,
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(KEYED, given={**options("aggregation"), "fields.v.agg": "sum"})
        await table.put(("+", row(1, 5)), ("+", row(1, 5)), ("+", row(2, 1)))
        await table.put(("+", row(1, 5)), ("-", row(2)), overwrite=True)
        assert await table.state() == [row(1, 5)]
        await table.put(("+", {"k": 1, "v": 8}), columns=["k", "v"], overwrite=True)
        assert await table.state() == [row(1, 8)]
        await table.put(("+", row(1, 1)))
        assert await table.state() == [row(1, 9)]
        first = await all_tables.create(KEYED, name="first", given=options("first_row"))
        await unchanged(
            first,
            first.put(("+", row(1)), overwrite=True),
            TableErrorCode.INVALID_ROW,
            "cannot be overwritten",
        )


async def test_r9_10_overwriting_a_table_without_functions_deletes_as_its_option_says(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        kept = await all_tables.create(KEYED, name="kept", delete_behavior="DISABLE")
        await kept.put(("+", row(1, 5)))
        write = kept.put(("+", row(2, 1)), ("-", row(1)), overwrite=True)
        await unchanged(kept, write, TableErrorCode.DELETION_DISABLED, "DISABLE")
        deaf = await all_tables.create(KEYED, name="deaf", delete_behavior="IGNORE")
        await deaf.put(("+", row(1, 5)))
        assert (await deaf.put(("+", row(2, 1)), ("-", row(1)), overwrite=True)).error_code == 0
        assert await deaf.state() == [row(1, 5), row(2, 1)]
        open_ = await all_tables.create(KEYED, name="open")
        await open_.put(("+", row(1, 5)))
        assert (await open_.put(("-", row(1)), overwrite=True)).error_code == 0
        assert await open_.state() == []


# -- R10


NUMBERED = {"auto-increment.fields": "uid"}
UID = "name STRING, uid BIGINT, note STRING, PRIMARY KEY (name) NOT ENFORCED"


def named(name: str, note: str | None = None, uid: int | None = None) -> Row:
    return {"name": name, "uid": uid, "note": note}


async def test_r10_a_new_row_gets_a_number_and_keeps_it(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(UID, given=NUMBERED)
        await table.put(("+", named("a")), ("+", named("b")), ("+", named("a", "again")))
        await table.put(("+", {"name": "b", "note": "partial"}), columns=["name", "note"])
        assert await table.changelog() == [
            ("+I", named("a", None, 1)), ("+I", named("b", None, 2)),
            ("-U", named("a", None, 1)), ("+U", named("a", "again", 1)),
            ("-U", named("b", None, 2)), ("+U", named("b", "partial", 2)),
        ]  # fmt: skip


async def test_r10_a_delete_may_carry_the_number_of_its_row(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(UID, given=NUMBERED)
        await table.put(("+", named("a")))
        answer = await table.put(("-", named("a", None, 1)))
        assert answer.error_code == 0, answer.error_message
        assert await table.state() == []


async def test_r10_delete_and_insert_again_gives_a_new_number(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(UID, given=NUMBERED)
        await table.put(("+", named("a")), ("-", named("a")), ("+", named("a")))
        assert await table.state() == [named("a", None, 2)]
        await table.put(
            ("-", {"name": "a", "note": None}), columns=["name", "note"]
        )  # its number keeps the row
        assert await table.state() == [named("a", None, 2)]


async def test_r10_numbers_are_unique_in_the_table_over_buckets_and_restarts(tmp_path: Path) -> None:
    given = {**NUMBERED, "table.auto-increment.cache-size": "3"}
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(UID, given=given, buckets=2)
        for bucket in (0, 1, 0):
            batch = table.batch([named(f"{bucket}-{n}-{len(await table.state(bucket))}") for n in range(5)])
            answer: Any = await table.put_batch(batch, bucket=bucket)
            assert answer.error_code == 0, answer.error_message
    async with tables(tmp_path) as all_tables:
        table = await all_tables.open()
        await table.put_batch(table.batch([named("after")]), bucket=1)
        numbers = [each["uid"] for bucket in (0, 1) for each in await table.state(bucket)]
        assert len(set(numbers)) == len(numbers) == 16
        await all_tables.broker.send(m.DropTableRequest(database="default", table="t"))
        again = await all_tables.create(UID, given=given)
        assert await all_tables.broker.context.store.children("/auto-increment") == []
        await again.put(("+", named("x")))
        assert await again.state() == [named("x", None, 1)]


async def test_r10_explicit_values_are_refused(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(UID, given=NUMBERED)
        await unchanged(
            table,
            table.put(("+", named("a")), ("+", named("b", None, 7))),
            TableErrorCode.INVALID_ROW,
            "row 1, column 'uid': 7",
        )
        await unchanged(
            table,
            table.put(("+", {"name": "a", "uid": None}), columns=["name", "uid"]),
            TableErrorCode.INVALID_TARGET_COLUMNS,
            "'uid' is numbered",
        )


async def test_r10_the_numbers_of_an_int_column_end(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k INT, n INT, PRIMARY KEY (k) NOT ENFORCED",
                                        given={"auto-increment.fields": "n"})  # fmt: skip
        from headrace.broker.runtime.ports import CreateNode

        path = f"/auto-increment/{table.table_id}"
        await all_tables.broker.context.store.transact([CreateNode(path, str(2**31 - 1).encode())])
        assert (await table.put(("+", {"k": 1, "n": None}))).error_code == 0
        await unchanged(
            table, table.put(("+", {"k": 2, "n": None})), TableErrorCode.INVALID_ROW, "2147483647"
        )
        assert await table.state() == [{"k": 1, "n": 2**31 - 1}]


# -- R15


async def test_r15_concurrent_lookups_create_exactly_one_row_and_all_get_it(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k INT, n BIGINT, PRIMARY KEY (k) NOT ENFORCED",
                                        given={"auto-increment.fields": "n"})  # fmt: skip
        answers = await asyncio.gather(*(lookup_insert(table, 1, 2) for _ in range(8)))
        assert all(answer == [{"k": 1, "n": 1}, {"k": 2, "n": 2}] for answer in answers)
        assert await table.changelog() == [("+I", {"k": 1, "n": 1}), ("+I", {"k": 2, "n": 2})]


async def test_r15_rows_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(KEYED)
        await table.put(("+", row(1)))
        assert await lookup_insert(table, 1, 2, 2) == [row(1), row(2, None, None), row(2, None, None)]
        assert await lookup_insert(table) == []
        assert await table.changelog() == [("+I", row(1)), ("+I", row(2, None, None))]


async def test_r15_a_not_null_column_is_an_error(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k INT, n INT NOT NULL, PRIMARY KEY (k) NOT ENFORCED")
        request = m.LookupRequest(table_id=table.table_id, buckets=[], insert_if_absent=True)
        answer = await all_tables.broker.send(request)
        assert answer.error_code == TableErrorCode.INVALID_TARGET_COLUMNS
        assert "'n' is NOT NULL" in answer.error_message
        first = await all_tables.create(KEYED, name="first", given=options("first_row"))
        request = m.LookupRequest(table_id=first.table_id, buckets=[], insert_if_absent=True)
        answer = await all_tables.broker.send(request)
        assert answer.error_code == TableErrorCode.INVALID_TARGET_COLUMNS


async def test_r15_inserting_counts_as_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(KEYED)
        monkeypatch.setattr(type(table.partition), "replica_count", 3)
        await all_tables.broker.context.topics.alter_config("default.t", {"min.insync.replicas": "2"})
        with pytest.raises(AssertionError, match=r"min\.insync"):
            await lookup_insert(table, 1)
        assert table.partition.log.log_end_offset == 0
