"""The client for programs without an event loop: the same calls, each of which waits.

A `Connection` owns one background thread with one event loop, in which the asynchronous client does everything. It
may be used from any number of threads. It belongs to the process that made it: after a fork (Spark's Python workers,
multiprocessing) the child makes its own; using the parent's raises RuntimeError instead of hanging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.lazy import lazy_names

if TYPE_CHECKING:
    from tablelayer.client.blocking.connection import Connection, TableRef, connect
    from tablelayer.client.blocking.databases import Admin
    from tablelayer.client.blocking.kafka import KafkaAdmin
    from tablelayer.client.blocking.security import SecurityAdmin
    from tablelayer.client.blocking.table import Scan, StagedWriter, Table
else:
    __getattr__ = lazy_names(
        __name__,
        {
            ".connection": ("Connection", "TableRef", "connect"),
            ".databases": ("Admin",),
            ".kafka": ("KafkaAdmin",),
            ".security": ("SecurityAdmin",),
            ".table": ("Scan", "StagedWriter", "Table"),
        },
    )

__all__ = [
    "Admin",
    "Connection",
    "KafkaAdmin",
    "Scan",
    "SecurityAdmin",
    "StagedWriter",
    "Table",
    "TableRef",
    "connect",
]
