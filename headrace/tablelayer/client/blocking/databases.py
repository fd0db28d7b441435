"""The blocking administration of databases and tables."""

from __future__ import annotations

from headrace.tablelayer.client.admin.databases import AsyncAdmin
from headrace.tablelayer.client.blocking.waiting import Waiting, waits


class Admin(Waiting):
    """Manages databases and tables. `AsyncAdmin` documents the methods."""

    create_database = waits(AsyncAdmin.create_database)
    alter_database = waits(AsyncAdmin.alter_database)
    describe_database = waits(AsyncAdmin.describe_database)
    drop_database = waits(AsyncAdmin.drop_database)
    list_databases = waits(AsyncAdmin.list_databases)
    create_table = waits(AsyncAdmin.create_table)
    alter_table = waits(AsyncAdmin.alter_table)
    drop_table = waits(AsyncAdmin.drop_table)
    list_tables = waits(AsyncAdmin.list_tables)
    describe_table = waits(AsyncAdmin.describe_table)
    refused = waits(AsyncAdmin.refused)
    table_loads = waits(AsyncAdmin.table_loads)
    snapshots = waits(AsyncAdmin.snapshots)
    list_partitions = waits(AsyncAdmin.list_partitions)
    add_partition = waits(AsyncAdmin.add_partition)
    drop_partition = waits(AsyncAdmin.drop_partition)
    table_exists = waits(AsyncAdmin.table_exists)
    servers = waits(AsyncAdmin.servers)
