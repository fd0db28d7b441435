"""The order of one bucket's writes: sequence numbers, batches in flight and retries. Pure: no I/O, no clock.

A batch gets its sequence when it is first sent and keeps it for every repetition. So the server, which remembers a
writer's last five batches per bucket, recognises it. Invariants:

- Batches of one writer identity are sent in sequence order. None is sent for the first time while the oldest unanswered
  one is `max_in_flight` before it.
- After any failure, no new batch is sent until every batch in flight is answered or abandoned. Then the batches to
  repeat go first, in their old order.
- A *rejected* batch leaves a gap in the sequence, unless an earlier attempt was applied. Batches behind it that the
  server refuses because of the gap are stamped with a fresh identity, whose sequence starts at 0.
- Two identities are never in flight at the same time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from headrace.protocol.records.header import PRODUCER, PRODUCER_ID_POSITION, advance_sequence, write_crc
from headrace.tablelayer.model.messages.write import WRITE_MODE_MERGE, WRITE_MODE_OVERWRITE, WRITE_MODE_UPDATE


@dataclass(frozen=True, slots=True)
class Identity:
    """A writer's identity, by which the server recognises retries: a producer id and epoch from the server."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class WriteMode:
    """The options of a write that hold for all of its rows.

    They are the columns that the rows have (None: all), whether the rows replace existing ones instead of being merged
    by the table's merge engine, and whether they only change existing rows. With a `definition_digest` the server
    refuses them if the table has another definition; `counted` asks it for the number of rows in the changelog.
    """

    target_columns: tuple[int, ...] | None = None
    overwrite: bool = False
    update: bool = False
    definition_digest: int = 0
    counted: bool = False

    @property
    def number(self) -> int:
        """The mode as requests carry it."""
        if self.update:
            return WRITE_MODE_UPDATE
        return WRITE_MODE_OVERWRITE if self.overwrite else WRITE_MODE_MERGE


WHOLE_ROWS = WriteMode()


@dataclass(slots=True, eq=False)
class Batch:
    """One encoded batch for one bucket, and the future of its end offset.

    `sequence_count` is the number of sequence numbers that it uses. `unknown`: an attempt ended without an answer.
    `logged_count`: number of its rows in the changelog; -1 if it is not known.
    """

    bucket: int
    data: memoryview
    row_count: int
    mode: WriteMode
    deadline_at: float
    done: asyncio.Future[int]
    identity: Identity | None = None
    sequence: int = -1
    number: int = -1
    unknown: bool = False
    last_error: Exception | None = None
    again: bool = False
    logged_count: int = -1

    @property
    def sequence_count(self) -> int:
        return max(1, self.row_count)

    def stamp(self, identity: Identity, sequence: int) -> None:
        """Write the identity into the batch's header and update the checksum."""
        self.identity, self.sequence = identity, sequence
        PRODUCER.pack_into(
            self.data, PRODUCER_ID_POSITION, identity.producer_id, identity.producer_epoch, sequence
        )
        write_crc(self.data)


class Verdict(Enum):
    """The meaning of an answer, or of its absence, for a batch."""

    REJECTED = "not applied, and never will be"
    AGAIN = "not applied now; the same batch can be sent again"
    UNKNOWN = "unknown; the same batch must be sent again"
    OUT_OF_ORDER = "not applied, because an earlier batch is missing"


@dataclass(slots=True, eq=False)
class Lane:
    """The writes of one bucket. The writer asks `next_to_send` and reports with `succeeded` and `failed`."""

    bucket: int
    max_in_flight: int
    queue: deque[Batch] = field(default_factory=deque)
    in_flight: deque[Batch] = field(default_factory=deque)
    identity: Identity | None = None
    next_sequence: int = 0
    needs_identity: bool = True
    stamped_count: int = 0
    recovering: bool = False
    not_before: float = 0.0
    failures: int = 0

    def give_identity(self, identity: Identity) -> None:
        """Use a fresh identity, whose sequence starts at 0."""
        self.identity, self.next_sequence, self.needs_identity = identity, 0, False

    def next_to_send(self, now: float) -> Batch | None:
        """Return the batch that may be sent now, still queued; None if none may. It may need an identity first."""
        while self.queue and self.queue[0].done.done():
            self._drop_head()
        if (
            not self.queue
            or self.recovering
            or len(self.in_flight) >= self.max_in_flight
            or now < self.not_before
        ):
            return None
        head = self.queue[0]
        if not self.in_flight:
            return head
        # An unanswered batch must stay among the batches that the server remembers.
        if head.identity is None and self.stamped_count - self.in_flight[0].number >= self.max_in_flight:
            return None
        if self.needs_identity or self.in_flight[-1].identity != (head.identity or self.identity):
            return None
        return head

    def _drop_head(self) -> None:
        batch = self.queue.popleft()
        if batch.identity is not None:
            self.abandon(batch)

    def abandon(self, batch: Batch) -> None:
        """Note that a batch with a sequence will not be sent again: later batches need another identity."""
        if batch.identity == self.identity:
            self.needs_identity = True

    def sent(self) -> Batch:
        """Move the head of the queue to the batches in flight, stamped. The lane must have an identity."""
        batch = self.queue.popleft()
        if batch.identity is None:
            if self.identity is None or self.needs_identity:
                raise RuntimeError(f"bucket {self.bucket}: a batch cannot be sent without an identity")
            batch.stamp(self.identity, self.next_sequence)
            batch.number = self.stamped_count
            self.stamped_count += 1
            self.next_sequence = advance_sequence(self.next_sequence, batch.sequence_count)
        batch.again = False
        self.in_flight.append(batch)
        return batch

    def succeeded(self, batch: Batch) -> None:
        self.in_flight.remove(batch)
        if not self.recovering:
            self.failures = 0
        self._settle()

    def failed(self, batch: Batch, verdict: Verdict) -> None:
        """Note a failure. A REJECTED batch leaves the lane; others are sent again when none is in flight."""
        position = self.in_flight.index(batch)
        self.recovering = True
        if verdict is Verdict.REJECTED:
            self.in_flight.remove(batch)
            self.abandon(batch)
        else:
            batch.again = True
            if verdict is Verdict.OUT_OF_ORDER:
                batch.unknown = False
                if not any(earlier.again for earlier in itertools.islice(self.in_flight, position)):
                    self._restamp_from(
                        position
                    )  # no earlier batch is missing: the server has forgotten this writer
            else:
                batch.unknown = batch.unknown or verdict is Verdict.UNKNOWN
        self._settle()

    def _restamp_from(self, position: int) -> None:
        # They keep the old identity until they are answered: `in_flight` is compared by it. `sequence` -1
        # marks them.
        for index in range(position, len(self.in_flight)):
            self.in_flight[index].sequence = -1
        self.needs_identity = True

    def _settle(self) -> None:
        if not self.recovering or not all(batch.again for batch in self.in_flight):
            return
        self.failures += 1
        while self.in_flight:
            batch = self.in_flight.pop()
            if batch.sequence < 0:
                batch.identity = None
                batch.unknown = False
            self.queue.appendleft(batch)
        self.recovering = False

    @property
    def is_idle(self) -> bool:
        return not self.queue and not self.in_flight
