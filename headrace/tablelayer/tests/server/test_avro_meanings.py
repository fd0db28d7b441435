"""Avro values whose unit comes from Connect's converter or from the table, and values in columns of other types."""

from __future__ import annotations

import base64
import datetime
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from headrace.tablelayer.model.avro.schema import AvroSchema
from headrace.tablelayer.model.errors import RowError, TableError
from headrace.tablelayer.server.kafka_view.records_to_rows import from_kafka
from headrace.tablelayer.tests.server.test_avro_view import AVRO, ID
from headrace.tablelayer.tests.server.test_change_capture import created, field
from headrace.tablelayer.tests.server.test_value_formats import DEBEZIUM, records, table

UTC = datetime.UTC
MOMENT = datetime.datetime(2023, 11, 14, 22, 13, 20, 123000)
MILLIS = 1_700_000_000_123
OPTION = "table.kafka.debezium.time-units"


def read(
    kind: str, said: Any, value: Any, stored: Any = None, units: str | None = None, **beside: Any
) -> Any:
    """The value of a column of this kind whose writer's field is `said`, with what stands beside its type.

    stored: the type without its meaning, by which another implementation encodes the value.
    """
    field = {"name": "v", "type": said, **beside}
    encoded = {"name": "v", "type": said if stored is None else stored}
    out = io.BytesIO(b"")
    plain = json.loads(json.dumps({"type": "record", "name": "r", "fields": [encoded]}))
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), {"v": value})
    schema = AvroSchema.parse(json.dumps({"type": "record", "name": "r", "fields": [field]}))
    definition = table(f"v {kind}", **AVRO, **({} if units is None else {OPTION: units}))
    framed = b"\0" + ID.to_bytes(4, "big") + out.getvalue()
    (row,) = from_kafka(records((None, framed)), definition, {ID: schema}).rows.to_pylist()
    return row["v"]


def connect(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": name, **more}


def debezium(name: str, kind: str = "long") -> dict[str, Any]:
    return connect(kind, f"io.debezium.time.{name}")


@pytest.mark.parametrize(
    ("said", "value", "kind", "wanted"),
    [
        (debezium("Timestamp"), MILLIS, "TIMESTAMP(3)", MOMENT),
        (debezium("Timestamp"), MILLIS, "TIMESTAMP_LTZ(6)", MOMENT.replace(tzinfo=UTC)),
        (debezium("MicroTimestamp"), MILLIS * 1000, "TIMESTAMP(6)", MOMENT),
        (debezium("NanoTimestamp"), MILLIS * 1_000_000, "TIMESTAMP(6)", MOMENT),
        (debezium("Timestamp"), 86_400_000, "DATE", datetime.date(1970, 1, 2)),
        (debezium("Date", "int"), 19_000, "DATE", datetime.date(2022, 1, 8)),
        (debezium("Date", "int"), 19_000, "TIMESTAMP(0)", datetime.datetime(2022, 1, 8)),
        (debezium("Time", "int"), 43_200_001, "TIME(3)", datetime.time(12, 0, 0, 1000)),
        (debezium("MicroTime"), 43_200_001_000, "TIME(6)", datetime.time(12, 0, 0, 1000)),
        (debezium("NanoTime"), 1_000, "TIME(6)", datetime.time(0, 0, 0, 1)),
        (debezium("ZonedTimestamp", "string"), "2024-02-29T12:00:00.5+02:00", "TIMESTAMP_LTZ(6)",
         datetime.datetime(2024, 2, 29, 10, 0, 0, 500000, UTC)),
        (debezium("ZonedTime", "string"), "12:00:00Z", "TIME(0)", datetime.time(12)),
        (debezium("IsoDate", "string"), "2024-02-29Z", "DATE", datetime.date(2024, 2, 29)),
        (connect("long", "org.apache.kafka.connect.data.Timestamp"), MILLIS, "TIMESTAMP(3)", MOMENT),
        (connect("int", "org.apache.kafka.connect.data.Time"), 1, "TIME(3)", datetime.time(0, 0, 0, 1000)),
    ],
)  # fmt: skip
def test_r17_2_the_unit_of_a_number_comes_from_its_type_name(
    said: dict[str, Any], value: Any, kind: str, wanted: Any
) -> None:
    stored = said["type"]
    assert read(kind, said, value, stored) == wanted
    assert read(kind, ["null", said], value, ["null", stored]) == wanted
    assert read(f"ARRAY<{kind}>", {"type": "array", "items": said}, [value], {"type": "array", "items": stored}) == [
        wanted
    ]  # fmt: skip
    assert read(kind, stored, value, **{"connect.name": said["connect.name"]}) == wanted


def test_r17_2_a_logical_type_may_stand_beside_the_type() -> None:
    assert read("TIMESTAMP(3)", "long", MILLIS, logicalType="timestamp-millis") == MOMENT
    assert read("TIMESTAMP(3)", ["null", "long"], MILLIS, logicalType="local-timestamp-millis") == MOMENT
    assert (
        read("TIMESTAMP(3)", {"type": {"type": "long"}, "logicalType": "timestamp-millis"}, MILLIS, "long")
        == MOMENT
    )
    scaled = {"logicalType": "decimal", "precision": 5, "scale": 1}
    assert read("DECIMAL(5, 2)", "bytes", b"\x07", **scaled) == Decimal("0.70")
    own = {"type": "long", "logicalType": "timestamp-micros"}
    assert read("TIMESTAMP(3)", own, MILLIS * 1000, "long", logicalType="timestamp-millis") == MOMENT


def test_r17_2_the_table_gives_the_unit_of_plain_numbers() -> None:
    with pytest.raises(RowError, match=f"long, which cannot be read as TIMESTAMP.*'{OPTION}' sets the unit"):
        read("TIMESTAMP(3)", "long", MILLIS)
    assert read("TIMESTAMP(3)", "long", MILLIS, units="v=ms") == MOMENT
    assert read("ARRAY<TIMESTAMP(3)>", {"type": "array", "items": "long"}, [MILLIS], units="v=ms") == [MOMENT]
    assert read("DATE", "long", 86_400_000_000, units="v=us") == datetime.date(1970, 1, 2)
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    assert read("TIMESTAMP(3)", micros, MILLIS * 1000, "long", units="v=ms") == MOMENT
    with pytest.raises(RowError, match="is not at midnight"):
        read("DATE", "long", 86_400_001, units="v=ms")
    with pytest.raises(RowError, match=r"MicroTime\), which cannot be read as TIMESTAMP"):
        read("TIMESTAMP(3)", debezium("MicroTime"), 1, "long")
    with pytest.raises(TableError, match="is not a date or time type"):
        table("v BIGINT", **AVRO, **{OPTION: "v=ms"})


@pytest.mark.parametrize(
    ("said", "value", "wanted"),
    [
        ("long", -5, "-5"), ("int", 7, "7"), ("boolean", True, "true"), ("double", 1.5, "1.5"), ("float", 0.1, "0.1"),
        ("double", float("nan"), "NaN"), ({"type": "array", "items": ["null", "long"]}, [1, None], "[1,null]"),
        ({"type": "map", "values": "string"}, {"a": '"x'}, '{"a":"\\"x"}'), (["long", "string"], 5, "5"),
        (["long", "string"], "x", "x"), (["null", "long"], None, None),
        ({"type": "int", "logicalType": "date"}, datetime.date(2024, 1, 1), "2024-01-01"),
        ({"type": "long", "logicalType": "timestamp-micros"}, datetime.datetime(2024, 1, 1, tzinfo=UTC),
         "2024-01-01T00:00:00.000Z"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("7.00"), "7.00"),
        ({"type": "record", "name": "x", "fields": [{"name": "a", "type": "int"}]}, {"a": 1}, '{"a":1}'),
    ],
)  # fmt: skip
def test_r17_2_everything_has_its_text_in_a_column_of_texts(
    said: Any, value: Any, wanted: str | None
) -> None:
    assert read("STRING", said, value) == wanted


VARIABLE = {
    "type": "record", "name": "V", "connect.name": "io.debezium.data.VariableScaleDecimal",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "value", "kind", "wanted"),
    [
        ("string", "12", "INT", 12), ("string", "1.2e1", "BIGINT", 12), ("string", "12.5", "DOUBLE", 12.5),
        ("string", "12.50", "DECIMAL(4, 1)", Decimal("12.5")), ("string", "true", "BOOLEAN", True),
        ("string", "2024-01-01T00:00:00.5", "TIMESTAMP(3)", datetime.datetime(2024, 1, 1, 0, 0, 0, 500000)),
        (["null", "string"], None, "INT", None), ("double", 12.0, "INT", 12),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("7.00"), "INT", 7),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("7.05"), "DOUBLE", 7.05),
        (VARIABLE, {"scale": 1, "value": b"\x46"}, "DECIMAL(5, 2)", Decimal("7.00")),
        (VARIABLE, {"scale": 1, "value": b"\x46"}, "STRING", "7.0"),
        (VARIABLE, {"scale": -2, "value": b"\x07"}, "BIGINT", 700), (["null", VARIABLE], None, "BIGINT", None),
        (VARIABLE, {"scale": 1, "value": b"F"}, "ROW<scale INT, value BYTES>", {"scale": 1, "value": b"F"}),
    ],
)  # fmt: skip
def test_r17_2_fitting_values_are_read_into_other_column_types(
    said: Any, value: Any, kind: str, wanted: Any
) -> None:
    assert read(kind, said, value) == wanted


@pytest.mark.parametrize(
    ("said", "value", "kind", "reason"),
    [
        ("string", "x", "INT", "'x' is not a number"), ("string", "12.5", "INT", "not a whole number"),
        ("string", "x", "DECIMAL(4, 1)", "'x' is not a number, as DECIMAL\\(4, 1\\) needs$"),
        ("string", "2147483648", "INT", "out of the range"), ("double", 12.5, "INT", "12.5 is not a value of INT"),
        ("double", float("nan"), "BIGINT", "nan is not a value"), ("double", 9.3e18, "BIGINT", "not a value of BIGINT"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("7.05"), "INT",
         "7.05 does not fit into INT"),
        (VARIABLE, {"scale": 99, "value": b"F"}, "DOUBLE", "its scale is 99"),
        (VARIABLE, {"scale": 9999, "value": b"F"}, "STRING", "more than 4,298 digits"),
        (VARIABLE, {"scale": 0, "value": b"F" * 1786}, "STRING", "more than 4,298 digits"),
        (VARIABLE, {"scale": 9, "value": b"F" * 17}, "CHAR(20)", "does not fit into CHAR"),
        ({"type": "fixed", "name": "f", "size": 2}, b"ab", "STRING", "cannot be read as STRING"),
    ],
)  # fmt: skip
def test_r17_3_values_that_do_not_fit_are_refused_with_the_reason(
    said: Any, value: Any, kind: str, reason: str
) -> None:
    with pytest.raises(RowError, match=reason):
        read(kind, said, value)


@pytest.mark.parametrize(
    ("name", "kind", "value", "wanted"),
    [
        ("io.debezium.time.Date", "int", 19_000, "2022-01-08"),
        ("io.debezium.time.Date", "int", -719_163, "0000-12-31"),
        ("io.debezium.time.Time", "int", 43_200_001, "12:00:00.001"),
        ("io.debezium.time.MicroTime", "long", 43_200_001_000, "12:00:00.001"),
        ("io.debezium.time.NanoTime", "long", 1, "00:00:00.000000001"),
        ("io.debezium.time.Timestamp", "long", MILLIS, "2023-11-14T22:13:20.123"),
        ("io.debezium.time.MicroTimestamp", "long", -1, "1969-12-31T23:59:59.999999"),
        ("io.debezium.time.MicroTimestamp", "long", 253_402_300_800_000_000, "+10000-01-01T00:00:00.000"),
        ("io.debezium.time.NanoTimestamp", "long", 1, "1970-01-01T00:00:00.000000001"),
        ("org.apache.kafka.connect.data.Date", "int", 19_000, "2022-01-08"),
        ("org.apache.kafka.connect.data.Time", "int", 1, "00:00:00.001"),
        ("org.apache.kafka.connect.data.Timestamp", "long", MILLIS, "2023-11-14T22:13:20.123Z"),
    ],
)
def test_r17_2_a_time_has_the_same_text_in_json_and_avro(
    name: str, kind: str, value: int, wanted: str
) -> None:
    assert read("STRING", connect(kind, name), value, kind) == wanted
    said = field("v", {"int": "int32", "long": "int64"}[kind], name)
    for data_type, given, schema, found in (
        ("STRING", value, said, wanted),
        ("CHAR(29)", value, said, wanted),
        ("STRING", None, said, None),
        ("ARRAY<STRING>", [value], field("v", "array", items=said), [wanted]),
    ):
        definition = table(f"id BIGINT; v {data_type}", ("id",), **DEBEZIUM)
        (row,) = from_kafka(records(created({"id": 1, "v": given}, schema)), definition).rows.to_pylist()
        assert row == {"id": 1, "v": found}
    short = table("id BIGINT; v CHAR(5)", ("id",), **DEBEZIUM)
    with pytest.raises(RowError, match="is longer than CHAR"):
        from_kafka(records(created({"id": 1, "v": value}, said)), short)


@pytest.mark.parametrize(
    ("number", "scale", "wanted"),
    [
        (10**38, 0, "1" + 38 * "0"),
        (-(10**64) - 7, 30, "-1" + 34 * "0" + "." + 29 * "0" + "7"),
        (12, 50, "0." + 48 * "0" + "12"),
        (7, -40, "7" + 40 * "0"),
        (2**127 - 1, 2, "1701411834604692317316873037158841057.27"),
        (-(2**119), 1, "-66461399789245793645190353014017228.8"),
    ],
)
def test_r17_2_a_decimal_of_any_length_has_its_digits_in_a_text(number: int, scale: int, wanted: str) -> None:
    data = number.to_bytes(40, "big", signed=True).lstrip(b"\xff" if number < 0 else b"\0")
    first = data[0] if data else 0
    data = (b"\xff" if first < 128 else b"") + data if number < 0 else (b"\0" if first >= 128 else b"") + data
    assert int.from_bytes(data, "big", signed=True) == number
    coded = base64.b64encode(data).decode()
    said = field("v", "bytes", "org.apache.kafka.connect.data.Decimal", parameters={"scale": str(scale)})
    own_scale = field("v", "struct", "io.debezium.data.VariableScaleDecimal")
    definition = table("id BIGINT; v STRING", ("id",), **DEBEZIUM)
    events = [
        created({"id": 1, "v": coded}, said),
        created({"id": 2, "v": "Bw=="}, said),
        created({"id": 3, "v": {"scale": scale, "value": coded}}, own_scale),
    ]
    found = from_kafka(records(*events), definition).rows.column("v").to_pylist()
    assert (found[0], found[2]) == (wanted, wanted)
    assert Decimal(found[1]) == Decimal(7).scaleb(-scale)
    assert read("STRING", VARIABLE, {"scale": scale, "value": data}) == wanted
    if scale >= 0:
        avro = {"type": "bytes", "logicalType": "decimal", "precision": 70, "scale": scale}
        assert read("STRING", avro, data, "bytes") == wanted
    with pytest.raises(RowError):
        from_kafka(records(events[0]), table("id BIGINT; v DECIMAL(9, 2)", ("id",), **DEBEZIUM))
