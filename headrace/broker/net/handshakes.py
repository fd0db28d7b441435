"""Who may begin a handshake now: so many per second in all and per address, the others wait in fair turns.

A handshake costs the server a hundred times what it costs the peer to ask for one. So connections of one address begin
a bounded number per second; those beyond wait, unread, and of the addresses that wait each has its turn: one that asks
without end delays itself. A connection asks for its turn when its peer has sent something, so that silent ones delay
no other. Where too many are pending, the oldest that waits for its peer gives way to a new one; if there is none, the
new one is refused.

Pure: times are given, in seconds of any one clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from headrace.broker.net.limits import Limits

Waiting = TypeVar("Waiting")

_FORGET_AFTER_SECONDS: Final = 2.0
_ADDRESSES_MANY: Final = 1024


class _Allowance:
    """A second's worth at most, growing with time."""

    __slots__ = ("amount", "at")

    def __init__(self, amount: float, at: float) -> None:
        self.amount = amount
        self.at = at

    def grow(self, per_second: int, now: float) -> float:
        self.amount = min(float(per_second), self.amount + max(0.0, now - self.at) * per_second)
        self.at = now
        return self.amount


class HandshakeQueue(Generic[Waiting]):
    """See the module's contract. What waits is the caller's own (a connection), and may be any hashable thing."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Waiting]] = OrderedDict()
        self._addresses: dict[str, _Allowance] = {}
        self._total: _Allowance | None = None
        self._swept_at = 0.0
        self._pending: dict[str, dict[Waiting, None]] = {}
        """By address, in the order in which they arrived."""
        self.pending_count = 0
        """Those that have arrived and not left."""

    def arrive(self, one: Waiting, address: str, limits: Limits, *, asks: bool = True) -> bool:
        """Be one of those that are pending, and ask for a turn at once or later. False: too many are."""
        if (
            self.pending_count >= limits.handshakes_pending_max
            or len(self._pending.get(address, ())) >= limits.handshakes_pending_per_address_max
        ):
            return False
        self.pending_count += 1
        self._pending.setdefault(address, {})[one] = None
        if asks:
            self.ask(one, address)
        return True

    def ask(self, one: Waiting, address: str) -> None:
        """Ask for a turn: `due` gives it."""
        self._waiting.setdefault(address, deque()).append(one)

    def leave(self, one: Waiting, address: str) -> None:
        """Its handshake is over, or it will have none."""
        self.pending_count -= 1
        del self._pending[address][one]
        if not self._pending[address]:
            del self._pending[address]
        line = self._waiting.get(address)
        if line is not None and one in line:
            line.remove(one)
            if not line:
                del self._waiting[address]

    def oldest(
        self, address: str, limits: Limits, waits_for_peer: Callable[[Waiting], bool]
    ) -> Waiting | None:
        """The one that gives way to another of `address`, which was not let in: the first to arrive of those of which
        `waits_for_peer` is true. It is of the same address, or of the one with most pending where all together are too
        many. None: there is none.
        """
        pending = self._pending.get(address, {})
        if len(pending) < limits.handshakes_pending_per_address_max:
            pending = max(self._pending.values(), key=len, default={})
        return next(filter(waits_for_peer, pending), None)

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def due(self, now: float, limits: Limits) -> Iterator[Waiting]:
        """Those whose turn it is, one of each address after another."""
        total = self._total
        if total is None:
            total = self._total = _Allowance(limits.handshakes_per_second_max, now)
        total.grow(limits.handshakes_per_second_max, now)
        passed_over = 0
        while self._waiting and passed_over < len(self._waiting) and total.amount >= 1:
            address = next(iter(self._waiting))
            allowance = self._allowance(address, now, limits)
            self._waiting.move_to_end(address)
            if allowance.grow(limits.handshakes_per_address_per_second_max, now) < 1:
                passed_over += 1
                continue
            passed_over = 0
            line = self._waiting[address]
            one = line.popleft()
            if not line:
                del self._waiting[address]
            allowance.amount -= 1
            total.amount -= 1
            yield one

    def _allowance(self, address: str, now: float, limits: Limits) -> _Allowance:
        known = self._addresses.get(address)
        if known is None:
            if len(self._addresses) >= _ADDRESSES_MANY and now - self._swept_at > _FORGET_AFTER_SECONDS:
                self._sweep(now)
            known = self._addresses[address] = _Allowance(limits.handshakes_per_address_per_second_max, now)
        return known

    def _sweep(self, now: float) -> None:
        """Forget those who have their whole allowance again."""
        self._swept_at = now
        for address, allowance in tuple(self._addresses.items()):
            if now - allowance.at > _FORGET_AFTER_SECONDS:
                del self._addresses[address]
