"""Values that a connector does not know: Debezium's `unavailable.value.placeholder`.

PostgreSQL leaves a large value out of its log if an update did not change it (TOAST), and Debezium writes a
placeholder instead, in the form of the column's type (`UnchangedToastedPlaceholder`). The forms are the text, the
base64 of its bytes, an array of one of these or of the bytes as numbers, an hstore of the text, and an array of the
UUID that is derived from the text. Each is recognized in the text of the JSON value, as Connect's converter and
Python's `json` write it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from headrace.tablelayer.model.arrays.arrays import Mask
from headrace.tablelayer.model.json import scan as json_scan

_HEX = "hex:"


class Placeholder(msgspec.Struct, frozen=True):
    """A placeholder for an unknown value, in every form that it has in JSON."""

    forms: tuple[bytes, ...]

    @classmethod
    def of(cls, text: str) -> Placeholder:
        """Return the placeholder of the connector's setting, which is not empty; after `hex:` come its bytes in
        hexadecimal.
        """
        return _placeholder(text)

    def cells(
        self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, kinds: np.ndarray
    ) -> Mask | None:
        """Return bool[n], which of the scanned values are the placeholder; None if there is no such value."""
        found: Mask | None = None
        has_text = kinds >= json_scan.STRING
        for form in self.forms:
            at = np.flatnonzero(has_text & (lengths == len(form)))
            if not len(at):
                continue
            pattern = np.frombuffer(form, np.uint8)
            windows = starts[at].astype(np.int64)[:, None] + np.arange(len(form))
            same = at[(data[windows] == pattern).all(axis=1)]
            if len(same):
                found = np.zeros(len(kinds), np.bool_) if found is None else found
                found[same] = True
        return found


@lru_cache(maxsize=64)
def _placeholder(text: str) -> Placeholder:
    data = bytes.fromhex(text[len(_HEX) :]) if text.startswith(_HEX) else text.encode()
    written = data.decode(errors="replace")
    coded = base64.b64encode(data).decode()
    numbers = [byte - 256 if byte > 127 else byte for byte in data]
    named = str(uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3))
    forms = [written.encode(), coded.encode()]
    forms += _texts([[written], [coded], numbers, [named], {written: written}])
    return Placeholder(tuple(dict.fromkeys(forms)))


def _texts(values: Iterable[Any]) -> Iterable[bytes]:
    for value in values:
        for separators in ((",", ":"), (", ", ": ")):
            yield json.dumps(value, ensure_ascii=False, separators=separators).encode()
