"""The index of topics against a dict, over random changes."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.metadata.topic_index import TopicIndex
from headrace.broker.partitions.topic import TopicImage

CONFIGS = ("cleanup.policy", "retention.ms")
CHANGES = st.lists(
    st.tuples(st.sampled_from("ab"), st.none() | st.sets(st.sampled_from(CONFIGS))), min_size=1, max_size=30
)


@given(CHANGES, st.integers(0, 3))
def test_topics_are_found_by_the_configurations_that_they_set_now(changes, first_asked) -> None:
    index, model = TopicIndex(), {}
    for at, (name, configs) in enumerate(changes):
        if configs is None:
            if name in model:
                index.remove(model.pop(name))
        else:
            known = model.get(name)
            topic_id = uuid.uuid4() if known is None else known.topic_id
            model[name] = TopicImage(name, topic_id, 1, dict.fromkeys(configs, "1"))
            index.put(model[name])
        if at < first_asked:
            continue
        assert index.in_order() == [model[each] for each in sorted(model)]
        for config in CONFIGS:
            expected = [model[each] for each in sorted(model) if config in model[each].config]
            assert index.setting(config) == expected
