"""JSON from anybody: what it may hold so that it can be stored and sent on.

JSON's grammar lets numbers be larger than any float and texts hold halves of surrogate pairs, and Python's reader takes
NaN and Infinity besides. None of them can be a count or be written as UTF-8: they are refused here, as ValueError,
which whoever reads a definition tells its sender.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn


def loads(text: str) -> Any:
    """The value of a JSON text. Raises ValueError, RecursionError."""
    value = json.loads(text, parse_constant=_no_number)
    if "\\u" in text:  # the only way to half of a pair in a text that came as UTF-8
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            raise ValueError(f"half of a surrogate pair ({half}) is no character") from None
    return value


def whole_number(value: Any) -> int:
    """A number of JSON that counts something. Raises TypeError for anything but a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} should be a whole number")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
