"""Events of a transactional id, and the effects that they ask for.

A request carries a `token`; its answer is the `Reply` effect with the same token, in this step or a later one. `Append`
asks for a record on the journal; the shell answers with `Appended(pending, ...)`. `WriteMarkers` asks for markers; the
shell answers with `Marked` for the written ones, in one or several steps. Effects are carried out in order.
"""

from __future__ import annotations

import msgspec

from headrace.broker.transactions.model import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    StoredTransaction,
    TopicPartition,
)
from headrace.protocol.errors import ErrorCode

# -- events --------------------------------------------------------------------------------------------------


class InitProducer(msgspec.Struct, frozen=True):
    """`expected` is the producer id and epoch that the client believes it has; None for a new client (KIP-360).

    `new_producer_id` is used if a new one is needed (`state.needs_producer_id`).
    """

    token: int
    timeout_ms: int
    expected: tuple[int, int] | None = None
    new_producer_id: int | None = None


class AddPartitions(msgspec.Struct, frozen=True):
    token: int
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


class EndTransaction(msgspec.Struct, frozen=True):
    token: int
    producer_id: int
    producer_epoch: int
    commit: bool
    client_version: int
    new_producer_id: int | None = None


class Marked(msgspec.Struct, frozen=True):
    """The markers of these partitions are written, or never will be because the partition is gone."""

    partitions: frozenset[TopicPartition]


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: due work is done."""


class Expire(msgspec.Struct, frozen=True):
    """Forget the transactional id if it has not been used for long."""


class Appended(msgspec.Struct, frozen=True):
    """The outcome of an `Append`: `error` NONE means that its record survives a crash."""

    pending: Pending
    error: ErrorCode


# -- what waits for the journal ------------------------------------------------------------------------------


class PendingInit(msgspec.Struct, frozen=True):
    token: int
    stored: StoredTransaction
    last_epoch: int


class PendingPartitions(msgspec.Struct, frozen=True):
    token: int
    stored: StoredTransaction


class PendingEnd(msgspec.Struct, frozen=True):
    """`answer` is the answer to the client that caused the end, if there is one."""

    token: int | None
    stored: StoredTransaction
    last_epoch: int
    answer: ErrorCode


class PendingCompletion(msgspec.Struct, frozen=True):
    stored: StoredTransaction


class PendingRemoval(msgspec.Struct, frozen=True):
    pass


Pending = PendingInit | PendingPartitions | PendingEnd | PendingCompletion | PendingRemoval
Event = InitProducer | AddPartitions | EndTransaction | Marked | Tick | Expire | Appended

# -- effects -------------------------------------------------------------------------------------------------


class Result(msgspec.Struct, frozen=True):
    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class Reply(msgspec.Struct, frozen=True):
    token: int
    result: Result


class Append(msgspec.Struct, frozen=True):
    """Put `stored` on the journal (None: a tombstone), then step with `Appended(pending, ...)`."""

    stored: StoredTransaction | None
    pending: Pending


class WriteMarkers(msgspec.Struct, frozen=True):
    producer_id: int
    producer_epoch: int
    commit: bool
    client_version: int
    partitions: frozenset[TopicPartition]


Effect = Reply | Append | WriteMarkers
