"""The progress of a partition's replicas, as its leader knows it, and the decisions that follow. Pure: the time is an
argument, no I/O.

Invariants
- The high watermark is the lowest end of the *maximal* ISR: its members, and those of a proposal whose outcome is not
  known yet (rule R5). A replica that has not fetched under this epoch has no end yet.
- It does not move while the ISR is smaller than `min.insync.replicas`: a replica that leaves such an ISR stays eligible
  (KIP-966), and could lead without records that were acknowledged or read meanwhile. It does not move either while
  replicas outside the ISR are eligible, even if they became so by a larger minimum: with a smaller one, the leader
  first ends their eligibility (`must_end_eligibility`).
- It waits for followers that are about to join while they keep up, even if it is already beyond their ends. Otherwise a
  follower that is always one fetch behind would never join.
- A follower joins when it has everything below the high watermark, and reaches the start of this epoch (rule R7), under
  a broker epoch that equals the image's (KIP-903). It leaves when it has not caught up for `replica.lag.time.max.ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from headrace.broker.metadata.image import PartitionState

UNKNOWN = -1


class Replica(msgspec.Struct):
    """A follower as its leader knows it. Times are monotonic seconds; `end_offset` -1: it has not fetched under this
    leader epoch.
    """

    broker_epoch: int = UNKNOWN
    end_offset: int = UNKNOWN
    caught_up_at: float = 0.0
    fetched_at: float = 0.0
    leader_end: int = 0
    """The end of the leader's log at its last fetch."""
    reported_end: int = UNKNOWN
    """Its last reported end, even if it may have lost records since: for metrics, not for decisions."""


class Progress:
    """The progress under one leader epoch. `own_end`: offset up to which the leader's log is as durable as the topic
    requires.
    """

    __slots__ = ("_own", "own_end", "proposed", "replicas", "start_offset", "state")

    def __init__(self, own: int, state: PartitionState, start_offset: int, now: float) -> None:
        """`start_offset`: the end of the leader's log when its epoch began."""
        self._own = own
        self.state = state
        self.start_offset = start_offset
        self.own_end = 0
        self.proposed: tuple[int, ...] | None = None
        self.replicas = {
            broker: Replica(caught_up_at=now if broker in state.isr else -1e9)
            for broker in state.replicas
            if broker != own
        }

    def follow(self, state: PartitionState) -> list[int]:
        """Follow another state of the same leader epoch: a proposal has been carried out, or never will be. Return the
        replicas that are not in sync. They may have lost their log meanwhile, so their progress is forgotten.
        """
        self.state = state
        self.proposed = None
        for broker in state.replicas:
            if broker != self._own and broker not in self.replicas:
                self.replicas[broker] = Replica(caught_up_at=-1e9)
        for broker in set(self.replicas) - set(state.replicas):
            del self.replicas[broker]
        unheard = [broker for broker in self.replicas if broker not in state.isr]
        for broker in unheard:
            self.replicas[broker].end_offset = UNKNOWN
        return unheard

    def fetched(self, broker: int, broker_epoch: int, offset: int, leader_end: int, now: float) -> bool:
        """Note that a follower has everything below `offset`. False if the broker is not a replica, or it is an earlier
        incarnation.
        """
        replica = self.replicas.get(broker)
        if replica is None or broker_epoch < replica.broker_epoch:
            return False
        replica.broker_epoch = broker_epoch
        if offset >= leader_end:
            replica.caught_up_at = now
        elif offset >= replica.leader_end:
            replica.caught_up_at = max(replica.caught_up_at, replica.fetched_at)
        replica.end_offset, replica.fetched_at, replica.leader_end = offset, now, leader_end
        replica.reported_end = offset
        return True

    def had_all(self, broker: int, at: float) -> None:
        """Note that a follower had everything at that time, without another fetch."""
        replica = self.replicas.get(broker)
        if replica is not None:
            replica.caught_up_at = max(replica.caught_up_at, at)

    def lags(self, start_offset: int, high_watermark: int, end_offset: int) -> dict[int, int]:
        """Return the number of offsets that each follower lacks, as far as the leader knows. Without a fetch, a member
        of the ISR has everything below the high watermark, and another follower has nothing.
        """
        return {
            broker: max(
                0,
                end_offset
                - (
                    replica.reported_end
                    if replica.reported_end > UNKNOWN
                    else high_watermark
                    if broker in self.state.isr
                    else start_offset
                ),
            )
            for broker, replica in self.replicas.items()
        }

    def in_sync_count(self) -> int:
        """Return the size of the stored ISR."""
        return len(self.state.isr)

    def high_watermark(
        self, present: int, min_isr: int, now: float, lag_s: float, epochs: Mapping[int, int]
    ) -> int:
        """Return the possible high watermark, at least `present`. `epochs`: broker epochs of brokers that may join."""
        if self.state.elr or self._is_short(min_isr):
            return present
        maximal = set(self.state.isr) | set(self.proposed or ())
        new = self.own_end
        for broker, replica in self.replicas.items():
            if broker in maximal:
                new = min(new, replica.end_offset)
            elif (
                UNKNOWN < replica.end_offset < new
                and now - replica.caught_up_at <= lag_s
                and epochs.get(broker) == replica.broker_epoch
            ):
                new = replica.end_offset
        return max(new, present)

    def _is_short(self, min_isr: int) -> bool:
        return len(self.state.isr) < min(min_isr, len(self.state.replicas))

    def must_end_eligibility(self, min_isr: int) -> bool:
        """Return whether the ISR must be written again to end eligibility, because it is large enough for `min_isr`."""
        return bool(self.state.elr) and self.proposed is None and not self._is_short(min_isr)

    def joining(self, broker: int, high_watermark: int) -> bool:
        """Return whether a follower outside the ISR can join it."""
        if broker in self.state.isr or self.proposed is not None:
            return False
        end_offset = self.replicas[broker].end_offset
        return end_offset >= high_watermark and end_offset >= self.start_offset

    def lagging(self, end_offset: int, now: float, lag_s: float) -> list[int]:
        """Return the members of the ISR that lag for too long; they should have the log up to `end_offset`."""
        if self.proposed is not None:
            return []
        return [
            broker
            for broker, replica in self.replicas.items()
            if broker in self.state.isr
            and replica.end_offset < end_offset
            and now - replica.caught_up_at > lag_s
        ]

    def propose(
        self, *, joins: int | None = None, leave: list[int] | None = None, known: Callable[[int], int]
    ) -> tuple[tuple[int, int], ...]:
        """Return an ISR to propose, with broker epochs: those of the last fetches, or from `known`."""
        gone = set(leave or ())
        isr = tuple(broker for broker in self.state.isr if broker not in gone)
        if joins is not None:
            isr = (*isr, joins)
        self.proposed = isr
        return tuple((broker, self._epoch_of(broker, known)) for broker in isr)

    def _epoch_of(self, broker: int, known: Callable[[int], int]) -> int:
        replica = self.replicas.get(broker)
        if replica is None or replica.broker_epoch == UNKNOWN:
            return known(broker)
        return replica.broker_epoch
