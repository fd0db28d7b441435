"""What the events of a consumer-protocol group share: a change that is being made, and a request refused."""

from __future__ import annotations

from headrace.broker.groups.model import JournalRecord
from headrace.broker.groups.modern.model import ConsumerGroup, ModernRecord
from headrace.protocol.errors import ErrorCode


class Refused(Exception):  # noqa: N818 - an answer, not a failure
    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


class Draft:
    """A group as it will be, and the records that make it so. The first record makes the copy."""

    def __init__(self, group_id: str, base: ConsumerGroup, *, created: bool = False) -> None:
        self.group_id = group_id
        self.state = base
        self.records: list[JournalRecord] = []
        self._base = None if created else base

    def put(self, record: ModernRecord) -> None:
        if self.state is self._base:
            self.state = self._base.copy()
        self.records.append(record)
        self.state.apply(record)
