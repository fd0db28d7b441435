"""Rows to JSON and back, against Python's own json, decimal and datetime as the oracle."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.tablelayer.model.errors import RowError, TableErrorCode
from headrace.tablelayer.model.json import connect_schema
from headrace.tablelayer.model.json.rows import json_to_rows, rows_to_json, warm
from headrace.tablelayer.model.json.texts import JsonTexts, find_fields
from headrace.tablelayer.model.options.table_options import UnknownFields
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.types import column_types as t
from headrace.tablelayer.model.types.column_types import TypeKind

WIDE = Context(prec=2000, Emax=10**9, Emin=-(10**9))
EPOCH = dt.datetime(1970, 1, 1)
TYPES = [
    t.BOOLEAN, t.TINYINT, t.SMALLINT, t.INT, t.BIGINT, t.FLOAT, t.DOUBLE, t.char(3), t.STRING,
    t.decimal(5, 5), t.decimal(15, 2), t.decimal(18, 0), t.decimal(19, 4), t.decimal(20, 0),
    t.decimal(38, 10), t.decimal(38, 38), t.DATE,
    t.time(0), t.time(2), t.time(6), t.time(9), t.timestamp(0), t.timestamp(3),
    t.timestamp(6), t.timestamp(9), t.timestamp_ltz(3), t.timestamp_ltz(6), t.binary(3), t.BYTES,
]  # fmt: skip
SCHEMA = Schema.of([(f"c{index} {kind}".replace(",", ";"), kind) for index, kind in enumerate(TYPES)])

relaxed = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    warm()


def one(data_type, value_json, **options):
    """The value of a one-column row read from JSON text."""
    schema = Schema.of([("v", data_type)])
    text = value_json if isinstance(value_json, bytes) else f'{{"v":{value_json}}}'.encode()
    return json_to_rows(pa.array([text], pa.binary()), schema, **options).column(0)[0]


def values_of(data_type):
    """Values that an Arrow array of the type takes, over the whole range of the type."""
    units = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    match data_type.kind:
        case TypeKind.BOOLEAN:
            return st.booleans()
        case TypeKind.TINYINT | TypeKind.SMALLINT | TypeKind.INT | TypeKind.BIGINT:
            limit = 1 << (t.INTEGER_BITS[data_type.kind] - 1)
            return st.integers(-limit, limit - 1) | st.sampled_from([-limit, limit - 1])
        case TypeKind.FLOAT:
            return st.floats(width=32, allow_nan=False)
        case TypeKind.DOUBLE:
            return st.floats(allow_nan=False)
        case TypeKind.CHAR:
            return st.text(max_size=data_type.length)
        case TypeKind.STRING:
            return st.text(max_size=20)
        case TypeKind.DECIMAL:
            limit = 10**data_type.precision - 1
            integers = st.integers(-limit, limit) | st.sampled_from([-limit, limit]) | st.integers(-9, 9)
            return integers.map(lambda value: Decimal(value).scaleb(-data_type.scale, context=WIDE))
        case TypeKind.DATE:
            return st.integers(-(2**31), 2**31 - 1) | st.integers(-(10**6), 10**6)
        case TypeKind.TIME:
            step = 10 ** (max(0, {0: 0, 2: 3, 6: 6, 9: 9}[data_type.precision] - data_type.precision))
            return st.integers(0, 86_400 * units[data_type.unit] // step - 1).map(lambda value: value * step)
        case TypeKind.TIMESTAMP | TypeKind.TIMESTAMP_LTZ:
            limit = 2**63 - 1 if data_type.unit in ("us", "ns") else 2**31 * 86_400
            near = min(limit, 10**10 * units[data_type.unit])
            return st.integers(-limit, limit) | st.integers(-near, near) | st.sampled_from([-limit, limit])
        case TypeKind.BINARY:
            return st.binary(min_size=data_type.length, max_size=data_type.length)
        case _:
            return st.binary(max_size=9)


def arrow_array(data_type, values):
    """An Arrow array of Python values; times and dates are given as their numbers."""
    arrow = data_type.arrow()
    if data_type.kind in (TypeKind.DATE, TypeKind.TIME):
        return pa.array(values, pa.int32() if arrow.bit_width == 32 else pa.int64()).cast(arrow)
    if data_type.kind in t.TIMESTAMP_KINDS:
        return pa.array(values, pa.int64()).cast(arrow)
    return pa.array(values, arrow)


@st.composite
def batches(draw):
    count = draw(st.integers(0, 6))
    columns = draw(st.lists(st.integers(0, len(TYPES) - 1), min_size=1, max_size=6, unique=True))
    arrays = [
        arrow_array(TYPES[i], draw(st.lists(st.none() | values_of(TYPES[i]), min_size=count, max_size=count)))
        for i in columns
    ]
    schema = pa.schema([SCHEMA.columns[i].field() for i in columns])
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    start = draw(st.integers(0, count))
    return [SCHEMA.columns[i] for i in columns], batch.slice(start)


def text_of_decimal(value, scale):
    digits = f"{abs(int(value.scaleb(scale, context=WIDE))):0{scale + 1}d}"
    return ("-" if value < 0 else "") + (digits[:-scale] + "." + digits[-scale:] if scale else digits)


@relaxed
@given(batches())
def test_rows_go_out_and_come_back_the_same(given_batch):
    columns, batch = given_batch
    out = rows_to_json(batch)
    back = json_to_rows(out, columns)
    back.validate(full=True)
    assert back.equals(batch)


@relaxed
@given(batches())
def test_written_json_is_what_python_writes(given_batch):
    columns, batch = given_batch
    for row, text in enumerate(rows_to_json(batch).to_pylist()):
        parsed = json.loads(text.decode(), parse_float=Raw, parse_int=Raw, parse_constant=refuse)
        assert list(parsed) == [column.name for column in columns]
        plain = {}
        for index, column in enumerate(columns):
            value = batch.column(index)[row]
            got = parsed[column.name]
            plain[column.name] = json.loads(json.dumps(got)) if not isinstance(got, Raw) else None
            if not value.is_valid:
                assert got is None
                continue
            match column.type.kind:
                case TypeKind.DECIMAL:
                    assert got == text_of_decimal(value.as_py(), column.type.scale)
                case TypeKind.FLOAT | TypeKind.DOUBLE:
                    assert np.float64(got).astype(column.type.arrow().to_pandas_dtype()) == value.as_py()
                    assert isinstance(got, Raw) == np.isfinite(value.as_py())
                case TypeKind.BINARY | TypeKind.BYTES:
                    assert got == base64.b64encode(value.as_py()).decode()
                case TypeKind.DATE:
                    if 0 < value.value + 719163 <= dt.date.max.toordinal():
                        assert got == dt.date.fromordinal(value.value + 719163).isoformat()
                case TypeKind.TIMESTAMP if column.type.precision in (0, 3, 6):
                    micros = value.value * {"s": 10**6, "ms": 10**3, "us": 1}[column.type.unit]
                    if abs(micros) < 10**16:
                        moment = EPOCH + dt.timedelta(microseconds=micros)
                        assert dt.datetime.fromisoformat(got) == moment
                        assert len(got) == (19 if column.type.precision == 0 else 26 if micros % 1000 else 23)
                case TypeKind.TIME | TypeKind.TIMESTAMP | TypeKind.TIMESTAMP_LTZ:
                    assert isinstance(got, str)
                case TypeKind.BOOLEAN | TypeKind.STRING | TypeKind.CHAR:
                    assert got == value.as_py()
                    dumped = json.dumps(value.as_py(), ensure_ascii=False)
                    assert f"{json.dumps(column.name, ensure_ascii=False)}:{dumped}" in text.decode()
                case _:
                    assert got == str(value.as_py())


class Raw(str):
    """The text of a JSON number, as it stands."""


def refuse(text):
    raise ValueError(f"{text} is not JSON")


NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
BLANKS = "".join(map(chr, range(33)))


class MisfitError(Exception):
    """The value does not fit the column, says the oracle."""


def expected(data_type, value, source):
    """Return the value of a parsed JSON value in a column of a type; `source` is the text of objects and arrays."""
    kind = data_type.kind
    if value is None:
        return None
    if kind in t.TEXT_KINDS:
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, (dict, list)):
            value = source
        if kind is TypeKind.CHAR and len(value) > data_type.length:
            raise MisfitError
        if any(0xD800 <= ord(character) < 0xE000 for character in value):
            raise MisfitError
        return str(value)
    if isinstance(value, (dict, list)):
        raise MisfitError
    if kind is TypeKind.BOOLEAN:
        words = {"true": True, "false": False}
        if isinstance(value, bool):
            return value
        if isinstance(value, Raw) or not isinstance(value, str) or value.strip(BLANKS).lower() not in words:
            raise MisfitError
        return words[value.strip(BLANKS).lower()]
    if isinstance(value, bool):
        raise MisfitError
    if kind in t.NUMERIC_KINDS:
        text = value.strip(BLANKS)
        if kind in t.FLOAT_KINDS and not isinstance(value, Raw):
            words = {"nan": "NaN", "infinity": "inf", "+infinity": "inf", "-infinity": "-inf"}
            if text.lower() in words:
                return float(words[text.lower()])
        if not NUMBER.fullmatch(text):
            raise MisfitError
        if kind in t.FLOAT_KINDS:
            return nearest(text, kind)
        number = WIDE.create_decimal(text)
        scale = data_type.scale
        unscaled = number.scaleb(scale, context=WIDE)
        if unscaled != unscaled.to_integral_value():
            raise MisfitError
        if kind is TypeKind.DECIMAL:
            if abs(unscaled) >= 10**data_type.precision:
                raise MisfitError
            return number
        limit = 1 << (t.INTEGER_BITS[kind] - 1)
        if not -limit <= number < limit:
            raise MisfitError
        return int(number)
    if isinstance(value, Raw):
        raise MisfitError
    if kind is TypeKind.DATE:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
            raise MisfitError
        try:
            return dt.date.fromisoformat(value)
        except ValueError:
            raise MisfitError from None
    raise AssertionError(kind)


def nearest(text, kind):
    """The float nearest to a decimal text, found without trusting any float parser for FLOAT."""
    if kind is TypeKind.DOUBLE:
        number = float(text)
        if np.isinf(number):
            raise MisfitError
        return number
    exact = Fraction(text)
    with np.errstate(over="ignore"):
        guess = np.float32(float(text))
        infinity = np.float32(np.inf)
        candidates = [guess, np.nextafter(guess, -infinity), np.nextafter(guess, infinity)]
    limit = Fraction(float(np.finfo(np.float32).max)) * (1 + Fraction(1, 2**25))
    if abs(exact) >= limit:
        raise MisfitError
    finite = [candidate for candidate in candidates if np.isfinite(candidate)]
    best = min(abs(Fraction(float(candidate)) - exact) for candidate in finite)
    near = [candidate for candidate in finite if abs(Fraction(float(candidate)) - exact) == best]
    even = [candidate for candidate in near if candidate.view(np.uint32) % 2 == 0]
    return float((even or near)[0])


READ_TYPES = [
    t.BOOLEAN, t.TINYINT, t.SMALLINT, t.INT, t.BIGINT, t.FLOAT, t.DOUBLE, t.char(2), t.STRING,
    t.decimal(5, 5), t.decimal(15, 2), t.decimal(19, 0), t.decimal(38, 10), t.DATE,
]  # fmt: skip
READ_SCHEMA = Schema.of([(f"f{index}", kind) for index, kind in enumerate(READ_TYPES)])

numbers = st.one_of(
    st.integers(-(10**40), 10**40).map(str),
    st.integers(-300, 300).map(str),
    st.builds(
        lambda sign, bits, near: str(sign * 2**bits + near),
        st.sampled_from([-1, 1]),
        st.sampled_from([7, 15, 31, 63]),
        st.integers(-1, 1),
    ),
    st.decimals(allow_nan=False, allow_infinity=False).map(str).filter(lambda text: len(text) < 60),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.builds(
        lambda sign, whole, fraction, exponent: f"{sign}{whole}{fraction}{exponent}",
        st.sampled_from(["", "-"]),
        st.integers(0, 10**17).map(str) | st.just("1" + "0" * 40),
        st.sampled_from(["", ".0", ".50", ".10", ".01", ".0000000001", "." + "0" * 50 + "1", "." + "0" * 50]),
        st.sampled_from(["", "e0", "E2", "e+3", "e-2", "E-45", "e38", "e400", "e-400"]),
    ),
).filter(lambda text: re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", text))
texts = st.one_of(
    st.text(max_size=24),
    st.text('ab!#[]\x1f "\\\x80\x01', max_size=40),
    numbers,
    numbers.map(lambda text: f" +{text}\t"),
    st.dates().map(str),
    st.sampled_from(["", "true", "FALSE", "NaN", "-Infinity", "2023-02-29", "2024-02-29", "2024-1-1"]),
    st.sampled_from(["1e", ".", "-", ".5", "5.", '😀é\\"\n']),
)
scalars = st.one_of(
    st.none().map(json.dumps),
    st.booleans().map(json.dumps),
    numbers,
    st.builds(lambda text, ascii_only: json.dumps(text, ensure_ascii=ascii_only), texts, st.booleans()),
)
blanks = st.sampled_from(["", "", "", " ", "\n", "\t \r\n"])


def nested(children):
    """Arrays and objects in JSON text, with blanks between the tokens."""

    def array(items, blank):
        return "[" + blank + ("," + blank).join(items) + "]"

    def an_object(items, blank):
        fields = [f"{json.dumps(key)}{blank}:{value}{blank}" for key, value in items]
        return "{" + blank + ",".join(fields) + "}"

    pairs = st.tuples(st.text(max_size=3), children)
    return st.builds(array, st.lists(children, max_size=3), blanks) | st.builds(
        an_object, st.lists(pairs, max_size=3), blanks
    )


documents = st.recursive(scalars, nested, max_leaves=6)


@st.composite
def objects(draw):
    """JSON text of an object: some wanted fields in any order, duplicates, and unknown ones."""
    names = st.sampled_from(READ_SCHEMA.names) | st.sampled_from(["x", "f", "f99", "é", 'q"'])
    fields = draw(st.lists(st.tuples(names, documents), max_size=6))
    blank = draw(blanks)
    pieces = []
    for name, text in fields:
        key = json.dumps(name)
        if draw(st.integers(0, 9)) == 0:
            key = '"' + "".join(f"\\u{ord(character):04X}" for character in name) + '"'
        pieces.append(f"{blank}{key}{blank}:{blank}{text}")
    return blank + "{" + f"{blank},".join(pieces) + blank + "}" + blank


def parse_with_python(text):
    """The top-level fields (last one counts) with the source text of each, or ValueError."""
    sources = {}

    def keep(pairs):
        return dict(pairs)

    value = json.loads(text, object_pairs_hook=keep, parse_float=Raw, parse_int=Raw, parse_constant=refuse)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    decoder = json.JSONDecoder()
    at = text.index("{") + 1
    while True:
        at = len(text) - len(text[at:].lstrip(" \n\r\t"))
        if text[at] == "}":
            return value, sources
        if text[at] == ",":
            at = len(text) - len(text[at + 1 :].lstrip(" \n\r\t"))
        name, at = decoder.raw_decode(text, at)
        at = len(text) - len(text[at:].lstrip(" \n\r\t:"))
        _, end = decoder.raw_decode(text, at)
        sources[name] = text[at:end]
        at = end


def check_against_oracle(data):
    """Compare json_to_rows with the oracle: the same row, or a RowError where the oracle finds no fit."""
    batch = pa.array([b"{}", data], pa.binary())
    try:
        value, sources = parse_with_python(data.decode())
        wanted = {}
        for column in READ_SCHEMA.columns:
            try:
                wanted[column.name] = expected(column.type, value.get(column.name), sources.get(column.name))
            except MisfitError:
                wanted[column.name] = MisfitError
    except (ValueError, RecursionError):
        with pytest.raises(RowError) as caught:
            json_to_rows(batch, READ_SCHEMA)
        assert caught.value.index == 1
        return
    misfits = [name for name, result in wanted.items() if result is MisfitError]
    if misfits:
        with pytest.raises(RowError) as caught:
            json_to_rows(batch, READ_SCHEMA)
        assert caught.value.index == 1
        assert caught.value.column in (misfits[0], None)  # None: a lone surrogate is found by the scan
        return
    rows = json_to_rows(batch, READ_SCHEMA)
    rows.validate(full=True)
    got = rows.to_pylist()
    assert got[0] == dict.fromkeys(READ_SCHEMA.names)
    for name, result in wanted.items():
        if isinstance(result, float) and np.isnan(result):
            assert np.isnan(got[1][name])
        else:
            assert got[1][name] == result, name
            assert type(got[1][name]) is type(result)


@settings(relaxed, max_examples=250)
@given(objects())
@example('{"f8":{"a":[1,2,{}],"b":"\\ud83d\\ude00"},"f8":[ 1 ]}')
@example('{"f10":"0.10","f4":9223372036854775808}')
def test_reading_agrees_with_python(text):
    check_against_oracle(text.encode())


DAMAGE = [
    b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"0", b"-", b"e", b".", b"\\u12", b"\xff", b"\x01",
    b"\\ud800", b"t", b"nul", b" ", b"\xc3\xa9",
]  # fmt: skip


@settings(relaxed, max_examples=250)
@given(objects(), st.data())
def test_damaged_json_agrees_with_python(text, data):
    """Bytes cut, doubled or replaced: never a crash, never a value that Python would not read."""
    damaged = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, max(0, len(damaged) - 1)))
        damaged[position : position + data.draw(st.integers(0, 2))] = data.draw(st.sampled_from(DAMAGE))
    check_against_oracle(bytes(damaged))


@pytest.mark.parametrize(
    ("data_type", "text", "value"),
    [
        (t.timestamp(3), '"2024-09-19T12:00:00.000Z"', dt.datetime(2024, 9, 19, 12)),
        (t.timestamp(6), '"2024-09-19 12:00:00.123456"', dt.datetime(2024, 9, 19, 12, 0, 0, 123456)),
        (t.timestamp(6), '"2024-09-19T12:00"', dt.datetime(2024, 9, 19, 12)),
        (t.timestamp(0), '"2024-09-19T12:00:01.000"', dt.datetime(2024, 9, 19, 12, 0, 1)),
        (t.timestamp(1), '"2024-09-19T12:00:01.200"', dt.datetime(2024, 9, 19, 12, 0, 1, 200_000)),
        (t.timestamp_ltz(3), '"2024-09-19T12:00:00+02:00"', dt.datetime(2024, 9, 19, 10, tzinfo=dt.UTC)),
        (t.timestamp_ltz(3), '"2024-09-19T00:30:00-0130"', dt.datetime(2024, 9, 19, 2, tzinfo=dt.UTC)),
        (t.timestamp_ltz(6), '"1970-01-01T00:00:00.000001Z"', dt.datetime(1970, 1, 1, 0, 0, 0, 1, dt.UTC)),
        (t.time(3), '"23:59:59.999"', dt.time(23, 59, 59, 999_000)),
        (t.time(0), '"07:05"', dt.time(7, 5)),
        (t.decimal(15, 2), "1.2345E+3", Decimal("1234.50")),
        (t.decimal(15, 2), "12345678901234.5e-1", Decimal("1234567890123.45")),
        (t.decimal(38, 0), "9" * 38, Decimal("9" * 38)),
        (t.decimal(38, 0), "-18446744073709551616", Decimal(-(2**64))),
        (t.decimal(38, 0), "-18446744073709551615", Decimal(1 - 2**64)),
        (t.decimal(5, 2), "0e99999999999999999999", Decimal("0.00")),
        (t.BIGINT, '"-9223372036854775808"', -(2**63)),
        (t.BYTES, '"aGk="', b"hi"),
        (t.BYTES, '""', b""),
        (t.binary(3), '"AQID"', b"\x01\x02\x03"),
    ],
)  # fmt: skip
def test_value_is_read(data_type, text, value):
    assert one(data_type, text).as_py() == value


@pytest.mark.parametrize(
    ("data_type", "text", "reason"),
    [
        (t.INT, "12.5", "not a whole number"),
        (t.TINYINT, "128", "out of the range of TINYINT"),
        (t.INT, '"abc"', "'abc' is not a number"),
        (t.INT, '""', "not a number"),
        (t.INT, "true", "true is not a value of INT"),
        (t.decimal(5, 2), "1.234", "more than 2 digits after the point"),
        (t.decimal(5, 2), "1000", "out of the range of DECIMAL(5, 2)"),
        (t.decimal(38, 0), "1e38", "out of the range"),
        (t.decimal(5, 2), "1e99999999999999999999", "out of the range"),
        (t.decimal(5, 2), "1e-99999999999999999999", "more than 2 digits"),
        (t.DOUBLE, "1e400", "out of the range of DOUBLE"),
        (t.FLOAT, "1e39", "out of the range of FLOAT"),
        (t.char(2), '"abc"', "'abc' is longer than CHAR(2)"),
        (t.DATE, '"2023-02-29"', "is not a date"),
        (t.DATE, '"2024-13-01"', "is not a date"),
        (t.DATE, '"2024-09-19T00:00:00"', "is not a date"),
        (t.DATE, "19985", "not a value of DATE"),
        (t.timestamp(3), '"2024-09-19T24:00:00"', "is not a timestamp"),
        (t.timestamp(3), '"2024-09-19"', "is not a timestamp"),
        (t.timestamp(3), '"2024-09-19T12:00:00.1234"', "declare the column TIMESTAMP(6), or cut the value"),
        (t.timestamp(9), '"2024-09-19T12:00:00.1234567891"', "more digits of a second than TIMESTAMP(9) keeps: cut"),
        (t.timestamp(3), '"2024-09-19T12:00:00+02:00"', "has a zone offset"),
        (t.timestamp(9), '"2300-01-01T00:00:00"', "out of the range"),
        (t.timestamp_ltz(3), '"2024-09-19T12:00:00"', "has no time zone"),
        (t.timestamp_ltz(3), '"2024-09-19T12:00:00+99:00"', "is not a timestamp"),
        (t.time(0), '"12:60"', "is not a time"),
        (t.BOOLEAN, '"yes"', "is not true or false"),
        (t.BYTES, '"a"', "not base64"),
        (t.BYTES, '"a-=="', "not base64"),
        (t.BYTES, '"=AAA"', "not base64"),
        (t.binary(3), '"AQI="', "does not have the 3 bytes"),
        (t.binary(3), '"AQIDBA=="', "does not have the 3 bytes"),
    ],
)  # fmt: skip
def test_value_that_does_not_fit_is_refused(data_type, text, reason):
    with pytest.raises(RowError, match=re.escape(reason)) as caught:
        one(data_type, text)
    assert (caught.value.index, caught.value.column) == (0, "v")
    assert caught.value.code is TableErrorCode.INVALID_ROW


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "a row must be a JSON object"),
        (b"[1]", "a row must be a JSON object"),
        (b'{"v":1', "JSON text is cut off"),
        (b'{"v":"abc', "JSON text is cut off"),
        (b'{"v":"abc\\', "JSON text is cut off"),
        (b'{"v":"\\u12', "JSON text is cut off"),
        (b'{"v":1}}', "text after the end"),
        (b'{"v":01}', "invalid JSON at byte"),
        (b'{"v":NaN}', "invalid JSON at byte"),
        (b"{'v':1}", "invalid JSON at byte"),
        (b'{"v":1,}', "invalid JSON at byte"),
        (b'{"v":"a\nb"}', "control character"),
        (b'{"v":"\\x"}', "invalid escape at byte"),
        (b'{"v":"\\ud800"}', "surrogate"),
        (b'{"v":"\xff"}', "not UTF-8"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper"),
        (b'\xef\xbb\xbf{"v":1}', "a row must be a JSON object"),
    ],
)
def test_text_that_is_not_a_json_object_is_refused(text, reason):
    schema = Schema.of([("v", t.STRING)])
    with pytest.raises(RowError, match=reason) as caught:
        json_to_rows(pa.array([b'{"v":"fine"}', text], pa.binary()), schema)
    assert (caught.value.index, caught.value.column) == (1, None)


def test_first_offender_is_named_whichever_way_it_offends():
    schema = Schema.of([Column(0, "a", t.INT, nullable=False), Column(1, "b", t.INT)])
    rows = [b'{"a":1,"b":1}', b'{"a":1,"b":"x"}', b'{"b":1}', b"{"]
    for index, column in [(1, "b"), (2, "a"), (3, None)]:
        with pytest.raises(RowError) as caught:
            json_to_rows(pa.array(rows, pa.binary()), schema)
        assert (caught.value.index, caught.value.column) == (index, column)
        rows[index] = b'{"a":1}'
    assert json_to_rows(pa.array(rows, pa.binary()), schema).column(1).to_pylist() == [1, None, None, None]


def test_a_missing_field_does_not_show_earlier_memory(monkeypatch):
    """Code that compares or copies the texts of all records alike reads nothing outside of them."""
    empty = np.empty

    def poisoned(shape, dtype=float, **options):
        made = empty(shape, dtype, **options)
        if made.dtype == np.int32:
            made[...] = 1 << 30
        return made

    monkeypatch.setattr(np, "empty", poisoned)
    columns = (Column(0, "a", t.INT), Column(1, "schema", t.STRING))
    texts = JsonTexts.of(pa.array(['{"a": 1}', '{"a": 2}', '{"schema": {}}', "{}", "{}"]))
    found = find_fields(texts, columns)
    missing = found.kinds == 0
    assert missing.sum() == 7
    assert not found.starts[missing].any()
    assert not found.lengths[missing].any()
    beside = found.starts[1], found.lengths[1], found.kinds[1]
    assert sorted(len(at) for _, at in connect_schema.groups(texts.data, *beside)) == [1, 4]


def test_missing_and_null_fields():
    schema = Schema.of([Column(0, "a", t.INT, nullable=False), Column(1, "b", t.INT)])
    for text, reason in [(b'{"a":null}', "value is null, but"), (b'{"b":1}', "field is missing, but")]:
        with pytest.raises(RowError, match=reason):
            json_to_rows(pa.array([text], pa.binary()), schema)
    assert json_to_rows(pa.array([b'{"a":1}'], pa.binary()), schema).to_pylist() == [{"a": 1, "b": None}]
    with pytest.raises(RowError, match=r"'b': the field is missing$"):
        json_to_rows(pa.array([b'{"a":1}'], pa.binary()), schema, require_all=True)
    with pytest.raises(RowError, match="row 1: the value is null"):
        json_to_rows(pa.array([b'{"a":1}', None], pa.binary()), schema)


def test_a_default_is_for_a_field_that_is_missing_and_null_is_null():
    schema = Schema.of(
        [Column(0, "a", t.INT, default="5"), Column(1, "b", t.STRING, default="x", nullable=False)]
    )
    texts = pa.array([b"{}", b'{"a":null}', b'{"a":1,"b":"y"}'], pa.binary())
    found = [{"a": 5, "b": "x"}, {"a": None, "b": "x"}, {"a": 1, "b": "y"}]
    assert json_to_rows(texts, schema).to_pylist() == found
    with pytest.raises(RowError, match="the value is null, but the column is NOT NULL"):
        json_to_rows(pa.array([b'{"b":null}'], pa.binary()), schema)


def test_unknown_fields_are_ignored_or_refused():
    text = b'{"v":1,"other":{"v":[2]}}'
    assert one(t.INT, text).as_py() == 1
    with pytest.raises(RowError, match="column 'other'"):
        one(t.INT, text, unknown_fields=UnknownFields.FAIL)


def test_slices_large_and_string_arrays_are_read():
    schema = Schema.of([("v", t.INT)])
    rows = ["{}", '{"v":1}', '{"v":2}']
    for arrow_type in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()):
        got = json_to_rows(pa.array(rows, arrow_type).slice(1), schema)
        assert got.column(0).to_pylist() == [1, 2]
    assert json_to_rows(pa.array([], pa.binary()), schema).num_rows == 0


def test_names_that_json_escapes():
    name = 'a"b\\c'
    schema = Schema.of([(name, t.INT), ("long name of a column; longer than a word", t.INT)])
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int32())] * 2, schema=schema.arrow())
    written = rows_to_json(batch)
    assert json.loads(written[0].as_py()) == {name: 1, "long name of a column; longer than a word": 1}
    assert json_to_rows(written, schema).equals(batch)
    with pytest.raises(RowError, match="invalid JSON at byte"):
        json_to_rows(pa.array([b'{"a"b\\c":1}'], pa.binary()), schema)
    nearly = pa.array([b'{"long name of a column; longer than a wor_":1}'], pa.binary())
    assert json_to_rows(nearly, schema).column(1).to_pylist() == [None]


def test_many_columns_in_any_order():
    schema = Schema.of([(f"column_{index}", t.INT) for index in range(900)])
    names = sorted(schema.names, key=lambda name: hash(name) % 1009)
    text = json.dumps({name: index for index, name in enumerate(names)}).encode()
    row = json_to_rows(pa.array([text], pa.binary()), schema).to_pylist()[0]
    assert row == {name: index for index, name in enumerate(names)}


def test_large_batch_goes_out_and_comes_back():
    count = 20_000
    numbers = np.random.default_rng(7).integers(-(2**62), 2**62, count)
    schema = Schema.of([("a", t.BIGINT), ("b", t.decimal(38, 2)), ("c", t.STRING)])
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(numbers),
            pa.array(numbers).cast(pa.decimal128(36, 0)).cast(pa.decimal128(38, 2)),
            pa.array([f'"{number}"\x00\n' if number % 3 else None for number in numbers.tolist()]),
        ],
        schema=schema.arrow(),
    )
    assert json_to_rows(rows_to_json(batch), schema).equals(batch)


def test_floats_that_json_has_no_numbers_for():
    batch = pa.RecordBatch.from_arrays([pa.array([float("nan"), float("inf"), float("-inf"), 0.1])], ["v"])
    out = rows_to_json(batch).to_pylist()
    assert out == [b'{"v":"NaN"}', b'{"v":"Infinity"}', b'{"v":"-Infinity"}', b'{"v":0.1}']
    back = json_to_rows(pa.array(out, pa.binary()), Schema.of([("v", t.DOUBLE)])).column(0).to_pylist()
    assert np.isnan(back[0])
    assert back[1:] == [float("inf"), float("-inf"), 0.1]


def test_buffers_may_be_longer_than_their_values() -> None:
    """Arrow allows this, by any number of bytes."""
    offsets = pa.py_buffer(np.array([0, 1, 3], np.int32).tobytes() + b"\x07")
    column = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    schema = Schema.of([("b", t.BYTES)])
    written = rows_to_json(pa.record_batch([column], schema=schema.arrow()))
    assert [json.loads(each)["b"] for each in written.to_pylist()] == ["YQ==", "YmM="]
