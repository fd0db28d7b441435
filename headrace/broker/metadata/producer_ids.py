"""Producer ids: each is allocated only once, ever.

Ids are taken from the store in blocks, so allocating one costs nothing. The rest of a block is lost in a crash; so ids
are unique without another write.
"""

from __future__ import annotations

import asyncio

from headrace.broker.runtime.ports import (
    BadVersionError,
    CoordinationStore,
    CreateNode,
    NodeExistsError,
    SetNode,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from headrace.protocol.errors import ErrorCode, KafkaError

BLOCK_SIZE = 1000  # as Kafka's
_PATH = "/producer_ids"


class ProducerIds:
    def __init__(self, store: CoordinationStore) -> None:
        self._store = store
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def allocate(self) -> int:
        """Return the next id. Raises KafkaError(COORDINATOR_LOAD_IN_PROGRESS) while the store is lost, as Kafka does
        without a controller: every producer waits and asks again. For COORDINATOR_NOT_AVAILABLE Java's producer would
        look for the coordinator of a transactional id, which idempotent producers do not have.
        """
        async with self._lock:
            if self._next == self._end:
                try:
                    self._next, self._end = await self._take_block()
                except StoreUnavailableError as error:
                    raise KafkaError(
                        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"no producer ids now: {error.message}"
                    ) from error
            self._next += 1
            return self._next - 1

    async def _take_block(self) -> tuple[int, int]:
        while True:
            node = await self._store.get(_PATH)
            start = int(node.data) if node is not None else 0
            end = str(start + BLOCK_SIZE).encode()
            try:
                if node is None:
                    await self._store.transact([CreateNode(_PATH, end)])
                else:
                    await self._store.transact([SetNode(_PATH, end, node.version)])
            except (BadVersionError, NodeExistsError, StoreOutcomeUnknownError):
                continue  # another broker took this block, or the outcome is unknown
            return start, start + BLOCK_SIZE
