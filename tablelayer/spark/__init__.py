"""Tables in Spark: the data source `headrace`, `table`, `use`, `run_available_now`, and the modules beside them.

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

_HOMES = {
    "create_view": "tablelayer.spark.builder",
    "run_available_now": "tablelayer.spark.stream",
    "table": "tablelayer.spark.builder",
    "use": "tablelayer.spark.builder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
