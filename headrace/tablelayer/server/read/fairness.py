"""The choice of the place to free when all places that clients hold are taken. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def has_to_go(
    client: str,
    held: Sequence[tuple[str, float, Key]],
    busy: Sequence[str],
    own_max: int,
    all_max: int,
    idle_seconds: float,
) -> Key | str | None:
    """Choose the place to free for another one of `client`.

    Return its key, None if there is room, or the reason why no place can be freed.

    `held` has the places that can be freed, as (client, seconds without use, key); `busy` has the clients of others.
    At its own limit a client loses a place that it has not used for `idle_seconds`. When all places are taken, the
    client with the most places loses its longest idle one, if it has at least two more than `client`. Otherwise the
    longest idle place of all is freed, if it was idle for `idle_seconds`.
    """
    counts = Counter(busy)
    counts.update(owner for owner, _, _ in held)
    if counts[client] >= own_max:
        mine = [(idle, key) for owner, idle, key in held if owner == client and idle >= idle_seconds]
        if not mine:
            return f"this client holds {counts[client]} slots; the maximum for one client is {own_max}"
        return max(mine, key=lambda each: each[0])[1]
    total = sum(counts.values())
    if total < all_max:
        return None
    richest = max((owner for owner, _, _ in held), key=lambda owner: counts[owner], default=None)
    fair = richest is not None and counts[richest] > counts[client] + 1
    chosen = [
        (idle, key) for owner, idle, key in held if (owner == richest if fair else idle >= idle_seconds)
    ]
    if not chosen:
        return f"{total} are open, which is the maximum"
    return max(chosen, key=lambda each: each[0])[1]
