"""Rows inside of larger JSON values, by a path of field names (`table.kafka.value-path`).

In: each value is an object that has the first field, which is an object that has the second, and so on; the last one is
the row. What stands beside them is checked to be JSON and left alone. Out: objects of one field each around the row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablelayer.model.errors import RowError
from tablelayer.model.json import scan as json_scan
from tablelayer.model.json.rows import JsonTexts, find_fields
from tablelayer.model.schema.schema import Column
from tablelayer.model.types.column_types import STRING


def descend(texts: JsonTexts, path: Sequence[str]) -> tuple[JsonTexts, RowError | None]:
    """What stands at the path, of the texts before the first that has no object there, and what is wrong with that
    one (None: all have one)."""
    error: RowError | None = None
    for depth, name in enumerate(path):
        found = find_fields(texts, (Column(0, name, STRING),))
        kinds = found.kinds[0]
        good = len(kinds)
        if found.error is not None:
            error = found.error
        fits = kinds == json_scan.CONTAINER
        if not fits.all():
            good = int(np.argmin(fits))
            where = ".".join(path[: depth + 1])
            what = "is missing" if kinds[good] == json_scan.MISSING else "is no object"
            error = RowError(
                good,
                None,
                f"field '{where}' {what}; the row is at '{'.'.join(path)}' (table.kafka.value-path)",
            )
        texts = found.texts(0, texts.data, np.arange(good))
    return texts, error


def wrap(values: pa.Array, path: Sequence[str]) -> pa.Array:
    """JSON objects inside of others, so that `descend` finds them. values: n binary values."""
    front = "".join(f"{{{json.dumps(name, ensure_ascii=False)}:" for name in path).encode()
    back = b"}" * len(path)
    kind = values.type
    return pc.binary_join_element_wise(
        pa.scalar(front, kind), values, pa.scalar(back, kind), pa.scalar(b"", kind)
    )
