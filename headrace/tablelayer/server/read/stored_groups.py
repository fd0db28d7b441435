"""A filter of a scan over zones of stored rows: it skips zones by the statistics of its columns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.tablelayer.model.batches.ipc import decode_ipc
from headrace.tablelayer.model.batches.statistics import ColumnStatistics, of_rows
from headrace.tablelayer.model.filters.filters import Filter, Verdict
from headrace.tablelayer.server import stored_message
from headrace.tablelayer.server.store.pruning import Groups
from headrace.tablelayer.server.store.stored_rows import StoredRows
from headrace.tablelayer.server.store.table_index import Zones

Statistics = Mapping[int, ColumnStatistics]


class FilteredGroups(Groups):
    """The zones of one scan. Only zones whose rows all have the filter's schema have statistics."""

    def __init__(self, wanted: Filter) -> None:
        self._filter = wanted
        self._columns = [wanted.schema.columns[index] for index in wanted.columns]
        self.key: Hashable = (wanted.schema.schema_id, wanted.columns)
        self.verdicts: dict[str, tuple[Zones, npt.NDArray[np.int8]]] = {}

    def statistics(self, rows: StoredRows, counts: Sequence[int]) -> list[Statistics | None]:
        schema, columns = self._filter.schema, self._filter.columns
        message = stored_message.message_at(rows.addresses, rows.lengths, schema, columns)
        starts = np.cumsum([0, *counts[:-1]]).tolist()
        if message is not None:
            batch = decode_ipc(message, pa.schema([schema.arrow().field(index) for index in columns]))
            parts = zip(starts, counts, strict=True)
            return [of_rows(batch.slice(start, count), self._columns) for start, count in parts]
        if len(counts) == 1:
            return [None]
        parts = zip(starts, counts, strict=True)
        return [self.statistics(rows.take(slice(start, start + count)), [count])[0] for start, count in parts]

    def excludes(self, statistics: Statistics) -> bool:
        return self._filter.verdict(statistics.get) is Verdict.NONE
