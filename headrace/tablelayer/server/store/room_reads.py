"""Reads of rows as long as there is room in an answer: by keys, in key order, by prefixes of keys.

RocksDB's calls take the interpreter lock each time. So several rows are read in one call where the largest row so far
shows that there is room.

Blocking: called in executor threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, wait
from typing import Any

from rocksdict import ReadOptions

from headrace.tablelayer.server.room import Room

READ_TOGETHER = 16
"""Number of keys: that many rows are read before their sizes are checked."""
_LOOKED_UP_TOGETHER_MAX = 256
"""The same if earlier rows show that there is room: each call takes the interpreter lock once."""
_LARGER = 8
"""Rows may be that many times as large as the earlier ones, and still have room together."""
_HALVED_FROM = 1024
"""Number of keys from which two threads share a lookup: RocksDB takes milliseconds for them, without the interpreter
lock. For writes, many of which run at a time, it would cost more than it gains."""


Get = Callable[[list[bytes]], list[bytes | None]]
"""Returns the value of each key, None if it is absent."""


def get_rest(
    get: Get, keys: Sequence[bytes], largest: int, room: Room, helper: Executor
) -> list[bytes | None]:
    """Return the values of the first keys, as many as fit. `largest` is the cost of the largest row read before.

    Several are read at a time, if there is room for as many of the largest so far: that takes a quarter less time than
    one by one, and takes the interpreter lock less often. `helper` reads a part of many keys.
    """
    left = room.max_bytes - room.used
    if len(keys) >= _HALVED_FROM and len(keys) * largest <= left:
        rooms: list[Room] = []

        def read(half: Sequence[bytes]) -> list[bytes | None]:
            half_room = Room(left // 2, room.cost, must=False)
            rooms.append(half_room)
            return _while(get, half, half_room, largest)

        values = _halves(keys, read, helper)
        if len(values) == len(keys):
            room.used += sum(each.used for each in rooms)
            return values
    return _while(get, keys, room, largest)


def _while(get: Get, keys: Sequence[bytes], room: Room, largest: int) -> list[bytes | None]:
    """Return the values that fit; `largest` is the largest row so far, in bytes."""
    values: list[bytes | None] = []
    while len(values) < len(keys) and not room.is_full:
        together = _together(room, largest)
        some = get(list(keys[len(values) : len(values) + together]))
        values += some if room.admits_all(some) else room.those_that_fit(some)
        largest = max(largest, room.cost.largest(some))
    return values


def _halves(
    keys: Sequence[bytes], read: Callable[[Sequence[bytes]], list[bytes | None]], helper: Executor
) -> list[bytes | None]:
    """Return the values of all keys; a helper thread reads the second half, unless it is busy."""
    rest = keys[len(keys) // 2 :]
    beside = helper.submit(read, rest)
    try:
        values = read(keys[: len(keys) // 2])
    finally:
        has_begun = not beside.cancel()
        if has_begun:
            wait((beside,))  # the store must not be closed before
    return values + (beside.result() if has_begun else read(rest))


def values_that_fit(database: Any, first: bytes, count: int, room: Room) -> tuple[list[bytes], bytes | None]:
    """Return the values of at most `count` rows from a key on, as many as fit, and the last key.

    There is no last key if these are all rows from that key on, or if not all of the requested ones fit.
    """
    values: list[bytes] = []
    last: bytes | None = None
    largest = 0
    rows = database.items(from_key=first)
    while len(values) < count:
        together = min(count - len(values), _together(room, largest))
        some = list(itertools.islice(rows, together))
        if some:
            keys, found = zip(*some, strict=True)
            values += found if room.admits_all(found) else room.those_that_fit(found)
            if room.is_full:
                return values, None
            last, largest = keys[-1], max(largest, room.cost.largest(found))
        if len(some) < together:
            _check_end(database, first, last)
            return values, None
    return values, last


def values_of_prefixes(
    database: Any, prefixes: Sequence[bytes], room: Room, after: bytes | None
) -> tuple[list[int], list[bytes], bytes | None]:
    """Return (row counts, values, cursor) of the first prefixes, as `KeyValueStore.values_by_prefix`."""
    iterator = database.iter(ReadOptions())
    key_here, value_here, go_on = iterator.key, iterator.value, iterator.next
    width, factor, left = room.cost.width, room.cost.expansion, room.max_bytes - room.used
    counts: list[int] = []
    values: list[bytes] = []
    last: bytes | None = None
    for prefix in prefixes:
        if room.is_full:
            break
        before = len(values)
        iterator.seek(prefix if after is None else max(prefix, after + b"\x00"))
        after = None
        while (key := key_here()) is not None and key.startswith(prefix):
            value = value_here()
            size = width + factor * len(value)
            if size > left:  # counted here as `room` would, without a call for each row
                room.used = room.max_bytes - left
                if not room.admits(value):
                    if len(values) > before:
                        counts.append(len(values) - before)
                    return counts, values, last if len(values) > before else None
            left -= size
            values.append(value)
            last = key
            go_on()
        if key is None:
            iterator.status()  # raises if the iteration ended because of an error
        counts.append(len(values) - before)
    room.used = room.max_bytes - left
    return counts, values, None


def _together(room: Room, largest: int) -> int:
    """Return the number of rows to read before their sizes are checked; `largest` is the largest so far, in bytes."""
    if not largest:
        return READ_TOGETHER
    return max(1, min(_LOOKED_UP_TOGETHER_MAX, (room.max_bytes - room.used) // (_LARGER * largest)))


def _check_end(source: Any, first: bytes, last: bytes | None) -> None:
    """Raise RocksDB's error if an iteration ended because of it.

    Its iterators end at an unreadable block as they end behind the last row. `first` and `last` are the first key and
    the last key read.
    """
    iterator = source.iter(ReadOptions())
    iterator.seek(first if last is None else last)
    if last is not None and iterator.valid():
        iterator.next()
    iterator.status()
