"""Change data capture: Debezium's records for rows of a database, and their effect on tables (R17.5, R17.10).

The records are those of Debezium's PostgreSQL connector 3.x and Connect's JSON converter, with and without schemas.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.tablelayer.model.errors import RowError, TableError
from headrace.tablelayer.model.table.derived import Sample, derive
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.kafka_view.records_to_rows import from_kafka
from headrace.tablelayer.tests.server.tables import Table, Tables, tables
from headrace.tablelayer.tests.server.test_kafka_view import consume, produce
from headrace.tablelayer.tests.server.test_value_formats import (
    AFTER,
    DEBEZIUM,
    DELETE,
    change,
    records,
    table,
)

PLACEHOLDER = "__debezium_unavailable_value"


def field(name: str, kind: str, meaning: str | None = None, **more: Any) -> dict[str, Any]:
    named = {} if meaning is None else {"name": meaning, "version": 1}
    return {"type": kind, "optional": True, "field": name, **named, **more}


def struct(column: str, *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields), "optional": True, "field": column, **more}


def enveloped(payload: Any, *fields: dict[str, Any]) -> dict[str, Any]:
    """Return an envelope as the converter writes it with `schemas.enable=true`."""
    schema = {
        "type": "struct",
        "fields": [struct("before", *fields), struct("after", *fields), field("op", "string")],
        "optional": False,
        "name": "shop.public.t.Envelope",
    }
    return {"schema": schema, "payload": payload}


def flat(payload: Any, *fields: dict[str, Any]) -> dict[str, Any]:
    """Return a flattened event as the converter writes it."""
    return {
        "schema": {"type": "struct", "fields": list(fields), "optional": False, "name": "t.Value"},
        "payload": payload,
    }


def created(row: dict[str, Any], *fields: dict[str, Any]) -> tuple[None, dict[str, Any]]:
    payload = change("c", after=row)
    return None, enveloped(payload, *fields) if fields else payload


# -- times -------------------------------------------------------------------------------------------------

_TIME = "io.debezium.time."


@pytest.mark.parametrize(
    ("kind", "meaning", "number", "wanted"),
    [
        ("TIMESTAMP(6)", _TIME + "Timestamp", 1_700_000_000_123, "2023-11-14 22:13:20.123000"),
        ("TIMESTAMP(3)", _TIME + "MicroTimestamp", 1_700_000_000_123_000, "2023-11-14 22:13:20.123000"),
        ("TIMESTAMP(6)", _TIME + "MicroTimestamp", 1, "1970-01-01 00:00:00.000001"),
        ("TIMESTAMP(3)", _TIME + "NanoTimestamp", 1_700_000_000_123_000_000, "2023-11-14 22:13:20.123000"),
        ("TIMESTAMP(6)", "org.apache.kafka.connect.data.Timestamp", 86_400_000, "1970-01-02 00:00:00"),
        ("TIMESTAMP(0)", _TIME + "Date", 19_000, "2022-01-08 00:00:00"),
        ("TIME(6)", _TIME + "Time", 43_200_001, "12:00:00.001000"),
        ("TIME(3)", _TIME + "MicroTime", 43_200_001_000, "12:00:00.001000"),
        ("TIME(3)", "org.apache.kafka.connect.data.Time", 1, "00:00:00.001000"),
        ("DATE", _TIME + "Date", 19_000, "2022-01-08"),
        ("DATE", _TIME + "Timestamp", 86_400_000, "1970-01-02"),
    ],
)
def test_r17_10_the_unit_of_a_number_comes_from_the_records_schema(
    kind: str, meaning: str, number: int, wanted: str
) -> None:
    definition = table(f"id BIGINT; v {kind}", ("id",), **DEBEZIUM)
    said = field("v", "int64", meaning)
    plain = json.dumps({"id": 3}).encode()
    flattened = table(f"id BIGINT; v {kind}", ("id",), **{"table.kafka.value-path": "payload"})
    for each, value in (
        (definition, enveloped(change("u", {"id": 3}, {"id": 3, "v": number}), said)),
        (flattened, flat({"id": 3, "v": number}, said)),
    ):
        rows = from_kafka(records((plain, value), (plain, value)), each).rows
        assert [str(value) for value in rows.column("v").to_pylist()] == [wanted, wanted]


def test_r17_10_schemas_that_change_within_a_batch_count_for_their_own_records() -> None:
    definition = table("id BIGINT; v TIMESTAMP(6)", ("id",), **DEBEZIUM)
    millis = field("v", "int64", _TIME + "Timestamp", doc="as long")
    micros = field("v", "int64", _TIME + "MicroTimestamp", doc="as")
    assert len(json.dumps(millis)) == len(json.dumps(micros))
    at = 1_700_000_000_000
    written = from_kafka(
        records(
            created({"id": 1, "v": at}, millis),
            created({"id": 2, "v": at * 1000}, micros),
            (b'{"id": 9}', None),
            created({"id": 3, "v": at + 1}, millis),
            created({"id": 4, "v": at * 1000}),
        ),
        definition,
    )
    second = datetime.datetime(2023, 11, 14, 22, 13, 20)
    later = second.replace(microsecond=1000)
    assert written.rows.column("id").to_pylist() == [1, 2, 9, 3, 4]
    assert written.rows.column("v").to_pylist() == [second, second, None, later, second]


def test_r17_10_without_a_schema_the_table_gives_the_unit_of_numbers() -> None:
    units = {"table.kafka.debezium.time-units": "v=ms, w=us"}
    definition = table(
        "id BIGINT; v TIMESTAMP(6); w TIMESTAMP(3); x TIMESTAMP(3)", ("id",), **DEBEZIUM, **units
    )
    at = 1_700_000_000_123
    rows = from_kafka(records(created({"id": 1, "v": at, "w": at * 1000, "x": at})), definition).rows
    assert len({rows.column(name)[0].as_py() for name in "vwx"}) == 1
    assert definition.options["table.kafka.debezium.time-units"] == "v=ms,w=us"


@pytest.mark.parametrize(
    ("kind", "number", "unit"),
    [("TIMESTAMP(6)", 1_700_000_000_123, "ms"), ("TIMESTAMP(3)", 1_700_000_000_123_000, "us")],
)
def test_r17_10_a_time_that_is_off_by_a_thousand_is_refused_with_what_to_say(
    kind: str, number: int, unit: str
) -> None:
    definition = table(f"id BIGINT; v {kind}", ("id",), **DEBEZIUM)
    with pytest.raises(RowError, match=f"time-units' = 'v={unit}'") as caught:
        from_kafka(records(created({"id": 1, "v": 0}), created({"id": 2, "v": number})), definition)
    assert (caught.value.index, caught.value.column) == (1, "v")


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        ("DATE", "2024-02-29Z", "2024-02-29"),
        ("TIME(3)", "12:34:56.789Z", "12:34:56.789000"),
        ("TIMESTAMP(6)", "2024-02-29T12:34:56.789012Z", "2024-02-29 12:34:56.789012"),
    ],
)
def test_r17_10_isostring_has_the_letter_of_a_zone(kind: str, text: str, wanted: str) -> None:
    iso = {"table.kafka.debezium.time-precision-mode": "isostring"}
    for options in (DEBEZIUM, {**DEBEZIUM, **iso}):
        rows = from_kafka(records(created({"v": text})), table(f"v {kind}", **options)).rows
        assert str(rows.column(0)[0].as_py()) == wanted
    rows = from_kafka(records((None, {"v": text})), table(f"v {kind}")).rows
    assert str(rows.column(0)[0].as_py()) == wanted


def parts(*numbers: int | None, **more: Any) -> dict[str, Any]:
    """Return a moment as a connector writes it with `time.precision.mode=structured`: unknown parts are null."""
    names = ("year", "month", "day", "hour", "minute", "second", "nanos")
    known = {name: number for name, number in zip(names, numbers, strict=False) if number is not None}
    return {"specialValue": None, "precision": 6, **known, **more}


_LEAP = (2024, 2, 29, 12, 34, 56, 789_012_000)


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("DATE", parts(2024, 2, 29), "2024-02-29"),
        ("DATE", parts(1900, 3, 1, 0, 0, 0, 0), "1900-03-01"),
        ("DATE", parts(1, 1, 1), "0001-01-01"),
        ("DATE", parts(9999, 12, 31), "9999-12-31"),
        ("TIME(6)", parts(None, None, None, 23, 59, 59, 999_999_000), "23:59:59.999999"),
        ("TIME(3)", parts(None, None, None, 0, 0, 1, 5_000_000), "00:00:01.005000"),
        ("TIME(0)", parts(None, None, None, 12, 34, 56, offsetSeconds=0), "12:34:56"),
        ("TIMESTAMP(6)", parts(*_LEAP), "2024-02-29 12:34:56.789012"),
        ("TIMESTAMP(3)", parts(1969, 12, 31, 23, 59, 59, 999_000_000), "1969-12-31 23:59:59.999000"),
        ("TIMESTAMP(0)", parts(2000, 2, 29, 0, 0, 0), "2000-02-29 00:00:00"),
        ("TIMESTAMP(6)", parts(*_LEAP, offsetSeconds=0), "2024-02-29 12:34:56.789012"),
        (
            "TIMESTAMP_LTZ(6)",
            parts(*_LEAP, offsetSeconds=0, zoneId="UTC"),
            "2024-02-29 12:34:56.789012+00:00",
        ),
        ("TIMESTAMP_LTZ(6)", parts(*_LEAP, offsetSeconds=46_800), "2024-02-28 23:34:56.789012+00:00"),
        ("TIMESTAMP_LTZ(6)", parts(*_LEAP, offsetSeconds=-43_200), "2024-03-01 00:34:56.789012+00:00"),
    ],
)
def test_r17_10_dates_and_times_come_as_objects_of_their_parts(
    kind: str, value: dict[str, Any], wanted: str
) -> None:
    said = struct("v", field("year", "int32"), name="io.debezium.time.StructuredTimestamp")
    structured = {"table.kafka.debezium.time-precision-mode": "structured"}
    for options in ({}, DEBEZIUM, {**DEBEZIUM, **structured}):
        definition = table(f"id BIGINT; v {kind}", ("id",), **options)
        row = {"id": 1, "v": value}
        around = (lambda each: (None, each)) if not options else created
        events = [around({"id": 0}), around(row), *((created(row, said),) if options else ())]
        rows = from_kafka(records(*events), definition).rows.column("v")
        assert [str(each) for each in rows.to_pylist()] == ["None", *[wanted] * (len(events) - 1)]


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("DATE", parts(2023, 2, 29), "is not a date"),
        ("DATE", parts(1900, 2, 29), "is not a date"),
        ("DATE", parts(2024, 13, 1), "is not a date"),
        ("DATE", parts(2024, 0, 1), "is not a date"),
        ("DATE", parts(2024, 4, 31), "is not a date"),
        ("DATE", parts(2024, 4, 0), "is not a date"),
        ("DATE", parts(2024, 2), "is not a value of"),
        ("DATE", parts(2024, 2, 29, 0, 0, 1), "is not a date"),
        ("DATE", {"specialValue": "NOON"}, "is not a value of"),
        ("DATE", {}, "is not a value of"),
        ("DATE", [2024, 2, 29], "is not a value of"),
        ("DATE", parts(2024, 2, 29, month="x"), "'x'"),
        ("TIME(6)", parts(None, None, None, 24, 0, 0), "is not a time"),
        ("TIME(6)", parts(None, None, None, 1, 60, 0), "is not a time"),
        ("TIME(6)", parts(None, None, None, 1, 0, 60), "is not a time"),
        ("TIME(6)", parts(None, None, None, 1, 0, 0, -1), "is not a time"),
        ("TIME(6)", parts(None, None, None, 1, 0, 0, 1_000_000_000), "is not a time"),
        ("TIME(6)", parts(None, None, None, 1, 0, 0, offsetSeconds=3600), "zone"),
        ("TIME(6)", parts(2024, None, None, 1, 0, 0), "is not a time"),
        ("TIME(6)", {"specialValue": "POSITIVE_INFINITY"}, "is not a value of"),
        ("TIME(3)", parts(None, None, None, 1, 0, 0, 1000), "more digits"),
        ("TIMESTAMP(3)", parts(*_LEAP), "more digits"),
        ("TIMESTAMP(6)", parts(*_LEAP, offsetSeconds=3600), "zone"),
        ("TIMESTAMP(6)", parts(*_LEAP[:3]), "is not a value of"),
        ("TIMESTAMP_LTZ(6)", parts(*_LEAP), "zone"),
        ("TIMESTAMP_LTZ(6)", parts(*_LEAP, offsetSeconds=70_000), "is not a timestamp"),
    ],
)
def test_r17_10_malformed_date_parts_name_their_record(kind: str, value: Any, reason: str) -> None:
    definition = table(f"id BIGINT; v {kind}", ("id",), **DEBEZIUM)
    good = created({"id": 1})
    with pytest.raises(RowError, match=reason) as caught:
        from_kafka(records(good, created({"id": 2, "v": value}), created({"id": 3, "v": {}})), definition)
    assert (caught.value.index, caught.value.column) == (1, "v")


def test_r17_10_numbers_are_not_times_where_the_connector_writes_objects() -> None:
    options = {**DEBEZIUM, "table.kafka.debezium.time-precision-mode": "structured"}
    with pytest.raises(RowError, match="is 'structured'"):
        from_kafka(records(created({"id": 1, "v": 5})), table("id BIGINT; v TIMESTAMP(3)", **options))


_MICROS, _MILLIS = (field("v", "int64", _TIME + name) for name in ("MicroTimestamp", "Timestamp"))
_DAYS = field("v", "int32", _TIME + "Date")
_ZONED = field("v", "string", _TIME + "ZonedTimestamp")


@pytest.mark.parametrize(
    ("kind", "said", "value", "clamped"),
    [
        ("TIMESTAMP(6)", _MICROS, 9_223_372_036_825_200_000, "9999-12-31 23:59:59.999999"),
        ("TIMESTAMP(6)", _MICROS, -9_223_372_036_832_400_000, "0001-01-01 00:00:00"),
        ("TIMESTAMP(0)", _MILLIS, 9_223_372_036_825_200_000, "9999-12-31 23:59:59"),
        ("TIMESTAMP(3)", None, 9_223_372_036_825_200, "9999-12-31 23:59:59.999000"),
        ("TIMESTAMP(3)", None, 9_223_372_036_825_000, None),
        ("TIMESTAMP(6)", None, -9_223_372_036_832_400_000, "0001-01-01 00:00:00"),
        ("TIMESTAMP(3)", None, "+294247-01-10T04:00:25.2Z", "9999-12-31 23:59:59.999000"),
        ("TIMESTAMP_LTZ(6)", None, "-0043-03-13T00:00:00.000000Z", "0001-01-01 00:00:00+00:00"),
        ("DATE", None, "+292278994-08-16Z", "9999-12-31"),
        ("DATE", None, "+292269055-12-02Z", "0001-01-01"),
        ("DATE", None, "-5877611-06-21Z", "9999-12-31"),
        ("DATE", None, "-5877611-06-22Z", "0001-01-01"),
        ("DATE", _DAYS, -622_191_234, "9999-12-31"),
        ("DATE", _DAYS, -625_821_272, "0001-01-01"),
        ("TIMESTAMP_LTZ(3)", _ZONED, "infinity", "9999-12-31 23:59:59.999000+00:00"),
        ("TIMESTAMP_LTZ(3)", _ZONED, "-infinity", "0001-01-01 00:00:00+00:00"),
        ("TIMESTAMP(3)", _MILLIS, -62_135_596_800_001, "0001-01-01 00:00:00"),
        ("DATE", _DAYS, -2_147_472_692, "9999-12-31"),
        ("DATE", _DAYS, -2_147_472_691, "0001-01-01"),
        ("DATE", _DAYS, 2_932_897, "9999-12-31"),
        ("DATE", None, -719_163, "0001-01-01"),
        ("DATE", None, {"specialValue": "POSITIVE_INFINITY"}, "9999-12-31"),
        ("DATE", None, parts(-1, 12, 31), "0001-01-01"),
        ("DATE", None, parts(2_147_483_647, 12, 31), "9999-12-31"),
        ("TIMESTAMP(3)", None, {"specialValue": "NEGATIVE_INFINITY", "precision": 3}, "0001-01-01 00:00:00"),
        ("TIMESTAMP(6)", None, parts(10_000, 1, 1, 0, 0, 0), "9999-12-31 23:59:59.999999"),
        ("TIMESTAMP(6)", None, parts(-2_147_483_648, 1, 1, 0, 0, 0), "0001-01-01 00:00:00"),
        ("TIMESTAMP(6)", None, parts(2_147_483_647, 1, 1, 0, 0, 0), "9999-12-31 23:59:59.999999"),
        ("TIMESTAMP_LTZ(3)", None, parts(1, 1, 1, 0, 0, 0, offsetSeconds=1), "0001-01-01 00:00:00+00:00"),
    ],
)
def test_r17_10_out_of_range_dates_follow_the_tables_option(
    kind: str, said: dict[str, Any] | None, value: Any, clamped: str | None
) -> None:
    event = created({"id": 2, "v": value}, *(() if said is None else (said,)))
    for mode in ("refuse", "null", "clamp"):
        options = {**DEBEZIUM, "table.kafka.debezium.out-of-range-times": mode}
        definition = table(f"id BIGINT; v {kind}", ("id",), **options)
        batch = records(created({"id": 1}), event)
        if mode == "refuse" or clamped is None:
            with pytest.raises(RowError, match=r"out-of-range-times|is not plausible") as caught:
                from_kafka(batch, definition)
            assert (caught.value.index, caught.value.column) == (1, "v")
            continue
        found = from_kafka(batch, definition).rows.column("v")[1].as_py()
        assert (None if found is None else str(found)) == (clamped if mode == "clamp" else None)


def test_r17_10_far_dates_that_are_kept_are_those_that_the_column_holds() -> None:
    options = {**DEBEZIUM, "table.kafka.debezium.out-of-range-times": "keep"}
    definition = table("id BIGINT; v DATE", ("id",), **options)
    written = from_kafka(
        records(created({"id": 1, "v": 2_932_897}), created({"id": 2, "v": "-0001-01-01"})), definition
    )
    assert written.rows.column("v").cast("int32").to_pylist() == [2_932_897, -719_893]
    for number in (1 << 31, -(1 << 31) - 1, -2_147_472_692):
        with pytest.raises(RowError, match="is out of the range of DATE"):
            from_kafka(records(created({"id": 1, "v": number})), definition)


def test_r17_10_a_date_out_of_range_is_not_null_where_null_is_not_allowed() -> None:
    options = {**DEBEZIUM, "table.kafka.debezium.out-of-range-times": "null"}
    definition = table("id BIGINT; v TIMESTAMP_LTZ(3) NOT NULL", ("id",), **options)
    with pytest.raises(RowError, match="NOT NULL"):
        from_kafka(records(created({"id": 1, "v": "infinity"})), definition)


# -- decimals ----------------------------------------------------------------------------------------------


def unscaled(number: int) -> str:
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


_DECIMAL = "org.apache.kafka.connect.data.Decimal"


def test_r17_10_decimals_are_read_as_connectors_write_them_by_default() -> None:
    definition = table("id BIGINT; v DECIMAL(10, 2)", ("id",), **DEBEZIUM)
    said = field("v", "bytes", _DECIMAL, parameters={"scale": "2", "connect.decimal.precision": "10"})
    coarse = field("v", "bytes", _DECIMAL, parameters={"scale": "1"})
    texts = field("v", "string")
    events = [
        created({"id": 1, "v": unscaled(1234)}, said),
        created({"id": 2, "v": unscaled(1234)}, coarse),
        created({"id": 3, "v": "1234"}, texts),
        created({"id": 4, "v": unscaled(-150)}),
        created({"id": 5, "v": "-1.5"}),
        created({"id": 6, "v": 12.25}),
        created({"id": 7, "v": {"scale": 0, "value": unscaled(7)}}),
        created({"id": 8, "v": {"value": unscaled(-70), "scale": 1}}),
        created({"id": 9, "v": None}, said),
    ]
    rows = from_kafka(records(*events), definition).rows
    wanted = ["12.34", "123.40", "1234.00", "-1.50", "-1.50", "12.25", "7.00", "-7.00"]
    assert rows.column("v").to_pylist() == [*map(Decimal, wanted), None]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"scale": 3, "value": unscaled(1)}, "of scale 3, does not fit"),
        ({"scale": 0, "value": unscaled(10**8)}, "of scale 0, does not fit"),
        ({"scale": 400, "value": unscaled(1)}, "does not fit"),
        ({"scale": 2}, "is not a value of"),
        ({"scale": 1, "value": 5}, "is not a value of"),
        ("AB=C", "not base64"),
    ],
)
def test_r17_10_decimals_that_do_not_fit_name_their_record(value: Any, reason: str) -> None:
    definition = table("id BIGINT; v DECIMAL(10, 2)", ("id",), **DEBEZIUM)
    good = created({"id": 1, "v": {"scale": 1, "value": unscaled(15)}})
    with pytest.raises(RowError, match=reason) as caught:
        from_kafka(records(good, created({"id": 2, "v": value}), good), definition)
    assert (caught.value.index, caught.value.column) == (1, "v")


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("STRING", ["7", "-1.05", "700", "0.000000001"]),
        ("CHAR(11)", ["7", "-1.05", "700", "0.000000001"]),
        ("DOUBLE", [7.0, -1.05, 700.0, 1e-9]),
        ("BIGINT", [7, None, 700, None]),
        ("TINYINT", [7, None, None, None]),
    ],
)
def test_r17_10_a_decimal_is_one_in_columns_of_other_types(kind: str, wanted: list[Any]) -> None:
    definition = table(f"id BIGINT; v {kind}", ("id",), **DEBEZIUM)
    flattened = table(f"id BIGINT; v {kind}", ("id",), **{"table.kafka.value-path": "payload"})
    inside = table(f"id BIGINT; l ARRAY<{kind}>", ("id",), **DEBEZIUM)
    own_scale = field("v", "struct", "io.debezium.data.VariableScaleDecimal")
    for (number, scale), value in zip([(7, 0), (-105, 2), (7, -2), (1, 9)], wanted, strict=True):
        said = field("v", "bytes", _DECIMAL, parameters={"scale": str(scale)})
        variable = {"scale": scale, "value": unscaled(number)}
        items = field("l", "array", items=said)
        key = json.dumps({"id": 1}).encode()
        for given, made in (
            (created({"id": 1, "v": unscaled(number)}, said), definition),
            (created({"id": 1, "v": variable}, own_scale), definition),
            ((key, flat({"id": 1, "v": unscaled(number)}, said)), flattened),
            (created({"id": 1, "l": [unscaled(number)]}, items), inside),
        ):
            if value is None:
                with pytest.raises(RowError, match=f"of scale {scale}, does not fit into {kind}"):
                    from_kafka(records(given), made)
                continue
            (row,) = from_kafka(records(given), made).rows.to_pylist()
            assert row == {"id": 1, **({"l": [value]} if made is inside else {"v": value})}


def test_r17_10_the_base64_of_a_decimal_may_begin_as_a_number_does() -> None:
    definition = table("id BIGINT; v DECIMAL(10, 2)", ("id",), **DEBEZIUM)
    texts = {"E123": "12691.75", "123E": "-26588.76", "12.5": "12.50", "-1e1": "-10.00", ".5E0": "0.50"}
    rows = from_kafka(records(*(created({"id": 1, "v": text}) for text in texts)), definition).rows
    assert rows.column("v").to_pylist() == [*map(Decimal, texts.values())]
    for text in ("1234", "12E3", "1E+5", "+123"):
        with pytest.raises(RowError, match="may be the number, or base64"):
            from_kafka(records(created({"id": 1, "v": text})), definition)


def test_r17_10_other_types_come_as_text() -> None:
    definition = table(
        "j STRING; a STRING; l ARRAY<STRING>; e STRING; i STRING; b BYTES; n STRING", **DEBEZIUM
    )
    row = {
        "j": '{"a": [1, 2]}', "a": ["x", "y"], "l": ["x", None], "e": "red", "i": "P1Y2M3DT4H5M6.78S",
        "b": base64.b64encode(b"\x00\xff").decode(), "n": "192.168.0.1/24",
    }  # fmt: skip
    (found,) = from_kafka(records(created(row)), definition).rows.to_pylist()
    assert found == {**row, "a": '["x", "y"]', "b": b"\x00\xff"}


# -- deletes -----------------------------------------------------------------------------------------------

_KEY = {
    "schema": {"type": "struct", "fields": [field("id", "int64")], "optional": False, "name": "t.Key"},
    "payload": {"id": 7},
}


@pytest.mark.parametrize("key", [_KEY, {"id": 7}, 7])
@pytest.mark.parametrize("path", [None, "payload"])
def test_r17_10_flattened_deletes(key: Any, path: str | None) -> None:
    options = {} if path is None else {"table.kafka.value-path": path}
    definition = table("id BIGINT; name STRING", ("id",), **options)
    name = json.dumps(key).encode()
    row = {"id": 7, "name": "x"}
    around = (lambda each: each) if path is None else (lambda each: flat(each, field("id", "int64")))
    written = from_kafka(
        records(
            (name, around(row)),
            (name, b"null" if path is None else around(None)),
            (name, None),
            (name, b"null"),
            (name, around({**row, "__deleted": "true"})),
            (name, around({**row, "__deleted": True, "name": {"no": "text"}})),
            (name, around({**row, "__deleted": "false", "__op": "u"})),
            (name, around({**row, "__op": "d"})),
        ),
        definition,
    )
    assert written.rows.column("id").to_pylist() == [7] * 8
    assert written.rows.column("name").to_pylist() == ["x", *[None] * 5, "x", None]
    assert written.change_types is not None
    assert written.change_types.tolist() == [AFTER, *[DELETE] * 5, AFTER, DELETE]


def test_r17_10_a_deleted_field_that_is_a_column_or_is_disabled_does_not_delete() -> None:
    row = {"id": 7, "__deleted": "true", "__op": "d"}
    column = table("id BIGINT; __deleted STRING; __op STRING", ("id",))
    assert from_kafka(records((None, row)), column).rows.to_pylist() == [row]
    column = table("id BIGINT; __deleted STRING", ("id",))
    assert from_kafka(records((None, row)), column).rows.to_pylist() == [{"id": 7, "__deleted": "true"}]
    for definition in (table("id BIGINT", ("id",), **{"table.kafka.deleted-field": ""}), table("id BIGINT")):
        written = from_kafka(records((None, row)), definition)
        assert written.rows.to_pylist() == [{"id": 7}]
        assert written.change_types is None or written.change_types.tolist() == [AFTER]
    strict = {"table.kafka.unknown-fields": "fail"}
    written = from_kafka(records((None, row)), table("id BIGINT", ("id",), **strict))
    assert written.change_types is not None
    assert written.change_types.tolist() == [DELETE]


def test_r17_3_null_deletes_nothing_of_a_log_table() -> None:
    for options in ({}, {"table.kafka.value-path": "payload"}):
        definition = table("id BIGINT", **options)
        value = b'{"payload": null}' if options else b"null"
        good = {"payload": {"id": 1}} if options else {"id": 1}
        with pytest.raises(RowError, match="nothing to delete") as caught:
            from_kafka(records((None, good), (b"1", value)), definition)
        assert caught.value.index == 1


def test_r17_10_keys_named_as_an_envelope_are_keys() -> None:
    definition = table("schema STRING; payload STRING", ("schema", "payload"))
    written = from_kafka(records((b'{"schema": "s", "payload": "p"}', None)), definition)
    assert written.rows.to_pylist() == [{"schema": "s", "payload": "p"}]


# -- values that were left out -----------------------------------------------------------------------------

NAMED = str(uuid.UUID(bytes=hashlib.md5(PLACEHOLDER.encode()).digest(), version=3))
LARGE: dict[str, tuple[str, Any, Any, Any]] = {
    "text": ("STRING", "long", "long", PLACEHOLDER),
    "json": ("STRING", '{"a": 1}', '{"a": 1}', PLACEHOLDER),
    "data": ("BYTES", "AP8=", b"\x00\xff", base64.b64encode(PLACEHOLDER.encode()).decode()),
    "texts": ("ARRAY<STRING>", ["a", "b"], ["a", "b"], [PLACEHOLDER]),
    "datas": ("ARRAY<BYTES>", ["AP8="], [b"\x00\xff"], [base64.b64encode(PLACEHOLDER.encode()).decode()]),
    "numbers": ("ARRAY<INT>", [1, 2], [1, 2], list(PLACEHOLDER.encode())),
    "ids": ("ARRAY<STRING>", ["x"], ["x"], [NAMED]),
    "map": ("MAP<STRING, STRING>", {"a": "b"}, [("a", "b")], {PLACEHOLDER: PLACEHOLDER}),
    "number": ("DECIMAL(38, 2)", "1.50", Decimal("1.50"), PLACEHOLDER),
}
COLUMNS = ", ".join(f"{name} {kind}" for name, (kind, *_) in LARGE.items())
SENT = {name: sent for name, (_, sent, _, _) in LARGE.items()}
STORED = {name: stored for name, (_, _, stored, _) in LARGE.items()}
HIDDEN = {name: hidden for name, (_, _, _, hidden) in LARGE.items()}


async def captured(world: Tables, more: str = "", buckets: int = 1, **options: str) -> Table:
    """A table of large values, into which changes are captured."""
    given = {**DEBEZIUM, **{f"table.kafka.{name}": value for name, value in options.items()}}
    columns = f"id BIGINT NOT NULL, n INT, {COLUMNS}{more}, PRIMARY KEY (id) NOT ENFORCED"
    return await world.create(columns, buckets=buckets, given=given)


def put(key: int, n: int, values: dict[str, Any], op: str = "u") -> tuple[Any, Any]:
    return {"id": key}, change(op, None, {"id": key, "n": n, **values})


def gone(key: int) -> tuple[Any, Any]:
    return {"id": key}, change("d", {"id": key})


async def sent(table: Table, *events: tuple[Any, Any]) -> None:
    answer = await produce(table, *events)
    assert answer.error_code == 0, answer.error_message


async def test_r17_11_values_omitted_as_unchanged_are_kept(tmp_path: Path) -> None:
    async with tables(tmp_path) as world:
        table = await captured(world)
        await sent(table, put(1, 1, SENT, "c"), put(2, 1, SENT, "c"), put(3, 1, SENT, "c"))
        await sent(table, put(1, 2, HIDDEN), put(2, 2, {**HIDDEN, "text": "new"}))
        await sent(table, put(3, 3, {**SENT, "text": "other"}), put(3, 4, HIDDEN), put(3, 5, HIDDEN))
        await sent(
            table, put(4, 1, {**SENT, "text": "in"}, "c"), put(4, 2, HIDDEN), gone(4), put(4, 3, SENT, "c"),
            put(4, 4, HIDDEN),
        )  # fmt: skip
        assert await table.lookup(*({"id": key} for key in (1, 2, 3, 4))) == [
            {"id": 1, "n": 2, **STORED},
            {"id": 2, "n": 2, **STORED, "text": "new"},
            {"id": 3, "n": 5, **STORED, "text": "other"},
            {"id": 4, "n": 4, **STORED},
        ]
        shown = [json.loads(value)["after"] for _, _, value, _ in await consume(table) if value]
        assert not any(PLACEHOLDER in json.dumps(row) for row in shown)
        assert [row["n"] for row in shown if row and row["id"] == 3] == [1, 3, 4, 5]


async def test_r17_11_the_same_of_flattened_events_and_another_placeholder(tmp_path: Path) -> None:
    async with tables(tmp_path) as world:
        columns = "id BIGINT NOT NULL, s STRING NOT NULL, b BYTES, PRIMARY KEY (id) NOT ENFORCED"
        option = {"table.kafka.unavailable-value.placeholder": "hex:2d2d"}
        table = await world.create(columns, given=option)
        await sent(table, (None, {"id": 1, "s": "x", "b": "AP8="}))
        await sent(table, (None, {"id": 1, "s": "--", "b": base64.b64encode(b"--").decode()}))
        assert await table.lookup({"id": 1}) == [{"id": 1, "s": "x", "b": b"\x00\xff"}]
        await sent(table, (None, {"id": 1, "s": PLACEHOLDER, "b": None}))
        assert await table.lookup({"id": 1}) == [{"id": 1, "s": PLACEHOLDER, "b": None}]
        off = await world.create(columns, name="off", given={"table.kafka.unavailable-value.placeholder": ""})
        await sent(off, (None, {"id": 1, "s": PLACEHOLDER}))
        assert (await off.lookup({"id": 1}))[0] == {"id": 1, "s": PLACEHOLDER, "b": None}


async def test_r17_11_without_a_stored_row_the_record_is_refused_or_the_value_null(tmp_path: Path) -> None:
    async with tables(tmp_path) as world:
        table = await captured(world)
        await sent(table, put(1, 1, SENT, "c"))
        for events in (
            (put(1, 2, HIDDEN), put(2, 1, HIDDEN)),
            (put(1, 2, HIDDEN), gone(1), put(1, 3, SENT), gone(1), put(1, 3, HIDDEN)),
        ):
            answer = await produce(table, *events)
            assert answer.error_code == ErrorCode.INVALID_RECORD
            assert "no row with this key is stored" in answer.error_message
            assert f"record {len(events) - 1} of the batch" in answer.error_message
            assert "unavailable-value.without-row' = 'null'" in answer.error_message
        assert await table.lookup({"id": 1}) == [{"id": 1, "n": 1, **STORED}]
        lenient = await world.create(
            f"id BIGINT NOT NULL, n INT, {COLUMNS}, PRIMARY KEY (id) NOT ENFORCED", name="lenient",
            given={**DEBEZIUM, "table.kafka.unavailable-value.without-row": "null"},
        )  # fmt: skip
        await sent(lenient, put(1, 1, {**HIDDEN, "text": "here"}))
        assert await lenient.lookup({"id": 1}) == [{"id": 1, "n": 1, **dict.fromkeys(LARGE), "text": "here"}]


async def test_r17_11_values_are_kept_in_every_bucket_and_after_an_alter(tmp_path: Path) -> None:
    async with tables(tmp_path) as world:
        table = await captured(world, buckets=3)
        keys = range(20)
        await sent(table, *(put(key, 1, {**SENT, "text": f"t{key}"}, "c") for key in keys))
        await sent(table, *(put(key, 2, HIDDEN if key % 2 else {**SENT, "text": f"u{key}"}) for key in keys))
        altered = await table.alter("ADD extra STRING FIRST, DROP json")
        await sent(altered, *(put(key, 3, HIDDEN) for key in keys))
        rows = [row for bucket in range(3) for row in await altered.state(bucket=bucket)]
        rows.sort(key=lambda row: row["id"])
        assert [(row["id"], row["n"], row["text"], row["data"]) for row in rows] == [
            (key, 3, f"{'t' if key % 2 else 'u'}{key}", STORED["data"]) for key in keys
        ]


async def test_r17_11_merge_engines_keep_omitted_values_or_refuse_them(tmp_path: Path) -> None:
    async with tables(tmp_path) as world:
        columns = "id BIGINT NOT NULL, n INT, s STRING, PRIMARY KEY (id) NOT ENFORCED"
        versions = {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "n"}
        versioned = await world.create(columns, name="v", given={**DEBEZIUM, **versions})
        await sent(
            versioned,
            put(1, 5, {"s": "five"}), put(1, 3, {"s": "late"}), put(1, 6, {"s": PLACEHOLDER}),
            put(1, 2, {"s": PLACEHOLDER}), put(1, 7, {"s": PLACEHOLDER}),
        )  # fmt: skip
        assert await versioned.lookup({"id": 1}) == [{"id": 1, "n": 7, "s": "five"}]
        first = await world.create(columns, name="f", given={**DEBEZIUM, "table.merge-engine": "first_row"})
        await sent(first, put(1, 1, {"s": "one"}), put(1, 2, {"s": PLACEHOLDER}))
        assert await first.lookup({"id": 1}) == [{"id": 1, "n": 1, "s": "one"}]
        merged = {"table.merge-engine": "aggregation", "fields.s.agg": "listagg"}
        added = await world.create(columns, name="a", given={**DEBEZIUM, **merged})
        answer = await produce(added, put(1, 1, {"s": "x"}), put(1, 2, {"s": PLACEHOLDER}))
        assert "merge engine 'aggregation'" in answer.error_message


def test_r17_11_a_log_table_keeps_the_placeholder() -> None:
    written = from_kafka(
        records(created({"id": 1, "s": PLACEHOLDER})), table("id BIGINT; s STRING", **DEBEZIUM)
    )
    assert written.rows.to_pylist() == [{"id": 1, "s": PLACEHOLDER}]


# -- options -----------------------------------------------------------------------------------------------


async def test_units_follow_the_renaming_of_their_column(tmp_path: Path) -> None:
    async with tables(tmp_path) as world:
        units = {**DEBEZIUM, "table.kafka.debezium.time-units": "v=ms"}
        columns = "id BIGINT NOT NULL, v TIMESTAMP(6), PRIMARY KEY (id) NOT ENFORCED"
        made = await world.create(columns, given=units)
        renamed = await made.alter("RENAME v TO w")
        assert renamed.definition.options["table.kafka.debezium.time-units"] == "w=ms"
        await sent(renamed, (None, change("c", after={"id": 1, "w": 1_700_000_000_000})))
        (row,) = await renamed.lookup({"id": 1})
        assert row is not None
        assert row["w"] == datetime.datetime(2023, 11, 14, 22, 13, 20)
        with pytest.raises(AssertionError, match="is named by option"):
            await renamed.alter("DROP w")


# -- columns that the source has got ------------------------------------------------------------------------

ADDING = {"table.kafka.unknown-fields": "add"}


@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("kind", ["plain", "enveloped", "debezium", "flat"])
async def test_r17_14_columns_that_the_source_has_got_are_added(
    tmp_path: Path, kind: str, buckets: int
) -> None:
    parameters = {"scale": "2", "connect.decimal.precision": "9"}
    price = field("price", "bytes", "org.apache.kafka.connect.data.Decimal", parameters=parameters)
    fields = [field("id", "int64"), price, field("at", "int64", _TIME + "Timestamp")]
    row = {"id": 2, "price": base64.b64encode((1250).to_bytes(2, "big")).decode(), "at": 1_700_000_000_123}
    plain = {"id": 2, "price": 12.5, "at": "noon", "none": None, "`": 1, "deep": {"x": 1}}
    given, record, wanted = {
        "plain": ({}, (2, plain), {"price": "DOUBLE", "at": "STRING", "deep": "STRING"}),
        "enveloped": (
            {"table.kafka.value-path": "payload"},
            (2, flat(row, *fields)),
            {"price": "DECIMAL(9, 2)", "at": "TIMESTAMP(3)"},
        ),
        "debezium": (DEBEZIUM, created(row, *fields), {"price": "DECIMAL(9, 2)", "at": "TIMESTAMP(3)"}),
        "flat": (
            {"table.kafka.deleted-field": "__deleted"},
            (2, {**plain, "__deleted": "false", "__op": "c"}),
            {"price": "DOUBLE", "at": "STRING", "deep": "STRING"},
        ),
    }[kind]
    columns = "id BIGINT NOT NULL, v STRING, PRIMARY KEY (id) NOT ENFORCED"
    async with tables(tmp_path) as world:
        made = await world.create(columns, given={**given, **ADDING}, buckets=buckets)
        await sent(made, record)
        now = await made.latest()
        assert {column.name: str(column.type) for column in now.schema.columns[2:]} == wanted
        assert all(column.nullable for column in now.schema.columns[2:])
        (found,) = await Table(world.broker, now).lookup({"id": 2})
        assert found is not None
        assert {str(found["price"]), str(found["at"])} <= {
            "12.5",
            "12.50",
            "noon",
            "2023-11-14 22:13:20.123000",
        }
        await sent(made, record)
        assert (await made.latest()).schema.schema_id == now.schema.schema_id, "once"


async def test_r17_14_a_batch_that_is_refused_alters_nothing(tmp_path: Path) -> None:
    async with tables(tmp_path) as world:
        made = await world.create("id BIGINT, v INT", given=ADDING)
        answer = await produce(made, (None, {"id": 1, "more": 1}), (None, {"id": 2, "v": "x"}))
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert "column 'v'" in answer.error_message
        assert (await made.latest()).schema.names == ["id", "v"]
        late = [(None, {"id": n, **({"late": n} if n == 700 else {"null": None})}) for n in range(701)]
        await sent(made, *late)
        now = await made.latest()
        assert now.schema.names == ["id", "v", "late"]
        values = [json.loads(value or b"") for _, _, value, _ in await consume(Table(world.broker, now))]
        assert [each["late"] for each in values[-2:]] == [None, 700]
        refused = await produce(
            await made.alter("SET ('table.kafka.unknown-fields' = 'fail')"), (None, {"id": 1, "x": 1})
        )
        assert refused.error_code == ErrorCode.INVALID_RECORD


async def test_r17_14_adding_is_for_json(tmp_path: Path) -> None:
    async with tables(tmp_path) as world:
        with pytest.raises(TableError, match="is for values in JSON"):
            await world.create("id BIGINT", given={**ADDING, "table.kafka.value-format": "avro"})


@pytest.mark.parametrize("schemas", [False, True])
async def test_a_table_for_flattened_events_has_no_column_for_the_delete_marker(
    tmp_path: Path, schemas: bool
) -> None:
    fields = [
        field("id", "int64"),
        field("name", "string"),
        field("__deleted", "string"),
        field("__op", "string"),
    ]
    key = json.dumps({"id": 7}).encode()
    row = {"id": 7, "name": "x", "__op": "c"}
    around = (lambda each: flat(each, *fields)) if schemas else (lambda each: each)
    put, gone = around({**row, "__deleted": "false"}), around({**row, "__deleted": "true"})
    sample = Sample.of(key, json.dumps(put).encode())
    async with tables(tmp_path) as world:
        made = await world.create_as(derive(TablePath("default", "t"), [sample]))
        assert made.definition.schema.names == ["id", "name"]
        await sent(made, ({"id": 7}, put))
        assert await made.lookup({"id": 7}) == [{"id": 7, "name": "x"}]
        await sent(made, ({"id": 7}, gone))
        assert await made.lookup({"id": 7}) == [None]
    log = derive(TablePath("default", "l"), [Sample.of(None, json.dumps(put).encode())])
    assert set(log.schema.names) == {"id", "name", "__deleted", "__op"}


# -- MySQL's connector --------------------------------------------------------------------------------------

MYSQL_FIELDS = [
    field("id", "int32", optional=False),
    field("big", "int64"),
    field("price", "bytes", "org.apache.kafka.connect.data.Decimal",
          parameters={"scale": "2", "connect.decimal.precision": "10"}),
    field("flag", "int16"),
    field("made", "int64", _TIME + "Timestamp"),
    field("changed", "int64", _TIME + "MicroTimestamp"),
    field("seen", "string", _TIME + "ZonedTimestamp"),
    field("due", "int32", _TIME + "Date"),
    field("at", "int64", _TIME + "MicroTime"),
    field("born", "int32", _TIME + "Year"),
    field("size", "string", "io.debezium.data.Enum", parameters={"allowed": "s,m,l"}),
    field("tags", "string", "io.debezium.data.EnumSet", parameters={"allowed": "a,b"}),
    field("doc", "string", "io.debezium.data.Json"),
    field("bits", "bytes", "io.debezium.data.Bits", parameters={"length": "12"}),
    field("photo", "bytes"),
]  # fmt: skip
MYSQL_ROW = {
    "id": 1004, "big": 9223372036854775807, "price": base64.b64encode((-1250).to_bytes(3, "big", signed=True)).decode(),
    "flag": 1, "made": 1_700_000_000_000, "changed": 1_700_000_000_123_456, "seen": "2024-02-29T12:34:56Z",
    "due": 19_782, "at": -3_600_000_000 + 86_400_000_000, "born": 2024, "size": "m", "tags": "a,b", "doc": '{"x": 1}',
    "bits": "Dwk=", "photo": "AP8=",
}  # fmt: skip


def mysql_event(op: str, before: Any, after: Any) -> dict[str, Any]:
    """With the source block of Debezium's MySQL connector, whose fields its documentation lists."""
    source = {
        "version": "3.4.0.Final", "connector": "mysql", "name": "shop", "ts_ms": 1_700_000_000_000, "snapshot": "false",
        "db": "inventory", "sequence": None, "table": "orders", "server_id": 223344,
        "gtid": "24DA167-0C0C-11E8-8442-00059A3C7B00:3", "file": "mysql-bin.000003", "pos": 484, "row": 0, "thread": 7,
        "query": None,
    }  # fmt: skip
    payload = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1, "transaction": None}
    return enveloped(payload, *MYSQL_FIELDS)


async def test_events_of_mysqls_connector_fill_a_table_of_their_own_schema(tmp_path: Path) -> None:
    key = {
        "schema": {"type": "struct", "fields": [field("id", "int32", optional=False)]},
        "payload": {"id": 1004},
    }
    event = mysql_event("c", None, MYSQL_ROW)
    sample = Sample.of(json.dumps(key).encode(), json.dumps(event).encode())
    derived = derive(TablePath("default", "t"), [sample])
    kinds = {column.name: str(column.type) for column in derived.schema.columns}
    assert derived.schema.primary_key == ("id",)
    assert (kinds["born"], kinds["made"], kinds["seen"]) == ("INT", "TIMESTAMP(3)", "TIMESTAMP_LTZ(6)")
    assert (kinds["size"], kinds["bits"], kinds["price"]) == ("STRING", "BYTES", "DECIMAL(10, 2)")
    async with tables(tmp_path) as world:
        made = await world.create_as(derived)
        changed = {**MYSQL_ROW, "size": "l", "doc": None}
        await sent(made, (key, event), (key, mysql_event("u", MYSQL_ROW, changed)))
        (row,) = await made.lookup({"id": 1004})
        assert row == {
            "id": 1004, "big": 9223372036854775807, "price": Decimal("-12.50"), "flag": 1,
            "made": datetime.datetime(2023, 11, 14, 22, 13, 20), "born": 2024, "size": "l", "tags": "a,b", "doc": None,
            "changed": datetime.datetime(2023, 11, 14, 22, 13, 20, 123456), "due": datetime.date(2024, 2, 29),
            "seen": datetime.datetime(2024, 2, 29, 12, 34, 56, tzinfo=datetime.UTC), "at": datetime.time(23),
            "bits": b"\x0f\x09", "photo": b"\x00\xff",
        }  # fmt: skip
        await sent(made, (key, mysql_event("d", changed, None)), (key, None))
        assert await made.lookup({"id": 1004}) == [None]


@pytest.mark.parametrize(
    ("kind", "value", "remedy"),
    [
        (
            "TIMESTAMP(3)",
            1_732_702_075_123,
            r"or declare the column TIMESTAMP_LTZ for milliseconds since 1970$",
        ),
        ("TIME(6)", 43_200_000, r'write it as a text, as in "12:00:00.000"$'),
        ("DATE", 19_000, r'write it as a text, as in "2024-09-19"$'),
        ("TIMESTAMP_LTZ(9)", 1 << 62, r"is out of the range of TIMESTAMP_LTZ\(9\)$"),
        ("TIMESTAMP_LTZ(0)", 1, r"more digits of a second than TIMESTAMP_LTZ\(0\) keeps: declare the column"),
        ("DECIMAL(10, 2)", "12x4", "is not a number, as DECIMAL"),
    ],
)
def test_an_error_of_a_plain_json_table_names_no_setting_of_a_connector(
    kind: str, value: Any, remedy: str
) -> None:
    definition = table(f"id BIGINT; v {kind}", ("id",), **{"table.kafka.value-format": "json"})
    with pytest.raises(RowError, match=remedy) as caught:
        from_kafka(records((None, {"id": 1, "v": value})), definition)
    assert "debezium" not in caught.value.reason
    assert "connector" not in caught.value.reason


@pytest.mark.parametrize("precision", [3, 6, 9])
def test_numbers_are_milliseconds_in_columns_of_instants_of_a_plain_json_table(precision: int) -> None:
    definition = table(
        f"id BIGINT; v TIMESTAMP_LTZ({precision})", ("id",), **{"table.kafka.value-format": "json"}
    )
    rows = from_kafka(
        records(*((None, {"id": n, "v": n}) for n in (1_732_702_075_123, -1, 0))), definition
    ).rows
    assert [str(value)[:23] for value in rows.column("v").to_pylist()] == [
        "2024-11-27 10:07:55.123", "1969-12-31 23:59:59.999", "1970-01-01 00:00:00+00:",
    ]  # fmt: skip
