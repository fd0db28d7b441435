"""The cluster's metadata as this broker has it: brokers, topics, the states of their partitions.

`broker.cluster.metadata_follower` keeps it up to date; everything else reads it. Once `is_loaded`, a name or an id that
is not in it does not exist. `version`, the key of response caches, moves with every change that a reader could see.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from headrace.broker.metadata.features import LEVELS
from headrace.broker.metadata.image import (
    NO_LEADER,
    BrokerImage,
    ClusterImage,
    PartitionState,
    TopicEntry,
)
from headrace.broker.metadata.member import Member
from headrace.broker.metadata.topic_config import TopicConfigs
from headrace.broker.metadata.topic_index import TopicIndex
from headrace.broker.partitions.fence import Fence
from headrace.broker.partitions.topic import TopicImage
from headrace.protocol.errors import KafkaError


class ClusterMetadata:
    """One object per broker, on the event loop. `fence`: None where the broker is alone."""

    def __init__(
        self,
        topic_configs: TopicConfigs,
        member: Member,
        fence: Fence | None = None,
        *,
        levels: tuple[int, int] = LEVELS,
    ) -> None:
        self.is_loaded = False
        """Whether the image is complete."""
        self.image = ClusterImage()
        """The image that this broker serves."""
        self.version = 0
        self.ended: Mapping[int, int] = {}
        """Brokers of the image whose processes have ended, with their epochs: the image is about to lose them. A change
        replaces the mapping as a whole.
        """
        self.topic_configs = topic_configs
        self.levels = levels
        """The lowest and the highest level of the metadata that this broker supports."""
        self.is_alone = fence is None
        """Whether there are no other brokers, for as long as this process lives."""
        self.deletion_listeners: list[Callable[[TopicImage], None]] = []
        """Called with each deleted topic, after its partitions are closed."""
        self.topic_listeners: list[Callable[[TopicEntry | None, TopicEntry], None]] = []
        """Called with what a topic was and what it is, after this broker's partitions have followed the change."""
        self.broker_listeners: list[Callable[[], None]] = []
        """Called when other brokers are alive than before, or under other epochs; the image has them."""
        self._member = member
        self._fence = fence
        self._index = TopicIndex()
        self._entries: dict[str, TopicEntry] = {}

    # -- topics ----------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicImage | None:
        return self._index.by_name.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> TopicImage | None:
        return self._index.by_id.get(topic_id)

    @property
    def topic_count(self) -> int:
        return len(self._index.by_name)

    def topics(self) -> list[TopicImage]:
        """All topics, by name."""
        return self._index.in_order()

    def topics_beginning_with(self, prefix: str) -> list[TopicImage]:
        """The topics with names that begin so, by name; costs nothing for the others."""
        return self._index.beginning_with(prefix)

    def topics_that_set(self, config: str) -> list[TopicImage]:
        """The topics whose own configuration has the entry `config`, by name; costs nothing for the others."""
        return self._index.setting(config)

    def check_collision(self, name: str) -> None:
        """Kafka's rule for topics that clients create: names that differ only in '.' and '_' make the same metric.

        Raises KafkaError(INVALID_TOPIC_EXCEPTION).
        """
        self._index.check_collision(name)

    def check_defaults(self, broker_defaults: Mapping[str, str]) -> None:
        """Raises KafkaError if these defaults contradict the configuration of a topic."""
        others = self.topic_configs.with_defaults(broker_defaults)
        for image in self._index.by_name.values():
            if image.config or image.internal:
                try:
                    others.check(image.config, internal=image.internal)
                except KafkaError as error:
                    raise KafkaError(error.code, f"topic {image.name}: {error.message}") from None

    # -- partitions ------------------------------------------------------------------------------------------

    def entry(self, name: str) -> TopicEntry | None:
        """The topic with the states of its partitions."""
        return self._entries.get(name)

    def state(self, name: str, index: int) -> PartitionState | None:
        """The replicas and the leader of a partition; None if it does not exist."""
        entry = self._entries.get(name)
        if entry is None or not 0 <= index < entry.topic.partition_count:
            return None
        return entry.state(index)

    def leader(self, name: str, index: int) -> BrokerImage | None:
        """The leader of a partition; None if the partition does not exist or has no leader that is alive."""
        state = self.state(name, index)
        if state is None or state.leader == NO_LEADER or state.leader in self.ended:
            return None
        return self.image.brokers.get(state.leader)

    # -- brokers ---------------------------------------------------------------------------------------------

    @property
    def is_fenced(self) -> bool:
        """Whether other brokers may lead by now what this broker leads."""
        return self._fence is not None and self._fence.is_shut

    @property
    def is_controller(self) -> bool:
        """Whether this broker is the controller."""
        return self.image.controller_epoch >= 0

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration; -1 without one."""
        return self._member.epoch

    def note_ended(self, broker_id: int, epoch: int) -> None:
        """Send clients no longer to the broker with this registration: its process has ended."""
        self._note_ended({**self.ended, broker_id: epoch})

    def note_there(self, broker_id: int) -> None:
        """Send clients to the broker again: it has answered."""
        self._note_ended({each: epoch for each, epoch in self.ended.items() if each != broker_id})

    def _note_ended(self, ended: Mapping[int, int]) -> None:
        brokers = self.image.brokers
        left = {
            each: epoch for each, epoch in ended.items() if each in brokers and brokers[each].epoch == epoch
        }
        if left != self.ended:
            self.ended = left
            self.version += 1

    # -- changing it, for the follower of the store ------------------------------------------------------------

    def put(self, entry: TopicEntry) -> None:
        """Let a topic be found; the image has it when the whole change is followed."""
        self._index.put(entry.topic)
        self._entries[entry.topic.name] = entry
        self.version += 1

    def remove(self, topic: TopicImage) -> None:
        """Let a deleted topic be found no longer."""
        self._index.remove(topic)
        self._entries.pop(topic.name, None)
        self.version += 1

    def install(self, image: ClusterImage) -> None:
        """Serve an image from now on."""
        brokers = self.image.brokers
        self.version = max(self.version + 1, image.version)
        self.image = replace(image, version=self.version)
        if image.brokers is not brokers and image.brokers != brokers:
            self._note_ended(self.ended)
            for listener in self.broker_listeners:
                listener()
