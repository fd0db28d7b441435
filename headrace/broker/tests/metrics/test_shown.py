"""Metrics contain no names that the reader's principal may not describe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.metrics.access import shown_to
from headrace.broker.metrics.model import OTHERS, Gathering, Metric, MetricKind
from headrace.broker.security.rights import OPEN, Operation, ResourceType
from headrace.broker.tests.security.people import allow, client, revoke_all, secured_broker
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

NAMES = {"seen", "hidden", "readers", "secret-readers"}


async def names_in(broker: Any) -> set[str]:
    """Return the names in our labels."""
    found = await broker.context.metrics.gather()
    assert found["headrace_partitions"][()] >= 2, "all clients see sums"
    return NAMES & {label for values in found.values() for labels in values for label in labels}


async def test_metrics_show_what_their_principal_may_describe(tmp_path: Path) -> None:
    async with secured_broker(tmp_path, {"metrics.principal": "User:ann"}) as admin:
        for topic in ("seen", "hidden"):
            await admin.create_topic(topic)
            await admin.produce(topic, [b"v"])
            for group in ("readers", "secret-readers"):
                partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
                topics = [OffsetCommitRequestTopic(name=topic, partitions=[partition])]
                await admin.send(OffsetCommitRequest(group_id=group, topics=topics), 9)
        assert await names_in(admin) == set()
        await allow(admin, Operation.DESCRIBE, ResourceType.TOPIC, "seen")
        assert await names_in(admin) == {"seen"}
        await allow(admin, Operation.READ, ResourceType.GROUP, "readers")
        assert await names_in(admin) == {"seen", "readers"}
        await revoke_all(admin)
        assert await names_in(admin) == set()
        admin.context.metrics.shown = None
        assert await names_in(client(admin, "admin")) == NAMES


async def test_without_a_principal_metrics_show_everything(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as admin:
        for topic in ("seen", "hidden"):
            await admin.create_topic(topic)
        assert await names_in(admin) == {"seen", "hidden"}


def test_hidden_labels_are_summed_and_each_label_is_authorized_once() -> None:
    metric = Metric("headrace_group_lag_records", MetricKind.GAUGE, "Doc.", ("group", "topic"))
    asked: list[tuple[ResourceType, str]] = []

    class Nobody(type(OPEN)):  # type: ignore[misc]
        def may(self, session: Any, host: str, operation: Any, resource_type: Any, name: str) -> bool:
            asked.append((resource_type, name))
            return name != "hidden"

    gathering = Gathering(shown_to("User:ann", Nobody()))
    for labels in (("g", OTHERS), ("g", "hidden"), ("hidden", "t"), ("g", "t")):
        gathering.add(metric, 1, *labels)
        gathering.put(metric, 2, *labels)
    assert gathering.values == {metric.name: {("g", OTHERS): 2, ("g", "t"): 2}}
    assert sorted(asked) == sorted({*asked}), "each once"


@pytest.mark.parametrize("principal", ["ann", "User:", ":ann"])
def test_a_malformed_principal_is_refused(principal: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.principal: write User:NAME"):
        BrokerConfig({"metrics.principal": principal})
