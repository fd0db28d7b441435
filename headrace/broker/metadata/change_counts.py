"""Counts of changes of partitions that this broker wrote to the coordination store.

One broker writes each change: the leader changes its ISR, the controller answers for lost brokers. So the sum over all
brokers is the cluster's count, and a change that a broker only follows is not counted again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.broker.metadata.image import NO_LEADER, PartitionState

if TYPE_CHECKING:
    from headrace.broker.metadata.image import ClusterImage, TopicEntry


class ChangeCounts:
    """Counts since the broker started."""

    def __init__(self) -> None:
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.unclean_elections = 0

    def note(self, image: ClusterImage, topics: Mapping[str, TopicEntry | None]) -> None:
        """Count the changes of a transaction that was decided on `image`. New and deleted topics do not count."""
        for name, after in topics.items():
            before = image.topics.get(name)
            if before is None or after is None or before.topic.topic_id != after.topic.topic_id:
                continue
            for was, now in zip(before.chunks, after.chunks, strict=False):
                if was is not now:
                    for earlier, later in zip(was.states, now.states, strict=False):
                        self._note(earlier, later)

    def _note(self, before: PartitionState, after: PartitionState) -> None:
        if before is after:
            return
        left = set(before.isr) - set(after.isr)
        # A replica that was moved away has not lagged.
        self.isr_shrinks += not left.isdisjoint(after.replicas)
        self.isr_expands += not set(after.isr) <= set(before.isr)
        if after.leader not in (NO_LEADER, before.leader, *before.isr, *before.elr):
            self.unclean_elections += 1
