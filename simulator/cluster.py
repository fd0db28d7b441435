"""Several whole brokers over one simulated ensemble, in a test's event loop, without sockets between test and
brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.broker.cluster.journal_topic import partition_of
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.extension import Extension
from headrace.broker.runtime.ports import SystemClock
from headrace.broker.server import Broker
from simulator.coordination import SimulatedEnsemble, SimulatedStore
from simulator.direct import QUICK, DirectBroker
from simulator.transactional_client import coordinated_by, place_of

DEADLINE_SECONDS = 60.0
JOURNALS = ("__consumer_offsets", "__transaction_state")
"""The journal topics, by the type of a coordinator's key."""
JOURNAL_FACTORS = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")
JOURNAL_REPLICAS = 3
"""Replicas of the journals in clusters with at least this number of brokers; smaller clusters have one per broker."""


class DirectCluster:
    """Brokers by node id, and the session of each with the ensemble."""

    def __init__(
        self,
        folder: Path,
        make_extensions: Callable[[], Sequence[Extension]] = tuple,
        *,
        session_ms: int = 12_000,
    ) -> None:
        self.ensemble = SimulatedEnsemble(SystemClock())
        self.brokers: dict[int, DirectBroker] = {}
        self.stores: dict[int, SimulatedStore] = {}
        self._folder = folder
        self._make_extensions = make_extensions
        self._session_ms = session_ms

    async def start(self, node_id: int, config: Mapping[str, str] | None = None) -> DirectBroker:
        extensions = tuple(self._make_extensions())
        keys = [key for extension in extensions for key in extension.broker_configs()]
        store = self.stores[node_id] = await self.ensemble.connect(session_timeout_ms=self._session_ms)
        broker = Broker(
            BrokerConfig(
                {**QUICK, **dict.fromkeys(JOURNAL_FACTORS, "1"), **(config or {}), "node.id": str(node_id)},
                keys,
            ),
            data_dir=self._folder / str(node_id),
            port=0,
            extensions=extensions,
            store=store,
        )
        await broker.start()
        self.brokers[node_id] = DirectBroker(broker)
        return self.brokers[node_id]

    async def stop(self, node_id: int) -> None:
        await self.brokers.pop(node_id).broker.stop()

    async def agreed(self, holds: Callable[[DirectBroker], bool], *who: int) -> None:
        """Wait until the condition holds at these brokers (by default at all)."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            for node_id in who or tuple(self.brokers):
                while not holds(self.brokers[node_id]):  # noqa: ASYNC110 - what is waited for is another's
                    await asyncio.sleep(0.005)


class Routed:
    """A broker for `transactional_client.Client` that sends each request to the broker responsible for it."""

    def __init__(self, cluster: DirectCluster) -> None:
        self._cluster = cluster

    def _broker(self, request: Any) -> DirectBroker:
        brokers = self._cluster.brokers
        metadata = next(iter(brokers.values())).context.metadata
        place = place_of(request)
        if place is None:
            key_type, key = coordinated_by(request)
            topic = metadata.topic(JOURNALS[key_type])
            if topic is None:
                return next(iter(brokers.values()))
            place = topic.name, partition_of(key, topic.partition_count)
        leader = metadata.leader(*place)
        assert leader is not None, place
        return brokers[leader.broker_id]

    async def send(self, request: Any, version: int | None = None) -> Any:
        return await self._broker(request).send(request, version)

    async def fetch(self, topic: str, offset: int, *, partition: int, **options: Any) -> Any:
        metadata = next(iter(self._cluster.brokers.values())).context.metadata
        leader = metadata.leader(topic, partition)
        assert leader is not None, (topic, partition)
        return await self._cluster.brokers[leader.broker_id].fetch(
            topic, offset, partition=partition, **options
        )


@asynccontextmanager
async def direct_cluster(
    folder: Path,
    brokers: int,
    make_extensions: Callable[[], Sequence[Extension]] = tuple,
    *,
    session_ms: int = 12_000,
    config: Mapping[str, str] | None = None,
) -> AsyncIterator[DirectCluster]:
    """Run brokers 1 to `brokers`; stop them cleanly at the end."""
    cluster = DirectCluster(folder, make_extensions, session_ms=session_ms)
    replicas = str(max(1, min(brokers, JOURNAL_REPLICAS)))
    config = {**dict.fromkeys(JOURNAL_FACTORS, replicas), **(config or {})}
    try:
        for node_id in range(1, brokers + 1):
            await cluster.start(node_id, config)
        yield cluster
    finally:
        for node_id in list(cluster.brokers):
            await cluster.stop(node_id)
