"""Whether this broker may still lead, by its own clock.

A broker holds what it holds in the coordination store as long as its session lasts. Whether it lasts is known for a
while after each answer of the store (`CoordinationStore.lease_end`); a process that was stopped, or is cut off, knows
by its clock alone that the while is over, before anybody else may have taken its place. After that, and until the
controller has seen its new registration, it appends nothing.
"""

from __future__ import annotations

from headrace.broker.runtime.ports import Clock, CoordinationStore
from headrace.protocol.errors import ErrorCode, KafkaError


class Fence:
    """Asked before each append. Shut until `open`."""

    __slots__ = ("_clock", "_session", "_store")

    def __init__(self, store: CoordinationStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._session = 0

    def open(self, session: int) -> None:
        """The registration of this session counts."""
        self._session = session

    def shut(self) -> None:
        self._session = 0

    @property
    def is_shut(self) -> bool:
        store = self._store
        return store.session != self._session or self._clock.monotonic() >= store.lease_end()

    def refusal(self, partition: str) -> KafkaError:
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"partition {partition} is not led here now: this broker has lost the coordination store",
        )
