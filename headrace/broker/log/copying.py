"""Check the batches of a leader's log before a follower appends them, and divide them into writes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import crc32c

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.header import ATTRIBUTES_POSITION, BatchHeader, iter_headers

if TYPE_CHECKING:
    from headrace.broker.runtime.slices import Work

_WRITE_BYTES_MAX: Final = 256 << 10
_WRITE_BATCHES_MAX: Final = 32
"""Maximum number of batches that are appended without a pause: a write of 0.05 ms, 5 us for each batch. A large batch
is written whole.
"""


class Copy(NamedTuple):
    """One batch and its position in the leader's answer."""

    position: int
    header: BatchHeader

    @property
    def end_position(self) -> int:
        return self.position + self.header.size


class Copies(NamedTuple):
    """The batches that continue a log up to `end_offset`, and whether offsets are missing before one of them."""

    batches: Sequence[Copy]
    end_offset: int
    have_gap: bool

    def writes(self) -> Iterator[Sequence[Copy]]:
        """Yield the batches in runs, each small enough to be written without a pause."""
        first = 0
        for number, copy in enumerate(self.batches):
            size = copy.end_position - self.batches[first].position
            if number > first and (number - first == _WRITE_BATCHES_MAX or size > _WRITE_BYTES_MAX):
                yield self.batches[first:number]
                first = number
        yield self.batches[first:]


def check_copies(view: memoryview, end_offset: int, epoch: int) -> Work[Copies]:
    """Return the batches that a log does not have yet. The log ends at `end_offset` with leader epoch `epoch`.

    The work pauses between pieces of batches. Raises DecodeError for bytes that were damaged on the way and for batches
    that do not continue the log.
    """
    batches: list[Copy] = []
    next_offset, have_gap = end_offset, False
    for position, header in iter_headers(view):
        if header.last_offset < end_offset:
            continue
        crc = yield from _crc(view[position + ATTRIBUTES_POSITION : position + header.size])
        if crc != header.crc:
            raise DecodeError(
                f"the batch at offset {header.base_offset} has the CRC {header.crc:#010x}, but its bytes give"
                f" {crc:#010x}"
            )
        if header.base_offset < next_offset or header.partition_leader_epoch < epoch:
            raise DecodeError(
                f"a batch at offset {header.base_offset} of epoch {header.partition_leader_epoch} cannot follow"
                f" offset {next_offset} and epoch {epoch}"
            )
        have_gap |= header.base_offset > next_offset
        next_offset, epoch = header.next_offset, header.partition_leader_epoch
        batches.append(Copy(position, header))
    return Copies(batches, next_offset, have_gap)


def _crc(data: memoryview) -> Work[int]:
    crc = 0
    for first in range(0, len(data), _WRITE_BYTES_MAX):
        yield
        crc = crc32c.crc32c(data[first : first + _WRITE_BYTES_MAX], crc)
    return crc
