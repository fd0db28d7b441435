"""How many connections there may be at a time: of the broker, and of each of its listeners (`max.connections`).

Without a free slot nothing is accepted there: who connects waits in the system's queue until somebody else goes, and
nobody is turned away. The listener that brokers use among themselves is held to a number of its own only: what it takes
beyond the broker's is freed elsewhere (`excess`), so that clients, however many, do not keep brokers from each other.
(KIP-402, KIP-612; kafka.network.ConnectionQuotas)

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class ConnectionSlots:
    """See the module's contract. Without limits every slot is free."""

    def __init__(self) -> None:
        self.max_of_all: int | None = None
        self._max_of: Mapping[str, int] = {}
        self._protected: str | None = None
        self._taken: Counter[str] = Counter()

    def set(self, of_all: int | None, of_listeners: Mapping[str, int], protected: str | None = None) -> None:
        """The most connections from now on; None: no limit. `protected`: the listener that only its own holds for."""
        self.max_of_all = of_all
        self._max_of = dict(of_listeners)
        self._protected = protected

    def take(self, listener: str) -> None:
        self._taken[listener] += 1

    def leave(self, listener: str) -> None:
        self._taken[listener] -= 1

    def full(self, listener: str) -> int | None:
        """The number that is reached, so that nobody is accepted there; None: there is room."""
        own = self._max_of.get(listener)
        if own is not None and self._taken[listener] >= own:
            return own
        if listener == self._protected or self.max_of_all is None:
            return None
        return self.max_of_all if self._taken.total() >= self.max_of_all else None

    @property
    def excess(self) -> int:
        """How many are to be closed of those that are not protected."""
        if self.max_of_all is None:
            return 0
        others = self._taken.total() - (0 if self._protected is None else self._taken[self._protected])
        return max(0, min(others, self._taken.total() - self.max_of_all))

    def may_be_closed(self, listener: str) -> bool:
        return listener != self._protected
