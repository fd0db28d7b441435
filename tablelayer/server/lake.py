"""Tiering rounds: who may tier a table now, and how far the lake has it.

A round is granted with an epoch one above every earlier one and a lease; heartbeats renew it, a commit ends it.
Whoever comes with an older epoch is fenced. Epoch and progress are in the coordination store under
`/lake/<table id>` and are written before they are answered; leases are in memory, so after a restart the holder
of the latest epoch may go on, and anyone may begin the next. What makes a round exact is the lake's own
compare-and-set; the offsets kept here are a copy, which the log's retention respects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

from broker.ports import CreateNode, DeleteNode, NoNodeError, SetNode
from protocol.errors import KafkaError
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.table import TableDefinition, TablePath
from tablelayer.server.catalog import Catalog

if TYPE_CHECKING:
    from broker.extension import BrokerContext


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of a table's lake; -1 before the first round or commit. `offsets` are exclusive."""

    epoch: int = 0
    snapshot_id: int = -1
    committed_at_ms: int = -1
    offsets: dict[int, int] = field(default_factory=dict)

    @classmethod
    def decode(cls, data: bytes) -> Progress:
        value = json.loads(data)
        offsets = {int(bucket): int(offset) for bucket, offset in value["offsets"].items()}
        return cls(value["epoch"], value["snapshot_id"], value["committed_at_ms"], offsets)

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class Round:
    """A granted round."""

    definition: TableDefinition
    epoch: int


class LakeRounds:
    def __init__(self, catalog: Catalog, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        self._catalog = catalog
        self._progress: dict[UUID, Progress] = {}
        self._leased_until: dict[UUID, float] = {}

    async def load(self, context: BrokerContext) -> None:
        for name in await context.store.children("/lake"):
            node = await context.store.get(f"/lake/{name}")
            if node is not None:
                self._progress[UUID(name)] = Progress.decode(node.data)

    @property
    def _context(self) -> BrokerContext:
        return self._catalog.context

    def tiered_offset(self, table_id: UUID, bucket: int) -> int | None:
        """How far the lake has a bucket; None if the table is not tiered, so that nothing waits for the lake."""
        topic = self._context.metadata.topic_by_id(table_id)
        if topic is None or not self._catalog.definition(topic).settings.datalake_enabled:
            return None
        return self.progress(table_id).offsets.get(bucket, 0)

    def progress(self, table_id: UUID) -> Progress:
        return self._progress.get(table_id, Progress())

    async def begin(self, path: TablePath | None, *, force: bool) -> Round | None:
        """A round of the table, or of the one that is furthest behind; None if none is to be had now.

        Without `force` only tables are given that have something to tier and whose freshness is due. Raises
        TableError: TABLE_NOT_FOUND, LAKE_NOT_ENABLED.
        """
        if path is not None:
            candidates = [self._enabled(self._catalog.by_path(path))]
        else:
            candidates = [each for each in self._catalog.all_tables() if each.settings.datalake_enabled]
        now_ms, now = self._context.clock.time_ms(), self._context.clock.monotonic()
        best: tuple[float, TableDefinition] | None = None
        for definition in candidates:
            table_id = _id_of(definition)
            if self._leased_until.get(table_id, -1.0) > now:
                continue
            progress = self.progress(table_id)
            age_ms = now_ms - progress.committed_at_ms
            urgency = age_ms / definition.settings.datalake_freshness_ms
            if not force and (urgency < 1 or not self._has_more(definition, progress)):
                continue
            if best is None or urgency > best[0]:
                best = (urgency, definition)
        if best is None:
            return None
        definition = best[1]
        table_id = _id_of(definition)
        self._leased_until[table_id] = now + self.lease_ms / 1000
        old = self.progress(table_id)
        await self._save(table_id, replace(old, epoch=old.epoch + 1))
        return Round(definition, old.epoch + 1)

    def heartbeat(self, table_id: UUID, epoch: int) -> None:
        """Renew the lease. Raises TableError(FENCED_TIERING_EPOCH)."""
        self._check_epoch(table_id, epoch)
        self._leased_until[table_id] = self._context.clock.monotonic() + self.lease_ms / 1000

    async def commit(self, table_id: UUID, epoch: int, snapshot_id: int, offsets: Mapping[int, int]) -> None:
        """Note what is in the lake, and end the round. Raises TableError(FENCED_TIERING_EPOCH)."""
        definition = self._check_epoch(table_id, epoch)
        unknown = sorted(bucket for bucket in offsets if not 0 <= bucket < definition.bucket_count)
        if unknown:
            raise TableError(
                TableErrorCode.INVALID_TABLE, f"table {definition.path} has no bucket {unknown[0]}"
            )
        old = self.progress(table_id)
        merged = {**old.offsets, **offsets}
        now_ms = self._context.clock.time_ms()
        await self._save(table_id, Progress(old.epoch, snapshot_id, now_ms, merged))
        self._leased_until.pop(table_id, None)

    async def forget(self, table_id: UUID) -> None:
        """The table was dropped."""
        self._leased_until.pop(table_id, None)
        if self._progress.pop(table_id, None) is not None:
            try:
                await self._context.store.transact([DeleteNode(f"/lake/{table_id}")])
            except NoNodeError:
                return

    async def forget_dropped(self) -> None:
        for table_id in list(self._progress):
            if self._context.metadata.topic_by_id(table_id) is None:
                await self.forget(table_id)

    def _check_epoch(self, table_id: UUID, epoch: int) -> TableDefinition:
        definition = self._enabled(self._catalog.by_id(table_id))
        current = self.progress(table_id).epoch
        if epoch != current:
            raise TableError(
                TableErrorCode.FENCED_TIERING_EPOCH,
                f"the round of epoch {epoch} of table {definition.path} is over: the epoch is {current}",
            )
        return definition

    def _enabled(self, definition: TableDefinition) -> TableDefinition:
        if not definition.settings.datalake_enabled:
            raise TableError(
                TableErrorCode.LAKE_NOT_ENABLED,
                f"table {definition.path} is not tiered; its option 'table.datalake.enabled' is not 'true'",
            )
        return definition

    def _has_more(self, definition: TableDefinition, progress: Progress) -> bool:
        for bucket in range(definition.bucket_count):
            try:
                partition = self._context.partition(definition.path.topic, bucket)
            except KafkaError:
                continue
            if partition.high_watermark > progress.offsets.get(bucket, 0):
                return True
        return False

    async def _save(self, table_id: UUID, progress: Progress) -> None:
        path = f"/lake/{table_id}"
        self._progress[table_id] = (
            progress  # before the store: nobody may be granted the same epoch meanwhile
        )
        try:
            await self._context.store.transact([SetNode(path, progress.encode())])
        except NoNodeError:
            await self._context.store.transact([CreateNode(path, progress.encode())])


def _id_of(definition: TableDefinition) -> UUID:
    if definition.table_id is None:
        raise RuntimeError(f"table {definition.path} has no id")
    return definition.table_id
