"""A JSON reader that accepts only values that can be stored and sent on.

JSON's grammar allows numbers beyond any float and halves of surrogate pairs in texts; Python's reader also accepts
NaN and Infinity. Such values cannot be counts or be written as UTF-8. They are refused here with a ValueError, which
the code that reads a definition passes on to the client.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn


def loads(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError, RecursionError."""
    value = json.loads(text, parse_constant=_no_number)
    if "\\u" in text:  # the only way to half of a pair in a text that came as UTF-8
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            raise ValueError(f"half of a surrogate pair ({half}) is not a character") from None
    return value


def whole_number(value: Any) -> int:
    """Return `value` as a count. Raises TypeError for anything but a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} should be a whole number")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number in JSON")
