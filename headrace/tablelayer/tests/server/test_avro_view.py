"""Avro in the Kafka view (R17), against another implementation: schemas in a registry and in the record."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Context, Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tablelayer.model.avro.schema import AvroSchema, AvroSchemaError, check_range, schema_text
from headrace.tablelayer.model.avro.write import Frame, rows_to_avro
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.errors import RowError, TableError
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import (
    BIGINT,
    TEXT_KINDS,
    DataType,
    TypeKind,
    array_of,
    timestamp,
)
from headrace.tablelayer.server.kafka_view.avro import schema_ids
from headrace.tablelayer.server.kafka_view.records_to_rows import from_kafka
from headrace.tablelayer.server.kafka_view.rows_to_records import to_kafka
from headrace.tablelayer.tests.model.random_rows import avro_nested_types, batches, plain_types, with_edges
from headrace.tablelayer.tests.server.test_value_formats import DELETE, INSERT, logged, records, table

AVRO = {"table.kafka.value-format": "avro"}
RECORD = {**AVRO, "table.kafka.avro.schema": "record"}
ID = 70_000


def wire(schema: Any, *rows: Any, schema_id: int = ID) -> list[bytes]:
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    values = []
    for row in rows:
        out = io.BytesIO(b"")
        fastavro.schemaless_writer(out, parsed, row)
        values.append(b"\0" + schema_id.to_bytes(4, "big") + out.getvalue())
    return values


def container(schema: Any, *rows: Any, codec: str = "null") -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), rows, codec=codec)
    return out.getvalue()


def of(**fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "r",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }


def decode(definition: TableDefinition, schema: Any, *rows: Any) -> pa.RecordBatch:
    found = records(*((None, value) for value in wire(schema, *rows)))
    return from_kafka(found, definition, {ID: AvroSchema.parse(json.dumps(schema))}).rows


def plain(scalar: pa.Scalar, data_type: DataType) -> Any:
    """Return the value that another implementation reads and writes, without logical types, for an Arrow value."""
    kind = data_type.kind
    if not scalar.is_valid:
        return None
    if kind is TypeKind.ROW:
        return {field.name: plain(scalar[index], field.type) for index, field in enumerate(data_type.fields)}
    if kind is TypeKind.ARRAY:
        return [plain(each, data_type.fields[0].type) for each in scalar.values]
    if kind is TypeKind.MAP:
        pairs = [
            [plain(pair[index], part.type) for index, part in enumerate(data_type.fields)]
            for pair in scalar.values
        ]
        if data_type.fields[0].type.kind in TEXT_KINDS:
            return dict(pairs)
        return [{"key": key, "value": value} for key, value in pairs]
    if kind is TypeKind.DECIMAL:
        unscaled = int(Context(prec=60).scaleb(scalar.as_py(), data_type.scale))
        return unscaled.to_bytes(
            (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, "big", signed=True
        )
    if kind is TypeKind.DATE:
        return scalar.value
    if kind in (TypeKind.TIME, TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_LTZ):
        return scalar.value * (1000 if data_type.unit == "s" else 1)
    return scalar.as_py()


def without_logical(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_logical(each) for name, each in value.items() if name != "logicalType"}
    return [without_logical(each) for each in value] if isinstance(value, list) else value


@settings(max_examples=50, deadline=None)
@given(batches(column_types=plain_types | avro_nested_types, values=with_edges), st.booleans())
def test_r17_every_type_as_another_implementation_reads_it_and_back(
    made: tuple[Schema, pa.RecordBatch], by_registry: bool
) -> None:
    schema, rows = made
    definition = TableDefinition(TablePath("db", "t"), schema, options=RECORD)
    text = schema_text(schema, "db", "t")
    frame = Frame.confluent(ID) if by_registry else Frame.container(text)
    encoded = to_kafka(logged(definition, rows, None), definition, frame)
    from headrace.protocol.records.decode import decode_records

    found = decode_records(encoded)
    parsed = fastavro.parse_schema(without_logical(json.loads(text)))
    wanted = [
        {column.name: plain(values[index], column.type)
         for column, values in zip(schema.columns, rows.columns, strict=True)}
        for index in range(rows.num_rows)
    ]  # fmt: skip
    for index, value in enumerate(found.values()):
        assert value is not None
        if by_registry:
            assert value[:5] == b"\0" + ID.to_bytes(4, "big")
            stream = io.BytesIO(value[5:])
            got = fastavro.schemaless_reader(stream, parsed)
            assert stream.read() == b""
        else:
            assert fastavro.reader(io.BytesIO(value)).writer_schema["name"] == "db.t"
            stream = io.BytesIO(value[len(frame.front) : -16])
            while stream.read(1)[0] > 127:  # the block's size
                pass
            got = fastavro.schemaless_reader(stream, parsed)
            assert stream.read() == b""
        assert got == wanted[index]
    assert schema_ids(found) == ([ID] if by_registry and len(found) else [])
    schemas = {ID: AvroSchema.parse(text)}
    assert from_kafka(found, definition, schemas).rows.equals(rows)
    written = wire(without_logical(json.loads(text)), *wanted)
    assert from_kafka(records(*((None, value) for value in written)), definition, schemas).rows.equals(rows)


EVERYTHING = table(
    "i INT; l BIGINT; f FLOAT; d DOUBLE; s STRING; b BYTES; x BINARY(2); p DECIMAL(10, 2); dt DATE; t TIME(3); "
    "ts TIMESTAMP(3); tz TIMESTAMP_LTZ(6); ok BOOLEAN",
    **AVRO,
)


def test_r17_2_a_writer_with_another_schema() -> None:
    """Fields are in another order, of other compatible types, in unions of either order, and some are not needed."""
    schema = of(
        skipped={
            "type": "array",
            "items": {"type": "map", "values": ["null", "string", {"type": "array", "items": "long"}]},
        },
        ok=["boolean", "null"],
        tz=["null", {"type": "long", "logicalType": "timestamp-millis"}],
        ts={"type": "long", "logicalType": "timestamp-micros"},
        t={"type": "long", "logicalType": "time-micros"},
        dt={"type": "int", "logicalType": "date"},
        p=[
            "null",
            {
                "type": "fixed",
                "name": "dec",
                "size": 6,
                "logicalType": "decimal",
                "precision": 12,
                "scale": 3,
            },
        ],
        x="bytes",
        b=["null", "string", {"type": "fixed", "name": "three", "size": 3}],
        tree=[
            "null",
            {"type": "record", "name": "tree", "fields": [{"name": "left", "type": ["null", "tree"]}]},
        ],
        s={"type": "enum", "name": "color", "symbols": ["RED", "GREEN"]},
        d="float",
        f="int",
        l="int",
        i=["null", "int", "long"],
    )
    utc = datetime.UTC
    base = {
        "skipped": [{"a": None, "b": "x", "c": [1, 2]}, {}], "ok": True, "tz": None, "p": None, "b": "text",
        "s": "GREEN",
        "ts": datetime.datetime(2024, 9, 19, 12, 0, 0, 5000, utc), "t": datetime.time(1, 2, 3, 4000),
        "dt": datetime.date(1969, 12, 31), "x": b"ab", "tree": {"left": {"left": None}}, "d": 1.5, "f": 7,
        "l": -3, "i": 5,
    }  # fmt: skip
    other = {
        **base, "skipped": [], "ok": None, "tz": datetime.datetime(2024, 9, 19, tzinfo=utc), "p": Decimal("-12.340"),
        "b": b"\xff\x00\x01", "s": "RED", "tree": None, "i": None,
    }  # fmt: skip
    rows = decode(EVERYTHING, schema, base, other).to_pylist()
    assert rows[0] == {
        "i": 5, "l": -3, "f": 7.0, "d": 1.5, "s": "GREEN", "b": b"text", "x": b"ab", "p": None,
        "dt": datetime.date(1969, 12, 31), "t": datetime.time(1, 2, 3, 4000),
        "ts": datetime.datetime(2024, 9, 19, 12, 0, 0, 5000), "tz": None, "ok": True,
    }  # fmt: skip
    assert (rows[1]["p"], rows[1]["b"], rows[1]["s"], rows[1]["ok"], rows[1]["i"]) == (
        Decimal("-12.34"), b"\xff\x00\x01", "RED", None, None,
    )  # fmt: skip
    assert rows[1]["tz"] == datetime.datetime(2024, 9, 19, tzinfo=utc)


def test_r17_6_columns_that_the_writer_does_not_know_have_their_default() -> None:
    schema = Schema.of(
        [Column(1, "k", BIGINT, nullable=False), Column(2, "n", BIGINT, default="7"), Column(3, "m", BIGINT)],
        ("k",),
    )
    definition = TableDefinition(TablePath("db", "t"), schema, options=AVRO)
    assert decode(definition, of(k="long"), {"k": 1}).to_pylist() == [{"k": 1, "n": 7, "m": None}]
    with pytest.raises(RowError, match="no such field, but the column is NOT NULL") as caught:
        decode(definition, of(n="long"), {"n": 1})
    assert (caught.value.index, caught.value.column) == (0, "k")


@pytest.mark.parametrize(
    ("kind", "good", "bad", "reason"),
    [
        ("i long", (1 << 31) - 1, 1 << 40, "out of the range of INT"),
        ("i long", -(1 << 31), 1 << 31, "out of the range of INT"),
        ("i long", 1, -(1 << 31) - 1, "out of the range of INT"),
        ("f double", 1.0, 1e300, "out of the range of FLOAT"),
        ("s bytes", b"a", b"\xff", "not UTF-8"),
        ("x bytes", b"ab", b"a", "1 bytes does not have the 2"),
        ("ok boolean", True, None, ""),
        ("i boolean", True, None, "which cannot be read as INT"),
        ("tz local-timestamp-millis", 1, None, "which cannot be read as TIMESTAMP_LTZ"),
        ("ts timestamp-micros", 1000, 1, "more digits of a second"),
        ("t time-micros", 1000, 86_400_000_000, "not a time of day"),
        ("l date", 1, None, ""),
        ("dt long", 1, None, "which cannot be read as DATE"),
        ("p decimal", b"\x0a", b"\x01", "would lose digits"),
        ("p decimal", b"\x0a", b"\x7f" * 15, "lose digits"),
        ("p decimal", b"\x0a", b"\x7f" * 17, "out of the range"),
        ("p decimal", b"\x0a", b"", "out of the range"),
    ],
)
def test_r17_3_avro_values_outside_the_column_type_are_refused(
    kind: str, good: Any, bad: Any, reason: str
) -> None:
    name, word = kind.split()
    base = {"decimal": "bytes", "date": "int"}.get(word, "long" if "-" in word else word)
    logical = {"type": base, "logicalType": word, "precision": 40, "scale": 3}
    schema = of(**{name: base if base == word else logical})
    parsed = AvroSchema.parse(json.dumps(schema))
    values = wire(
        without_logical(schema), *({name: each} for each in (good, good, good if bad is None else bad))
    )
    found = records(*((None, value) for value in values))
    if not reason:
        assert from_kafka(found, EVERYTHING, {ID: parsed}).rows.num_rows == 3
        return
    with pytest.raises(RowError, match=reason) as caught:
        from_kafka(found, EVERYTHING, {ID: parsed})
    assert (caught.value.index, caught.value.column) == (0 if bad is None else 2, name)


@given(st.data())
def test_r17_3_damaged_values_are_refused_or_read_never_more(data: st.DataObject) -> None:
    """Any bytes end as rows or as a RowError: nothing is read beyond a value, and no input takes long."""
    schema = of(
        a={"type": "array", "items": ["null", {"type": "map", "values": {"type": "array", "items": "null"}}]},
        i=["null", "int"], s="string", p={"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        d="double",
        e={"type": "enum", "name": "e", "symbols": ["A"]}, again=["null", "r"],
    )  # fmt: skip
    row = {
        "a": [None, {"k": [None, None]}],
        "i": 5,
        "s": "text",
        "p": b"\x05",
        "d": 1.0,
        "e": "A",
        "again": None,
    }
    (value,) = wire(without_logical(schema), {**row, "again": row})
    body = bytearray(value)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(5, len(body) - 1))
        body[at : at + 1] = data.draw(st.binary(max_size=2))
    damaged = bytes(body) if data.draw(st.booleans()) else bytes(body[: data.draw(st.integers(5, len(body)))])
    parsed = {ID: AvroSchema.parse(json.dumps(schema))}
    try:
        stream = io.BytesIO(damaged[5:])
        parsed_by_other = fastavro.parse_schema(without_logical(schema))
        # Text in fields that no column needs is skipped here, not decoded.
        wanted = fastavro.schemaless_reader(stream, parsed_by_other, handle_unicode_errors="replace")
        complete = stream.read() == b""
    except Exception:  # noqa: BLE001 - whatever the other implementation makes of it
        wanted, complete = None, False
    try:
        rows = from_kafka(records((None, damaged), (None, value)), EVERYTHING, parsed).rows
    except RowError as error:
        index = error.index
        assert index == 0
        return
    rows.validate(full=True)
    assert complete
    assert rows.to_pylist()[0]["i"] == wanted["i"]
    assert rows.to_pylist()[0]["s"] == wanted["s"]


def test_r17_3_unreadable_avro_values_are_named() -> None:
    good = wire(of(i="int"), {"i": 1})[0]
    parsed = {ID: AvroSchema.parse(json.dumps(of(i="int"))), 9: "schema 9 is not known to the registry"}
    for value, reason in (
        (b'{"i": 1}', "it is not an Avro value: it begins with 7b 22"),
        (b"", "it begins with nothing"),
        (b"\0\0\0", "it is not an Avro value"),
        (b"\0\0\0\0\x09\x02", "schema 9 is not known"),
        (b"\0\0\0\0\x0a\x02", "number 10 of a registry, but neither the table"),
        (good + b"x", "there are bytes behind the record"),
        (good[:5], "the record ends inside this value"),
        (container(of(i="int"), {"i": 1}, {"i": 2}), "one block with one record"),
        (container(of(i="int"), {"i": 1})[:-1] + b"?", "one block with one record"),
        (container(of(i="int"), {"i": 1}, codec="deflate"), "compressed \\(deflate\\)"),
        (b"Obj\x01\x02\x02", "metadata of the Avro container file"),
    ):
        with pytest.raises(RowError, match=reason) as caught:
            from_kafka(records((None, good), (None, good), (None, value), (None, b"?")), EVERYTHING, parsed)
        assert caught.value.index == 2, value


def test_r17_2_values_of_several_schemas_in_one_batch_keep_their_order() -> None:
    one, two = of(i="int", s="string"), of(l="long", i=["null", "long"])
    values = [
        wire(one, {"i": 1, "s": "a"})[0], container(one, {"i": 2, "s": "b"}),
        wire(two, {"l": 3, "i": 3}, schema_id=5)[0],
        container(two, {"l": 4, "i": 4}), container(one, {"i": 5, "s": "c"}), wire(one, {"i": 6, "s": "d"})[0],
    ]  # fmt: skip
    found = records(*((None, value) for value in values))
    assert schema_ids(found) == [5, ID]
    parsed = {ID: AvroSchema.parse(json.dumps(one)), 5: AvroSchema.parse(json.dumps(two))}
    rows = from_kafka(found, EVERYTHING, parsed).rows
    assert rows.column("i").to_pylist() == [1, 2, 3, 4, 5, 6]
    assert rows.column("s").to_pylist() == ["a", "b", None, None, "c", "d"]


def test_r17_3_schemas_without_end_are_refused() -> None:
    many = [b"\0" + number.to_bytes(4, "big") for number in range(65)]
    with pytest.raises(RowError, match="65 Avro schemas"):
        schema_ids(records(*((None, value) for value in many)))
    files = [container(of(i="int", **{f"f{number}": "null"}), {"i": 1}) for number in range(65)]
    with pytest.raises(RowError, match="more than 64 Avro schemas") as caught:
        from_kafka(records(*((None, value) for value in files)), EVERYTHING)
    assert caught.value.index == 64


def test_r17_2_deletes_by_keys_in_avro_or_json() -> None:
    definition = table("id BIGINT; name STRING", ("id",), **AVRO)
    value = wire(of(id="long", name="string"), {"id": 1, "name": "x"})[0]
    bare, record = wire("long", 3, schema_id=2)[0], wire(of(id="int"), {"id": 4}, schema_id=3)[0]
    found = records((b"ignored", value), (b"2", None), (bare, None), (record, None), (b'{"id":5}', None))
    assert schema_ids(found) == [2, 3, ID]
    schemas = {
        ID: AvroSchema.parse(json.dumps(of(id="long", name="string"))), 2: AvroSchema.parse('"long"'),
        3: AvroSchema.parse(json.dumps(of(id="int"))),
    }  # fmt: skip
    written = from_kafka(found, definition, schemas)
    assert written.rows.column("id").to_pylist() == [1, 2, 3, 4, 5]
    assert written.change_types is not None
    assert (written.change_types == ChangeType.DELETE).tolist() == [False, True, True, True, True]
    with pytest.raises(RowError, match=r"in the record's key, .*registry"):
        from_kafka(records((b"\0\0\0\0\x63\x02", None)), definition)


@pytest.mark.parametrize(
    "key", [b'"+10000-01-01"', b'{"d": "+10000-01-01"}', b'"-0001-12-31"', b'"2024-02-29"']
)
def test_r17_2_a_key_may_be_any_day(key: bytes) -> None:
    """The rules of JSON keys are those of plain rows; an option of connectors does not apply to them."""
    definition = table("d DATE; n INT", ("d",), **AVRO)
    written = from_kafka(records((key, None)), definition, {})
    text = key.decode().strip('{"d: }')
    assert written.rows.column("d").cast(pa.int32()).to_pylist() == [days_of(text)]
    with pytest.raises(RowError, match="is not a date") as caught:
        from_kafka(records((b'"2024-02-30"', None)), definition, {})
    assert "out-of-range" not in str(caught.value)


def days_of(text: str) -> int:
    """Return the days since 1970 of an ISO date of any year (Hinnant, "days_from_civil")."""
    year, month, day = (int(each) for each in text.rsplit("-", 2))
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def test_r17_1_a_compacted_topic_of_avro_values() -> None:
    definition = table("id BIGINT; name STRING", ("id",), **RECORD)
    rows = pa.RecordBatch.from_pylist(
        [{"id": 1, "name": "a"}, {"id": 2, "name": None}], definition.schema.arrow()
    )
    from headrace.protocol.records.decode import decode_records

    found = decode_records(
        to_kafka(logged(definition, rows, [INSERT, DELETE]), definition, Frame.confluent(1))
    )
    assert found.keys() == [b'{"id":1}', b'{"id":2}']
    assert found.values() == [b"\0\0\0\0\x01\x02\x02\x02a"[:5] + b"\x02\x02\x02a", None]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ('"strin"', "no type 'strin'"),
        ("[]", "empty"),
        ('["null", ["int"]]', "contains a union"),
        ('{"type": "record", "name": "r"}', "no 'fields'"),
        ('{"type": "record", "name": "r", "fields": [{"name": "a", "type": "r"}]}', "contains itself"),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}',
            "two",
        ),
        ('{"type": "fixed", "name": "f", "size": -1}', "size -1"),
        ('{"type": "enum", "name": "f", "symbols": [1]}', "symbols"),
        ('{"type": "array"}', "no 'items'"),
        ("5", "not a type"),
        ("[" * 900 + "]" * 900, "nested too deeply|contains a union|empty"),
    ],
)
def test_schemas_that_are_wrong_are_refused(text: str, reason: str) -> None:
    with pytest.raises(AvroSchemaError, match=reason):
        AvroSchema.parse(text)


def test_a_column_without_an_avro_field_is_refused() -> None:
    with pytest.raises(TableError, match="column 'a-b': a field's name in Avro"):
        table("a-b INT", **RECORD)
    assert np.array(table("a_b INT", **RECORD).schema.names).tolist() == ["a_b"]


NESTED = table(
    "id INT; who ROW<name STRING, age INT NOT NULL, born DATE>; tags ARRAY<CHAR(3) NOT NULL>; "
    "attrs MAP<STRING, ROW<v DECIMAL(5, 2)>>; days MAP<DATE, ARRAY<INT>>; gone ARRAY<INT>",
    **AVRO,
)
PERSON = {
    "type": "record", "name": "person", "fields": [
        {"name": "more", "type": {"type": "array", "items": "string"}},
        {"name": "age", "type": ["int", "null", "long"]},
        {"name": "name", "type": ["null", {"type": "enum", "name": "e", "symbols": ["BOB"]}, "string"]},
    ],
}  # fmt: skip
MILLS = {"type": "fixed", "size": 3, "name": "f", "logicalType": "decimal", "precision": 6, "scale": 3}
VALUE = {"type": "record", "name": "v", "fields": [{"name": "v", "type": MILLS}]}
FOREIGN = of(
    who=["null", PERSON],
    tags={"type": "array", "items": ["string", "bytes", "null"]},
    attrs={"type": "map", "values": ["null", VALUE]},
    days={"type": "array", "items": {"type": "record", "name": "pair", "fields": [
        {"name": "k", "type": {"type": "int", "logicalType": "date"}},
        {"name": "v", "type": ["null", {"type": "array", "items": "long"}]},
    ]}},
    gone={"type": "array", "items": "null"},
)  # fmt: skip
GOOD = {"who": {"more": ["x"], "age": 5, "name": "Ann"}, "tags": ["a", b"bc"], "attrs": {"k": {"v": Decimal("1.500")}},
        "days": [{"k": datetime.date(2024, 9, 19), "v": [1]}], "gone": [None, None]}  # fmt: skip


def test_r20_nested_values_of_a_writer_with_another_schema() -> None:
    other = {
        "who": {"more": [], "age": 1 << 20, "name": "BOB"}, "tags": [], "gone": [],
        "attrs": {"": None, "ö": {"v": Decimal("-2.25")}}, "days": [{"k": datetime.date(1, 1, 1), "v": None}],
    }  # fmt: skip
    rows = decode(NESTED, FOREIGN, GOOD, {**other, "who": None}, other).to_pylist()
    assert rows[0] == {
        "id": None, "who": {"name": "Ann", "age": 5, "born": None}, "tags": ["a", "bc"],
        "attrs": [("k", {"v": Decimal("1.50")})], "days": [(datetime.date(2024, 9, 19), [1])], "gone": [None, None],
    }  # fmt: skip
    assert rows[1]["who"] is None
    assert rows[2]["who"] == {"name": "BOB", "age": 1 << 20, "born": None}
    assert rows[1]["attrs"] == [("", None), ("ö", {"v": Decimal("-2.25")})]
    assert rows[1]["days"] == [(datetime.date(1, 1, 1), None)]
    assert (rows[1]["tags"], rows[1]["gone"]) == ([], [])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"tags": ["a", None]}, r"tags\[1\].*NOT NULL"),
        ({"tags": ["a", "bc", "long"]}, None),
        ({"tags": ["a", "bc", "longer"]}, r"tags\[2\].*longer than CHAR\(3\)"),
        ({"tags": [b"\xff"]}, r"tags\[0\].*not UTF-8"),
        ({"who": {"more": [], "age": None, "name": None}}, r"who.age: null, but the field is NOT NULL"),
        ({"who": {"more": [], "age": 1 << 40, "name": None}}, r"who.age: .*out of the range of INT"),
        ({"attrs": {"k": None, "l": {"v": Decimal("0.001")}}}, r"attrs\[1\].v: .*lose digits"),
        ({"days": [{"k": datetime.date(1, 1, 1), "v": [1, 1 << 31]}]}, r"days\[0\]\[1\]: .*out of the range"),
    ],
)
def test_r20_2_a_wrong_nested_value_is_named_with_its_path(bad: dict[str, Any], reason: str | None) -> None:
    if reason is None:  # four characters are too many, whatever they were before
        reason = r"tags\[2\].*4 characters"
    with pytest.raises(RowError, match=reason) as caught:
        decode(NESTED, FOREIGN, GOOD, GOOD, {**GOOD, **bad})
    assert caught.value.index == 2
    assert (caught.value.column or "").split(".")[0] in bad


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("who", {"type": "map", "values": "string"}, {}),
        ("tags", {"type": "map", "values": "string"}, {}),
        ("attrs", {"type": "array", "items": "string"}, []),
        ("id", PERSON, GOOD["who"]),
        (
            "who",
            {"type": "record", "name": "r2", "fields": [{"name": "age", "type": "boolean"}]},
            {"age": True},
        ),
    ],
)
def test_r20_2_nested_types_that_are_not_read_as_the_column(name: str, kind: Any, value: Any) -> None:
    with pytest.raises(RowError, match="which cannot be read as") as caught:
        decode(NESTED, of(**{name: kind}), {name: value})
    assert (caught.value.index, caught.value.column) == (0, name)


def test_r20_2_fields_that_a_row_does_not_have() -> None:
    strict = table("id INT; who ROW<name STRING>", **AVRO, **{"table.kafka.unknown-fields": "fail"})
    with pytest.raises(RowError, match="the ROW has no field 'more', and"):
        decode(strict, of(id="int", who=PERSON), {"id": 1, "who": GOOD["who"]})


def test_r17_3_one_null_among_the_values_of_a_not_null_column() -> None:
    definition = table("id INT; n INT NOT NULL", **AVRO)
    rows = ({"id": 1, "n": 1}, {"id": 2, "n": None}, {"id": 3, "n": 3})
    with pytest.raises(RowError, match="the value is null, but the column is NOT NULL") as caught:
        decode(definition, of(id="int", n=["null", "int"]), *rows)
    assert (caught.value.index, caught.value.column) == (1, "n")


def test_r17_3_fields_that_the_table_does_not_have_are_left_out_or_refused() -> None:
    schema, row = of(id="int", more="int"), {"id": 1, "more": 2}
    assert decode(table("id INT; n INT", **AVRO), schema, row).to_pylist() == [{"id": 1, "n": None}]
    strict = table("id INT; n INT", **AVRO, **{"table.kafka.unknown-fields": "fail"})
    with pytest.raises(RowError, match="the table has no such column") as caught:
        decode(strict, schema, row)
    assert caught.value.column == "more"


def test_r20_2_items_without_bytes_are_bounded_over_all_rows() -> None:
    schema = of(gone={"type": "array", "items": "null"})
    half = {"gone": [None] * (600 << 10)}
    assert decode(NESTED, schema, half).num_rows == 1
    with pytest.raises(RowError, match="items that take no bytes") as caught:
        decode(NESTED, schema, half, half)
    assert (caught.value.index, caught.value.column) == (1, "gone")


def test_r20_2_items_without_bytes_do_not_fill_the_memory() -> None:
    parsed = {ID: AvroSchema.parse(json.dumps(of(gone={"type": "array", "items": "null"})))}
    many = b"\0" + ID.to_bytes(4, "big") + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\0"
    with pytest.raises(RowError, match="items that take no bytes") as caught:
        from_kafka(records((None, many[:5] + b"\x02\0"), (None, many)), NESTED, parsed)
    assert (caught.value.index, caught.value.column) == (1, "gone")


def test_r20_names_of_types_in_avro_do_not_collide() -> None:
    schema = table(
        "t ROW<b ROW<x INT>, bytes BINARY(2)>; t_b ROW<y INT>; t_bytes BINARY(3); m MAP<INT, BINARY(4)>; "
        "m_entry ROW<z INT>",
        **RECORD,
    ).schema  # fmt: skip
    value = json.loads(schema_text(schema, "db", "t"))
    fastavro.parse_schema(value)
    AvroSchema.parse(json.dumps(value))
    with pytest.raises(TableError, match="column 'r', field 'two words': a field's name in Avro"):
        table("r ROW<`two words` INT>", **RECORD)


def test_r17_times_that_milliseconds_do_not_reach_are_refused_when_written() -> None:
    columns = (Column(1, "at", timestamp(0)), Column(2, "all", array_of(timestamp(0))))
    good, bad = ((1 << 63) - 1) // 1000, ((1 << 63) - 1) // 1000 + 1

    def batch(at: int, inside: int) -> pa.RecordBatch:
        first = pa.array([0, None, at], pa.int64()).view(pa.timestamp("s"))
        rest = pa.array([[1], None, [0, inside]], pa.list_(pa.int64()))
        return pa.RecordBatch.from_arrays(
            [first, rest.cast(pa.list_(pa.timestamp("s")))],
            schema=pa.schema([each.field() for each in columns]),
        )

    check_range(columns, batch(-good, good))
    for rows, name in ((batch(-bad, 1), "at"), (batch(0, bad), "all")):
        with pytest.raises(RowError, match="292 million years") as caught:
            check_range(columns, rows)
        assert (caught.value.index, caught.value.column) == (2, name)
        with pytest.raises(RowError, match="292 million years"):
            rows_to_avro(rows, Schema.of(columns), Frame.confluent(1))
