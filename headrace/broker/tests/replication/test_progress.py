"""A leader's view of the progress of its followers."""

from __future__ import annotations

from headrace.broker.metadata.image import PartitionState
from headrace.broker.replication.progress import Progress

LAG = 10.0
EPOCHS = {1: 11, 2: 12, 3: 13}


def leader(isr: tuple[int, ...] = (1, 2, 3), start: int = 0, end: int = 0) -> Progress:
    progress = Progress(1, PartitionState((1, 2, 3), 1, 5, isr), start, now=0.0)
    progress.own_end = end
    return progress


def hw(progress: Progress, present: int = 0, *, min_isr: int = 1, now: float = 0.0) -> int:
    return progress.high_watermark(present, min_isr, now, LAG, EPOCHS)


def test_the_high_watermark_is_what_all_of_the_isr_have_and_never_goes_back() -> None:
    progress = leader(end=10)
    assert hw(progress) == 0, "no follower has fetched in this epoch"
    assert hw(progress, 4) == 4
    progress.fetched(2, 12, 8, 10, 0.0)
    assert hw(progress) == 0
    progress.fetched(3, 13, 6, 10, 0.0)
    assert hw(progress) == 6
    progress.fetched(3, 13, 10, 10, 0.0)
    assert hw(progress) == 8
    progress.fetched(2, 12, 2, 10, 0.0)
    assert hw(progress, 8) == 8


def test_records_that_are_not_durable_at_the_leader_are_not_published() -> None:
    progress = leader(isr=(1,), end=3)
    assert hw(progress) == 3


def test_a_joining_replica_counts_until_its_proposal_is_refused() -> None:
    progress = leader(isr=(1, 2), end=10)
    progress.fetched(2, 12, 10, 10, 0.0)
    progress.fetched(3, 13, 5, 10, 0.0)
    progress.propose(joins=3, known=lambda _: -1)
    assert hw(progress, 5, now=100.0) == 5, "it is not known yet whether it is in the ISR"
    assert not progress.joining(3, 5), "one proposal at a time"
    progress.follow(progress.state)
    assert hw(progress, 5, now=100.0) == 10


def test_a_lagging_replica_counts_until_it_has_left_the_isr() -> None:
    progress = leader(end=10)
    progress.fetched(2, 12, 10, 10, 0.0)
    progress.fetched(3, 13, 5, 10, 0.0)
    assert progress.lagging(10, LAG, LAG) == []
    assert progress.lagging(10, LAG + 1, LAG) == [3]
    isr = progress.propose(leave=[3], known=lambda broker: EPOCHS[broker])
    assert isr == ((1, 11), (2, 12))
    assert hw(progress, now=LAG + 1) == 5
    progress.follow(PartitionState((1, 2, 3), 1, 5, (1, 2)))
    assert hw(progress, now=LAG + 1) == 10


def test_the_high_watermark_waits_for_a_caught_up_follower_to_join() -> None:
    progress = leader(isr=(1, 2), end=10)
    progress.fetched(2, 12, 10, 10, 0.0)
    progress.fetched(3, 13, 10, 10, 0.0)
    progress.own_end = 12
    progress.fetched(2, 12, 12, 12, 1.0)
    assert hw(progress, 9, now=1.0) == 10
    assert hw(progress, 9, now=LAG + 2) == 12, "it lags"
    progress.replicas[3].caught_up_at = LAG + 2
    progress.replicas[3].broker_epoch = 7
    assert hw(progress, 9, now=LAG + 2) == 12, "another incarnation is registered"


def test_below_min_insync_replicas_nothing_is_published() -> None:
    progress = leader(isr=(1,), end=10)
    assert hw(progress, 3, min_isr=2) == 3
    assert hw(progress, 3, min_isr=1) == 10
    progress.follow(PartitionState((1, 2), 1, 5, (1, 2)))
    progress.fetched(2, 12, 10, 10, 0.0)
    assert hw(progress, 3, min_isr=3) == 10, "there are no more replicas"


def test_a_follower_joins_with_everything_that_is_published_and_something_of_this_epoch() -> None:
    progress = leader(isr=(1, 2), start=8, end=10)
    progress.fetched(3, 13, 6, 10, 0.0)
    assert not progress.joining(3, 7)
    assert not progress.joining(3, 6), "the leader before may have published up to where this epoch begins"
    progress.fetched(3, 13, 8, 10, 0.0)
    assert progress.joining(3, 8)
    assert progress.propose(joins=3, known=lambda broker: EPOCHS[broker]) == ((1, 11), (2, 12), (3, 13))


def test_a_fetch_of_an_incarnation_that_is_over_counts_for_nothing() -> None:
    progress = leader(isr=(1, 2), end=10)
    assert progress.fetched(3, 13, 2, 10, 0.0)
    assert not progress.fetched(3, 12, 10, 10, 0.0)
    assert progress.replicas[3].end_offset == 2
    assert not progress.fetched(9, 19, 10, 10, 0.0), "it is not a replica"


def test_a_follower_that_fetches_what_was_there_at_its_last_fetch_keeps_up() -> None:
    progress = leader(end=30)
    progress.fetched(2, 12, 0, 10, 20.0)
    progress.fetched(2, 12, 10, 20, 21.0)
    assert progress.replicas[2].caught_up_at == 20.0
    progress.fetched(2, 12, 12, 30, 22.0)
    assert progress.replicas[2].caught_up_at == 20.0


def test_the_high_watermark_waits_for_a_follower_behind_it_that_keeps_up() -> None:
    """The leader alone is in sync: its appends are published at once, so a replica that joins is always behind."""
    progress = leader(isr=(1,), end=10)
    assert hw(progress) == 10, "no follower is near"
    progress.fetched(2, 12, 7, 10, 1.0)
    assert hw(progress, 10, now=1.0) == 10
    progress.own_end = 12
    progress.fetched(2, 12, 10, 12, 2.0)
    assert not progress.joining(2, 12)
    assert hw(progress, 11, now=2.0) == 11, (
        "it had all that was there at its last fetch: what is new waits for it"
    )
    progress.own_end = 14
    progress.fetched(2, 12, 12, 14, 3.0)
    assert progress.joining(2, hw(progress, 11, now=3.0))
    progress.own_end = 20
    assert hw(progress, 12, now=LAG + 4) == 20, "not for longer than the time by which it would be out"


def test_nothing_is_published_while_a_replica_outside_the_isr_is_eligible() -> None:
    """It is eligible by a higher min.insync.replicas than the leader's; it would lead without acknowledged records."""
    progress = Progress(1, PartitionState((1, 2, 3), 1, 5, (1, 2), elr=(3,)), 0, now=0.0)
    progress.own_end = 10
    progress.fetched(2, 12, 10, 10, 0.0)
    assert hw(progress, 4) == 4
    assert not progress.must_end_eligibility(3), "too few replicas are in sync"
    assert progress.must_end_eligibility(2)
    assert progress.propose(known=lambda broker: EPOCHS[broker]) == ((1, 11), (2, 12))
    assert not progress.must_end_eligibility(2), "one proposal at a time"
    progress.follow(PartitionState((1, 2, 3), 1, 5, (1, 2)))
    assert hw(progress, 4) == 10
    assert not progress.must_end_eligibility(2)
