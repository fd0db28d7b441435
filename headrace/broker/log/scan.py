"""Walk over the batches of a segment, header by header, with or without checking their contents.

The walk checks that each batch is whole, that its magic and lengths are sane, and that it begins with exactly the
offset after the one before it (except where a log was compacted). On request it checks the CRC. The walk ends at the
first batch that fails; `recovery` decides what that means.

Small inputs are walked in plain Python, so that most starts never import numba; large ones by compiled kernels at some
GB/s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import crc32c
import msgspec

from headrace.broker.log.index import OffsetIndex, TimeIndex
from headrace.broker.log.producer_state import BATCHES_KEPT, AppendedBatch, ProducerState
from headrace.broker.log.transaction_index import AbortedTransaction
from headrace.protocol.errors import DecodeError
from headrace.protocol.loading.lazy import lazy_module
from headrace.protocol.records.control import read_end_marker
from headrace.protocol.records.header import (
    ATTRIBUTES_POSITION,
    CONTROL_BIT,
    CRC_POSITION,
    HEADER_SIZE,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC_ARROW,
    MAGIC_POSITION,
    MAGIC_V2,
    NO_PRODUCER_ID,
    TRANSACTIONAL_BIT,
    advance_sequence,
    compute_crc,
    read_header,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = lazy_module("numpy")

COMPILED_FROM_BYTES: Final = 1 << 20
_CHUNK_ROWS: Final = 1 << 15
_SEARCH_BYTES: Final = 8 << 20
_OFFSET_SPAN: Final = 1 << 31

_WHY: Final = {
    "CUT_SHORT": "it is cut short",
    "BAD_LENGTH": "its length makes no sense",
    "BAD_MAGIC": "its magic is neither 2 nor 100",
    "BAD_OFFSET": "its base offset is not the one that follows",
    "BAD_COUNT": "its counts make no sense",
    "BAD_CRC": "its CRC does not match",
}


def frozen_bytes(data: bytes | bytearray | memoryview) -> NDArray[np.uint8]:
    array = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    return array


class Batches(msgspec.Struct, frozen=True):
    """Consecutive good batches; int64 arrays with one element each."""

    position: NDArray[np.int64]
    base_offset: NDArray[np.int64]
    last_offset: NDArray[np.int64]
    max_timestamp: NDArray[np.int64]
    leader_epoch: NDArray[np.int64]
    producer_id: NDArray[np.int64]
    producer_epoch: NDArray[np.int64]
    base_sequence: NDArray[np.int64]
    sequence_count: NDArray[np.int64]
    attributes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.position)


class WalkEnd(msgspec.Struct):
    """The place where a walk stopped: after the last good batch, and the fault of the next one (None at the end)."""

    position: int
    next_offset: int
    problem: str | None = None


def walk(
    view: memoryview,
    first_offset: int,
    end: WalkEnd,
    *,
    check_crc: bool,
    gaps_below: int = 0,
    compiled: bool | None = None,
) -> Iterator[Batches]:
    """Yield chunks of batches from the start of `view`; `end` is filled in as the walk goes.

    Up to `gaps_below` offsets may be missing between batches, because of compaction. `compiled` chooses the
    implementation; by default the size of the input does.
    """
    if compiled is None:
        compiled = len(view) >= COMPILED_FROM_BYTES
    end.position, end.next_offset, end.problem = 0, first_offset, None
    if compiled:
        yield from _walk_compiled(view, end, check_crc, gaps_below)
    else:
        yield from _walk_plain(view, end, check_crc, gaps_below)


def _walk_plain(view: memoryview, end: WalkEnd, check_crc: bool, gaps_below: int) -> Iterator[Batches]:
    rows: list[tuple[int, ...]] = []
    size = len(view)
    while end.position < size and end.problem is None:
        try:
            header = read_header(view, end.position)
        except DecodeError as error:
            end.problem = f"it is not a batch: {error}"
            break
        if header.size > size - end.position:
            end.problem = _WHY["CUT_SHORT"]
        elif not (
            header.base_offset == end.next_offset or end.next_offset < header.base_offset <= gaps_below
        ):
            end.problem = _WHY["BAD_OFFSET"]
        elif check_crc and compute_crc(view, end.position) != header.crc:
            end.problem = _WHY["BAD_CRC"]
        else:
            rows.append(
                (
                    end.position,
                    header.base_offset,
                    header.last_offset,
                    header.max_timestamp,
                    header.partition_leader_epoch,
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.sequence_count,
                    header.attributes,
                )
            )
            end.position += header.size
            end.next_offset = header.next_offset
    if rows:
        yield Batches(*np.array(rows, np.int64).T)


def _walk_compiled(view: memoryview, end: WalkEnd, check_crc: bool, gaps_below: int) -> Iterator[Batches]:
    from headrace.broker.log import scan_kernels as kernels

    names = {getattr(kernels, name): reason for name, reason in _WHY.items()}
    data = frozen_bytes(view)
    while True:
        rows = np.empty((kernels.ROWS, _CHUNK_ROWS), np.int64)
        start, first_offset = end.position, end.next_offset
        how, count, position, next_offset = kernels.walk_rows(
            data, start, first_offset, gaps_below, check_crc, kernels.CRC_TABLES, rows
        )
        rows = rows[:, :count]
        problem = names.get(how)
        if check_crc:
            bad = _first_bad_crc(view, rows[0], position, kernels.SMALL_BATCH)
            if bad is not None:
                position, next_offset, problem = int(rows[0, bad]), int(rows[1, bad]), _WHY["BAD_CRC"]
                rows = rows[:, :bad]
        end.position, end.next_offset, end.problem = int(position), int(next_offset), problem
        if rows.shape[1]:
            yield Batches(*rows)
        if problem is not None or how == kernels.END:
            return


def _first_bad_crc(view: memoryview, positions: NDArray[np.int64], end: int, size_min: int) -> int | None:
    """Check the CRCs of the large batches, which the kernel leaves out."""
    sizes = np.diff(positions, append=end)
    for row in np.flatnonzero(sizes >= size_min).tolist():
        start = int(positions[row])
        stored = int.from_bytes(view[start + CRC_POSITION : start + ATTRIBUTES_POSITION], "big")
        if crc32c.crc32c(view[start + ATTRIBUTES_POSITION : start + int(sizes[row])]) != stored:
            return int(row)
    return None


def find_batch(view: memoryview, start: int, offset_min: int) -> int | None:
    """Return the position of the first whole, CRC-correct batch at or after byte `start` with a plausible offset.

    It tells a torn tail (nothing readable follows) from damage in the middle. Offsets count as plausible from
    `offset_min` on, as far as one segment can reach.
    """
    data = frozen_bytes(view)
    last = len(data) - HEADER_SIZE
    while start <= last:
        stop = min(last + 1, start + _SEARCH_BYTES)
        magic = data[start + MAGIC_POSITION : stop + MAGIC_POSITION]
        candidates = np.flatnonzero((magic == MAGIC_V2) | (magic == MAGIC_ARROW)) + start
        # Both fields in front of the magic are checked for all candidates at once; few pass.
        offsets = np.zeros(len(candidates), np.int64)
        for k in range(LENGTH_POSITION):
            offsets = (offsets << 8) | data[candidates + k]
        candidates = candidates[(offsets >= offset_min) & (offsets < offset_min + _OFFSET_SPAN)]
        lengths = np.zeros(len(candidates), np.int64)
        for k in range(LENGTH_POSITION, LOG_OVERHEAD):
            lengths = (lengths << 8) | data[candidates + k]
        candidates = candidates[
            (lengths >= HEADER_SIZE - LOG_OVERHEAD) & (lengths + LOG_OVERHEAD <= len(data) - candidates)
        ]
        for position in candidates.tolist():
            try:
                header = read_header(view, position)
            except DecodeError:
                continue
            if compute_crc(view, position) == header.crc:
                return int(position)
        start = stop
    return None


class IndexBuilder:
    """Both indexes of a segment as the appends would have made them, and its largest timestamp."""

    __slots__ = (
        "_indexed_position",
        "_interval",
        "first_timestamp",
        "index",
        "largest_timestamp",
        "offset_of_largest",
        "time_index",
    )

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.index = OffsetIndex(base_offset)
        self.time_index = TimeIndex(base_offset)
        self.first_timestamp = -1
        self.largest_timestamp = -1
        self.offset_of_largest = base_offset
        self._interval = interval_bytes
        self._indexed_position = 0

    def add(self, batches: Batches) -> None:
        positions = batches.position
        if int(positions[0]) == 0:
            self.first_timestamp = int(batches.max_timestamp[0])
        stamps = np.concatenate(([self.largest_timestamp], batches.max_timestamp))
        largest = np.maximum.accumulate(stamps)
        rises = np.concatenate(([False], largest[1:] > largest[:-1]))
        row_of_largest = np.maximum.accumulate(np.where(rises, np.arange(len(stamps)), 0))
        row = 0
        while True:
            row = int(np.searchsorted(positions, self._indexed_position + self._interval, side="right"))
            if row >= len(positions):
                break
            self._indexed_position = int(positions[row])
            self.index.append(int(batches.last_offset[row]), self._indexed_position)
            self._note(largest, row_of_largest, row + 1, batches)
            self.time_index.maybe_append(self.largest_timestamp, self.offset_of_largest)
        self._note(largest, row_of_largest, len(positions), batches)

    def _note(
        self, largest: NDArray[np.int64], row_of_largest: NDArray[np.int64], row: int, batches: Batches
    ) -> None:
        if row_of_largest[row]:
            self.offset_of_largest = int(batches.last_offset[row_of_largest[row] - 1])
        self.largest_timestamp = int(largest[row])


def replay_producers(
    state: ProducerState, batches: Batches, view: memoryview, from_offset: int, now: float
) -> list[AbortedTransaction]:
    """Bring producer state up to date with batches at or after `from_offset`; return the transactions aborted there.
    `view` has the bytes of the walk.

    For a producer without transactions only the last five rows can matter, so only those are looked at one by one; for
    other producers every row is.
    """
    rows = np.flatnonzero((batches.producer_id != NO_PRODUCER_ID) & (batches.base_offset >= from_offset))
    if not len(rows):
        return []
    ids = batches.producer_id[rows]
    is_transactional = batches.attributes[rows] & TRANSACTIONAL_BIT != 0
    in_order = np.zeros(len(rows), bool)
    if is_transactional.any():
        in_order = np.isin(ids, np.unique(ids[is_transactional]))
    for row in _last_five(rows[~in_order], ids[~in_order]):
        _replay_batch(state, batches, row, now)
    aborted = []
    for row in rows[in_order].tolist():
        if batches.attributes[row] & CONTROL_BIT:
            ended = _replay_marker(state, batches, row, view, now)
            if ended is not None:
                aborted.append(ended)
        else:
            if batches.attributes[row] & TRANSACTIONAL_BIT:
                state.open_transactions.setdefault(
                    int(batches.producer_id[row]), int(batches.base_offset[row])
                )
            _replay_batch(state, batches, row, now)
    return aborted


def _last_five(rows: NDArray[np.intp], ids: NDArray[np.int64]) -> list[int]:
    """Return the last five of `rows` for each producer, in order."""
    by_id = np.argsort(ids, kind="stable")
    order, ids = rows[by_id], ids[by_id]
    if len(order) > BATCHES_KEPT:
        followed = np.zeros(len(order), bool)  # has five later rows of the same producer
        followed[:-BATCHES_KEPT] = ids[:-BATCHES_KEPT] == ids[BATCHES_KEPT:]
        order = order[~followed]
    kept: list[int] = order.tolist()
    return kept


def _replay_batch(state: ProducerState, batches: Batches, row: int, now: float) -> None:
    first = int(batches.base_sequence[row])
    last = advance_sequence(first, int(batches.sequence_count[row]) - 1) if first >= 0 else first
    batch = AppendedBatch(
        first,
        last,
        int(batches.base_offset[row]),
        int(batches.last_offset[row]),
        int(batches.max_timestamp[row]),
    )
    state.add(int(batches.producer_id[row]), int(batches.producer_epoch[row]), batch, now)


def _replay_marker(
    state: ProducerState, batches: Batches, row: int, view: memoryview, now: float
) -> AbortedTransaction | None:
    try:
        marker = read_end_marker(view, int(batches.position[row]))
    except DecodeError:
        return None  # an unknown kind of control batch
    producer_id, last_offset = int(batches.producer_id[row]), int(batches.last_offset[row])
    return state.marker_appended(
        producer_id,
        int(batches.producer_epoch[row]),
        marker,
        last_offset,
        int(batches.max_timestamp[row]),
        now,
    )


def epoch_bounds(batches: Batches) -> list[tuple[int, int]]:
    """Return (leader epoch, base offset) of the first and the last batch of each run of one epoch, in their order."""
    firsts = np.flatnonzero(np.diff(batches.leader_epoch, prepend=batches.leader_epoch[0] - 1))
    lasts = np.append(firsts[1:], len(batches)) - 1
    rows = np.union1d(firsts, lasts)
    return [(int(batches.leader_epoch[row]), int(batches.base_offset[row])) for row in rows]
