"""Tables in Spark: the data source `headrace`, sessions, lookup and delta joins, reads of lake and log together.

    from tablelayer.spark import lookup_join, session, table, use

    spark = session("app")
    table(spark, "db.t").select("a").where("b > 1").to_df()

What is named here is imported when it is used, so that an executor loads only what it runs. No module beside this one
has the name of something that is named here: the import of that module would hide it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "create_view": "tablelayer.spark.builder",
    "delta_join": "tablelayer.spark.delta_joins",
    "lookup_join": "tablelayer.spark.lookups",
    "run_available_now": "tablelayer.spark.stream",
    "session": "tablelayer.spark.sessions",
    "table": "tablelayer.spark.builder",
    "use": "tablelayer.spark.builder",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
