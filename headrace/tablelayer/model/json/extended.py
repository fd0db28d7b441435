"""MongoDB's extended JSON, which writes types that JSON does not have as objects: `{"$oid": "596e275826f0"}`.

Both forms are read, the canonical one (`{"$numberLong": "7"}`, `{"$date": {"$numberLong": "0"}}`) and the relaxed one
(`{"$date": "1970-01-01T00:00:00Z"}`), and the `$binary` and `$date` of older servers. A `$timestamp` is the seconds in
it, if the column is a date or time; its counter within the second is left out. `$undefined` is null. Objects that have
no value of a column type stay texts: `$regularExpression`, `$dbPointer`, `$minKey`, `$maxKey`, `$code` with a `$scope`.

The specification: https://github.com/mongodb/specifications/blob/master/source/extended-json/extended-json.md
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.tablelayer.model.json import scan as json_scan
from headrace.tablelayer.model.json.texts import FoundFields, JsonTexts, find_fields
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import STRING

Mask = npt.NDArray[np.bool_]

_TEXTS = ("$oid", "$uuid", "$symbol", "$code")
_NUMBERS = ("$numberInt", "$numberLong", "$numberDouble", "$numberDecimal")
_NAMES = (*_TEXTS, *_NUMBERS, "$date", "$binary", "$timestamp", "$undefined", "$scope")
_COLUMNS = tuple(Column(index, name, STRING) for index, name in enumerate(_NAMES))
_DATE, _BINARY, _TIMESTAMP, _UNDEFINED, _SCOPE = map(
    _NAMES.index, ("$date", "$binary", "$timestamp", "$undefined", "$scope")
)
_UNITS = {_DATE: "ms", _TIMESTAMP: "s"}
_OTHERS = [each for each in range(len(_NAMES)) if each not in _UNITS]
_INSIDE = (Column(0, "base64", STRING), Column(1, "$numberLong", STRING), Column(2, "t", STRING))


class Wrapped(msgspec.Struct, frozen=True):
    """Values found in such objects among n values; all other values are missing.

    at: which values are such objects. unit: that of their numbers if they are moments.
    """

    at: Mask
    data: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    kinds: np.ndarray
    unit: str | None


def find_wrapped(
    data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, kinds: np.ndarray, *, timestamps: bool
) -> list[Wrapped]:
    """Find such objects among n scanned values, by the unit of their numbers. `data` stays unchanged.

    `timestamps`: whether `$timestamp` is a value of the column.
    """
    first = data[np.where(kinds == json_scan.CONTAINER, starts, 0)]
    rows = np.flatnonzero((kinds == json_scan.CONTAINER) & (first == ord("{")))
    if not len(rows):
        return []
    # A copy, because a scan resolves escapes of strings in place; the text of other objects must not change.
    texts = JsonTexts.gathered(data, starts[rows].astype(np.int64), lengths[rows].astype(np.int64))
    found = find_fields(texts, _COLUMNS)
    rows = rows[: found.kinds.shape[1]]
    present = found.kinds > json_scan.NULL
    alone = present.sum(axis=0) == 1
    if not alone.any():
        return []
    which = np.argmax(present, axis=0)
    alone &= (which != _SCOPE) & (timestamps | (which != _TIMESTAMP))
    if not alone.any():
        return []
    columns = np.arange(len(rows))
    begin, size, kind = (each[which, columns] for each in (found.starts, found.lengths, found.kinds))
    begin, size, kind = begin.copy(), size.copy(), kind.copy()
    _look_inside(texts, which, alone, begin, size, kind)
    if not alone.any():
        return []
    digits = texts.data[np.where(size > 0, begin + size - 1, 0)]
    counted = np.isin(which, [_DATE, *map(_NAMES.index, _NUMBERS)]) & (kind == json_scan.STRING)
    iso = (which == _DATE) & (kind == json_scan.STRING) & (found.kinds[which, columns] == json_scan.STRING)
    # The digits of a number become a number; "NaN", and a date as text, stay texts.
    kind[counted & ~iso & (size > 0) & (digits >= 48) & (digits <= 57)] = json_scan.NUMBER
    kind[which == _UNDEFINED] = json_scan.NULL
    parts = []
    for unit, members in (*((each, [name]) for name, each in _UNITS.items()), (None, _OTHERS)):
        chosen = alone & np.isin(which, members)
        if not chosen.any():
            continue
        at = np.zeros(len(kinds), np.bool_)
        at[rows[chosen]] = True
        places = np.zeros((2, len(kinds)), np.int32)
        places[:, rows[chosen]] = begin[chosen], size[chosen]
        found_kinds = np.zeros(len(kinds), np.uint8)
        found_kinds[rows[chosen]] = kind[chosen]
        parts.append(Wrapped(at, texts.data, places[0], places[1], found_kinds, unit))
    return parts


def _look_inside(
    texts: JsonTexts, which: np.ndarray, alone: Mask, begin: np.ndarray, size: np.ndarray, kind: np.ndarray
) -> None:
    """Enter the inner object of `{"$binary": {"base64": ...}}`, `{"$date": {"$numberLong": ...}}` and `{"$timestamp":
    {"t": ..., "i": ...}}`.
    """
    for name, inside in ((_BINARY, 0), (_DATE, 1), (_TIMESTAMP, 2)):
        deeper = np.flatnonzero(alone & (which == name) & (kind == json_scan.CONTAINER))
        if not len(deeper):
            continue
        starts = begin[deeper].astype(np.int64)
        found: FoundFields = find_fields(JsonTexts(texts.data, starts, starts + size[deeper]), _INSIDE)
        deeper = deeper[: found.kinds.shape[1]]
        alone[deeper] &= found.kinds[inside] > json_scan.NULL
        begin[deeper], size[deeper], kind[deeper] = (
            found.starts[inside], found.lengths[inside], found.kinds[inside]
        )  # fmt: skip
