"""Idempotent producers: rules P2 to P5, and Kafka's snapshot format."""

import struct

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.log.partition_log import AppendOrigin
from headrace.broker.log.producer_state import AppendedBatch, ProducerState
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.header import MAX_SEQUENCE, write_crc
from simulator.disk import Fault, Tear

DAY_SECONDS = 86_400


def send(world, log, sequence, count=1, *, producer=9, epoch=0, **more):
    return world.append(
        log, count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **more
    )


def refused(code, call, *arguments, **options):
    with pytest.raises(KafkaError) as error:
        call(*arguments, **options)
    assert error.value.code == code


def arrow_batch(world, sequence, sequence_count, *, producer=9, epoch=0):
    batch = bytearray(
        world.batch(1, value=b"arrow", producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    )
    batch[16] = 100
    batch[61:65] = sequence_count.to_bytes(4, "big")
    write_crc(batch)
    return batch


def test_p2_each_of_the_last_five_batches_is_answered_with_its_original_offsets(world):
    log = world.open()
    infos = []
    for i in range(7):
        infos.append(send(world, log, 3 * i, 3))
        world.append(log)
    for i in (2, 6, 4, 3, 5):
        again = send(world, log, 3 * i, 3)
        assert (again.base_offset, again.last_offset, again.duplicate) == (
            infos[i].base_offset,
            infos[i].last_offset,
            True,
        )
    assert log.log_end_offset == 28
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, send, world, log, 3, 3)  # a sixth is not remembered
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, send, world, log, 18, 2)  # same start, other end


def test_p3_sequences_follow_one_another_and_wrap(world):
    log = world.open()
    send(world, log, MAX_SEQUENCE - 1, 2)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, send, world, log, 1)
    send(world, log, 0, 2)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, send, world, log, 3)
    send(world, log, 2)
    across = send(world, log, 3, producer=10)
    assert across.base_offset == 5, "an unknown Kafka producer may go on with any sequence"
    assert send(world, log, MAX_SEQUENCE - 1, 2).duplicate


def test_p4_epochs(world):
    log = world.open()
    send(world, log, 0, 3, epoch=1)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, send, world, log, 3, epoch=0)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, send, world, log, 3, epoch=2)
    send(world, log, 0, 3, epoch=2)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, send, world, log, 0, 3, epoch=1)
    assert send(world, log, 0, 3, epoch=2).duplicate


@pytest.mark.parametrize("how", ["clean", "killed", "no snapshot", "bad snapshot", "stale marker"])
def test_p5_the_window_of_five_survives_a_restart(world, how):
    log = world.open(segment_bytes=600)
    infos = [send(world, log, i) for i in range(8)]
    disk = world.disk
    if how == "clean":
        log.close()
    else:
        disk = disk.restart(Tear.KEPT)
        snapshots = [name for name in disk.names(log.directory) if name.endswith(".snapshot")]
        assert snapshots
        for name in snapshots:
            if how == "no snapshot":
                disk.remove(log.directory / name)
            elif how == "bad snapshot":
                disk.corrupt(log.directory / name, 12, 1)
    if how == "stale marker":  # written before the last append; the files show that it is stale
        log.close()
        disk = world.disk
        marker = disk.contents(log.directory / "clean-shutdown")
        log = world.open(disk)
        infos.append(send(world, log, 8))
        disk = disk.restart(Tear.KEPT)
        disk.replace(log.directory / "clean-shutdown", marker, sync=True)
    log = world.open(disk)
    assert log.recovered.was_clean == (how == "clean")
    count = len(infos)
    for i in range(count - 5, count):
        again = send(world, log, i)
        assert (again.duplicate, again.base_offset) == (True, infos[i].base_offset)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, send, world, log, count - 6)
    send(world, log, count)


def test_p5_the_window_is_rebuilt_after_truncation(world):
    log = world.open(segment_bytes=600)
    for i in range(12):
        send(world, log, i)
    log.truncate_to(7)
    assert log.log_end_offset == 7
    assert send(world, log, 2).duplicate
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, send, world, log, 8)
    assert send(world, log, 7).base_offset == 7


def test_p5_a_producer_silent_for_a_day_is_forgotten_whatever_the_wall_clock_says(world):
    log = world.open()
    send(world, log, 0)
    world.clock.now_ms += 10 * 365 * DAY_SECONDS * 1000
    log.delete_old_segments(0, 0)
    assert send(world, log, 0, at=1_700_000_000_000).duplicate
    world.clock.seconds += DAY_SECONDS + 1
    log.delete_old_segments(0, 0)
    assert not send(world, log, 0).duplicate


def test_p5_a_producer_is_silent_since_its_last_batch(world):
    log = world.open()
    for sequence in range(3):
        send(world, log, sequence)
        world.clock.seconds += DAY_SECONDS - 1
        log.delete_old_segments(0, 0)
        assert send(world, log, sequence).duplicate


def test_a_refused_or_failed_append_leaves_the_state_as_it_was(world):
    log = world.open()
    send(world, log, 0)
    world.disk.fail(Fault("write", 28, suffix=".log"))
    refused(ErrorCode.KAFKA_STORAGE_ERROR, send, world, log, 1)
    assert not send(world, log, 1).duplicate


def test_a_tables_writer_begins_with_zero_and_counts_sequences_not_records(world):
    log = world.open()

    def write(sequence, count, **more):
        return log.append(
            arrow_batch(world, sequence, count, **more), leader_epoch=0, origin=AppendOrigin.EXTENSION
        )

    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, write, 5, 10)
    write(0, 10)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, write, 1, 1)
    write(10, 5)
    log = world.open(world.disk.restart(Tear.KEPT))
    assert write(0, 10).duplicate
    write(15, 1)
    log.close()
    log = world.open(log.disk)
    assert log.recovered.was_clean
    again = write(10, 5)
    assert (again.duplicate, again.base_offset) == (True, 1)
    write(16, 1)


def test_forwarded_identities_may_leave_gaps_and_everything_not_later_is_a_repeat(world):
    log = world.open()

    def write(sequence, count=1, epoch=0):
        return log.append(
            arrow_batch(world, sequence, count, producer=-5, epoch=epoch),
            leader_epoch=0,
            origin=AppendOrigin.EXTENSION,
        )

    assert write(MAX_SEQUENCE - 9, 4).base_offset == 0
    assert not write(MAX_SEQUENCE, 3).duplicate  # the numbers between went to other partitions
    assert write(0).duplicate
    assert write(1).base_offset == 1
    assert write(MAX_SEQUENCE - 8).base_offset == 0
    assert write(MAX_SEQUENCE - 500).duplicate
    assert not write(50).duplicate
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, write, 60, epoch=-1)
    assert not write(7, epoch=1).duplicate
    assert write(7, epoch=1).duplicate


def test_the_snapshot_is_kafkas_file_format(world):
    state = ProducerState()
    state.add(11, 2, AppendedBatch(5, 7, 100, 102, 1234), 0.0)
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 11, 2, 7, 102, 2, 1234, -1, -1)
    expected = struct.pack(">hI", 1, crc32c.crc32c(body)) + body
    assert state.encode_snapshot() == expected


batches = st.lists(
    st.tuples(st.integers(-9, 50), st.integers(0, 3), st.integers(0, MAX_SEQUENCE), st.integers(1, 9)),
    max_size=30,
)


@settings(deadline=None)
@given(batches, st.booleans())
def test_snapshots_round_trip(rows, wide):
    state = ProducerState()
    for i, (producer, epoch, first, count) in enumerate(rows):
        offsets = 1 if wide else count
        last = (first + count - 1) & MAX_SEQUENCE
        state.add(producer, epoch, AppendedBatch(first, last, i * 10, i * 10 + offsets - 1, 5), 0.0)
    data = state.encode_snapshot()
    again = ProducerState.decode_snapshot(data, 0.0)
    assert {p: (s.epoch, s.batches) for p, s in again.producers.items()} == {
        p: (s.epoch, s.batches) for p, s in state.producers.items()
    }
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x40
        with pytest.raises(ValueError):
            ProducerState.decode_snapshot(bytes(damaged), 0.0)
        with pytest.raises(ValueError):
            ProducerState.decode_snapshot(data[:position], 0.0)
