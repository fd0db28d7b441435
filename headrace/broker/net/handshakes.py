"""Decide which connections may begin a handshake: a limited number per second, in total and per address.

A handshake costs the server a hundred times more than the peer that requests it. Connections beyond the limit of
their address wait unread, and waiting addresses take turns, so that an address with many requests delays only itself.
A connection requests its turn when its peer has sent something, so that silent ones delay no other. If an address has
more requests than turns in a second, its oldest and its newest request take turns: many that do not go on delay a new
client by two turns, not by all. When too many are pending, the oldest one that waits for its peer is closed for a new
one; if no such connection exists, the new one is refused.

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
    """The handshakes that may begin now: at most those of one second, growing with time."""

    __slots__ = ("amount", "at", "newest_is_next")

    def __init__(self, amount: float, at: float) -> None:
        self.amount = amount
        self.at = at
        self.newest_is_next = False

    def grow(self, per_second: int, now: float) -> float:
        self.amount = min(float(per_second), self.amount + max(0.0, now - self.at) * per_second)
        self.at = now
        return self.amount


class HandshakeQueue(Generic[Waiting]):
    """Pending handshakes. A waiting item is the caller's connection, and may be any hashable object."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Waiting]] = OrderedDict()
        self._addresses: dict[str, _Allowance] = {}
        self._total: _Allowance | None = None
        self._swept_at = 0.0
        self._pending: dict[str, dict[Waiting, None]] = {}
        """Pending handshakes by address, in the order of their arrival."""
        self.pending_count = 0
        """Number of handshakes that have arrived and not left."""

    def arrive(self, one: Waiting, address: str, limits: Limits, *, asks: bool = True) -> bool:
        """Add a pending handshake, which requests its turn now or later. False: too many are pending."""
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
        """Request a turn: `due` gives it."""
        self._waiting.setdefault(address, deque()).append(one)

    def leave(self, one: Waiting, address: str) -> None:
        """Remove a handshake that is over or will not take place."""
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
        """Return the handshake to close so that another of `address`, which was refused, can arrive: the first to
        arrive for which `waits_for_peer` is true. It is of the same address, or, if the total is too high, of the
        address with the most pending ones. None if there is no such handshake.
        """
        pending = self._pending.get(address, {})
        if len(pending) < limits.handshakes_pending_per_address_max:
            pending = max(self._pending.values(), key=len, default={})
        return next(filter(waits_for_peer, pending), None)

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def due(self, now: float, limits: Limits) -> Iterator[Waiting]:
        """Yield the handshakes whose turn it is, alternating between addresses."""
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
            is_long = len(line) > limits.handshakes_per_address_per_second_max
            one = line.pop() if is_long and allowance.newest_is_next else line.popleft()
            allowance.newest_is_next = not allowance.newest_is_next
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
        """Forget addresses whose allowance is full again."""
        self._swept_at = now
        for address, allowance in tuple(self._addresses.items()):
            if now - allowance.at > _FORGET_AFTER_SECONDS:
                del self._addresses[address]
