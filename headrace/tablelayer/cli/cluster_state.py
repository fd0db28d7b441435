"""The state of a cluster in words for people, and as an object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from headrace.tablelayer.cli.words import counted

if TYPE_CHECKING:
    from headrace.tablelayer.client.admin.cluster_state import ClusterDescription, MissingBroker

NAMED_MAX = 10
"""Partitions that a sentence names."""


def missing_text(broker: MissingBroker) -> str:
    """Return a sentence about a broker that is not alive."""
    where = f" ({broker.host}:{broker.port})" if broker.host else ""
    return f"broker {broker.broker_id}{where} is not alive; it has {counted(broker.replicas, 'replica')}"


def cluster_object(found: ClusterDescription) -> dict[str, object]:
    """Return everything that is known of a cluster, for programs."""

    def places(some: Sequence[tuple[str, int]]) -> list[dict[str, object]]:
        return [{"topic": topic, "partition": partition} for topic, partition in some]

    return {
        "cluster_id": found.cluster_id,
        "controller": found.controller,
        "is_healthy": found.is_healthy,
        "brokers": [asdict(each) for each in found.brokers],
        "missing_brokers": [asdict(each) for each in found.missing],
        "topics": found.topic_count,
        "partitions": found.partition_count,
        "offline": places(found.offline),
        "not_eligible": places(found.not_eligible),
        "under_replicated": places(found.under_replicated),
        "under_min_isr": places(found.under_min_isr),
    }


def health_reasons(found: ClusterDescription, at_least: int = 1, *, named: int = NAMED_MAX) -> list[str]:
    """Return the reasons why a cluster is not healthy, each with at most `named` partitions."""
    reasons = [missing_text(each) for each in found.missing]
    if found.controller < 0:
        reasons.append("there is no controller")
    if len(found.brokers) < at_least:
        reasons.append(f"{counted(len(found.brokers), 'broker')} alive, not {at_least}")
    for places, what in (
        (found.offline, "without a leader"),
        (found.under_min_isr, "with fewer replicas in sync than min.insync.replicas"),
        (found.under_replicated, "with replicas that are not in sync"),
    ):
        if places:
            reasons.append(f"{counted(len(places), 'partition')} {what}: {_named(places, named)}")
    return reasons


def _named(places: Sequence[tuple[str, int]], most: int) -> str:
    more = f" and {len(places) - most} more" if len(places) > most else ""
    return ", ".join(f"{topic}-{partition}" for topic, partition in places[:most]) + more
