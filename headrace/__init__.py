"""Headrace for programs: connect to a server, write rows to tables, look them up, follow their changes.

    import headrace

    with headrace.connect("127.0.0.1:9092") as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS fruit (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
        fruit = connection.table("fruit")
        fruit.upsert([{"id": 1, "name": "apple"}, {"id": 2, "name": "pear"}])
        print(fruit.lookup_one({"id": 1}))

What a program needs is named here; `headrace.spark` has what Spark programs need. `tablelayer.client` has the same
names, and everything else in `protocol`, `broker` and `tablelayer` is free to change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tablelayer.client import (
    AsyncConnection,
    AsyncScan,
    AsyncTable,
    AuthenticationFailed,
    ChangeType,
    ClientConfig,
    ClientError,
    ClientMetrics,
    ConfigKind,
    ConfigListing,
    Connection,
    ConnectionFailed,
    ConnectionLost,
    ConnectionSettings,
    DataError,
    Extremes,
    KafkaError,
    KafkaRecord,
    LookupResult,
    OutcomeUnknown,
    OutgoingRecord,
    RequestMetrics,
    RequestTimeout,
    Scan,
    ScanBatch,
    SettingsError,
    SqlResult,
    Table,
    TableDefinition,
    TableError,
    TableErrorCode,
    TablePath,
    TableRef,
    UnsupportedRequest,
    WriteResult,
    connect,
    connect_async,
)

if TYPE_CHECKING:
    from headrace import spark

    __version__: str

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
    "spark",
]


def __getattr__(name: str) -> Any:
    if name == "spark":
        return import_module("headrace.spark")
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("headrace")
        except PackageNotFoundError:
            return version("headrace-client")
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
