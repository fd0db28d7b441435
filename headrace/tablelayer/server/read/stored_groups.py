"""A filter of a scan over groups of stored rows: it skips groups by the statistics of its columns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import pyarrow as pa

from headrace.tablelayer.model.batches.ipc import decode_ipc
from headrace.tablelayer.model.batches.statistics import ColumnStatistics, of_rows
from headrace.tablelayer.model.filters.filters import Filter, Verdict
from headrace.tablelayer.server import stored_message
from headrace.tablelayer.server.store.sorted_tables import Groups, StoredRows


class FilteredGroups(Groups):
    """The groups of one scan. Only groups whose rows all have the filter's schema have statistics."""

    def __init__(self, wanted: Filter) -> None:
        self._filter = wanted
        self._columns = [wanted.schema.columns[index] for index in wanted.columns]
        self.key: Hashable = (wanted.schema.schema_id, wanted.columns)
        self.verdicts: dict[tuple[str, int], bool] = {}

    def statistics(self, rows: StoredRows) -> Mapping[int, ColumnStatistics] | None:
        schema, columns = self._filter.schema, self._filter.columns
        message = stored_message.message_at(rows.addresses, rows.lengths, schema, columns)
        if message is None:
            return None
        fields = [schema.arrow().field(index) for index in columns]
        return of_rows(decode_ipc(message, pa.schema(fields)), self._columns)

    def excludes(self, statistics: Mapping[int, ColumnStatistics]) -> bool:
        return self._filter.verdict(statistics.get) is Verdict.NONE
