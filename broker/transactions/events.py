"""What can happen to a transactional id, and what it wants done about it.

A request carries a `token`; its answer is the `Reply` effect with the same token, in this step or a later
one. `Append` asks for a record on the journal; the shell answers with `Appended(pending, ...)`.
`WriteMarkers` asks for markers; the shell answers with `Marked` for those that are written, as often as it
likes. Effects are carried out in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.transactions.model import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    StoredTransaction,
    TopicPartition,
)
from protocol.errors import ErrorCode

# -- events --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitProducer:
    """`expected` is the producer id and epoch the client believes to have; None if it comes anew (KIP-360).

    `new_producer_id` is there to be used if one is needed (`state.needs_producer_id`).
    """

    token: int
    timeout_ms: int
    expected: tuple[int, int] | None = None
    new_producer_id: int | None = None


@dataclass(frozen=True, slots=True)
class AddPartitions:
    token: int
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class EndTransaction:
    token: int
    producer_id: int
    producer_epoch: int
    commit: bool
    client_version: int
    new_producer_id: int | None = None


@dataclass(frozen=True, slots=True)
class Marked:
    """The markers of these partitions are written, or can never be because the partition is gone."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: whatever is due happens."""


@dataclass(frozen=True, slots=True)
class Expire:
    """Forget the transactional id if it has not been used for long."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of an `Append`: `error` NONE means that its record survives a crash."""

    pending: Pending
    error: ErrorCode


# -- what waits for the journal ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PendingInit:
    token: int
    stored: StoredTransaction
    last_epoch: int


@dataclass(frozen=True, slots=True)
class PendingPartitions:
    token: int
    stored: StoredTransaction


@dataclass(frozen=True, slots=True)
class PendingEnd:
    """`answer` is what the client that caused it hears, if there is one."""

    token: int | None
    stored: StoredTransaction
    last_epoch: int
    answer: ErrorCode


@dataclass(frozen=True, slots=True)
class PendingCompletion:
    stored: StoredTransaction


@dataclass(frozen=True, slots=True)
class PendingRemoval:
    pass


Pending = PendingInit | PendingPartitions | PendingEnd | PendingCompletion | PendingRemoval
Event = InitProducer | AddPartitions | EndTransaction | Marked | Tick | Expire | Appended

# -- effects -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class Reply:
    token: int
    result: Result


@dataclass(frozen=True, slots=True)
class Append:
    """Put `stored` on the journal (None: a tombstone), then step with `Appended(pending, ...)`."""

    stored: StoredTransaction | None
    pending: Pending


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    producer_id: int
    producer_epoch: int
    commit: bool
    client_version: int
    partitions: frozenset[TopicPartition]


Effect = Reply | Append | WriteMarkers
