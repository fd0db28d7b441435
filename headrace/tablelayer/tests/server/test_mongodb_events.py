"""Events of Debezium's connector for MongoDB: rows, and the ids of keys, are texts of extended JSON."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.table.derived import Sample, derive
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.kafka_view.records_to_rows import from_kafka
from headrace.tablelayer.tests.server.tables import tables
from headrace.tablelayer.tests.server.test_change_capture import field, sent, struct
from headrace.tablelayer.tests.server.test_value_formats import DEBEZIUM, records, table

SCHEMA = {
    "type": "struct",
    "name": "shop.inventory.orders.Envelope",
    "fields": [field("before", "string", "io.debezium.data.Json"), field("after", "string", "io.debezium.data.Json"),
               struct("source"), field("op", "string")],
}  # fmt: skip
ID = {"$oid": "596e275826f08b2730779e1f"}
ROW = {
    "_id": ID, "name": 'Än"n', "n": {"$numberLong": "9007199254740993"}, "i": 5, "p": {"$numberDecimal": "12.50"},
    "d": {"$numberDouble": "NaN"}, "made": {"$date": 1_700_000_000_123}, "b": {"$binary": "AP8=", "$type": "00"},
    "tags": ["a", {"$oid": "x"}], "sub": {"k": {"$numberLong": "3"}, "t": "\\u"}, "r": {"at": {"$date": -1}},
}  # fmt: skip
CANONICAL = {
    **ROW, "i": {"$numberInt": "5"}, "made": {"$date": {"$numberLong": "1700000000123"}},
    "b": {"$binary": {"base64": "AP8=", "subType": "00"}}, "r": {"at": {"$date": "1969-12-31T23:59:59.999Z"}},
}  # fmt: skip
COLUMNS = (
    "_id STRING; name STRING; n BIGINT; i INT; p DECIMAL(10, 2); d DOUBLE; made TIMESTAMP_LTZ(3); b BYTES;"
    " tags ARRAY<STRING>; sub STRING; r ROW<at TIMESTAMP(6)>"
)
UTC = datetime.UTC
WANTED = {
    "_id": ID["$oid"], "name": 'Än"n', "n": 9007199254740993, "i": 5, "p": Decimal("12.50"),
    "made": datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, UTC), "b": b"\x00\xff", "tags": ["a", "x"],
    "r": {"at": datetime.datetime(1969, 12, 31, 23, 59, 59, 999000)},
}  # fmt: skip


def event(op: str, after: Any = None, before: Any = None, *, schema: bool = False) -> dict[str, Any]:
    images = {"before": before, "after": after}
    payload: dict[str, Any] = {name: None if row is None else json.dumps(row) for name, row in images.items()}
    payload |= {"op": op, "source": {"connector": "mongodb"}, "ts_ms": 1}
    return {"schema": SCHEMA, "payload": payload} if schema else payload


def key(value: Any, *, schema: bool = False) -> Any:
    payload = {"id": json.dumps(value)}
    said = {"type": "struct", "fields": [field("id", "string")]}
    return {"schema": said, "payload": payload} if schema else payload


@pytest.mark.parametrize("schema", [False, True])
@pytest.mark.parametrize("row", [ROW, CANONICAL])
def test_the_text_of_a_document_is_a_row(row: dict[str, Any], *, schema: bool) -> None:
    definition = table(COLUMNS, ("_id",), **DEBEZIUM)
    both = [(json.dumps(key(ID, schema=schema)).encode(), event(op, row, schema=schema)) for op in "ru"]
    for found in from_kafka(records(*both), definition).rows.to_pylist():
        assert str(found.pop("d")) == "nan"
        assert json.loads(found.pop("sub")) == row["sub"]
        assert found == WANTED


async def test_a_topic_of_mongodbs_connector_fills_a_table_of_its_own_shape(tmp_path: Path) -> None:
    sample = Sample.of(json.dumps(key(ID)).encode(), json.dumps(event("c", ROW)).encode())
    derived = derive(TablePath("default", "t"), [sample])
    kinds = {column.name: str(column.type) for column in derived.schema.columns}
    assert derived.schema.primary_key == ("_id",)
    assert (kinds["n"], kinds["p"], kinds["made"]) == ("BIGINT", "DECIMAL(38, 18)", "TIMESTAMP_LTZ(3)")
    assert (kinds["_id"], kinds["b"], kinds["sub"]) == ("STRING", "BYTES", "STRING")
    async with tables(tmp_path) as world:
        made = await world.create_as(derived)
        for schema in (False, True):
            stored = key(ID, schema=schema)
            await sent(made, (stored, event("c", ROW, schema=schema)))
            await sent(made, (stored, event("u", {**ROW, "name": "new"}, schema=schema)))
            (row,) = await made.lookup({"_id": ID["$oid"]})
            assert (row["name"], row["n"]) == ("new", 9007199254740993)
            await sent(made, (stored, event("d", schema=schema)), (stored, None))
            assert await made.lookup({"_id": ID["$oid"]}) == [None]
        await sent(made, (key(ID), event("c", ROW)))
        await sent(made, (key(ID), event("d", before=ROW)))
        assert await made.lookup({"_id": ID["$oid"]}) == [None]


@pytest.mark.parametrize("value", [1004, "abc"])
async def test_ids_of_other_types_delete_their_row(tmp_path: Path, value: Any) -> None:
    kind = "BIGINT" if isinstance(value, int) else "STRING"
    async with tables(tmp_path) as world:
        made = await world.create(f"_id {kind}, n INT, PRIMARY KEY (_id)", given=DEBEZIUM)
        await sent(made, (key(value), event("c", {"_id": value, "n": 1})))
        assert await made.lookup({"_id": value}) == [{"_id": value, "n": 1}]
        await sent(made, (key(value), event("d")))
        assert await made.lookup({"_id": value}) == [None]


@pytest.mark.parametrize("schema", [False, True])
@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("TIMESTAMP(3)", {"$timestamp": {"t": 1_700_000_000, "i": 7}}, datetime.datetime(2023, 11, 14, 22, 13, 20)),
        ("TIMESTAMP_LTZ(9)", {"$timestamp": {"i": 7, "t": 1}}, datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("DATE", {"$timestamp": {"t": 86_400, "i": 1}}, datetime.date(1970, 1, 2)),
        ("STRING", {"$timestamp": {"t": 1, "i": 7}}, '{"$timestamp": {"t": 1, "i": 7}}'),
        ("STRING", {"$date": 1_700_000_000_123}, "2023-11-14T22:13:20.123Z"),
        ("STRING", {"$date": {"$numberLong": "-1"}}, "1969-12-31T23:59:59.999Z"),
        ("STRING", {"$date": "1970-01-01T00:00:00Z"}, "1970-01-01T00:00:00Z"),
        ("STRING", {"$code": "x = 1"}, "x = 1"),
        ("STRING", {"$code": "x", "$scope": {"y": 1}}, '{"$code": "x", "$scope": {"y": 1}}'),
        ("STRING", {"$symbol": "s"}, "s"),
        ("STRING", {"$uuid": "c8edabc3-f738-4ca3-b68d-ab92a91478a3"}, "c8edabc3-f738-4ca3-b68d-ab92a91478a3"),
        ("STRING", {"$regularExpression": {"pattern": "a", "options": "i"}},
         '{"$regularExpression": {"pattern": "a", "options": "i"}}'),
        ("STRING", {"$minKey": 1}, '{"$minKey": 1}'),
        ("STRING", {"$ref": "c", "$id": ID}, json.dumps({"$ref": "c", "$id": ID})),
        ("STRING", {"$numberLong": "9007199254740993"}, "9007199254740993"),
        ("STRING", {"$numberDecimal": "12.50"}, "12.50"),
        ("STRING", {"$undefined": True}, None), ("BIGINT", {"$undefined": True}, None),
        ("TIMESTAMP(3)", {"$undefined": True}, None), ("BYTES", {"$undefined": True}, None),
        ("DOUBLE", {"$numberDouble": "-Infinity"}, float("-inf")),
        ("DECIMAL(5, 1)", {"$numberDecimal": "1E+2"}, Decimal(100)),
        ("ARRAY<TIMESTAMP(0)>", [{"$timestamp": {"t": 5, "i": 1}}, {"$date": 1000}],
         [datetime.datetime(1970, 1, 1, 0, 0, 5), datetime.datetime(1970, 1, 1, 0, 0, 1)]),
        ("MAP<STRING, BIGINT>", {"a": {"$numberLong": "7"}}, [("a", 7)]),
    ],
)  # fmt: skip
def test_each_type_of_extended_json_has_its_value(
    kind: str, value: Any, wanted: Any, *, schema: bool
) -> None:
    definition = table(f"_id STRING; v {kind}", ("_id",), **DEBEZIUM)
    given = event("c", {"_id": ID, "v": value}, schema=schema)
    (row,) = from_kafka(records((None, given)), definition).rows.to_pylist()
    assert row == {"_id": ID["$oid"], "v": wanted}


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("BIGINT", {"$timestamp": {"t": 1, "i": 7}}, "is not a value of BIGINT"),
        ("DATE", {"$timestamp": {"t": 1, "i": 7}}, "is not a date"),
        ("BIGINT", {"$minKey": 1}, "is not a value of BIGINT"),
        ("INT NOT NULL", {"$undefined": True}, "would be null, but the column is NOT NULL"),
        ("TIMESTAMP(3)", {"$timestamp": {"i": 7}}, "is not a"),
        ("TIMESTAMP(3)", {"$date": {"x": 7}}, "is not a"),
        ("BYTES", {"$binary": {"subType": "00"}}, "is not a"),
    ],
)
def test_an_object_without_a_value_of_the_type_is_refused(kind: str, value: Any, reason: str) -> None:
    definition = table(f"_id STRING; v {kind}", ("_id",), **DEBEZIUM)
    with pytest.raises(RowError, match=reason):
        from_kafka(records((None, event("c", {"_id": ID, "v": value}))), definition)


def test_an_update_without_its_document_says_which_mode_gives_it() -> None:
    definition = table("_id STRING; n INT", ("_id",), **DEBEZIUM)
    with pytest.raises(RowError, match=r"'after' is missing or null .*change_streams_update_full"):
        from_kafka(records((json.dumps(key(ID)).encode(), event("u"))), definition)


def test_a_text_of_something_else_is_refused() -> None:
    definition = table("_id STRING; n INT", ("_id",), **DEBEZIUM)
    for text, reason in (("[1]", "'after' is not an object"), ('{"_id": ', "'_id'|JSON|ends")):
        with pytest.raises(RowError, match=reason):
            from_kafka(records((None, {"op": "c", "after": text})), definition)
