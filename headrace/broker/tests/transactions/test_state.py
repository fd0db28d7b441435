"""Rules P1, T1, T3 and T4 of a transactional id, one by one, in virtual time."""

import pytest
from msgspec.structs import replace

from headrace.broker.transactions.events import EndTransaction, Expire, InitProducer, Tick
from headrace.broker.transactions.model import EPOCH_LAST_USABLE, Limits, State, Transaction
from headrace.broker.transactions.state import needs_producer_id
from headrace.protocol.errors import ErrorCode
from simulator.transactions import TIMEOUT_MS, TransactionWorld

A, B = ("topic", 0), ("topic", 1)
DAY_MS = 86_400_000


@pytest.fixture
def world():
    return TransactionWorld()


def begin(world, *partitions):
    result = world.init("tx")
    producer = (result.producer_id, result.producer_epoch)
    if partitions:
        assert world.add("tx", producer, *partitions) is ErrorCode.NONE
    return producer


def state(world):
    return world.transactions["tx"].stored.state


def write(world, producer, key=A, sequence=0, announces=False):
    return world.produce("tx", producer, key, sequence, (0, 0), announces=announces)


def almost_exhausted(world):
    """Return a transactional id with the last epoch of its producer id."""
    begin(world)
    transaction = world.transactions["tx"]
    transaction.stored = replace(transaction.stored, producer_epoch=EPOCH_LAST_USABLE - 1)
    producer = begin(world)
    assert producer == (1, EPOCH_LAST_USABLE)
    return transaction, producer


def test_p1_a_transactional_id_keeps_its_producer_id_and_raises_the_epoch(world):
    assert [begin(world) for _ in range(3)] == [(1, 0), (1, 1), (1, 2)]
    world.restart()
    assert begin(world) == (1, 3)


def test_p1_when_the_epoch_runs_out_there_is_a_new_producer_id(world):
    transaction, producer = almost_exhausted(world)
    assert needs_producer_id(transaction, InitProducer(0, TIMEOUT_MS))
    result = world.init("tx", expected=producer)
    assert (result.producer_id, result.producer_epoch) == (2, 0)
    again = world.init("tx", expected=producer)  # its answer was lost
    assert (again.producer_id, again.producer_epoch) == (2, 0)
    assert world.init("tx", expected=(1, 5)).error is ErrorCode.PRODUCER_FENCED


def test_t1_timeouts_have_a_limit(world):
    for timeout_ms in (0, -1, 900_001):
        result = world.run("tx", InitProducer(0, timeout_ms, None, 7))
        assert result.error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert world.run("tx", InitProducer(0, 900_000, None, 7)).error is ErrorCode.NONE


def test_t1_a_new_owner_aborts_the_open_transaction_and_comes_again(world):
    old = begin(world, A)
    assert write(world, old) is ErrorCode.NONE
    assert world.init("tx").error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert state(world) is State.COMPLETE_ABORT
    assert world.partitions[A].markers == [(1, 1, False)]
    assert begin(world) == (1, 2)
    assert world.add("tx", old, B) is ErrorCode.PRODUCER_FENCED
    assert world.end("tx", old, True, 1).error is ErrorCode.PRODUCER_FENCED
    assert write(world, old, sequence=1) is ErrorCode.PRODUCER_FENCED


def test_t1_an_older_epoch_is_fenced(world):
    begin(world)
    producer = begin(world)
    assert world.init("tx", expected=(1, 0)).error is ErrorCode.PRODUCER_FENCED
    assert world.init("tx", expected=(9, 1)).error is ErrorCode.PRODUCER_FENCED
    bumped = world.init("tx", expected=producer)
    assert (bumped.error, bumped.producer_epoch) == (ErrorCode.NONE, 2)
    assert world.init("tx", expected=producer).producer_epoch == 2, "a retry changes nothing"
    assert world.init("tx", expected=(1, 2)).producer_epoch == 3


def test_t1_a_zombie_cannot_abort_the_owners_transaction(world):
    begin(world)
    producer = begin(world, A)
    assert world.init("tx", expected=(1, 0)).error is ErrorCode.PRODUCER_FENCED
    assert state(world) is State.ONGOING
    assert world.end("tx", producer, True, 1).error is ErrorCode.NONE


def test_t1_a_foreign_producer_cannot_abort_the_owners_transaction(world):
    _, epoch = begin(world, A)
    assert world.init("tx", expected=(9, epoch)).error is ErrorCode.PRODUCER_FENCED
    assert state(world) is State.ONGOING
    assert world.partitions[A].markers == []


def test_nothing_is_decided_while_a_record_is_on_its_way_to_the_journal(world):
    producer = begin(world, A)
    world.transactions["tx"].appending = True
    world.seconds += 3600
    world.run("tx", Tick())
    world.run("tx", Expire())
    refused = [
        world.init("tx").error,
        world.init("tx", expected=producer).error,
        world.add("tx", producer, B),
        world.end("tx", producer, True, 1).error,
        world.end("tx", producer, True, 2).error,
    ]
    assert set(refused) == {ErrorCode.CONCURRENT_TRANSACTIONS}
    assert (state(world), len(world.journal)) == (State.ONGOING, 2)
    world.transactions["new"] = Transaction("new", appending=True)
    assert world.init("new").error is ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_change_that_cannot_be_stored_has_no_effect(world):
    producer = begin(world, A)
    world.end("tx", producer, True, 1)
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.init("tx").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.add("tx", producer, B) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state(world) is State.COMPLETE_COMMIT
    world.seconds += 100 * 86_400
    world.run("tx", Expire())
    world.append_error = ErrorCode.NONE
    assert world.add("tx", producer, B) is ErrorCode.NONE, "its owner is the owner still"


def test_t2_only_partitions_of_the_transaction_are_written_to(world):
    producer = begin(world, A)
    assert write(world, producer, A) is ErrorCode.NONE
    assert write(world, producer, B) is ErrorCode.TRANSACTION_ABORTABLE
    assert write(world, producer, B, announces=True) is ErrorCode.NONE
    assert write(world, (8, 0), A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    world.end("tx", producer, True, 1)
    assert write(world, producer, A, 1) is ErrorCode.TRANSACTION_ABORTABLE


@pytest.mark.parametrize("commit", [True, False])
def test_t3_an_end_may_be_repeated_but_not_reversed(world, commit):
    producer = begin(world)
    assert world.end("tx", producer, commit, 1).error is ErrorCode.INVALID_TXN_STATE, "nothing has begun"
    world.add("tx", producer, A)
    assert world.end("tx", producer, commit, 1).error is ErrorCode.NONE
    assert world.end("tx", producer, commit, 1).error is ErrorCode.NONE
    assert world.end("tx", producer, not commit, 1).error is ErrorCode.INVALID_TXN_STATE
    assert world.partitions[A].markers == [(1, 0, commit)]


@pytest.mark.parametrize("commit", [True, False])
def test_t3_until_the_markers_are_written_nothing_new_begins(world, commit):
    producer = begin(world, A)
    world.marker_error = True
    assert world.end("tx", producer, commit, 1).error is ErrorCode.NONE
    assert state(world) is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
    assert world.end("tx", producer, commit, 1).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.end("tx", producer, not commit, 1).error is ErrorCode.INVALID_TXN_STATE
    assert world.add("tx", producer, B) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.init("tx").error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert write(world, producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.marker_error = False
    world.tick(1.1)
    assert state(world) is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)


@pytest.mark.parametrize("commit", [True, False])
def test_e7_a_restart_completes_the_same_decision(world, commit):
    producer = begin(world, A, B)
    world.marker_error = True
    world.end("tx", producer, commit, 1)
    world.marker_error = False
    world.restart()
    assert state(world) is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert world.partitions[A].markers == world.partitions[B].markers == [(1, 0, commit)]


def test_t4_a_transaction_that_takes_too_long_is_aborted_with_a_raised_epoch(world):
    producer = begin(world, A)
    write(world, producer)
    world.wall_offset_ms = 10 * DAY_MS
    world.tick(59.9)
    assert state(world) is State.ONGOING, "the wall clock does not matter"
    world.tick(0.2)
    assert state(world) is State.COMPLETE_ABORT
    assert world.partitions[A].markers == [(1, 1, False)]
    assert world.partitions[A].state.first_unstable_offset is None
    for version in (1, 2):
        assert world.end("tx", producer, True, version).error is ErrorCode.PRODUCER_FENCED
        assert world.end("tx", producer, False, version).error is ErrorCode.PRODUCER_FENCED


def test_t4_the_timeout_counts_from_the_beginning(world):
    producer = begin(world, A)
    world.tick(40)
    assert world.add("tx", producer, B) is ErrorCode.NONE
    world.tick(20.1)
    assert state(world) is State.COMPLETE_ABORT


def test_t4_a_clock_that_went_back_while_the_broker_was_down_gives_no_more_than_the_timeout(world):
    begin(world, A)
    world.wall_offset_ms = -10 * DAY_MS
    world.restart()
    world.tick(60.1)
    assert state(world) is State.COMPLETE_ABORT


def test_t4_version_2_an_end_after_the_timeout_is_fenced_and_not_taken_for_a_retry(world):
    producer = begin(world)
    write(world, producer, announces=True)
    ended = world.end("tx", producer, True, 2)
    producer = (ended.producer_id, ended.producer_epoch)
    assert write(world, producer, announces=True) is ErrorCode.NONE
    world.tick(60.1)
    assert state(world) is State.COMPLETE_ABORT
    assert world.end("tx", producer, False, 2).error is ErrorCode.PRODUCER_FENCED


def test_t4_after_a_restart_what_was_left_of_the_timeout_is_left(world):
    begin(world, A)
    world.tick(40)
    world.restart()
    world.tick(19)
    assert state(world) is State.ONGOING
    world.tick(1.1)
    assert state(world) is State.COMPLETE_ABORT


def test_t4_an_abort_that_cannot_be_stored_is_tried_again(world):
    begin(world, A)
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.tick(61)
    assert state(world) is State.ONGOING
    world.append_error = ErrorCode.NONE
    world.tick(1.1)
    assert state(world) is State.COMPLETE_ABORT


def test_version_2_an_end_raises_the_epoch_and_its_retry_says_the_same(world):
    producer = begin(world)
    write(world, producer, announces=True)
    first = world.end("tx", producer, True, 2)
    assert (first.error, first.producer_id, first.producer_epoch) == (ErrorCode.NONE, 1, 1)
    assert world.end("tx", producer, True, 2) == first
    assert world.end("tx", producer, False, 2).error is ErrorCode.INVALID_TXN_STATE
    assert world.partitions[A].markers == [(1, 1, True)]
    assert write(world, producer, sequence=1, announces=True) is ErrorCode.PRODUCER_FENCED, "E4: a late write"
    assert write(world, (1, 1), announces=True) is ErrorCode.NONE
    assert world.end("tx", producer, True, 2).error is ErrorCode.PRODUCER_FENCED, "E4: a late end"


def test_version_2_may_abort_but_not_commit_an_unstarted_transaction(world):
    producer = begin(world)
    assert world.end("tx", producer, True, 2).error is ErrorCode.INVALID_TXN_STATE
    assert world.end("tx", producer, False, 2).producer_epoch == 1
    assert world.end("tx", (1, 1), False, 2).producer_epoch == 2


def test_version_2_an_end_that_exhausts_the_epoch_gives_a_new_id(world):
    transaction, producer = almost_exhausted(world)
    write(world, producer, announces=True)
    assert needs_producer_id(transaction, EndTransaction(0, *producer, True, 2))
    ended = world.end("tx", producer, True, 2)
    assert (ended.error, ended.producer_id, ended.producer_epoch) == (ErrorCode.NONE, 2, 0)
    assert world.partitions[A].markers == [(1, EPOCH_LAST_USABLE + 1, True)]
    assert world.end("tx", producer, True, 2) == ended
    assert world.end("tx", producer, False, 2).error is ErrorCode.INVALID_TXN_STATE
    world.restart()
    assert world.end("tx", producer, True, 2) == ended
    assert write(world, (2, 0), announces=True) is ErrorCode.NONE


def test_unused_ids_are_forgotten_and_open_ones_are_not():
    world = TransactionWorld(limits=Limits(expiration_ms=DAY_MS))
    begin(world)
    world.run("tx", Expire())
    assert "tx" in world.transactions
    world.seconds += 86_399
    world.run("tx", Expire())
    assert world.journal[-1][1] is not None
    world.seconds += 2
    world.run("tx", Expire())
    assert world.journal[-1][1] is None
    world.restart()
    assert "tx" not in world.transactions
    producer = begin(world, A)
    assert producer == (2, 0)
    world.transactions["tx"].deadline = 1e12
    world.seconds += 86_401
    world.run("tx", Expire())
    assert state(world) is State.ONGOING
