"""Who has to make room when places that clients hold are all taken. Pure."""

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
    """Which place is given up for one more of `client`: its key, None if there is room, or a text that says why there
    is none.

    `held`: places that can be given up, as (client, seconds without use, key); `busy`: who has those that cannot.
    Beyond its own share a client gives up what it has not used for `idle_seconds`. When all places are taken, whoever
    has most gives up its longest idle one for a client that would still have no more; otherwise what nobody has used
    for so long goes.
    """
    counts = Counter(busy)
    counts.update(owner for owner, _, _ in held)
    if counts[client] >= own_max:
        mine = [(idle, key) for owner, idle, key in held if owner == client and idle >= idle_seconds]
        if not mine:
            return f"this client holds {counts[client]} of the {own_max} that one may hold"
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
        return f"{total} are open, which is the most"
    return max(chosen, key=lambda each: each[0])[1]
