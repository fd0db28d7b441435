"""Types of option values with canonical texts: words, durations, columns, numbers, time zones.

Every parser raises ValueError with the rule for the value.
"""

from __future__ import annotations

import difflib
import re
from enum import StrEnum
from typing import TypeVar

from headrace.tablelayer.model.options.option import OptionType

Word = TypeVar("Word", bound=StrEnum)

_DURATION = re.compile(r"\s*([0-9]{1,15})\s*([a-zA-Z]*)\s*")
_DURATION_UNITS = {
    1: ("", "ms", "milli", "millis", "millisecond", "milliseconds"),
    1_000: ("s", "sec", "secs", "second", "seconds"),
    60_000: ("m", "min", "mins", "minute", "minutes"),
    3_600_000: ("h", "hour", "hours"),
    86_400_000: ("d", "day", "days"),
}
_DURATION_FACTORS = {word: factor for factor, words in _DURATION_UNITS.items() for word in words}


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of a duration in the syntax of Flink and Fluss: `7 d`, `3min`, `1500` (milliseconds)."""
    match = _DURATION.fullmatch(text)
    factor = None if match is None else _DURATION_FACTORS.get(match.group(2).lower())
    if match is None or factor is None:
        raise ValueError(
            "a duration is a number and a unit, such as '7 d', '12 h', '3 min', '30 s' or '500 ms'"
        )
    milliseconds = int(match.group(1)) * factor
    if not 0 < milliseconds < 2**63:
        raise ValueError("the duration must be at least 1 ms and less than 292 million years")
    return milliseconds


def format_duration(milliseconds: int) -> str:
    """Return the shortest exact text of a duration: `format_duration(604800000) == '7 d'`."""
    for factor, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if milliseconds % factor == 0:
            return f"{milliseconds // factor} {unit}"
    return f"{milliseconds} ms"


def parse_name_list(text: str) -> tuple[str, ...]:
    """Return column names separated by commas, as in `'bucket.key' = 'a,b'`."""
    return tuple(name.strip() for name in text.split(",")) if text.strip() else ()


def one_of(values: type[Word]) -> OptionType[Word]:
    """Return the type of these words, in any case. The error for another word lists them and suggests the nearest."""
    by_word = {value.value.lower(): value for value in values}

    def parse(text: str) -> Word:
        word = text.strip().lower()
        value = by_word.get(word)
        if value is None:
            near = difflib.get_close_matches(word, by_word, n=1, cutoff=0.5)
            hint = f"; did you mean '{by_word[near[0]]}'?" if near else ""
            raise ValueError("the value must be " + " or ".join(f"'{each.value}'" for each in values) + hint)
        return value

    return OptionType(parse)


def whole_number(least: int, most: int, allowed: str) -> OptionType[int]:
    """Return the type of whole numbers from `least`, which is -1 or more, to `most`. `allowed` is the range in
    errors.
    """

    def parse(text: str) -> int:
        if not re.fullmatch(r"\s*(-1|[0-9]{1,10})\s*", text) or not least <= int(text) <= most:
            raise ValueError(f"the value must be a whole number{allowed}")
        return int(text)

    return OptionType(parse)


def _parse_boolean(text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise ValueError("the value must be 'true' or 'false'")
    return value


def _boolean_text(value: bool) -> str:
    return "true" if value else "false"


def _parse_column(text: str) -> str:
    name = text.strip()
    if not name or "," in name:
        raise ValueError("the value must be the name of one column")
    return name


def _parse_columns(text: str) -> tuple[str, ...]:
    names = parse_name_list(text)
    if len(set(names)) != len(names) or not all(names):
        raise ValueError("the value must be names of columns, each once, separated by commas")
    return names


def _parse_zone(text: str) -> str:
    from zoneinfo import ZoneInfo

    name = text.strip()
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:
        raise ValueError(
            "the value must be the name of a time zone, such as 'UTC' or 'Europe/Berlin'"
        ) from error
    return name


def _parse_topic(text: str) -> str:
    name = text.strip()
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) or name in (".", ".."):
        raise ValueError(
            "the value must be the name of a topic: at most 249 letters, digits, '.', '_' and '-'"
        )
    return name


DURATION = OptionType(parse_duration_ms, format_duration)
"""A duration in milliseconds."""
BOOLEAN = OptionType(_parse_boolean, _boolean_text)
COLUMN = OptionType(_parse_column)
COLUMNS = OptionType(_parse_columns, ",".join)
TIME_ZONE = OptionType(_parse_zone)
TOPIC = OptionType(_parse_topic)
TEXT = OptionType(str)
