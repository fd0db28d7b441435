"""The lane against a model of the server: after any failures each batch is applied once, in its order."""

import asyncio
import contextlib
from collections import deque

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.tablelayer.client.write.lane import WHOLE_ROWS, Batch, Identity, Lane, Verdict

REMEMBERED = 5


def encoded() -> bytearray:
    data = bytearray(80)
    data[8:12] = (80 - 12).to_bytes(4, "big")
    return data


class ModelServer:
    """One bucket's idempotent log: sequences by writer, the last five batches remembered."""

    def __init__(self) -> None:
        self.applied: list[int] = []
        self.recent: dict[int, deque[tuple[int, int]]] = {}

    def write(self, identity: Identity, sequence: int, count: int, name: int, *, poison: bool) -> str:
        recent = self.recent.get(identity.producer_id)
        if recent is not None and (sequence, count) in recent:
            return "duplicate"
        expected = 0 if recent is None else recent[-1][0] + recent[-1][1]
        if sequence != expected:
            return "out of order"
        if poison:
            return "rejected"
        self.recent.setdefault(identity.producer_id, deque(maxlen=REMEMBERED)).append((sequence, count))
        self.applied.append(name)
        return "applied"


def drive(*scenario):
    """Send batches through a lane. A fault is the fate of the next attempt; later attempts succeed."""
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return _drive(loop, *scenario)


def _drive(loop, row_counts, poisoned, faults, in_flight, picks):
    server, lane = ModelServer(), Lane(0, in_flight)
    names, outcome = {}, {}
    for name, rows in enumerate(row_counts):
        batch = Batch(0, encoded(), rows, WHOLE_ROWS, 0.0, loop.create_future())
        names[id(batch)] = name
        lane.queue.append(batch)
    faults, picks, producers = deque(faults), deque(picks), 0
    answers = []
    for _ in range(2_000):
        while (head := lane.next_to_send(0.0)) is not None:
            if head.identity is None and lane.needs_identity:
                lane.give_identity(Identity(producers := producers + 1, 0))
            batch = lane.sent()
            answers.append((batch, attempt(server, batch, names[id(batch)], poisoned, faults)))
        assert len(lane.in_flight) <= in_flight
        if not answers:
            return server, lane, outcome
        batch, answer = answers.pop(picks.popleft() % len(answers) if picks else 0)
        if isinstance(answer, Verdict):
            lane.failed(batch, answer)
        else:
            lane.succeeded(batch)
        if answer in ("applied", "duplicate", Verdict.REJECTED):
            outcome[names[id(batch)]] = "rejected" if answer is Verdict.REJECTED else "written"
            batch.done.set_result(0)
    raise AssertionError("the lane never came to rest")


def attempt(server, batch, name, poisoned, faults):
    """Return the server's result, and what the writer learns of it."""
    fault = faults.popleft() if faults else "none"
    if fault == "lost before":
        return Verdict.UNKNOWN
    if fault == "retriable":
        return Verdict.AGAIN
    if fault == "refused":  # with its whole request, which the server does not compare with its log
        return Verdict.REJECTED
    sequence = int.from_bytes(batch.data[53:57], "big")
    answer = server.write(batch.identity, sequence, batch.sequence_count, name, poison=name in poisoned)
    if fault == "lost after":
        return Verdict.UNKNOWN
    return {"out of order": Verdict.OUT_OF_ORDER, "rejected": Verdict.REJECTED}.get(answer, answer)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=14),
    st.sets(st.integers(0, 13), max_size=3),
    st.lists(st.sampled_from(["none", "lost before", "lost after", "retriable"]), max_size=30),
    st.integers(1, 5),
    st.lists(st.integers(0, 4), max_size=30),
)
@example([1] * 12, set(), ["lost after"], 5, [1] * 20)
def test_every_batch_is_applied_once_in_order_and_only_poison_is_rejected(
    row_counts, poisoned, faults, in_flight, picks
):
    """`picks`: answers come in any order, as they may when a leader moves."""
    server, lane, outcome = drive(row_counts, poisoned, faults, in_flight, picks)
    assert sorted(server.applied) == [name for name in range(len(row_counts)) if name not in poisoned]
    assert lane.is_idle
    assert outcome == {n: "rejected" if n in poisoned else "written" for n in range(len(row_counts))}
    if not picks:
        assert server.applied == sorted(server.applied)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=8),
    st.lists(st.sampled_from(["none", "lost before", "lost after", "retriable", "refused"]), max_size=30),
    st.integers(1, 5),
    st.lists(st.integers(0, 4), max_size=30),
)
@example([1, 1], ["lost after", "lost after", "refused", "retriable"], 2, [])
def test_no_batch_is_applied_twice_after_one_whose_repetition_is_refused(
    row_counts, faults, in_flight, picks
):
    """A repetition is refused as a whole, for example without the right, though the first attempt was applied."""
    server, lane, outcome = drive(row_counts, set(), faults, in_flight, picks)
    assert lane.is_idle
    assert len(set(server.applied)) == len(server.applied)
    assert set(server.applied) >= {name for name, fate in outcome.items() if fate == "written"}


def test_an_abandoned_batch_does_not_hold_up_the_next():
    loop = asyncio.new_event_loop()
    lane = Lane(0, 5)
    first, second = (Batch(0, encoded(), 3, WHOLE_ROWS, 0.0, loop.create_future()) for _ in range(2))
    lane.queue.extend([first, second])
    lane.give_identity(Identity(1, 0))
    lane.failed(lane.sent(), Verdict.UNKNOWN)
    first.done.cancel()
    assert lane.next_to_send(0.0) is second
    assert lane.needs_identity, "its outcome is unknown: what follows must not share its sequence"
    lane.give_identity(Identity(2, 0))
    assert lane.sent() is second
    assert second.sequence == 0
    loop.close()


def lane_of(count: int, in_flight: int) -> tuple[Lane, list[Batch]]:
    """Return a lane with an identity and that many waiting batches, of one row each."""
    loop = asyncio.new_event_loop()
    batches = [Batch(0, encoded(), 1, WHOLE_ROWS, 0.0, loop.create_future()) for _ in range(count)]
    loop.close()
    lane = Lane(0, in_flight)
    lane.queue.extend(batches)
    lane.give_identity(Identity(1, 0))
    return lane, batches


def test_after_a_failure_batches_in_flight_are_answered_before_new_ones():
    lane, (first, second, third) = lane_of(3, 3)
    assert [lane.sent(), lane.sent()] == [first, second]
    lane.failed(first, Verdict.AGAIN)
    assert lane.next_to_send(0.0) is None
    lane.succeeded(second)
    assert [lane.sent(), lane.sent()] == [first, third]


def test_retried_batches_keep_their_order_and_sequence():
    lane, batches = lane_of(4, 3)
    sent = [lane.sent() for _ in range(3)]
    before = [(batch.identity, batch.sequence, bytes(batch.data)) for batch in sent]
    lane.failed(sent[0], Verdict.UNKNOWN)
    lane.failed(sent[1], Verdict.OUT_OF_ORDER)  # because the one before it is missing
    lane.failed(sent[2], Verdict.AGAIN)
    assert list(lane.queue) == batches
    assert not lane.needs_identity
    again = [lane.sent() for _ in range(3)]
    assert again == sent
    assert [(batch.identity, batch.sequence, bytes(batch.data)) for batch in again] == before


def test_an_outcome_that_was_unknown_once_stays_unknown():
    lane, (first, _) = lane_of(2, 2)
    lane.failed(lane.sent(), Verdict.UNKNOWN)
    assert lane.sent() is first
    lane.failed(first, Verdict.AGAIN)
    assert first.unknown
    assert lane.sent() is first
    lane.failed(first, Verdict.OUT_OF_ORDER)  # the server does not know it: it was not applied
    assert not first.unknown


def test_a_pause_holds_the_lane():
    lane, (first,) = lane_of(1, 5)
    lane.not_before = 7.0
    assert lane.next_to_send(6.9) is None
    assert lane.next_to_send(7.0) is first
