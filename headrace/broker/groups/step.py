"""The context of one step of one group: its inputs, and the effects that it collects."""

from __future__ import annotations

from headrace.broker.groups.model.events import Append, Effect, Pending, Reply, Result
from headrace.broker.groups.model.group import Group
from headrace.broker.groups.model.limits import Limits, Now
from headrace.broker.groups.model.records import JournalRecord
from headrace.broker.groups.model.topics import Topics


class Step:
    """One call of `state.step`. The protocols are functions that change `group` and add to `effects`, in order."""

    __slots__ = ("effects", "group", "limits", "now", "topics")

    def __init__(self, group: Group, now: Now, limits: Limits, topics: Topics) -> None:
        self.group = group
        self.now = now
        self.limits = limits
        self.topics = topics
        self.effects: list[Effect] = []

    def reply(self, token: int, result: Result) -> None:
        """Answer the request that has `token`."""
        self.effects.append(Reply(token, result))

    def append(
        self, records: tuple[JournalRecord, ...], pending: Pending, batch: bytes | None = None
    ) -> None:
        """Store `records`, or `batch` if they are encoded already. `Appended(pending, ...)` reports the outcome."""
        self.effects.append(Append(records, pending, batch))

    def deadline(self, timeout_ms: float) -> float:
        """Return the monotonic time `timeout_ms` from now, at which the group gets a tick."""
        return self.group.wake_by(self.now.monotonic + timeout_ms / 1000)
