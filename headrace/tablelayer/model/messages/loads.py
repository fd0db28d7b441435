"""The load of tables: rows written and keys looked up."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, Struct, array, int64, string
from headrace.tablelayer.model.messages.answers import TableResponse


class TableLoad(Struct):
    """Counts since this broker opened the table's buckets. They begin again with a bucket that it takes over."""

    table: str = string()
    rows_written: int = int64()
    keys_looked_up: int = int64()


class ListTableLoadsRequest(ApiMessage, key=10073, kind="request", versions="0", flexible="0+"):
    """Ask a broker for the load of its buckets by table."""


class ListTableLoadsResponse(TableResponse, key=10073, kind="response", versions="0", flexible="0+"):
    """Tables in order of name, with all their partitions. Only tables that the client may describe."""

    tables: list[TableLoad] = array(TableLoad)
