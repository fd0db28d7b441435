"""Limit the open connections of the broker, and of each of its listeners (`max.connections`).

Without a free slot a listener accepts nothing: new connections wait in the system's queue until another one closes, and
are not refused. The listener between brokers has only its own limit: if it exceeds the broker's limit, connections of
other listeners are closed (`excess`), so that clients do not block brokers. (KIP-402, KIP-612;
kafka.network.ConnectionQuotas)

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class ConnectionSlots:
    """The open connections and their limits. Without limits every slot is free."""

    def __init__(self) -> None:
        self.max_of_all: int | None = None
        self._max_of: Mapping[str, int] = {}
        self._protected: str | None = None
        self._taken: Counter[str] = Counter()

    def set(self, of_all: int | None, of_listeners: Mapping[str, int], protected: str | None = None) -> None:
        """Set the maximum numbers of connections; None: no limit. `protected`: the listener that has only its own
        limit.
        """
        self.max_of_all = of_all
        self._max_of = dict(of_listeners)
        self._protected = protected

    def take(self, listener: str) -> None:
        self._taken[listener] += 1

    def leave(self, listener: str) -> None:
        self._taken[listener] -= 1

    def full(self, listener: str) -> int | None:
        """Return the limit that stops the listener from accepting; None: there is a free slot."""
        own = self._max_of.get(listener)
        if own is not None and self._taken[listener] >= own:
            return own
        if listener == self._protected or self.max_of_all is None:
            return None
        return self.max_of_all if self._taken.total() >= self.max_of_all else None

    @property
    def excess(self) -> int:
        """Return the number of unprotected connections to close."""
        if self.max_of_all is None:
            return 0
        others = self._taken.total() - (0 if self._protected is None else self._taken[self._protected])
        return max(0, min(others, self._taken.total() - self.max_of_all))

    def may_be_closed(self, listener: str) -> bool:
        return listener != self._protected
