"""Values of generated rows, as expressions of DuckDB over the number of the row, `i`.

The options are those of Flink's `datagen` and of the `faker` connector. Values are random; only their types and ranges
are those of the original.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from headrace.tablelayer.model.ddl.statements import TemporaryColumn
from headrace.tablelayer.model.types.column_types import TEXT_KINDS, DataType, TypeKind
from headrace.tablelayer.model.types.quoting import quote_text
from headrace.tablelayer.sql.errors import SqlError
from headrace.tablelayer.sql.types import duckdb_type

_RANGES = {
    TypeKind.TINYINT: (-(2**7), 2**7 - 1),
    TypeKind.SMALLINT: (-(2**15), 2**15 - 1),
    TypeKind.INT: (-(2**31), 2**31 - 1),
    TypeKind.BIGINT: (-(2**53), 2**53),
}
_MOMENTS = (TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_LTZ)
_HEX = "0123456789abcdef"


def datagen_value(column: TemporaryColumn, options: dict[str, str]) -> tuple[str, int | None]:
    """Return the expression of a column of `datagen`, and the number of rows after which it ends.

    Takes its options. Raises SqlError.
    """
    assert column.column is not None
    kind, name = column.column.type, column.name
    given = _taken(name, options)
    how = given.pop("kind", "random")
    if how == "sequence":
        start, end = (_integer(name, word, given.pop(word, None)) for word in ("start", "end"))
        _refuse(name, given)
        if end < start:
            raise SqlError(f"column '{name}': the sequence ends at {end}, before its start {start}")
        return f"CAST({start} + i AS {duckdb_type(kind)})", end - start + 1
    if how != "random":
        raise SqlError(f"column '{name}': the kind '{how}' is not in this release; random and sequence are")
    null_rate = _number(name, "null-rate", given.pop("null-rate", "0"))
    value = _random(name, kind, given)
    _refuse(name, given)
    if null_rate:
        value = f"CASE WHEN random() < {null_rate!r} THEN NULL ELSE {value} END"
    return value, None


def _taken(name: str, options: dict[str, str]) -> dict[str, str]:
    prefix = f"fields.{name}."
    return {each[len(prefix) :]: options.pop(each) for each in list(options) if each.startswith(prefix)}


def _refuse(name: str, left: dict[str, str]) -> None:
    for option in left:
        raise SqlError(f"column '{name}': the option 'fields.{name}.{option}' is not in this release")


def _random(name: str, kind: DataType, given: dict[str, str]) -> str:
    written = duckdb_type(kind)
    if kind.kind in _RANGES or kind.kind in (TypeKind.DECIMAL, TypeKind.FLOAT, TypeKind.DOUBLE):
        least, most = _RANGES.get(
            kind.kind, (0, 10 ** (kind.precision - kind.scale) - 1 if kind.precision else 1)
        )
        low, high = (
            _number(name, word, given.pop(word, str(end))) for word, end in (("min", least), ("max", most))
        )
        if kind.kind in _RANGES:
            return f"CAST(floor({low!r} + random() * ({high!r} - {low!r} + 1)) AS {written})"
        return f"CAST({low!r} + random() * ({high!r} - {low!r}) AS {written})"
    if kind.kind in TEXT_KINDS:
        length = _integer(name, "length", given.pop("length", str(kind.length or 100)))
        digit = f"substr('{_HEX}', 1 + CAST(floor(random() * 16) AS INTEGER), 1)"
        return f"array_to_string(list_transform(range({length}), lambda k: {digit} || left('', k + i)), '')"
    if kind.kind is TypeKind.BOOLEAN:
        return "random() < 0.5"
    if kind.kind in _MOMENTS:
        past = _milliseconds(name, given.pop("max-past", "0"))
        return f"CAST(now() - to_milliseconds(CAST(floor(random() * {past}) AS BIGINT)) AS {written})"
    if kind.kind is TypeKind.DATE:
        return "current_date"
    raise SqlError(f"column '{name}': {kind} is not generated in this release; make it a computed column")


def _number(name: str, word: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SqlError(f"column '{name}': {word} '{text}' is not a number") from None


def _integer(name: str, word: str, text: str | None) -> int:
    if text is None or not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise SqlError(f"column '{name}': 'fields.{name}.{word}' must be a whole number, and is {text!r}")
    return int(text)


_UNITS = {"ms": 1, "s": 1000, "sec": 1000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _milliseconds(name: str, text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})\s*([a-z]*)", text.strip())
    if found is None or (found[2] or "ms") not in _UNITS:
        raise SqlError(f"column '{name}': 'max-past' = '{text}' is not a duration")
    return int(found[1]) * _UNITS[found[2] or "ms"]


# Faker

_ARGUMENT = re.compile(r"'([^']*)'")
_EXPRESSION = re.compile(r"#\{\s*([A-Za-z_.]+)\s*((?:'[^']*'\s*,?\s*)*)\}")
_FIRST = (
    "Ann",
    "Bob",
    "Carla",
    "Dan",
    "Eve",
    "Finn",
    "Gina",
    "Hugo",
    "Ida",
    "Jan",
    "Kim",
    "Leo",
    "Mia",
    "Noah",
)
_LAST = (
    "Archer",
    "Baker",
    "Carter",
    "Dyer",
    "Fisher",
    "Glover",
    "Hunter",
    "Mason",
    "Porter",
    "Smith",
    "Turner",
)
_COUNTRIES = (
    "Austria",
    "Brazil",
    "Canada",
    "Denmark",
    "Egypt",
    "France",
    "Ghana",
    "India",
    "Japan",
    "Kenya",
    "Peru",
)
_DAYS = {"SECONDS": 1, "MINUTES": 60, "HOURS": 3600, "DAYS": 86400}


def faker_value(column: TemporaryColumn, options: dict[str, str]) -> tuple[str, int | None]:
    """Return the expression of a column of `faker`. Takes its options. Raises SqlError."""
    assert column.column is not None
    given = _taken(column.name, options)
    text = given.pop("expression", None)
    null_rate = _number(column.name, "null-rate", given.pop("null-rate", "0"))
    _refuse(column.name, given)
    if text is None:
        raise SqlError(f"column '{column.name}': the option 'fields.{column.name}.expression' is missing")
    found = _EXPRESSION.fullmatch(text.strip())
    make = _FAKED.get(found[1].lower()) if found is not None else None
    arguments = _ARGUMENT.findall(found[2]) if found is not None else []
    value = make(arguments) if make is not None else None
    if value is None:
        known = ", ".join(_FAKED)
        raise SqlError(
            f"column '{column.name}': the expression {text} is not in this release; these are: {known}"
        )
    value = f"CAST({value} AS {duckdb_type(column.column.type)})"
    if null_rate:
        value = f"CASE WHEN random() < {null_rate!r} THEN NULL ELSE {value} END"
    return value, None


def _one_of(words: list[str] | tuple[str, ...]) -> str:
    listed = ", ".join(map(quote_text, words))
    return f"([{listed}])[1 + CAST(floor(random() * {len(words)}) AS INTEGER)]"


def _between(arguments: list[str]) -> str | None:
    if len(arguments) != 2 or not all(re.fullmatch(r"-?[0-9]{1,18}", each) for each in arguments):
        return None
    low, high = map(int, arguments)
    return f"floor({low} + random() * {max(high - low, 1)})"


def _double(arguments: list[str]) -> str | None:
    if len(arguments) != 3 or not all(re.fullmatch(r"-?[0-9]{1,15}", each) for each in arguments):
        return None
    digits, low, high = map(int, arguments)
    return f"round({low} + random() * ({high} - {low}), {digits})"


def _moment(sign: str) -> Callable[[list[str]], str | None]:
    def make(arguments: list[str]) -> str | None:
        if len(arguments) != 2 or not arguments[0].isdigit() or arguments[1].upper() not in _DAYS:
            return None
        seconds = int(arguments[0]) * _DAYS[arguments[1].upper()]
        moved = f"now() {sign} to_seconds(CAST(floor(random() * {seconds}) AS BIGINT))"
        return f"CAST({moved} AS TIMESTAMP)"

    return make


def _regexify(arguments: list[str]) -> str | None:
    found = (
        re.fullmatch(r"\(([\w .:/-]+(?:\|[\w .:/-]+)*)\)(\{1\})?", arguments[0])
        if len(arguments) == 1
        else None
    )
    return None if found is None else _one_of(found[1].split("|"))


def _option(arguments: list[str]) -> str | None:
    return _one_of(arguments) if arguments else None


def _plain(text: str) -> Callable[[list[str]], str | None]:
    return lambda arguments: None if arguments else text


_NAME = f"{_one_of(_FIRST)} || ' ' || {_one_of(_LAST)}"
_DIGITS = "CAST(100 + floor(random() * 900) AS INTEGER)"
_PHONE = f"printf('%d-%d-%d', {_DIGITS}, {_DIGITS}, {_DIGITS})"
_FAKED: dict[str, Callable[[list[str]], str | None]] = {
    "number.numberbetween": _between,
    "number.randomdouble": _double,
    "number.randomdigit": _plain("floor(random() * 10)"),
    "date.past": _moment("-"),
    "date.future": _moment("+"),
    "regexify": _regexify,
    "options.option": _option,
    "name.fullname": _plain(_NAME),
    "funnyname.name": _plain(_NAME),
    "name.firstname": _plain(_one_of(_FIRST)),
    "name.lastname": _plain(_one_of(_LAST)),
    "phonenumber.cellphone": _plain(_PHONE),
    "phonenumber.phonenumber": _plain(_PHONE),
    "address.country": _plain(_one_of(_COUNTRIES)),
    "internet.uuid": _plain("CAST(uuid() AS VARCHAR)"),
    "bool.bool": _plain("random() < 0.5"),
}
