"""The fence: whether this broker may still lead, by its own clock.

A broker holds its nodes in the coordination store as long as its session lasts. After each answer of the store the
session is known to last for a while (`CoordinationStore.lease_end`). A process that was stopped or is cut off knows by
its clock alone that this time is over, before another broker may have taken its place. After that it appends nothing,
until the controller has seen its new registration.
"""

from __future__ import annotations

from headrace.broker.runtime.ports import Clock, CoordinationStore
from headrace.protocol.errors import ErrorCode, KafkaError


class Fence:
    """The fence of a broker, asked before each append. Shut until `open`."""

    __slots__ = ("_clock", "_session", "_store")

    def __init__(self, store: CoordinationStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._session = 0

    def open(self, session: int) -> None:
        """Open the fence for the registration of this session."""
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
