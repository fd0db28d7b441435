"""Keys and values decoded by the schemas of a registry; what does not work is said beside the bytes."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest

from headrace.tablelayer.console.decoding import Decoder
from headrace.tablelayer.console.registry import Registry
from headrace.tablelayer.console.rest import Rest
from headrace.tablelayer.console.values import FRAMED_MAX, TEXT_MAX, Piece, text_of
from headrace.tablelayer.tests.console.outside import SchemaRegistry, served

ORDER = {
    "type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string", "int"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        {"name": "before", "type": ["null", "Order"]},
    ],
}  # fmt: skip
ROW = {
    "id": 2**60 + 1, "note": "é", "price": 1234, "at": 0, "hash": b"ab", "tags": {"a": ["x"]}, "before": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with served(SchemaRegistry()) as program:
        yield program


def framed(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data


def decoded(
    registry: SchemaRegistry | str, *values: bytes, bytes_max: int = TEXT_MAX
) -> list[dict[str, Any]]:
    url = registry if isinstance(registry, str) else registry.url
    pieces = [Piece(text_of(each) or {}, each[:FRAMED_MAX]) for each in values]
    Decoder(Registry(Rest("the schema registry", url))).decode(pieces, bytes_max)
    return [each.shown["decoded"] for each in pieces]


def avro(schema: Any, row: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def test_avro_is_read_by_the_schema_of_its_writer(registry: SchemaRegistry) -> None:
    from datetime import UTC, datetime
    from decimal import Decimal

    registry.schemas[1] = {"schema": json.dumps(ORDER), "subject": "orders-value"}
    row = {**ROW, "price": Decimal("12.34"), "at": datetime(2024, 9, 19, tzinfo=UTC)}
    data = framed(1, avro(ORDER, {**row, "before": {**row, "note": 7}}))
    good, cut, longer = decoded(registry, data, data[:-3], data + b"x")
    assert (good["format"], good["schema"]) == ("Avro", 1)
    value = json.loads(good["text"])
    assert (value["id"], value["note"], value["price"]) == (2**60 + 1, "é", "12.34")
    assert (value["at"], value["hash"], value["tags"]) == ("2024-09-19T00:00:00+00:00", "YWI=", {"a": ["x"]})
    assert value["before"]["note"] == 7
    assert "ends inside this value" in cut["error"]
    assert "bytes behind the record" in longer["error"]
    (short,) = decoded(registry, data, bytes_max=10)
    assert (short["text"], short["size"]) == (good["text"][:10], good["size"])


def test_avro_of_lists_that_take_no_bytes_does_not_fill_the_memory(registry: SchemaRegistry) -> None:
    many = b"\xfe\xff\xff\x7f\x00"  # a block of 134,217,727 items, and the end
    nulls = {"type": "array", "items": "null"}
    registry.schemas[2] = {"schema": json.dumps(nulls), "subject": "nulls"}
    (found,) = decoded(registry, framed(2, many))
    assert "take no bytes" in found["error"]
    registry.schemas[3] = {"schema": json.dumps({"type": "array", "items": "string"}), "subject": "texts"}
    (found,) = decoded(registry, framed(3, many))
    assert "length exceeds the record" in found["error"]


def test_avro_finds_the_types_that_its_schema_refers_to(registry: SchemaRegistry) -> None:
    town = {"type": "enum", "name": "geo.Town", "symbols": ["OSLO", "ROME"]}
    place = {
        "type": "record",
        "name": "geo.Place",
        "fields": [{"name": "town", "type": "Town"}],
    }
    trip = {
        "type": "record", "name": "Trip", "namespace": "travel",
        "fields": [{"name": "from", "type": "geo.Place"}, {"name": "to", "type": ["null", "geo.Place"]}],
    }  # fmt: skip
    refers = [{"name": "geo.Town", "subject": "town", "version": 1}]
    registry.schemas[10] = {"schema": json.dumps(town), "subject": "town"}
    registry.schemas[11] = {"schema": json.dumps(place), "subject": "place", "references": refers}
    registry.schemas[12] = {
        "schema": json.dumps(trip), "subject": "trip",
        "references": [{"name": "geo.Place", "subject": "place", "version": 1}],
    }  # fmt: skip
    row = {"from": {"town": "OSLO"}, "to": {"town": "ROME"}}
    whole = {
        **trip,
        "fields": [
            {"name": "from", "type": {**place, "fields": [{"name": "town", "type": town}]}},
            trip["fields"][1],
        ],
    }
    (found,) = decoded(registry, framed(12, avro(whole, row)))
    assert json.loads(found["text"]) == row


def test_json_keeps_its_digits_and_wrong_json_is_said(registry: SchemaRegistry) -> None:
    registry.schemas[20] = {"schema": '{"type": "object"}', "schemaType": "JSON", "subject": "j"}
    good, bad = decoded(registry, framed(20, b'{"n": 12345678901234567890.10}'), framed(20, b"{"))
    assert (good["format"], good["text"]) == ("JSON Schema", '{"n": 12345678901234567890.10}')
    assert "it is not JSON" in bad["error"]


def test_protobuf_by_descriptors_and_by_number(registry: SchemaRegistry) -> None:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="default", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    outer = file.message_type.add(name="Order")
    inner = outer.nested_type.add(name="Line")
    inner.field.add(name="count", number=1, type=5, label=1)
    outer.field.add(name="name", number=1, type=9, label=1)
    outer.field.add(name="lines", number=2, type=11, label=3, type_name=".shop.Order.Line")
    outer.field.add(name="at", number=3, type=11, label=1, type_name=".google.protobuf.Timestamp")
    other = file.message_type.add(name="Other")
    other.field.add(name="id", number=1, type=3, label=1)
    pool = descriptor_pool.DescriptorPool()
    from google.protobuf import timestamp_pb2

    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    message = kind(name="a", lines=[{"count": 3}, {"count": 300}], at={"seconds": 1})
    other_kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Other"))
    line_kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order.Line"))
    text = {"schema": 'syntax = "proto3"; ...', "schemaType": "PROTOBUF", "subject": "p"}
    registry.schemas[30] = registry.schemas[31] = text
    registry.serialized[30] = base64.b64encode(file.SerializeToString()).decode()
    body = message.SerializeToString()
    first, second, nested, beyond, cut = decoded(
        registry,
        framed(30, b"\0" + body),
        framed(30, b"\x02\x02" + other_kind(id=7).SerializeToString()),
        framed(30, b"\x04\x00\x00" + line_kind(count=9).SerializeToString()),
        framed(30, b"\x02\x0e" + body),
        framed(30, b"\0" + body[:-1]),
    )
    assert json.loads(first["text"]) == {
        "name": "a", "lines": [{"count": 3}, {"count": 300}], "at": "1970-01-01T00:00:01Z",
    }  # fmt: skip
    assert (first["format"], first["note"]) == ("Protobuf", "shop.Order")
    assert (json.loads(second["text"]), second["note"]) == ({"id": "7"}, "shop.Other")
    assert json.loads(nested["text"]) == {"count": 9}
    assert "message is number 7, but the schema has 2" in beyond["error"]
    assert "does not fit its schema" in cut["error"]
    (numbered,) = decoded(registry, framed(31, b"\0" + body))
    assert json.loads(numbered["text"]) == {"1": "a", "2": [{"1": 3}, {"1": 300}], "3": {"1": 1}}
    assert numbered["note"].startswith("fields by number")


def test_a_registry_that_is_away_or_knows_nothing_breaks_nothing(registry: SchemaRegistry) -> None:
    registry.schemas[40] = {"schema": '{"type": "recor"}', "subject": "wrong"}
    registry.schemas[41] = {"schema": "x", "schemaType": "THRIFT", "subject": "other"}
    unknown, wrong, other, huge = decoded(
        registry, framed(99, b"x"), framed(40, b"x"), framed(41, b"x"), framed(40, b"x" * FRAMED_MAX)
    )
    assert "Schema 99 not found" in unknown["error"]
    assert "recor" in wrong["error"]
    assert "THRIFT" in other["error"]
    assert "are not decoded" in huge["error"]
    away = decoded("http://127.0.0.1:1", framed(1, b"x"), framed(2, b"x"))
    assert ["does not answer" in each["error"] for each in away] == [True, True]


def test_a_registry_that_did_not_answer_is_not_asked_for_each_schema(registry: SchemaRegistry) -> None:
    class Broken(SchemaRegistry):
        def answer(self, method: str, parts: list[str], query: dict[str, str]) -> tuple[int, Any]:
            return 503, b"<html>"

    with served(Broken()) as program:
        found = decoded(program.url, *(framed(number, b"x") for number in range(10)))
        assert all("status 503" in each["error"] for each in found)
        assert len(program.asked) == 1
