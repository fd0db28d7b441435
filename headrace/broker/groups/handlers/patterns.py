"""The topics that the patterns of groups match. They are computed in the executor.

A new pattern is resolved before its heartbeat takes effect. After topics or rights have changed, a group's patterns are
resolved again at one of its heartbeats. The pause between two times is long enough that this takes about one percent of
the processor.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.broker.groups.model.assignment import ResolvedPattern
from headrace.broker.groups.model.events import PatternsResolved
from headrace.broker.runtime.pattern import PatternError, matching
from headrace.broker.security.rights import Operation, ResourceType

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.requests.declaration import RequestContext
    from headrace.broker.runtime.background import BackgroundTasks
    from headrace.broker.runtime.ports import Clock

PAUSE_SECONDS_MIN = 1.0
PAUSE_FACTOR = 100.0
_ASKED_TOGETHER = 500  # number of topics that are authorized without letting others run


class PatternResolver:
    def __init__(
        self,
        coordinator: GroupCoordinator,
        metadata: ClusterMetadata,
        executor: Executor,
        clock: Clock,
        background: BackgroundTasks,
    ) -> None:
        self._coordinator = coordinator
        self._metadata = metadata
        self._executor = executor
        self._clock = clock
        self._background = background
        self._seen: dict[str, tuple[int, int]] = {}
        """Group -> the versions of metadata and rights when its patterns were last matched."""
        self._not_before: dict[str, float] = {}
        self._busy: set[str] = set()
        self._turn = asyncio.Lock()
        """One pattern at a time, so that the executor's other threads stay free for disks."""

    def is_known(self, group_id: str, pattern: str) -> bool:
        group = self._coordinator.groups.get(group_id)
        return group is not None and group.consumer is not None and pattern in group.consumer.patterns

    async def resolve(self, pattern: str, context: RequestContext) -> ResolvedPattern | None:
        """Return the matching topics that the client may see. None for an invalid pattern, which the group refuses."""
        async with self._turn:
            version, now_ms = self._metadata.version, self._clock.time_ms()
            names = [image.name for image in self._metadata.topics()]
            try:
                topics = await matching(pattern, names, self._executor, self._clock)
            except PatternError:
                return None
        if not context.authorizer.is_open:
            topics = await _seen_by(context, list(topics))
        return ResolvedPattern(frozenset(topics), version, now_ms)

    def refresh(self, group_id: str, context: RequestContext) -> None:
        """Match the group's patterns again if topics or rights have changed and the pause is over."""
        group = self._coordinator.groups.get(group_id)
        version = self._metadata.version, context.authorizer.version
        if group is None or group.consumer is None or not group.consumer.patterns:
            if self._seen:
                self._seen.pop(group_id, None)
                self._not_before.pop(group_id, None)
            return
        if (
            self._seen.get(group_id) == version
            or group_id in self._busy
            or self._clock.monotonic() < self._not_before.get(group_id, 0.0)
        ):
            return
        self._busy.add(group_id)
        self._background.start(self._refresh(group_id, context), f"match the patterns of group {group_id}")

    async def _refresh(self, group_id: str, context: RequestContext) -> None:
        clock, version = self._clock, (self._metadata.version, context.authorizer.version)
        started = clock.monotonic()
        try:
            group = self._coordinator.groups.get(group_id)
            resolved = {}
            for pattern in list(group.consumer.patterns) if group is not None and group.consumer else ():
                if (found := await self.resolve(pattern, context)) is not None:
                    resolved[pattern] = found
            if group is not None and self._coordinator.groups.get(group_id) is group:
                self._coordinator.tell(group_id, PatternsResolved(resolved))
        finally:
            self._busy.discard(group_id)
        self._seen[group_id] = version
        took = clock.monotonic() - started
        self._not_before[group_id] = clock.monotonic() + max(PAUSE_SECONDS_MIN, PAUSE_FACTOR * took)


async def _seen_by(context: RequestContext, names: list[str]) -> list[str]:
    seen = []
    for count, name in enumerate(names):
        if count % _ASKED_TOGETHER == 0:
            await asyncio.sleep(0)
        if context.may(Operation.DESCRIBE, ResourceType.TOPIC, name, audited=False):
            seen.append(name)
    return seen
