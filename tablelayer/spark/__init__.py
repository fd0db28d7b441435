"""Tables in Spark: the data source `headrace`, `table`, `use`, and beside them the modules with what else there is.

    from tablelayer.spark import table, use
    from tablelayer.spark.session import session
    from tablelayer.spark.lookup_join import lookup_join

    spark = session("app")
    table(spark, "db.t").select("a").where("b > 1").to_df()

What is named here is imported when it is used, so that an executor loads only what it runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_FROM_BUILDER = frozenset({"create_view", "table", "use"})


def __getattr__(name: str) -> Any:
    if name not in _FROM_BUILDER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("tablelayer.spark.builder"), name)
