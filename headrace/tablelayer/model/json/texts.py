"""JSON texts in one buffer, and the positions of wanted fields in them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.protocol.records.gather import gather
from headrace.tablelayer.model.arrays.arrays import binary_array
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json import scan as json_scan
from headrace.tablelayer.model.schema.schema import Column

EXCERPT_LENGTH = 60
"""Maximum number of characters of a text that an error message shows."""


class JsonTexts(msgspec.Struct, frozen=True):
    """JSON texts in one buffer. data: uint8, its own copy, PADDING more bytes at its end; starts, ends: int64[n].

    Scanning a text resolves the escapes of its strings, but not of those inside of its objects and arrays. So each
    text can be scanned once, and afterwards its objects and arrays.
    """

    data: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, values: pa.Array) -> JsonTexts:
        """Return the texts of n binary or string values. Raises RowError for null values and invalid UTF-8."""
        data, offsets = _bytes_of(values)
        return cls(data, offsets[:-1], offsets[1:])

    @classmethod
    def gathered(cls, payload: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> JsonTexts:
        """Return the texts of pieces of a payload (uint8; int64[n] each), none of them null.

        Raises RowError for invalid UTF-8.
        """
        offsets, data = gather(payload, starts, lengths, padding=json_scan.PADDING)
        _check_utf8(binary_array(offsets, data[: offsets[-1]]))
        bounds = offsets.astype(np.int64)
        return cls(data, bounds[:-1], bounds[1:])

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, at: np.ndarray) -> JsonTexts:
        """Return some of the texts, in this order."""
        return JsonTexts(self.data, self.starts[at], self.ends[at])


class FoundFields(msgspec.Struct, frozen=True):
    """Positions of the wanted fields in the first m texts.

    starts, lengths: int32[fields, m]; kinds: uint8[fields, m]. `error` is that of text m, None if all texts are
    sound.
    """

    starts: np.ndarray
    lengths: np.ndarray
    kinds: np.ndarray
    error: RowError | None

    def texts(self, field: int, data: np.ndarray, at: np.ndarray) -> JsonTexts:
        """Return the values of a field in some of the texts, as texts."""
        starts = self.starts[field][at].astype(np.int64)
        return JsonTexts(data, starts, starts + self.lengths[field][at])


def find_fields(texts: JsonTexts, columns: tuple[Column, ...], *, fail_unknown: bool = False) -> FoundFields:
    """Scan each text, once (see `JsonTexts`), for the fields with the names of these columns."""
    table, _ = wanted_fields(columns)
    count = len(texts)
    starts = np.zeros(
        (len(columns), count), dtype=np.int32
    )  # if the kind is MISSING: an empty text within the data
    lengths = np.zeros((len(columns), count), dtype=np.int32)
    kinds = np.zeros((len(columns), count), dtype=np.uint8)
    failure = np.zeros(3, dtype=np.int64)
    arguments = (texts.data, texts.starts, texts.ends)
    good = json_scan.scan(*arguments, *table, fail_unknown, starts, lengths, kinds, failure)
    error = None if good == count else _scan_error(good, *arguments, failure)
    return FoundFields(starts[:, :good], lengths[:, :good], kinds[:, :good], error)


@lru_cache(maxsize=256)
def wanted_fields(columns: tuple[Column, ...]) -> tuple[tuple[json_scan.Bytes, ...], pa.Schema]:
    """Return the scan's table of field names, and the Arrow schema of the rows."""
    table = json_scan.field_table([column.name.encode() for column in columns])
    return table, pa.schema([column.field() for column in columns])


def _bytes_of(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return a writable copy of the values' bytes, and int64 offsets into it. Refuses null values and invalid UTF-8."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if values.null_count:
        index = int(np.flatnonzero(np.asarray(values.is_null()))[0])
        raise RowError(index, None, "the value is null; a row is a JSON object")
    if values.type != pa.binary():
        values = values.cast(pa.binary())
    _check_utf8(values)
    if len(values) == 0:
        return np.zeros(json_scan.PADDING, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    _, offset_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
    size = int(offsets[-1] - offsets[0])
    data = np.empty(size + json_scan.PADDING, dtype=np.uint8)
    data[size:] = 0
    if size:
        data[:size] = np.frombuffer(data_buffer, dtype=np.uint8, count=size, offset=int(offsets[0]))
    offsets -= offsets[0]
    return data, offsets


def _check_utf8(values: pa.Array) -> None:
    """Raise RowError for the first value that is not valid UTF-8."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        raise _utf8_error(values) from None


def _utf8_error(values: pa.Array) -> RowError:
    for index, value in enumerate(values.to_pylist()):
        try:
            value.decode()
        except UnicodeDecodeError as error:
            byte = value[error.start]
            return RowError(
                index, None, f"byte 0x{byte:02x} at position {error.start} is not UTF-8: {error.reason}"
            )
    return RowError(0, None, "the batch is not UTF-8")


def _scan_error(row: int, data: np.ndarray, starts: np.ndarray, ends: np.ndarray, failure: Any) -> RowError:
    code, position, length = (int(number) for number in failure)
    where = position - int(starts[row])
    rest = data[position : min(int(ends[row]), position + 20)].tobytes().decode(errors="replace")
    texts = {
        json_scan.NOT_AN_OBJECT: f"a row must be a JSON object that begins with '{{', not {rest!r}",
        json_scan.UNEXPECTED_END: "the JSON text is cut off",
        json_scan.UNEXPECTED_CHARACTER: f"invalid JSON at byte {where}: {rest!r}",
        json_scan.CONTROL_CHARACTER: f"the string at byte {where} has an unescaped control character",
        json_scan.BAD_ESCAPE: f"invalid escape at byte {where}: {rest!r}",
        json_scan.LONE_SURROGATE: f"half of a surrogate pair at byte {where} is not a character: {rest!r}",
        json_scan.TOO_DEEP: f"nested deeper than {json_scan.MAX_DEPTH} levels",
        json_scan.TRAILING_TEXT: f"there is text after the end of the object, at byte {where}: {rest!r}",
    }
    if code == json_scan.UNKNOWN_FIELD:
        name = data[position : position + length].tobytes().decode(errors="replace")[:EXCERPT_LENGTH]
        return RowError(row, name, "the table has no such column, and table.kafka.unknown-fields is 'fail'")
    return RowError(row, None, texts[code])
