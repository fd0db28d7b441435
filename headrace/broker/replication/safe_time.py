"""The time up to which a follower has all acknowledged records, which bounds its staleness.

A leader that may still lead answers a fetch with its high watermark, or confirms the one that the follower knows. All
records that were acknowledged by all in-sync replicas, or shown to any client, before the fetch was *sent* are below
it. So a state with the log below that high watermark is complete up to the sending time, by the follower's own
monotonic clock; clocks are not compared. The time of the answer has no meaning: the leader may have acknowledged more
since.

Such a fact stays true under later leaders, unless an unclean election loses acknowledged records (`forget`).

An answer lists the partitions that have changed since the previous one. For all others, the answer as a whole says that
they have not (`FetchResponse.is_current`), so their time is kept in one place (`Vouched`).

Pure: times are arguments, in seconds of one monotonic clock.
"""

from __future__ import annotations

from typing import Final

FACTS_MAX: Final = 64


class Vouched:
    """The state of one session with one leader: `at` is the sending time of the latest fetch with a current answer."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = float("-inf")


class SafeTime:
    """The safe time of one follower."""

    __slots__ = ("_facts", "_told", "_vouched")

    def __init__(self) -> None:
        self._facts: list[tuple[int, float]] = []
        """(high watermark, time): a log up to this high watermark has all records that were acknowledged before this
        time. Both ascend.
        """
        self._told = -1
        self._vouched: Vouched | None = None

    def told(self, high_watermark: int, vouched: Vouched) -> None:
        """Note that this is the leader's high watermark at every time of `vouched`, until `untold`."""
        self.untold()
        self._told, self._vouched = high_watermark, vouched

    def untold(self) -> int:
        """End the last `told`: later times of its `vouched` do not hold. Return its high watermark; -1 for none."""
        vouched, self._vouched = self._vouched, None
        if vouched is None:
            return -1
        self._note(self._told, vouched.at)
        return self._told

    def _note(self, high_watermark: int, at: float) -> None:
        facts = self._facts
        if facts and at <= facts[-1][1]:
            return
        while facts and facts[-1][0] >= high_watermark:
            facts.pop()
        facts.append((high_watermark, at))
        if len(facts) > FACTS_MAX:  # the latest facts stay dense
            del facts[1 : FACTS_MAX // 2 : 2]

    def at(self, applied_offset: int) -> float | None:
        """Return the time up to which a state with the log below `applied_offset` is complete; None if unknown."""
        vouched, facts = self._vouched, self._facts
        if vouched is not None and applied_offset >= self._told and vouched.at > float("-inf"):
            return vouched.at
        for index in range(len(facts) - 1, -1, -1):
            high_watermark, at = facts[index]
            if high_watermark <= applied_offset:
                del facts[:index]
                return at
        return None

    def forget(self) -> None:
        """Forget all facts: acknowledged records may be lost."""
        self._facts.clear()
        self._vouched = None
