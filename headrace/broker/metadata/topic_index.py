"""Index of topics by name, id, order and metric. Kept beside the image, one change after the other."""

from __future__ import annotations

import uuid
from bisect import bisect_left, insort

from headrace.broker.metadata.topic_names import check_collision, metric_name
from headrace.broker.partitions.topic import TopicImage


class TopicIndex:
    """An index that only its owner may change."""

    def __init__(self) -> None:
        self.by_name: dict[str, TopicImage] = {}
        self.by_id: dict[uuid.UUID, TopicImage] = {}
        self._names: list[str] = []  # sorted
        # one topic for each; names that collide may be older than the rule
        self._metrics: dict[str, str] = {}
        self._setting: dict[str, set[str]] = {}  # names of topics, by a configuration that they set

    def put(self, topic: TopicImage) -> None:
        before = self.by_name.get(topic.name)
        if before is None:
            insort(self._names, topic.name)
        elif before.topic_id != topic.topic_id:
            del self.by_id[before.topic_id]
        self.by_name[topic.name] = topic
        self.by_id[topic.topic_id] = topic
        self._metrics.setdefault(metric_name(topic.name), topic.name)
        for config, names in self._setting.items():
            (names.add if config in topic.config else names.discard)(topic.name)

    def remove(self, topic: TopicImage) -> None:
        del self.by_name[topic.name], self.by_id[topic.topic_id]
        del self._names[bisect_left(self._names, topic.name)]
        metric = metric_name(topic.name)
        if self._metrics.get(metric) == topic.name:
            del self._metrics[metric]
        for names in self._setting.values():
            names.discard(topic.name)

    def in_order(self) -> list[TopicImage]:
        return [self.by_name[name] for name in self._names]

    def beginning_with(self, prefix: str) -> list[TopicImage]:
        """Return the topics whose names begin with `prefix`, sorted."""
        names = self._names
        found = []
        for index in range(bisect_left(names, prefix), len(names)):
            if not names[index].startswith(prefix):
                break
            found.append(self.by_name[names[index]])
        return found

    def setting(self, config: str) -> list[TopicImage]:
        """Return the topics that set the configuration `config` themselves, sorted. Only the first call for a
        configuration looks at all topics.
        """
        names = self._setting.get(config)
        if names is None:
            names = self._setting[config] = {
                name for name, topic in self.by_name.items() if config in topic.config
            }
        return [self.by_name[name] for name in sorted(names)]

    def check_collision(self, name: str) -> None:
        """See `topic_names.check_collision`."""
        check_collision(name, self._metrics.get(metric_name(name), name))
