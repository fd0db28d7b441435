"""A change of a group that is not stored yet, and the refusal of a request."""

from __future__ import annotations

from headrace.broker.groups.model.consumer import ConsumerGroup
from headrace.broker.groups.model.records import JournalRecord, ModernRecord
from headrace.protocol.errors import ErrorCode


class Refused(Exception):  # noqa: N818 - an answer, not a failure
    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


class Draft:
    """The group after a change, and the records of the change. The group is copied at the first record."""

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
