"""Headrace in Spark programs (`pip install 'headrace[spark]'`, Java 17 or 21).

    from headrace.spark import lookup_join, session

    spark = session("app")
    orders = spark.readStream.format("headrace").option("table", "shop.orders").load()
    enriched = lookup_join(orders, "127.0.0.1:9092", "shop.customers", on={"customer": "id"}, select={"name": "name"})

`session` makes a local SparkSession with everything that is needed; in a session of your own, `register(spark)` makes
the data source `headrace` known. What is named here is imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tablelayer.lake.union_read import lake_then_stream, union_read
    from tablelayer.lake.union_scan import union_scan
    from tablelayer.spark.builder import create_view, table, use
    from tablelayer.spark.delta_joins import delta_join
    from tablelayer.spark.lookups import lookup_join
    from tablelayer.spark.sessions import session
    from tablelayer.spark.source import register
    from tablelayer.spark.stream import run_available_now

_HOMES = {
    "create_view": "tablelayer.spark.builder",
    "delta_join": "tablelayer.spark.delta_joins",
    "lake_then_stream": "tablelayer.lake.union_read",
    "lookup_join": "tablelayer.spark.lookups",
    "register": "tablelayer.spark.source",
    "run_available_now": "tablelayer.spark.stream",
    "session": "tablelayer.spark.sessions",
    "table": "tablelayer.spark.builder",
    "union_read": "tablelayer.lake.union_read",
    "union_scan": "tablelayer.lake.union_scan",
    "use": "tablelayer.spark.builder",
}

__all__ = [
    "create_view",
    "delta_join",
    "lake_then_stream",
    "lookup_join",
    "register",
    "run_available_now",
    "session",
    "table",
    "union_read",
    "union_scan",
    "use",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace.spark' has no attribute {name!r}")
    try:
        home = import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        if error.name in ("tablelayer.spark", "tablelayer.lake"):
            error.add_note(
                "This is headrace-client. What Spark needs is in the other: pip install 'headrace[spark]'"
            )
        raise
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
