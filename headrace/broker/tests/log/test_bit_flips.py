"""D6: a flipped bit is reported, or found by the reader's own checksum; a damaged batch never looks right."""

from __future__ import annotations

import logging

import crc32c
import pytest

from headrace.broker.log.errors import CorruptLogError
from headrace.protocol.errors import DecodeError, KafkaError
from headrace.protocol.records.header import iter_headers
from simulator.disk import Tear
from simulator.log import batches_of

BATCHES = 4
EPOCH_BYTES = range(12, 16)
"""The leader epoch of a batch, which no checksum covers, because brokers write it."""
OFFSET_BYTES = range(8)


def filled(world, state: str):
    """A log and the path of the file to damage, which has four batches."""
    log = world.open(segment_bytes=420)
    for number in range(BATCHES if state != "sealed and flushed" else BATCHES + 1):
        world.append(
            log, 2, value=b"value %d" % number, producer_id=3, producer_epoch=0, base_sequence=2 * number
        )
    if "flushed" in state:
        log.flush()
    path = log.segments[0].path
    assert log.segment_count == (2 if "sealed" in state else 1)
    return log, path, [position for position, _ in iter_headers(world.disk.contents(path))]


def crc_is_right(batch: bytes) -> bool:
    """Return whether the CRC of a batch without the log's stamped prefix is right, as `batches_of` returns it."""
    return crc32c.crc32c(batch[5:]) == int.from_bytes(batch[1:5], "big")


@pytest.mark.parametrize("state", ["not flushed", "flushed", "sealed and flushed"])
def test_d6_a_flip_of_any_byte_is_said_or_shows(world, state, monkeypatch) -> None:
    """A scan after a crash reports damage before anything is served, and cuts only a last batch that may never have
    been whole.

    Sealed segments that were flushed are not scanned (as in Kafka): there the reader's own checksum finds damage, so no
    changed batch may look right.
    """
    monkeypatch.setattr(logging.getLogger("headrace.log"), "disabled", True)
    log, path, positions = filled(world, state)
    true = batches_of(log)
    size = len(world.disk.contents(path))
    messages: set[str] = set()
    counts = dict.fromkeys(("said", "cut", "shows", "harmless"), 0)
    for at in range(size):
        disk = world.disk.restart(Tear.KEPT)
        disk.corrupt(path, at, 1 << (at % 8))
        inside = at - max(position for position in positions if position <= at)
        try:
            found = batches_of(world.open(disk))
        except (CorruptLogError, KafkaError) as error:
            messages.add(str(error).partition(":")[0])
            counts["said"] += 1
            continue
        except DecodeError:  # where the length is wrong, a reader finds no batch
            assert state == "sealed and flushed", at
            counts["shows"] += 1
            continue
        if wrong := [batch for batch in found if batch not in true]:
            assert state == "sealed and flushed", at
            assert inside in OFFSET_BYTES or not all(crc_is_right(batch) for _, batch in wrong), at
            counts["shows"] += 1
        elif len(found) < len(true):
            assert state == "not flushed", f"byte {at}: what was known to be whole is not cut"
            assert at >= positions[-1], f"byte {at}: only the last batch can have been torn"
            assert found == true[:-1]
            counts["cut"] += 1
        else:
            assert inside in EPOCH_BYTES, at
            counts["harmless"] += 1
    print(state, counts)
    assert all(str(path) in message or "KAFKA_STORAGE_ERROR" in message for message in messages), messages
    assert counts["said"] if state != "sealed and flushed" else counts["shows"]
    assert counts["harmless"] <= BATCHES * len(EPOCH_BYTES)
