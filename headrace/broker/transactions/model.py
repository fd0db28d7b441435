"""The state of a transactional id: the values in the journal, and the state that `step` changes.

Nothing here waits, reads a clock or does I/O. Only `broker.transactions.state` changes a `Transaction`.

`StoredTransaction`, in Kafka's format, survives a crash. Two things do not: the epoch before the last one (the retry of
a lost InitProducerId is then fenced, as in Kafka), and which markers of an ending transaction are written (all are
written again, which changes nothing).
"""

from __future__ import annotations

import math
from enum import Enum

import msgspec

from headrace.broker.groups.model.limits import Now
from headrace.broker.runtime.invariants import InvariantError, invariant

__all__ = [
    "EPOCH_LAST_USABLE",
    "NEVER",
    "NO_EPOCH",
    "NO_PRODUCER_ID",
    "Limits",
    "Now",
    "State",
    "StoredTransaction",
    "TopicPartition",
    "Transaction",
]

NEVER = math.inf
NO_PRODUCER_ID = -1
NO_EPOCH = -1
EPOCH_LAST_USABLE = 32_766
"""Epoch 32767 only fences: a producer whose epoch cannot rise any more gets another id."""

TopicPartition = tuple[str, int]


class State(Enum):
    """Kafka's states; clients see their names. `status` is the number in the journal."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"

    @property
    def status(self) -> int:
        return _STATUS[self]

    @classmethod
    def of_status(cls, status: int) -> State:
        """Return the state of a number. Raises ValueError."""
        states = list(cls)
        if not 0 <= status < len(states):
            raise ValueError(f"a transaction cannot be in state number {status}")
        return states[status]

    @property
    def is_ending(self) -> bool:
        """Whether the end is decided, and not every marker is known to be written."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_at_rest(self) -> bool:
        return self in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


_STATUS = {state: number for number, state in enumerate(State)}

_LEGAL_BEFORE: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.ONGOING: frozenset({State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: frozenset(
        # Transactions version 2 may abort a transaction that has not begun, to raise the epoch.
        {State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}
    ),
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
}


class Limits(msgspec.Struct, frozen=True):
    """Bounds of the coordinator; the defaults are Kafka's."""

    timeout_ms_max: int = 900_000
    expiration_ms: int = 7 * 24 * 3_600_000
    """Time after which an unused transactional id is forgotten."""
    retry_seconds: float = 1.0
    """Time after which markers, or the record of their completion, are tried again if they could not be written."""


class StoredTransaction(msgspec.Struct, frozen=True):
    """A transactional id as in the journal.

    - producer_epoch: for an ending transaction, also that of its markers
    - previous_producer_id: the id before, if the epoch ran out
    - next_producer_id: the id after the present end, if the epoch runs out with it
    - client_version: version of transactions (KIP-890) of the request that ends it; 2 raises the epoch
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    update_ms: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether the epoch cannot be raised for a client any more."""
        return self.producer_epoch >= EPOCH_LAST_USABLE


class Transaction(msgspec.Struct):
    transactional_id: str
    stored: StoredTransaction | None = None
    """None before the first InitProducerId and after expiry."""
    appending: bool = False
    """Whether a record is on its way to the journal; until it is there nothing else can be decided."""
    last_epoch: int = NO_EPOCH
    """The epoch before the last one, if its owner was the one who raised it."""
    unmarked: set[TopicPartition] = msgspec.field(default_factory=set)
    """Partitions of an ending transaction whose markers are not written."""
    deadline: float = NEVER
    """Time of the timeout of an ongoing transaction, or of the next attempt to end an ending one. Monotonic seconds."""

    @property
    def known(self) -> StoredTransaction:
        """The stored state of a transactional id that has one. Raises InvariantError."""
        if self.stored is None:
            raise InvariantError(f"transactional id {self.transactional_id!r} has no state")
        return self.stored

    def adopt(self, stored: StoredTransaction) -> None:
        """Adopt the state that is in the journal now."""
        before = None if self.stored is None else self.stored.state
        invariant(
            stored.state in _LEGAL_BEFORE
            and (before in _LEGAL_BEFORE[stored.state] or (before is None and stored.state is State.EMPTY)),
            f"transactional id {self.transactional_id!r} cannot go from {before} to {stored.state}",
        )
        self.stored = stored
