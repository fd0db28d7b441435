"""Headrace for programs: connect to a server, write rows to tables, look them up, follow their changes.

    import headrace

    with headrace.connect("127.0.0.1:9092") as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS fruit (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
        fruit = connection.table("fruit")
        fruit.upsert([{"id": 1, "name": "apple"}, {"id": 2, "name": "pear"}])
        print(fruit.lookup_one({"id": 1}))

These names are the client's (`headrace.tablelayer.client`); `headrace.spark` has those of Spark programs. Everything
else in `headrace.protocol`, `headrace.broker` and `headrace.tablelayer` may change in any release.

This module is the entry point: it composes the parts of the table layer. The client stands below SQL, and Spark's data
source stands below the lake. Each finds the part above it as a plug-in that is set here, before any other import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.tablelayer import client as _client
from headrace.tablelayer import plugins as _plugins

if TYPE_CHECKING:
    from headrace import spark
    from headrace.tablelayer.client import *  # noqa: F403

    __version__: str

__all__ = ["spark"]
__all__ += _client.__all__


def _sql_session(connection: Any) -> Any:
    from headrace.tablelayer.sql.session import Session

    return Session(connection)


def _union_scan(*arguments: Any, **named: Any) -> Any:
    from headrace.tablelayer.lake.union_scan import planned

    return planned(*arguments, **named)


def _union_parts(*arguments: Any) -> Any:
    from headrace.tablelayer.lake.union_parts import union_parts

    return union_parts(*arguments)


def _snapshot_parts(*arguments: Any) -> Any:
    from headrace.tablelayer.lake.union_parts import snapshot_parts

    return snapshot_parts(*arguments)


def _partitions_between(*arguments: Any) -> Any:
    from headrace.tablelayer.lake.missed_rows import partitions_between

    return partitions_between(*arguments)


def _missed_parts(*arguments: Any, **named: Any) -> Any:
    from headrace.tablelayer.lake.union_parts import missed_parts

    return missed_parts(*arguments, **named)


def _missed_rows(*arguments: Any) -> Any:
    from headrace.tablelayer.lake.missed_rows import planned

    return planned(*arguments)


def _read_union_part(*arguments: Any) -> Any:
    from headrace.tablelayer.lake.union_parts import read_part

    return read_part(*arguments)


def _lake_schema(options: Any) -> Any:
    from headrace.tablelayer.lake.lake_rows import view_schema

    return view_schema(options)


def _lake_reader(options: Any, columns: list[str]) -> Any:
    from headrace.tablelayer.lake.lake_rows import ViewReader

    return ViewReader(options, columns)


_plugins.sql_session = _sql_session
_plugins.union_scan = _union_scan
_plugins.union_parts = _union_parts
_plugins.snapshot_parts = _snapshot_parts
_plugins.partitions_between = _partitions_between
_plugins.missed_parts = _missed_parts
_plugins.missed_rows = _missed_rows
_plugins.read_union_part = _read_union_part
_plugins.lake_schema = _lake_schema
_plugins.lake_reader = _lake_reader


def __getattr__(name: str) -> Any:
    if name in _client.__all__:
        return getattr(_client, name)
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
    return sorted({*__all__, "__all__", "__doc__", "__version__"})
