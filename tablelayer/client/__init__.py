"""The table client: connect, write, look up, scan.

    from tablelayer.client import connect

    with connect("127.0.0.1:9092") as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS fruit (id INT, name STRING, PRIMARY KEY (id) NOT
        ENFORCED)")
        fruit = connection.table("default.fruit")
        fruit.upsert([{"id": 1, "name": "apple"}, {"id": 2, "name": "pear"}])
        fruit.lookup_one({"id": 1})                     # {"id": 1, "name": "apple"}
        fruit.to_arrow(columns=["name"])                # a pyarrow.Table
        for batch in fruit.scan(until="latest"):        # the state, then every change
            print(batch.batch, batch.change_types)

`connect` blocks and may be used from any thread; `connect_async` is the same with `await`. Rows go in as
pyarrow Tables or RecordBatches, lists of dicts, pandas or polars DataFrames, and come out as pyarrow. Writes
are idempotent: what was retried is applied once. Errors are `TableError` and `KafkaError` (the server said
no), `DataError` (the data does not fit), `AuthenticationFailed` and `ConnectionFailed` (nothing was done) and
`OutcomeUnknown` (nobody knows; `RequestTimeout` and `ConnectionLost` say why).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.lazy import lazy_names

if TYPE_CHECKING:
    from protocol.errors import KafkaError
    from tablelayer.client.admin.configs import ConfigKind, ConfigListing
    from tablelayer.client.admin.kafka import KafkaRecord
    from tablelayer.client.admin.produce import OutgoingRecord
    from tablelayer.client.blocking import Connection, Scan, Table, TableRef, connect
    from tablelayer.client.config import ClientConfig
    from tablelayer.client.connection import AsyncConnection, connect_async
    from tablelayer.client.errors import (
        AuthenticationFailed,
        ClientError,
        ConnectionFailed,
        ConnectionLost,
        DataError,
        OutcomeUnknown,
        RequestTimeout,
        SettingsError,
        UnsupportedRequest,
    )
    from tablelayer.client.metrics import ClientMetrics, RequestMetrics
    from tablelayer.client.read.part_scan import ScanBatch
    from tablelayer.client.read.reader import Extremes, LookupResult
    from tablelayer.client.result import SqlResult
    from tablelayer.client.security.settings import ConnectionSettings
    from tablelayer.client.table.scan import AsyncScan
    from tablelayer.client.table.table import AsyncTable
    from tablelayer.client.write.writer import WriteResult
    from tablelayer.model.batches.batch import ChangeType
    from tablelayer.model.errors import TableError, TableErrorCode
    from tablelayer.model.table.definition import TableDefinition, TablePath
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "protocol.errors": ("KafkaError",),
            "tablelayer.client.admin.configs": (
                "ConfigKind",
                "ConfigListing",
            ),
            "tablelayer.client.admin.kafka": ("KafkaRecord",),
            "tablelayer.client.admin.produce": ("OutgoingRecord",),
            "tablelayer.client.blocking": (
                "Connection",
                "Scan",
                "Table",
                "TableRef",
                "connect",
            ),
            "tablelayer.client.config": ("ClientConfig",),
            "tablelayer.client.connection": (
                "AsyncConnection",
                "connect_async",
            ),
            "tablelayer.client.errors": (
                "AuthenticationFailed",
                "ClientError",
                "ConnectionFailed",
                "ConnectionLost",
                "DataError",
                "OutcomeUnknown",
                "RequestTimeout",
                "SettingsError",
                "UnsupportedRequest",
            ),
            "tablelayer.client.metrics": (
                "ClientMetrics",
                "RequestMetrics",
            ),
            "tablelayer.client.read.part_scan": ("ScanBatch",),
            "tablelayer.client.read.reader": (
                "Extremes",
                "LookupResult",
            ),
            "tablelayer.client.result": ("SqlResult",),
            "tablelayer.client.security.settings": ("ConnectionSettings",),
            "tablelayer.client.table.scan": ("AsyncScan",),
            "tablelayer.client.table.table": ("AsyncTable",),
            "tablelayer.client.write.writer": ("WriteResult",),
            "tablelayer.model.batches.batch": ("ChangeType",),
            "tablelayer.model.errors": (
                "TableError",
                "TableErrorCode",
            ),
            "tablelayer.model.table.definition": (
                "TableDefinition",
                "TablePath",
            ),
        },
    )

__all__ = [
    "AsyncConnection",
    "AsyncScan",
    "AsyncTable",
    "AuthenticationFailed",
    "ChangeType",
    "ClientConfig",
    "ClientError",
    "ClientMetrics",
    "ConfigKind",
    "ConfigListing",
    "Connection",
    "ConnectionFailed",
    "ConnectionLost",
    "ConnectionSettings",
    "DataError",
    "Extremes",
    "KafkaError",
    "KafkaRecord",
    "LookupResult",
    "OutcomeUnknown",
    "OutgoingRecord",
    "RequestMetrics",
    "RequestTimeout",
    "Scan",
    "ScanBatch",
    "SettingsError",
    "SqlResult",
    "Table",
    "TableDefinition",
    "TableError",
    "TableErrorCode",
    "TablePath",
    "TableRef",
    "UnsupportedRequest",
    "WriteResult",
    "connect",
    "connect_async",
]
