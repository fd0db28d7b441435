"""Up to which time a follower has everything that was acknowledged: the bound of how stale it is.

A leader that may still lead says in its answer to a fetch what its high watermark is, or that it is the one that the
follower knows. All that was acknowledged by all in-sync replicas, or shown to anybody, before the fetch was *sent* is
below it. So a state that has the log below that high watermark is as of the sending time, by the follower's own
monotonic clock; no two clocks are compared. The time at which the answer came says nothing: the leader may have
acknowledged more since it answered.

Such a fact stays true whoever leads later, but not when an unclean election takes acknowledged records back (`forget`).

The leader names in an answer what has changed since the answer before. Of the others it says with the answer as a whole
that nothing has (`FetchResponse.is_current`), so the time of all of them is kept in one place (`Vouched`).

Pure: told the time. Seconds of one monotonic clock.
"""

from __future__ import annotations

from typing import Final

FACTS_MAX: Final = 64


class Vouched:
    """By one leader, in one session: `at` is when the latest fetch was sent whose answer was current."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = float("-inf")


class SafeTime:
    """Of one follower."""

    __slots__ = ("_facts", "_told", "_vouched")

    def __init__(self) -> None:
        self._facts: list[tuple[int, float]] = []
        """(high watermark, time): who has the log below the one has all that was acknowledged before the other. Both
        ascend."""
        self._told = -1
        self._vouched: Vouched | None = None

    def told(self, high_watermark: int, vouched: Vouched) -> None:
        """From now on, until `untold`, this is the leader's high watermark at every time that `vouched` has."""
        self.untold()
        self._told, self._vouched = high_watermark, vouched

    def untold(self) -> int:
        """What comes next is not known to be so any more. Gives the high watermark that was told; -1 for none."""
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
        if len(facts) > FACTS_MAX:  # the latest stay close together
            del facts[1 : FACTS_MAX // 2 : 2]

    def at(self, applied_offset: int) -> float | None:
        """As of when a state is that has the log below `applied_offset`; None if nothing is known of it."""
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
        """Acknowledged records may have been taken back."""
        self._facts.clear()
        self._vouched = None
