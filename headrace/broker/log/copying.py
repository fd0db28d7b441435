"""A follower's log appends the batches of its leader's log unchanged: all are checked first, then written in runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import crc32c

from headrace.broker.log.parts import LogParts
from headrace.broker.log.writer import LogWriter
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.records.control import read_end_marker
from headrace.protocol.records.header import ATTRIBUTES_POSITION, BatchHeader, Buffer, iter_headers

if TYPE_CHECKING:
    from headrace.broker.runtime.slices import Work

_WRITE_BYTES_MAX: Final = 256 << 10
_WRITE_BATCHES_MAX: Final = 32
"""Maximum number of batches that are appended without a pause: a write of 0.05 ms, 5 us for each batch. A large batch
is written whole.
"""
_INDEX_ENTRY_BYTES_MAX: Final = 12


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


def append_copies(writer: LogWriter, log: LogParts, batches: Buffer, *, gaps_to: int) -> Work[int]:
    """Append whole batches of a leader's log unchanged; the result is their number. The work pauses between batches.
    No other code may change the log meanwhile; batches that were already appended stay if the work is abandoned.

    Batches that are here already are left out. Offsets that the leader's compacted log lacks are missing here, too;
    `gaps_to` is the offset up to which the leader says that this is possible. Afterwards `must_commit` has the same
    meaning as after an append. Raises KafkaError: CORRUPT_MESSAGE for bytes that were damaged on the way or that do not
    continue the log (nothing was appended then), KAFKA_STORAGE_ERROR.
    """
    log.health.check()
    view, end_offset = memoryview(batches), log.chain.active.end_offset
    try:
        copies = yield from check_copies(view, end_offset, log.epochs.epoch_at(end_offset - 1))
    except DecodeError as error:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{log.name} cannot append the batches of its leader: {error}",
        ) from None
    if not copies.batches:
        return 0
    try:
        if copies.have_gap and copies.end_offset > log.durability.gaps_to:
            log.folder.make()
            log.durability.gaps_to = max(gaps_to, copies.end_offset)
            log.durability.write_checkpoint()
    except OSError as error:
        raise log.health.storage_error("append to", error) from error
    log.producers.state()
    for run in copies.writes():
        yield
        for piece in _pieces(log, run):
            _append_piece(writer, log, view, piece)
    return len(copies.batches)


def _pieces(log: LogParts, run: Sequence[Copy]) -> Iterable[Sequence[Copy]]:
    """Return all batches together, or one by one if the segment has to be sealed on the way."""
    size = run[-1].end_position - run[0].position
    newest_ms = max(copy.header.max_timestamp for copy in run)
    segment = log.chain.active
    index_bytes = segment.index_bytes + len(run) * _INDEX_ENTRY_BYTES_MAX
    if index_bytes <= log.chain.config.segment_index_bytes and not segment.must_roll(
        log.chain.config, size, run[-1].header.last_offset, newest_ms
    ):
        return (run,)
    return ((copy,) for copy in run)


def _append_piece(writer: LogWriter, log: LogParts, view: memoryview, piece: Sequence[Copy]) -> None:
    """Write some copies together, and note each one."""
    first, last = piece[0], piece[-1]
    epoch = first.header.partition_leader_epoch
    segment = writer.segment_for(
        last.end_position - first.position,
        first.header.base_offset,
        last.header.last_offset,
        first.header.max_timestamp,
        epoch,
    )
    writer.write(segment, b"", view[first.position : last.end_position])
    now_ms = log.clock.time_ms()
    for position, header in piece:
        if header.partition_leader_epoch != epoch:
            epoch = header.partition_leader_epoch
            log.epochs.assign(epoch, header.base_offset)
            log.epochs.ready = epoch
        marker = None
        if header.is_control:
            marker = read_end_marker(view[position : position + header.size])
        writer.written(
            segment,
            header,
            header.base_offset,
            header.last_offset,
            header.size,
            header.max_timestamp,
            marker,
            now_ms,
        )
