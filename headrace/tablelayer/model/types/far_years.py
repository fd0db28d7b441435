"""Dates and timestamps in years that Python does not support, converted to text and back, one value at a time.

The text is JSON's (`tablelayer.model.json`): ISO 8601 with a sign and up to nine digits of the year. This is for rare
values; the kernels of `json` convert whole columns.
"""

from __future__ import annotations

import re
from typing import Final

_SHAPE: Final = re.compile(
    r"([+-]|(?=[0-9]{4}-))([0-9]{4,9})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)? *(?:(Z)|([+-])([0-9]{2})(?::?([0-9]{2}))?)?)?"
)
_DAY_NANOS: Final = 86_400 * 10**9
_DAYS_IN_MONTH: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def date_text(days: int) -> str:
    """Return the text of days since 1970-01-01 (Howard Hinnant's civil_from_days)."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    day, month = day_of_year - (153 * shifted + 2) // 5 + 1, (shifted + 2) % 12 + 1
    year = year_of_era + era * 400 + (month <= 2)
    sign = "-" if year < 0 else "+" if year > 9_999 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def time_text(nanos: int, digits: int) -> str:
    """Return the text of nanoseconds since midnight, with `digits` digits of a fraction."""
    seconds, fraction = divmod(nanos, 10**9)
    text = f"{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:09}"[: len(text) + 1 + digits] if digits else text


def timestamp_text(nanos: int, *, zoned: bool) -> str:
    """Return the text of nanoseconds since 1970-01-01, with milliseconds, or six or nine digits if needed."""
    days, rest = divmod(nanos, _DAY_NANOS)
    digits = 3 if rest % 10**6 == 0 else 6 if rest % 10**3 == 0 else 9
    return f"{date_text(days)}T{time_text(rest, digits)}{'Z' if zoned else ''}"


def nanos_of(text: str) -> tuple[int, bool]:
    """Return (nanoseconds since 1970-01-01, whether the text names a zone). A date is midnight. Raises ValueError."""
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise ValueError("it is not a date or time in ISO 8601")
    sign, year_text, *numbers = found.group(1, 2, 3, 4, 5, 6, 7)
    year = int(year_text) * (-1 if sign == "-" else 1)
    month, day, hour, minute, second = (int(each or 0) for each in numbers)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= _DAYS_IN_MONTH[month - 1] + (month == 2 and leap):
        raise ValueError("there is no such day")
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("there is no such time of day")
    fraction, utc, east, hours, minutes = found.group(8, 9, 10, 11, 12)
    if int(hours or 0) > 18 or int(minutes or 0) > 59:
        raise ValueError("there is no such zone")
    offset = (int(hours or 0) * 3_600 + int(minutes or 0) * 60) * (-1 if east == "-" else 1)
    shifted = year - (month <= 2)
    era, year_of_era = divmod(shifted, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468
    seconds = days * 86_400 + hour * 3_600 + minute * 60 + second - offset
    return seconds * 10**9 + int((fraction or "").ljust(9, "0") or 0), utc is not None or hours is not None
