"""Copy committed positions of consumer groups to remote storage (`group_positions`), for the partitions of
`__consumer_offsets` that are led here.

A partition is copied after stored data of its groups has changed, at most every
`remote.log.group.positions.interval.ms`; repeated commits of the same positions do not count. The bytes count for
`remote.log.manager.copy.max.bytes.per.second`, as those of segments do. After a failure of the object store the copy is
tried again at the next turn; groups are not affected.

A broker that finds an object of a writer with precedence stops copying the partition until it leads it again.

On the event loop; a separate thread builds the objects and waits for the network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.broker.groups.journal.records import TOPIC
from headrace.broker.remote.cluster_copy import ClusterCopyError
from headrace.broker.remote.group_positions import (
    Head,
    NewerError,
    body_of,
    decode_head,
    encode,
    listed,
    name_of,
)

if TYPE_CHECKING:
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.groups.offsets.positions import GroupPositions
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.remote.cluster_copy import Place
    from headrace.broker.remote.quotas import RemoteQuota
    from headrace.broker.runtime.slices import Slices

logger = logging.getLogger("headrace.remote")

_TAKEN_MAX: Final = 64
"""Maximum number of taken numbers that are skipped in a turn: a writer that creates more is not overtaken in it."""


class _OvertakenError(Exception):
    """A writer with precedence writes the positions of a partition."""


class _State(msgspec.Struct):
    """The state of a partition. `right`: the precedence of its copies; `changes`: the copied version of the groups,
    None before the first copy; `numbers`: the existing numbers, None if unknown; `written`: topics and positions of the
    last copy.
    """

    right: tuple[int, int]
    changes: int | None = None
    numbers: list[int] | None = None
    written: tuple[dict[str, str], bytes] | None = None
    is_overtaken: bool = False


class GroupCopy:
    """The copies of one broker."""

    def __init__(
        self,
        place: Place,
        groups: GroupCoordinator,
        metadata: ClusterMetadata,
        quota: RemoteQuota,
        slices: Slices,
    ) -> None:
        self._place = place
        self._groups = groups
        self._metadata = metadata
        self._quota = quota
        self._slices = slices
        self._states: dict[int, _State] = {}

    async def keep(self, claim: int) -> None:
        """Copy changed positions, with the precedence of the cluster's `claim`. Raises OSError; failed partitions
        follow at the next turn.
        """
        changed = self._changed(claim)
        if not changed:
            return
        changes = {index: self._groups.changes[index] for index in changed}
        found = await self._slices.run(self._groups.positions(changed))
        if any(self._states[index].numbers is None for index in changed):
            there = await self._place.run(listed, self._place.files, self._place.cluster_id)
            for index in changed:
                state = self._states[index]
                if state.numbers is None:
                    state.numbers = there.get(index, [])
        failure: OSError | None = None
        for index in changed:
            if (seconds := self._quota.wait_seconds()) > 0.0:
                await asyncio.sleep(seconds)
            state = self._states[index]
            if state.right != self._right(index, claim):
                continue  # leadership was lost meanwhile, so the positions may be incomplete
            groups = found[index]
            try:
                size = await self._place.run(self._write, index, state, groups, self._topics(groups))
            except _OvertakenError as error:
                state.is_overtaken = True
                logger.info("%s", error)
                continue
            except OSError as error:
                failure = failure or error
                continue
            self._quota.used(size)
            state.changes = changes[index]
        if failure is not None:
            raise failure

    def _right(self, index: int, claim: int) -> tuple[int, int] | None:
        """Return the precedence of copies; None if the partition is not led, or not read yet."""
        journal = self._groups.journal
        if not journal.is_loaded(index) or journal.partitions[index].is_fenced:
            return None
        state = self._metadata.state(TOPIC, index)
        return None if state is None else (claim, state.leader_epoch)

    def _changed(self, claim: int) -> list[int]:
        changed = []
        for partition in self._groups.journal.partitions:
            index = partition.index
            right = self._right(index, claim)
            if right is None:
                continue
            state = self._states.get(index)
            if state is None or state.right != right:
                state = self._states[index] = _State(right)
            if not state.is_overtaken and state.changes != self._groups.changes[index]:
                changed.append(index)
        return changed

    def _topics(self, groups: Sequence[GroupPositions]) -> dict[str, str]:
        """Return the ids of the existing topics that have positions."""
        names = {name for group in groups for name in group.offsets}
        found = ((name, self._metadata.topic(name)) for name in sorted(names))
        return {name: str(topic.topic_id) for name, topic in found if topic is not None}

    def _write(
        self, index: int, state: _State, groups: Sequence[GroupPositions], topics: dict[str, str]
    ) -> int:
        """Write the positions, in the thread; return the number of bytes. Raises _OvertakenError, OSError."""
        assert state.numbers is not None
        body = body_of(groups, topics)
        if (topics, body) == state.written or not (body or state.numbers):
            return 0
        newest = state.numbers[-1] if state.numbers else 0
        if newest and state.written is None:
            self._check_right(index, newest, state)
        place = self._place
        head = Head(place.cluster_id, *state.right, place.writer, place.time_ms(), topics)
        data = encode(head, body)
        for number in range(newest + 1, newest + 1 + _TAKEN_MAX):
            try:
                place.files.put(name_of(place.cluster_id, index, number), data, create=True)
            except FileExistsError:
                self._check_right(index, number, state)
                state.numbers.append(number)  # an earlier leader's, or this one's if an answer was lost
                continue
            state.written = topics, body
            older, state.numbers = state.numbers, [number]
            self._remove(index, older, state.numbers)
            return len(data)
        raise OSError(f"{name_of(place.cluster_id, index, newest)} changes faster than it can be written")

    def _remove(self, index: int, older: list[int], kept: list[int]) -> None:
        """Remove older objects. Those that cannot be removed now are removed with the next one."""
        while older:
            try:
                self._place.files.remove(name_of(self._place.cluster_id, index, older[-1]))
            except OSError:
                kept[:0] = older
                return
            older.pop()

    def _check_right(self, index: int, number: int, state: _State) -> None:
        """Raises _OvertakenError if the existing object has a higher precedence."""
        name = name_of(self._place.cluster_id, index, number)
        try:
            right = decode_head(name, self._place.files.read(name)).right
        except FileNotFoundError:
            state.numbers = None
            raise OSError(f"{name} changes faster than it can be read") from None
        except NewerError as error:
            raise _OvertakenError(f"{error}; positions of these groups are not copied") from error
        except ClusterCopyError as error:
            logger.warning("%s: replacing it", error)
            return
        if right > state.right:
            raise _OvertakenError(
                f"{name} was written by another broker, which leads {TOPIC}-{index} now: this one copies no positions"
            )
