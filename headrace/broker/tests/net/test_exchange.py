"""The exchange of a connection without sockets: bytes in any cuts, answers at once or later, sent in any pieces."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.net.exchange import TRANSITIONS, Event, Exchange, State
from headrace.broker.net.frame_receiver import FrameReceiver
from headrace.broker.net.limits import Limits
from headrace.broker.net.pool import SMALLEST, FramePool
from headrace.broker.net.reply import CloseConnection
from headrace.broker.net.send_queue import SendQueue
from headrace.broker.runtime.invariants import InvariantError
from headrace.protocol.tests.framing import FrameSplitter

CONTENT = random.Random(7).randbytes(5000)


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def exchange(scratch_bytes: int = 1024, **limits) -> Exchange:
    return Exchange(Limits(**limits), FramePool(1 << 20), memoryview(bytearray(scratch_bytes)))


def feed(receiver: FrameReceiver, data: bytes) -> None:
    while data:
        room = receiver.room()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        del room
        receiver.received(count)
        data = data[count:]


class FileRange:
    """A region of `CONTENT`."""

    def __init__(self, position: int, size: int) -> None:
        self.position, self.size = position, size

    def fileno(self) -> int:
        return 99


class Composite:
    def __init__(self, *parts) -> None:
        self.parts = parts


def answer_to(body: bytes) -> list | None:
    """Answer by the first byte: in one piece, not at all, as buffers, with regions, as parts of parts."""
    kind = body[0] % 5
    if kind == 0:
        return [b"one" + body]
    if kind == 1:
        return None
    if kind == 2:
        return [memoryview(body), bytearray(), b"", bytearray(body)]
    start = len(body) % 3000
    if kind == 3:
        return [b"head", FileRange(start, 1500), FileRange(0, 0), memoryview(body)[1:], FileRange(start, 3)]
    return [Composite(b"head", Composite(FileRange(start, 700), body)), b"tail"]


def rendered(parts) -> bytes:
    def of(part) -> bytes:
        if isinstance(part, FileRange):
            return CONTENT[part.position : part.position + part.size]
        return b"".join(map(of, part.parts)) if isinstance(part, Composite) else bytes(part)

    return b"".join(map(of, parts))


class Simulation:
    """A shell that uses the exchange in a random legal order."""

    def __init__(self, core: Exchange, stream: bytes, rng: random.Random) -> None:
        self.core = core
        self.stream = stream
        self.rng = rng
        self.taken: list[bytes] = []
        self.written = bytearray()
        self.postponed: list | None = None

    def run(self) -> None:
        moves = (self.receive, self.take, self.finish, self.send, self.yield_turn)
        for _ in range(20_000):
            self.rng.choice(moves)()
            self.core.check_invariants()
            if not self.stream and not self.core.frames and not self.core.is_busy:
                return
        raise AssertionError("it does not come to an end")

    def receive(self) -> None:
        if self.core.is_full:
            return
        room = self.core.incoming.room()
        assert len(room)
        count = min(len(room), len(self.stream), self.rng.choice((1, 3, 50, 2000)))
        room[:count] = self.stream[:count]
        del room
        self.stream = self.stream[count:]
        if count:
            self.core.incoming.received(count)

    def take(self) -> None:
        request = self.core.take()
        if request is None:
            return
        assert self.postponed is None
        body = bytes(request)
        self.taken.append(body)
        answer = answer_to(body)
        if self.rng.random() < 0.3:
            self.core.defer()
            self.postponed = [answer]
        else:
            self.answer(answer)
        if isinstance(request, memoryview):
            self.core.incoming.release(request)

    def finish(self) -> None:
        if self.postponed is not None:
            (answer,), self.postponed = self.postponed, None
            self.answer(answer)

    def answer(self, parts: list | None) -> None:
        whole = self.core.answer(parts)
        if whole is not None:
            count = self.rng.randint(0, len(whole))
            self.written += whole[:count]
            if count < len(whole):
                self.core.unsent.put(memoryview(whole)[count:])

    def send(self) -> None:
        unsent = self.core.unsent
        if not unsent.size:
            return
        buffers, region = unsent.head(self.rng.randint(1, 4))
        if buffers:
            data = b"".join(buffers)
        else:
            assert region is not None
            assert region.fileno() == 99
            data = CONTENT[region.position : region.position + region.size]
        assert data
        count = self.rng.choice((1, len(data), self.rng.randint(1, len(data))))
        self.written += data[:count]
        unsent.sent(count)

    def yield_turn(self) -> None:
        if self.core.state is State.YIELDING:
            self.core.resume()
        elif self.core.state is State.IDLE and self.core.frames:
            self.core.yield_turn()


@settings(max_examples=150, deadline=None)
@given(
    bodies=st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=40),
            st.binary(min_size=1, max_size=1).map(lambda byte: byte * 3000),
        ),
        min_size=1,
        max_size=12,
    ),
    scratch_bytes=st.sampled_from([5, 64, 1024, 65536]),
    unsent_bytes_max=st.sampled_from([0, 1000, 1 << 20]),
    seed=st.integers(0, 2**32),
)
def test_events_in_any_order_keep_requests_and_answers_in_order(
    bodies, scratch_bytes, unsent_bytes_max, seed
) -> None:
    stream = b"".join(map(frame, bodies))
    core = exchange(scratch_bytes, unsent_bytes_max=unsent_bytes_max)
    simulation = Simulation(core, stream, random.Random(seed))
    simulation.run()
    assert simulation.taken == FrameSplitter().feed(stream)
    answers = [rendered(answer) for body in bodies if (answer := answer_to(body)) is not None]
    assert simulation.written == b"".join(map(frame, answers))


@pytest.mark.parametrize("cut", range(1, 5))
@pytest.mark.parametrize("size", [-1, 0, 1001, 2**31 - 1])
def test_an_illegal_length_is_refused_however_it_is_cut_and_whole_frames_before_it_stay(
    size: int, cut: int
) -> None:
    pool = FramePool(1 << 20)
    pool.acquire = None  # nothing is allocated for it
    receiver = FrameReceiver(1000, pool, memoryview(bytearray(64)))
    stream = frame(b"before") + struct.pack(">i", size)
    feed(receiver, stream[: 10 + cut - 1])
    with pytest.raises(CloseConnection, match=rf"it announced a frame of {size} bytes; 1 to 1000"):
        feed(receiver, stream[10 + cut - 1 :])
    assert list(receiver.frames) == [b"before"]
    with pytest.raises(CloseConnection, match="after a frame that was not accepted"):
        feed(receiver, frame(b"after"))
    assert list(receiver.frames) == [b"before"]


@pytest.mark.parametrize("size", [1, 1000])
def test_the_smallest_and_the_largest_frame_are_accepted(size: int) -> None:
    receiver = FrameReceiver(1000, FramePool(1 << 20), memoryview(bytearray(64)))
    feed(receiver, frame(b"x" * size))
    assert [bytes(each) for each in receiver.frames] == [b"x" * size]


def test_room_is_for_what_has_come_until_a_peer_has_sent_as_much() -> None:
    receiver = FrameReceiver(1 << 27, FramePool(1 << 24), memoryview(bytearray(1024)))
    size = 10 * SMALLEST
    largest = []
    for body in (b"a" * size, b"b" * size):
        stream = frame(body)
        feed(receiver, stream[:5])
        largest.append(len(receiver.room()) + 1)
        feed(receiver, stream[5:])
        assert receiver.frames.popleft() == body
    assert largest == [SMALLEST, size]


def test_a_request_buffer_is_reused_unless_it_is_referenced() -> None:
    pool = FramePool(1 << 24)
    receiver = FrameReceiver(1 << 27, pool, memoryview(bytearray(64)))
    feed(receiver, frame(b"a" * SMALLEST))
    kept = receiver.frames[0][1:]
    receiver.release(receiver.frames.popleft())
    assert pool.idle_bytes == 0
    feed(receiver, frame(b"b" * SMALLEST))
    receiver.release(receiver.frames.popleft())
    assert pool.idle_bytes == SMALLEST
    assert bytes(kept) == b"a" * (SMALLEST - 1)
    kept.release()
    feed(receiver, frame(b"c" * 3 * SMALLEST))  # larger than the buffer it begins in
    assert pool.idle_bytes == SMALLEST


@pytest.mark.parametrize("hindrance", ["under way", "unsent", "resting"])
def test_no_bytes_are_wanted_while_a_frame_waits_that_may_not_be_taken(hindrance: str) -> None:
    core = exchange(unsent_bytes_max=3)
    feed(core.incoming, frame(b"1") + frame(b"2"))
    assert not core.is_full
    assert core.take() == b"1"
    if hindrance == "under way":
        core.defer()
    elif hindrance == "unsent":
        assert core.answer([b"answer"]) is None  # another frame waits: it is queued
    else:
        assert core.answer(None) is None
        core.yield_turn()
    assert core.is_busy
    assert core.is_full
    assert core.take() is None
    if hindrance == "under way":
        assert core.answer(None) is None
    core.unsent.sent(core.unsent.size)
    if hindrance == "resting":
        core.resume()
    assert not core.is_full
    assert core.take() == b"2"
    core.defer()
    assert not core.is_full  # there is room for one more
    assert core.answer([b"last"]) == frame(b"last")
    assert not core.is_busy


def test_an_answer_never_goes_to_another_request_than_the_one_that_was_taken() -> None:
    core = exchange()
    with pytest.raises(InvariantError, match="no frame was taken"):
        core.answer([b"answer"])
    with pytest.raises(InvariantError, match="deferred that was not taken"):
        core.defer()
    feed(core.incoming, frame(b"1") + frame(b"2"))
    core.take()
    with pytest.raises(InvariantError, match="neither answered nor deferred"):
        core.take()
    core.defer()
    with pytest.raises(InvariantError, match="deferred that was not taken"):
        core.defer()
    core.answer([b"answer"])
    with pytest.raises(InvariantError, match="no frame was taken"):
        core.answer([b"answer again"])
    core.check_invariants()


MOVES = {
    Event.TAKE: lambda core: core.take(),
    Event.ANSWER: lambda core: core.answer(None),
    Event.DEFER: lambda core: core.defer(),
    Event.YIELD: lambda core: core.yield_turn(),
    Event.MUTE: lambda core: core.mute(),
    Event.RESUME: lambda core: core.resume(),
}


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_each_event_does_what_the_table_says_and_no_other_is_accepted(state: State, event: Event) -> None:
    core = exchange()
    feed(core.incoming, frame(b"1"))
    core.state = state
    after = TRANSITIONS[state].get(event)
    if after is None and (event is not Event.TAKE or state is State.HANDLING):
        with pytest.raises(InvariantError):
            MOVES[event](core)
        assert core.state is state
    else:
        MOVES[event](core)
        assert core.state is (state if after is None else after)


def test_a_region_follows_the_buffers_before_it() -> None:
    queue = SendQueue()
    region = FileRange(3, 10)
    queue.append([b"head", bytearray(), region, FileRange(0, 0), bytearray(), b"tail"])
    assert queue.size == 4 + 4 + 10 + 4
    assert queue.head(64) == ([struct.pack(">i", 18) + b"head", b""], region)
    assert queue.head(1) == ([struct.pack(">i", 18) + b"head"], None)
    queue.sent(8)
    assert queue.head(64) == ([], region)
    queue.sent(4)
    _, rest = queue.head(64)
    assert (rest.position, rest.size) == (7, 6)
    assert (region.position, region.size) == (3, 10)
    queue.sent(6)
    assert queue.head(64) == ([b"tail"], None)
    queue.sent(4)
    assert queue.head(64) == ([], None)


def test_at_the_end_nothing_is_taken_or_sent_any_more_and_what_is_under_way_stays_so() -> None:
    core = exchange()
    feed(core.incoming, frame(b"1") + frame(b"2") + frame(b"3"))
    core.take()
    core.answer([b"answer"])
    core.take()
    core.defer()
    core.clear()
    assert not core.frames
    assert not core.unsent.size
    assert core.is_busy
    core.answer(None)
    assert core.take() is None
    assert not core.is_busy
