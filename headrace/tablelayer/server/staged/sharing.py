"""Chunks that several brokers have: each replica in sync has the chunks that are staged for its bucket.

A bucket's leader shares each new chunk with the replicas (`share`), and sends all earlier chunks to a replica that is
about to join the ISR (`give`). Before a commit the deciding broker counts the chunks of all brokers, and has other
brokers give each bucket's leader the chunks that it lacks (`gather`, `hand_over`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.server.services import table_of
from headrace.tablelayer.server.staged.place import THE_TABLE_ITSELF, Place
from headrace.tablelayer.server.staged.staging import Chunk, StagingArea, check_names

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition
    from headrace.tablelayer.server.bucket.bucket import TableBucket
    from headrace.tablelayer.server.services import Services
    from headrace.tablelayer.server.staged.others import OtherBrokers, Staged
    from headrace.tablelayer.server.staged.tables import StagedTables


class ChunkSharing:
    """Shares chunks with other brokers (see the module). Runs on the event loop."""

    def __init__(
        self, services: Services, area: StagingArea, tables: StagedTables, others: OtherBrokers
    ) -> None:
        self._services = services
        self._area = area
        self._tables = tables
        self._others = others

    # -- with replicas -------------------------------------------------------------------------------------

    async def share(
        self, hooks: TableBucket, path: Path, place: Place, number: int, chunk: Chunk, **staged: Any
    ) -> None:
        """Have the other replicas of a bucket keep a chunk. `staged` has the other fields of `KeepStagedRequest`.

        Raises KafkaError or TableError of a replica in sync. A replica that is about to join the ISR gets all chunks
        again.
        """
        partition = hooks.partition
        replicas = self._others.replicas_of(partition.topic.name, partition.index)
        joiners = hooks.joiners.besides(replicas)

        async def send(broker: int) -> None:
            await self._send_with_earlier(broker, path, place, number, chunk, **staged)

        if replicas or joiners:
            await asyncio.gather(
                *map(send, replicas), *(_send_to_joiner(hooks, broker, send) for broker in joiners)
            )

    async def give(self, partition: Partition, broker: int) -> None:
        """Have a broker keep all chunks that are staged here for a bucket and that it lacks.

        Raises TableError, KafkaError, OSError.
        """
        table_id, topic_id = table_of(partition.topic), partition.topic.topic_id
        place = Place(THE_TABLE_ITSELF if topic_id == table_id else topic_id, partition.index)
        durable = partition.log.config.flush_messages == 1
        for key, batch_id, attempt in await self._services.run(self._area.of_place, table_id, place):
            path = self._area.path_of_key(table_id, key, batch_id, attempt, place)
            last = await self._services.run(self._area.last, path)
            if last is not None:
                await self._send_with_earlier(
                    broker, path, place, *last,
                    table_id=table_id, writer_key=key, batch_id=batch_id, attempt=attempt, durable=durable,
                )  # fmt: skip

    async def _send_with_earlier(
        self, broker: int, path: Path, place: Place, number: int, chunk: Chunk, **staged: Any
    ) -> None:
        """Have a replica keep a chunk, and the earlier chunks that it missed while it was away."""
        try:
            await self._send(broker, place, number, chunk, **staged)
        except KafkaError as error:
            if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise
        else:
            return
        chunks = self._area.read(path)
        for each in range(number + 1):
            found = await self._services.run(next, chunks, None)
            if found is not None:
                await self._send(broker, place, each, found, **staged)

    async def _send(self, broker: int, place: Place, number: int, chunk: Chunk, **staged: Any) -> None:
        request = m.KeepStagedRequest(
            place=place.counted(number),
            target_columns=None if chunk.targets is None else list(chunk.targets),
            update=chunk.update,
            batch=bytes(chunk.batch),
            **staged,
        )
        await self._others.keep(broker, request)

    # -- before a commit -----------------------------------------------------------------------------------

    async def gather(
        self, definition: StoredTable, writer: str, batch_id: int, attempts: Sequence[str]
    ) -> tuple[Staged, list[int]]:
        """Have other brokers give the leader of each place the chunks that it lacks.

        Return the number of chunks by attempt and place, and the brokers that answered. Raises KafkaError if a leader
        does not answer.
        """
        own_id = self._others.own_id
        own = await self._services.run(self._area.counts, definition.table_id, writer, batch_id, attempts)
        if self._others.is_empty:
            return own, [own_id]
        topics = [definition.path.topic]
        if definition.is_partitioned:
            topics = [each.path.topic for each in self._services.catalog.partitions(definition)]
        told = await self._others.counted(topics, definition.table_id, writer, batch_id, attempts)
        held = {own_id: own, **told}
        found: Staged = {}
        for attempt in attempts:
            counts = {broker_id: theirs.get(attempt, {}) for broker_id, theirs in held.items()}
            for place in dict.fromkeys(place for theirs in counts.values() for place in theirs):
                topic = self._tables.topic(definition, place)
                if topic is None:
                    continue
                leader = self._others.leader_of(topic, place)
                leader = own_id if leader is None else leader
                most = max(counts, key=lambda broker_id: counts[broker_id].get(place, 0))
                there, count = counts.get(leader, {}).get(place, 0), counts[most][place]
                if there < count:
                    await self._hand_over_from(
                        most, definition.table_id, writer, batch_id, attempt, place, there, leader
                    )
                found.setdefault(attempt, {})[place] = count
        return found, list(held)

    async def _hand_over_from(
        self,
        broker: int,
        table_id: UUID,
        writer: str,
        batch_id: int,
        attempt: str,
        place: Place,
        there: int,
        leader: int,
    ) -> None:
        """Have a broker give a place's leader the chunks from number `there` on."""
        request = m.HandOverStagedRequest(
            table_id=table_id,
            writer=writer,
            batch_id=batch_id,
            attempt=attempt,
            place=place.counted(there),
            broker_id=leader,
        )
        if broker == self._others.own_id:
            await self.hand_over(request, place)
        else:
            await self._others.hand_over(broker, request)

    async def hand_over(self, request: m.HandOverStagedRequest, place: Place) -> None:
        """Send the chunks that are staged here for a place to its leader. Raises TableError, KafkaError."""
        check_names(request.writer, request.batch_id, [request.attempt])
        path = self._area.path(request.table_id, request.writer, request.batch_id, request.attempt, place)
        chunks = enumerate(self._area.read(path))
        while (found := await self._services.run(next, chunks, None)) is not None:
            number, chunk = found
            if number >= request.place.count:
                await self._send(
                    request.broker_id, place, number, chunk,
                    table_id=request.table_id, writer=request.writer, batch_id=request.batch_id,
                    attempt=request.attempt, durable=True,
                )  # fmt: skip


async def _send_to_joiner(hooks: TableBucket, broker: int, send: Callable[[int], Awaitable[None]]) -> None:
    try:
        await send(broker)
    except (KafkaError, TableError):
        hooks.joiners.missed(broker)
