"""Transactions in a log: rules P4 and T3 to T6 for one partition, and Kafka's `.txnindex` file."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.log.partition_log import AppendOrigin
from headrace.broker.log.producer_state import ProducerState
from headrace.broker.log.transaction_index import AbortedTransaction, TransactionIndex
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.control import EndMarker, build_end_marker
from simulator.disk import Fault, Tear
from simulator.log import LogWorld

TRANSACTIONAL = 0x10


class Writer:
    """A transactional producer of one partition, and the markers that its coordinator writes."""

    def __init__(self, world, log, producer_id, epoch=0):
        self.world, self.log, self.producer_id, self.epoch = world, log, producer_id, epoch
        self.sequence = 0

    def send(self, count=1, **more):
        options = {"attributes": TRANSACTIONAL, "base_sequence": self.sequence, **more}
        info = self.world.append(
            self.log, count, producer_id=self.producer_id, producer_epoch=self.epoch, **options
        )
        self.sequence += count
        return info

    def end(self, commit, *, epoch=None, coordinator_epoch=0):
        marker = build_end_marker(
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=self.world.clock.now_ms,
        )
        return self.log.append(marker, leader_epoch=0, origin=AppendOrigin.COORDINATOR).base_offset


def refused(code, call, *arguments, **options):
    with pytest.raises(KafkaError) as error:
        call(*arguments, **options)
    assert error.value.code == code


def pairs(aborted):
    return [(transaction.producer_id, transaction.first_offset) for transaction in aborted]


def test_t5_the_stable_offset_is_the_start_of_the_earliest_open_transaction(world):
    log = world.open()
    first, second = Writer(world, log, 1), Writer(world, log, 2)
    assert log.first_unstable_offset is None
    world.append(log, 3)
    first.send(2)
    second.send(2)
    assert log.first_unstable_offset == 3
    assert first.end(commit=True) == 7
    assert log.first_unstable_offset == 5
    first.send()
    assert second.end(commit=False) == 9
    assert log.first_unstable_offset == 8
    first.end(commit=False)
    assert log.first_unstable_offset is None
    assert log.aborted_transactions(0, 100) == [
        AbortedTransaction(2, 5, 9, 8),
        AbortedTransaction(1, 8, 10, 11),
    ]
    assert pairs(log.aborted_transactions(6, 8)) == [(2, 5)]
    assert pairs(log.aborted_transactions(10, 11)) == [(1, 8)]
    assert pairs(log.aborted_transactions(0, 5)) == []


def test_t5_deleted_records_of_an_open_transaction_do_not_hold_the_stable_offset(world):
    log = world.open()
    writer = Writer(world, log, 1)
    writer.send(2)
    writer.send(2)
    log.delete_records(2)
    assert log.first_unstable_offset == 2


def test_t6_an_end_without_data_leaves_no_entry_and_repeated_markers_are_tolerated(world):
    log = world.open()
    writer = Writer(world, log, 1)
    writer.end(commit=False)
    writer.send()
    writer.end(commit=False)
    writer.end(commit=False)
    writer.end(commit=True)
    assert pairs(log.aborted_transactions(0, 100)) == [(1, 1)]
    assert log.first_unstable_offset is None


def test_p4_a_write_outside_of_the_open_transaction_is_refused(world):
    log = world.open()
    writer = Writer(world, log, 1)
    writer.send()
    refused(ErrorCode.INVALID_TXN_STATE, writer.send, attributes=0)
    writer.end(commit=True)
    writer.send(attributes=0)


def test_t4_a_marker_with_a_newer_epoch_fences_and_the_next_epoch_begins_with_zero(world):
    log = world.open()
    zombie = Writer(world, log, 1)
    zombie.send(3)
    zombie.end(commit=False, epoch=1)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, zombie.send)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, zombie.end, commit=True)
    heir = Writer(world, log, 1, epoch=1)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, heir.send, base_sequence=3)
    heir.sequence = 0
    heir.send()
    assert heir.end(commit=True) == 5


def test_t4_markers_of_an_older_coordinator_are_fenced(world):
    log = world.open()
    writer = Writer(world, log, 1)
    writer.send()
    writer.end(commit=True, coordinator_epoch=4)
    writer.send()
    refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, writer.end, commit=True, coordinator_epoch=3)
    writer.end(commit=True, coordinator_epoch=4)


@pytest.mark.parametrize("sends", [True, False])
def test_t4_a_restart_does_not_forget_the_coordinator(world, sends):
    log = world.open(segment_bytes=300)
    writer = Writer(world, log, 1)
    writer.send()
    writer.end(commit=True, coordinator_epoch=5)
    if sends:
        writer.send()
    world.append(log, value=b"v" * 200)  # into another segment, so that there is a snapshot
    log.close()
    again = world.open(segment_bytes=300)
    assert again.recovered.was_clean
    writer.log = again
    refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, writer.end, commit=True, coordinator_epoch=4)


def test_t4_a_late_marker_of_version_2_does_not_end_the_next_transaction(world):
    log = world.open()
    writer = Writer(world, log, 1)
    writer.send()
    log.check_end_marker(1, 1, is_next_epoch=True)
    writer.end(commit=True, epoch=1)
    log.check_end_marker(1, 1, is_next_epoch=True)  # its retry, with nothing open
    following = Writer(world, log, 1, epoch=1)
    following.send()
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, log.check_end_marker, 1, 1, is_next_epoch=True)
    log.check_end_marker(1, 1, is_next_epoch=False)
    log.check_end_marker(1, 2, is_next_epoch=True)


def test_p5_a_producer_with_an_open_transaction_is_not_forgotten(world):
    log = world.open()
    Writer(world, log, 1).send()
    Writer(world, log, 2).send(attributes=0)
    world.clock.seconds += 90_000
    log.delete_old_segments(0, 0)
    assert set(log.producers()) == {1}
    assert log.first_unstable_offset == 0


def test_a_marker_that_could_not_be_written_ends_nothing(world):
    log = world.open()
    writer = Writer(world, log, 1)
    writer.send()
    world.disk.fail(Fault("write", 28, suffix=".log"))
    refused(ErrorCode.KAFKA_STORAGE_ERROR, writer.end, commit=False)
    assert log.first_unstable_offset == 0
    writer.end(commit=False)
    assert pairs(log.aborted_transactions(0, 9)) == [(1, 0)]


def test_the_file_is_kafkas(world):
    log = world.open()
    writer = Writer(world, log, 7)
    writer.send(2)
    writer.end(commit=False)
    log.close()
    content = world.disk.contents(log.directory / "00000000000000000000.txnindex")
    assert content == struct.pack(">hqqqq", 0, 7, 0, 2, 3)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("entries", [0, 1])
def test_an_index_that_lost_entries_is_made_again(world, entries, clean):
    log = world.open(segment_bytes=600)
    for producer_id in (1, 2):
        writer = Writer(world, log, producer_id)
        writer.send()
        writer.end(commit=False)
    world.append(log, value=b"v" * 500)
    assert log.segment_count == 2
    log.flush()
    log.close(clean=clean)
    path = log.directory / "00000000000000000000.txnindex"
    world.disk.replace(path, world.disk.contents(path)[: 34 * entries], sync=True)
    assert pairs(world.open(segment_bytes=600).aborted_transactions(0, 9)) == [(1, 0), (2, 2)]


def test_a_segment_without_aborts_has_no_file(world):
    log = world.open()
    writer = Writer(world, log, 7)
    writer.send(2)
    writer.end(commit=True)
    log.close()
    assert not [name for name in world.disk.names(log.directory) if name.endswith(".txnindex")]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(0, 3)), max_size=30), st.data())
def test_t5_the_index_finds_what_a_linear_search_finds(rows, data):
    index, entries, at = TransactionIndex(), [], 0
    for back, step, behind in rows:
        at += step
        entries.append(AbortedTransaction(len(entries), max(at - 1 - back, 0), at, max(at - behind, 0)))
        index.append(entries[-1])
    assert [index[row] for row in range(len(index))] == entries
    assert index.is_plausible(len(entries), 0, at + 1)
    start, end = sorted((data.draw(st.integers(0, at + 2)), data.draw(st.integers(0, at + 2))))
    found, is_complete = index.overlapping(start, end)
    expected = [entry for entry in entries if entry.last_offset >= start and entry.first_offset < end]
    assert set(found) <= set(expected)
    assert is_complete or found == expected
    index.truncate(end)
    assert [index[row] for row in range(len(index))] == [e for e in entries if e.last_offset < end]


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 3)), max_size=25))
def test_p5_snapshots_keep_open_transactions_and_fenced_epochs(steps):
    state = ProducerState()
    for offset, (producer_id, is_marker, epoch) in enumerate(steps, 1):
        known = state.producers.get(producer_id)
        epoch = max(epoch, known.epoch if known else 0)
        if is_marker:
            state.marker_appended(producer_id, epoch, EndMarker(False, epoch), offset, 5, 0.0)
        else:
            state.open_transactions.setdefault(producer_id, offset)
            state.marker_appended(9, 0, EndMarker(None, 0), offset, 5, 0.0)
            state.producers.setdefault(producer_id, state.producers[9])
    again = ProducerState.decode_snapshot(state.encode_snapshot(), 0.0)
    assert list(again.open_transactions.items()) == list(state.open_transactions.items())
    assert {p: (s.epoch, s.coordinator_epoch, s.timestamp) for p, s in again.producers.items()} == {
        p: (s.epoch, s.coordinator_epoch, s.timestamp) for p, s in state.producers.items()
    }


class Model:
    """The open and aborted transactions, derived from the list of operations."""

    def __init__(self):
        self.open = {}
        self.aborted = []

    def wrote(self, producer_id, offset):
        self.open.setdefault(producer_id, offset)

    def ended(self, producer_id, commit, offset):
        first = self.open.pop(producer_id, None)
        if first is not None and not commit:
            self.aborted.append((producer_id, first, offset))

    def cut(self, end_offset, history):
        self.__init__()
        for what, producer_id, commit, offset in history:
            if offset < end_offset:
                if what == "write":
                    self.wrote(producer_id, offset)
                else:
                    self.ended(producer_id, commit, offset)


RESTARTS = ("clean", "killed", "killed, no indexes", "clean, no transaction index", "clean, bad index")


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_e2_the_stable_offset_and_the_aborted_index_are_the_models_after_any_restart(seed):
    rng = random.Random(seed)
    world, model, history = LogWorld(), Model(), []
    config = {"segment_bytes": rng.choice([400, 1200, 100_000])}
    disk = world.disk
    log = world.open(disk, **config)
    writers = {producer_id: Writer(world, log, producer_id) for producer_id in range(1, 5)}
    for _ in range(rng.randint(5, 70)):
        writer = rng.choice(list(writers.values()))
        what = rng.random()
        if what < 0.5:
            offset = writer.send(rng.randint(1, 3)).base_offset
            model.wrote(writer.producer_id, offset)
            history.append(("write", writer.producer_id, None, offset))
        elif what < 0.85:
            commit = rng.random() < 0.4
            offset = writer.end(commit)
            model.ended(writer.producer_id, commit, offset)
            history.append(("end", writer.producer_id, commit, offset))
        elif what < 0.9:
            log.flush()
        elif what < 0.93 and history:
            log.truncate_to(rng.randint(log.log_end_offset // 2, log.log_end_offset))
            model.cut(log.log_end_offset, history)
            history = [entry for entry in history if entry[3] < log.log_end_offset]
            for known in writers.values():
                state = log.producers().get(known.producer_id)
                known.sequence = state.last_sequence + 1 if state else 0
        elif what < 0.97:
            how = rng.choice(RESTARTS)
            if how.startswith("clean"):
                log.close()
            else:
                disk = disk.restart(Tear.KEPT)
            for name in disk.names(log.directory):
                if name.endswith(".txnindex") and how in (RESTARTS[2], RESTARTS[3]):
                    disk.remove(log.directory / name)
                elif name.endswith(".txnindex") and how == RESTARTS[4]:
                    disk.corrupt(log.directory / name, 1, 1)
                elif how == RESTARTS[2] and not name.endswith((".log", "point")):
                    disk.remove(log.directory / name)
            log = world.open(disk, **config)
            for known in writers.values():
                known.log = log
        assert log.first_unstable_offset == min(model.open.values(), default=None), seed
        start = rng.randint(0, log.log_end_offset)
        end = rng.randint(start, log.log_end_offset + 1)
        expected = [
            (producer_id, first)
            for producer_id, first, last in model.aborted
            if last >= start and first < end
        ]
        assert pairs(log.aborted_transactions(start, end)) == sorted(expected, key=lambda row: row[1]), seed
