"""Handler of ListTableLoads: rows written and keys looked up, by table."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from headrace.broker.requests.declaration import RequestContext
from headrace.broker.security.rights import Operation
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.bucket.bucket import TableBucket
from headrace.tablelayer.server.bucket.key_bucket import KeyBucket
from headrace.tablelayer.server.bucket.standby import Standby
from headrace.tablelayer.server.catalog.catalog import Catalog
from headrace.tablelayer.server.rights.table_rights import TableRights

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.tablelayer.server.services import KeptStore

_BUCKETS_PER_TURN: Final = 200


class LoadHandlers:
    def __init__(
        self, catalog: Catalog, rights: TableRights, standbys: Mapping[tuple[UUID, int], KeptStore]
    ) -> None:
        self._catalog = catalog
        self._rights = rights
        self._standbys = standbys

    async def list_loads(
        self, context: RequestContext, request: m.ListTableLoadsRequest
    ) -> m.ListTableLoadsResponse:
        sums: dict[TablePath, list[int]] = defaultdict(lambda: [0, 0])
        sources = [each.hooks for each in self._catalog.context.replicas.all_partitions()]
        for number, source in enumerate([*sources, *self._standbys.values()]):
            if number % _BUCKETS_PER_TURN == 0:
                await asyncio.sleep(0)
            try:
                definition = source.definition if isinstance(source, (TableBucket, Standby)) else None
            except TableError:
                continue  # it is being dropped
            if definition is None:
                continue
            of_table = sums[definition.path.whole]
            of_table[0] += source.rows_written if isinstance(source, TableBucket) else 0
            of_table[1] += source.keys_looked_up if isinstance(source, (KeyBucket, Standby)) else 0
        return m.ListTableLoadsResponse(
            tables=[
                m.TableLoad(table=str(path), rows_written=written, keys_looked_up=looked_up)
                for path, (written, looked_up) in sorted(sums.items(), key=lambda each: str(each[0]))
                if self._rights.may(context, Operation.DESCRIBE, path)
            ]
        )
