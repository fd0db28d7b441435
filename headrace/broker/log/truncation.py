"""The end of a log moves: back to an earlier offset, or to any offset once every local record is discarded.

Both change several files, so a failure half-way stops the log (`LogHealth.fail`) until it is opened again. The lock of
`Durability` keeps a sync from reading files that are being removed. Every function raises KafkaError.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.log.parts import LogParts
from headrace.broker.log.producer_state import ProducerState
from headrace.protocol.errors import ErrorCode, KafkaError


def truncate_to(log: LogParts, offset: int) -> None:
    """Remove every batch that reaches `offset` or beyond; the log then ends at or before `offset`.

    For leaders that lost an election, never for acknowledged records.
    """
    log.health.check()
    if offset >= log.chain.active.end_offset:
        return
    with log.durability.lock:
        try:
            log.folder.unmark_clean()
            log.producers.loaded = None
            end_offset = offset
            if offset >= log.chain.bases[0]:
                end_offset = log.chain.from_offset(offset)[0].locate(offset)[1]
            log.durability.truncate_to(end_offset)
            log.chain.cut(offset, log.folder)
            log.epochs.truncate_from_end(log.chain.active.end_offset)
            log.folder.write_epochs(log.epochs, sync=True)
        except OSError as error:
            log.health.fail(f"truncation to {offset} failed half-way: {error}", error)
            raise log.health.storage_error("truncate", error) from error


def restart_at(log: LogParts, offset: int) -> None:
    """Discard every record; the log continues at `offset`. For a follower whose leader begins after its end, or ends
    before its start.
    """
    truncate_to(log, min(offset, log.durability.log_start_offset))
    if offset != log.chain.active.end_offset:
        _start_at(log, offset, log_start_offset=offset, tiered_to=log.durability.tiered_to)


def begin_after(
    log: LogParts,
    tiered_to: int,
    log_start_offset: int,
    epochs: Iterable[tuple[int, int]],
    producers: bytes,
) -> None:
    """Discard every local record; the log continues at `tiered_to`, the end of what remote storage has, with the leader
    epochs and producers known there. For a follower whose leader has no local records for it any more (KIP-405).
    """
    log.health.check()
    _start_at(
        log,
        tiered_to,
        log_start_offset=log_start_offset,
        tiered_to=tiered_to,
        epochs=epochs,
        producers=producers,
    )


def _start_at(
    log: LogParts,
    offset: int,
    *,
    log_start_offset: int,
    tiered_to: int,
    epochs: Iterable[tuple[int, int]] = (),
    producers: bytes = b"",
) -> None:
    """Discard every local record; the log continues at `offset`, with these leader epochs. `producers` are the contents
    of a snapshot.
    """
    with log.durability.lock:
        try:
            known = ProducerState()
            if producers:
                known = ProducerState.decode_snapshot(producers, log.clock.monotonic())
            log.folder.unmark_clean()
            log.chain.reader.forget()
            log.folder.remove_snapshots()
            log.folder.make()
            log.durability.tiered_to = tiered_to
            log.durability.write_checkpoint(log_start_offset)
            log.chain.begin_at(offset)
            log.producers.loaded = known
            if producers:
                log.folder.write_snapshot(offset, log.producers.load)
            log.epochs.truncate_from_end(0)
            for epoch, start_offset in epochs:
                log.epochs.assign(epoch, start_offset)
            log.epochs.truncate_from_start(log_start_offset)
            log.folder.write_epochs(log.epochs, sync=True)
            log.durability.recovery_point = offset
        except (OSError, ValueError) as error:
            log.health.fail(f"it could not continue at offset {offset}: {error}", error)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{log.name} could not continue at offset {offset}: {error}",
            ) from error
