"""Automatic partitions: `plan_partitions` plans them; this module creates and drops them by the broker's clock.

Every check creates the present and the coming partitions and drops the old ones. A table that was created or altered
since the last check is checked at once. If a partition cannot be created (there are too many), this is logged once a
check, and other tables are not affected. Any other error of a table is logged, and tried again at the next check. Work
that a crash interrupted is completed too: partitions whose table is gone are deleted, and retention follows the
table's.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.protocol.errors import KafkaError
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.table.definition import PARTITIONED_BY_CONFIG, StoredTable
from headrace.tablelayer.model.table.partitions import plan_partitions
from headrace.tablelayer.server.catalog.catalog import is_partition

if TYPE_CHECKING:
    from headrace.broker.context import BrokerContext
    from headrace.broker.metadata.image import TopicEntry
    from headrace.broker.partitions.topic import TopicImage
    from headrace.tablelayer.server.catalog.catalog import Catalog

logger = logging.getLogger("headrace.tables")


class Calendar:
    def __init__(
        self,
        catalog: Catalog,
        context: BrokerContext,
        hold: Callable[[StoredTable, str], Awaitable[Callable[[], bool] | None]],
    ) -> None:
        """Create the calendar.

        `hold(table, name)` makes a partition that is too old accept nothing more, so that it can be dropped. It returns
        None while the lake lacks a part of it, else a function that returns whether the hold is still valid.
        """
        self._catalog = catalog
        self._hold = hold
        self._clock = context.clock
        self._interval_s: float = context.config["auto-partition.check.interval.ms"] / 1000
        self._looked_at: dict[UUID, tuple[StoredTable, float]] = {}
        self._metadata = context.metadata
        self._background = context.background
        self._may_have_orphans = True
        self._metadata.deletion_listeners.append(self._deleted)
        self._metadata.topic_listeners.append(self._followed)

    async def check_if_due(self) -> None:
        """Check every table that was changed, or not checked for an interval."""
        if not self._metadata.is_loaded or not self._metadata.is_controller:
            return  # an unknown table is not a dropped one; the controller does this for all brokers
        if self._may_have_orphans:
            self._may_have_orphans = False
            await self._drop_orphans()
        now = self._clock.monotonic()
        seen: dict[UUID, tuple[StoredTable, float]] = {}
        for definition in self._catalog.all_tables(PARTITIONED_BY_CONFIG):
            known, at = self._looked_at.get(definition.table_id, (None, now))
            if known is not definition or now - at >= self._interval_s:
                await self._look_after(definition)
                at = now
            seen[definition.table_id] = (definition, at)
        self._looked_at = seen

    def _deleted(self, topic: TopicImage) -> None:
        if PARTITIONED_BY_CONFIG in topic.config:
            self._may_have_orphans = True

    def _followed(self, _: TopicEntry | None, entry: TopicEntry) -> None:
        """Note a partition that another broker created while its table was dropped."""
        if is_partition(entry.topic.config) and self._catalog.is_orphan(entry.topic):
            self._may_have_orphans = True

    async def _drop_orphans(self) -> None:
        try:
            await self._catalog.drop_orphans()
        except BaseException:
            self._may_have_orphans = True
            raise

    async def _look_after(self, definition: StoredTable) -> None:
        try:
            await self._catalog.follow(definition)
            names = self._catalog.partition_names(definition.path)
            plan = plan_partitions(definition, names, self._clock.time_ms(), self._catalog.max_partitions)
            for name in plan.drop:
                is_held = await self._hold(definition, name)
                if is_held is None:
                    logger.info(
                        "partition %s of table %s is too old, but the lake does not have all of it",
                        name,
                        definition.path,
                    )
                    continue
                await self._catalog.drop_partition(
                    definition, name, ignore_if_not_exists=True, only_while=is_held
                )
                logger.info("dropped partition %s of table %s: it is too old", name, definition.path)
            for name in plan.create:
                await self._catalog.create_partition(definition, name, ignore_if_exists=True)
                logger.info("created partition %s of table %s", name, definition.path)
        except (TableError, KafkaError) as error:
            logger.warning("cannot maintain the partitions of table %s: %s", definition.path, error.message)
        except Exception as error:  # noqa: BLE001 - logged for this table
            self._background.failed(f"maintenance of the partitions of table {definition.path}", error)
