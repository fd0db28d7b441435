"""The topics of tables: a table's own, and those of its partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.tablelayer.client.errors import UnsupportedRequest
from headrace.tablelayer.model.table.path import whole_table

if TYPE_CHECKING:
    from headrace.tablelayer.client.blocking.connection import Connection


def tables_of_topics(connection: Connection, topics: Iterable[str]) -> dict[str, str]:
    """Return the table of each topic that has rows of one. A Kafka broker without tables has none."""
    admin = connection.admin
    try:
        tables = {
            f"{database}.{table}"
            for database in admin.list_databases()
            for table in admin.list_tables(database)
        }
    except UnsupportedRequest:
        return {}
    return {topic: table for topic in topics if (table := whole_table(topic)) in tables}
