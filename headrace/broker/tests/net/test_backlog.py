"""The choice of the connection to close when too many bytes wait for slow peers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.net.backlog import Backlog
from headrace.broker.net.reply import Peer


class Slow:
    def __init__(self, host: str, last_active: float) -> None:
        self.peer = Peer(1, host, 1, "PLAINTEXT", None)
        self.last_active = last_active


def test_the_host_with_most_loses_the_connection_that_was_silent_for_longest() -> None:
    backlog: Backlog[Slow] = Backlog(100)
    modest, silent, reading = Slow("a", 0.0), Slow("b", 1.0), Slow("b", 2.0)
    backlog.note(modest, 45)
    backlog.note(reading, 40)
    backlog.note(silent, 10)
    assert backlog.next_to_go() is None
    backlog.note(silent, 16)
    assert backlog.next_to_go() is silent
    backlog.note(silent, 0)
    assert (backlog.size, backlog.next_to_go()) == (85, None)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50)), max_size=50), st.integers(0, 200))
def test_unsent_bytes_are_counted_once(notes: list[tuple[int, int]], bytes_max: int) -> None:
    backlog: Backlog[Slow] = Backlog(bytes_max)
    peers = [Slow("ab"[index % 2], float(index)) for index in range(6)]
    sizes: dict[int, int] = {}
    for index, size in notes:
        backlog.note(peers[index], size)
        sizes[index] = size
        assert backlog.size == sum(sizes.values())
        gone = backlog.next_to_go()
        assert (gone is not None) == (backlog.size > bytes_max)
        assert gone is None or sizes[peers.index(gone)] > 0
