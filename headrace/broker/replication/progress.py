"""How far the replicas of a partition are, as its leader knows it, and what follows from that. Pure: told the time, no
I/O.

Invariants
- The high watermark is the least end of the *maximal* ISR: everybody who is in it, or would be by a proposal of which
  nobody knows yet whether it was carried out (rule R5). Who has not fetched under this epoch has no end yet.
- It does not move while the ISR is smaller than `min.insync.replicas`: who leaves such an ISR stays eligible (KIP-966),
  and would have to lead without what was acknowledged or read meanwhile. Nor does it move while anybody is eligible
  beside the ISR, whoever counted by a larger number: with a smaller one the leader has that ended first
  (`must_end_eligibility`).
- It waits for those who are about to join, for as long as they keep up, and also where it is past their ends already;
  otherwise a follower that is always one fetch behind would never get in.
- A follower joins when it has everything below the high watermark, and something of this epoch if there is anything
  (rule R7), under the broker epoch that it fetches with and the image knows (KIP-903). It leaves when it has not had
  all for `replica.lag.time.max.ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from headrace.broker.metadata.image import PartitionState

UNKNOWN = -1


class Replica(msgspec.Struct):
    """A follower as its leader sees it. Times are monotonic seconds; `end_offset` -1: it has not fetched under this
    leader epoch.
    """

    broker_epoch: int = UNKNOWN
    end_offset: int = UNKNOWN
    caught_up_at: float = 0.0
    fetched_at: float = 0.0
    leader_end: int = 0
    """Where the leader's log ended when it fetched last."""


class Progress:
    """Of one leader epoch. `own_end`: up to where the leader's log is as durable as the topic wants it."""

    __slots__ = ("_own", "own_end", "proposed", "replicas", "start_offset", "state")

    def __init__(self, own: int, state: PartitionState, start_offset: int, now: float) -> None:
        """`start_offset`: where the leader's log ended when its epoch began."""
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
        """The store has another state of the same leader epoch: what was proposed is carried out, or never will be.
        Who is not in sync may have had no replica meanwhile: what it had is not known any more. Gives those.
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
        """A follower has everything below `offset`. False if it is none, or an incarnation that is over."""
        replica = self.replicas.get(broker)
        if replica is None or broker_epoch < replica.broker_epoch:
            return False
        replica.broker_epoch = broker_epoch
        if offset >= leader_end:
            replica.caught_up_at = now
        elif offset >= replica.leader_end:
            replica.caught_up_at = max(replica.caught_up_at, replica.fetched_at)
        replica.end_offset, replica.fetched_at, replica.leader_end = offset, now, leader_end
        return True

    def had_all(self, broker: int, at: float) -> None:
        """At that time a follower had everything that there was, though it did not say so again."""
        replica = self.replicas.get(broker)
        if replica is not None:
            replica.caught_up_at = max(replica.caught_up_at, at)

    def in_sync_count(self) -> int:
        """Of the ISR that is written down."""
        return len(self.state.isr)

    def high_watermark(
        self, present: int, min_isr: int, now: float, lag_s: float, epochs: Mapping[int, int]
    ) -> int:
        """What it may be, never less than what it is. `epochs`: those of the brokers that may join."""
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
        """Whether the ISR as it is has to be written down anew, because it is large enough by this number."""
        return bool(self.state.elr) and self.proposed is None and not self._is_short(min_isr)

    def joining(self, broker: int, high_watermark: int) -> bool:
        """Whether a follower has what it needs to be in the ISR, and is not."""
        if broker in self.state.isr or self.proposed is not None:
            return False
        end_offset = self.replicas[broker].end_offset
        return end_offset >= high_watermark and end_offset >= self.start_offset

    def lagging(self, end_offset: int, now: float, lag_s: float) -> list[int]:
        """Who of the ISR has been behind for too long; `end_offset` is up to where it is to have the log."""
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
        """An ISR to be written down, with the broker epoch of each: it fetched with that, or `known` says it."""
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
