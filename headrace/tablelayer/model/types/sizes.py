"""The size of rows in Arrow's form, computed before they are made.

A value of fixed width takes its width even if it is null: a null BINARY(n) takes n bytes, a null ROW the widths of
all its fields. So a few bytes of JSON, Avro or a stored row can become very many, and code that makes rows from a
client's data must count first. Estimates are upper bounds except for bitmaps; callers count texts and bytes
themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from headrace.protocol.loading.lazy import lazy_module
from headrace.tablelayer.model.arrays.widths import width_of
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.types.column_types import DataType, is_list

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
else:
    np = lazy_module("numpy")
    pa = lazy_module("pyarrow")

ROW_BYTES_MAX: Final = 32 << 20
"""Maximum bytes that one record of a client may become, without its texts: the maximum size of an answer."""

BATCH_BYTES_MAX: Final = 256 << 20
"""Maximum bytes that one batch of a client may become: 10,000 rows of a table of 1,000 columns, with their positions.
"""

_OFFSET_SIZE = 4
_NAME_BYTES = 4  # quotes, colon, comma


@cache
def value_width(arrow_type: pa.DataType) -> int:
    """Return the bytes of one value of a type, null or not, without its text and its entries."""
    if pa.types.is_struct(arrow_type):
        return sum(value_width(field.type) for field in arrow_type)
    return width_of(arrow_type) or _OFFSET_SIZE


@cache
def expansion(arrow_type: pa.DataType) -> int:
    """Return the maximum number of Arrow bytes per byte of a stored value (`rows.py`).

    Entries of an ARRAY or a MAP that are null rows take a few bytes when stored, and the widths of all fields in
    Arrow.
    """
    if pa.types.is_struct(arrow_type):
        return max((expansion(field.type) for field in arrow_type), default=1)
    if pa.types.is_map(arrow_type):
        entry = [arrow_type.key_type, arrow_type.item_type]
    elif is_list(arrow_type):
        entry = [arrow_type.value_type]
    else:
        return 1
    stored = 1 + sum(width_of(each) or _OFFSET_SIZE for each in entry)
    own = -(-sum(map(value_width, entry)) // stored)
    return max(1, own, *map(expansion, entry))


def text_size(array: pa.Array) -> int:
    """Return the approximate bytes of values as JSON, for a limit; escaped texts take more."""
    arrow_type, count = array.type, len(array)
    if pa.types.is_struct(arrow_type):
        names = sum(len(field.name) + _NAME_BYTES for field in arrow_type)
        return count * names + sum(map(text_size, array.flatten()))
    if pa.types.is_map(arrow_type) or is_list(arrow_type):
        if not count:
            return 0
        begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        parts = [array.keys, array.items] if pa.types.is_map(arrow_type) else [array.values]
        return count * _NAME_BYTES + sum(text_size(part.slice(begin, end - begin)) for part in parts)
    width = width_of(arrow_type)
    if not width:
        return int(array.nbytes) * (1 if pa.types.is_string(arrow_type) else 2)
    return count * (2 * width + _NAME_BYTES)


class RowsTooLargeError(RowError):
    """A valid row that takes more memory than allowed."""


class TypedColumn(Protocol):
    """The properties of a column that decide the size of its values: its type and its default texts."""

    @property
    def type(self) -> DataType: ...
    @property
    def default(self) -> str | None: ...
    @property
    def initial(self) -> str | None: ...


class RowCost(msgspec.Struct, frozen=True):
    """Bytes of a row in Arrow's form: `width`, plus `expansion` times its stored size."""

    width: int
    expansion: int

    @classmethod
    def of(cls, columns: Sequence[TypedColumn]) -> RowCost:
        """Return the cost of rows of these columns under any schema, including the values of missing columns."""
        width, factor = 0, 1
        for column in columns:
            arrow = column.type.arrow()
            texts = (text.encode(errors="replace") for text in (column.default, column.initial) if text)
            width += value_width(arrow) + max(map(len, texts), default=0)
            factor = max(factor, expansion(arrow))
        return cls(width, factor)

    def stored(self, value: bytes | None) -> int:
        """Return the cost of a stored row, or of the nulls for a missing row."""
        return self.width if value is None else self.width + self.expansion * len(value)

    def together(self, values: Sequence[bytes | None]) -> int:
        """Return the cost of stored rows, None for missing ones, without a line of Python for each."""
        return self.width * len(values) + self.expansion * sum(map(len, filter(None, values)))

    def largest(self, values: Sequence[bytes | None]) -> int:
        """Return the cost of the largest of stored rows."""
        return self.width + self.expansion * max(map(len, filter(None, values)), default=0)


class RowBytes:
    """The sizes of the records of a batch, counted level by level before each level is made.

    A level has the values of one column, or of the parts inside of it. `owner` is the record of each value
    (ascending; None: the values are the records).
    """

    def __init__(self, records: int, batch_max: int = BATCH_BYTES_MAX) -> None:
        self._of_record = np.zeros(records, np.int64)
        self._batch_max = batch_max
        self._owner: npt.NDArray[np.int64] | None = None

    def add(self, count: int, each: int, column: str | None = None) -> None:
        """Add `count` values of `each` bytes to the level.

        Raises RowError, with an index of the level, if a record or the batch would become too large.
        """
        if self._owner is None:
            self._of_record[:count] += each
        else:
            self._of_record += np.bincount(self._owner, minlength=len(self._of_record)) * each
        if not count or int(self._of_record.sum()) <= ROW_BYTES_MAX:
            return
        large = self._of_record > ROW_BYTES_MAX
        if large.any():
            record = int(large.argmax())
            size = int(self._of_record[record])
            raise self._refusal(
                record,
                count,
                column,
                f"a row takes {size} bytes or more; the maximum is {ROW_BYTES_MAX}",
            )
        sums = np.cumsum(self._of_record)
        if sums[-1] > self._batch_max:
            record = int(np.searchsorted(sums, self._batch_max, "right"))
            raise self._refusal(
                record,
                count,
                column,
                f"the rows of the batch up to this one take more than {self._batch_max} bytes; send fewer at a time",
            )

    def _refusal(self, record: int, count: int, column: str | None, reason: str) -> RowError:
        index = record if self._owner is None else int(np.searchsorted(self._owner, record))
        return RowsTooLargeError(min(index, count - 1), column, reason)

    @contextmanager
    def inside(self, of: npt.NDArray[np.int64]) -> Iterator[None]:
        """Enter the level below. `of`: the value of this level to which each of its values belongs, ascending."""
        outer = self._owner
        self._owner = of if outer is None else outer[of]
        try:
            yield
        finally:
            self._owner = outer


def check_rows(count: int, cost: RowCost, bytes_max: int = BATCH_BYTES_MAX) -> None:
    """Raise RowError if rows of this cost, with nulls and defaults in all columns, take more than `bytes_max`."""
    width = cost.width
    if count * width > bytes_max:
        raise RowsTooLargeError(
            min(bytes_max // width, count - 1),
            None,
            f"a row takes {width} bytes, and the batch up to it more than {bytes_max}; send fewer at a time",
        )
