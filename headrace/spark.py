"""Headrace in Spark programs (`pip install 'headrace[spark]'`, Java 17 or 21).

    from headrace.spark import lookup_join, session

    spark = session("app")
    orders = spark.readStream.format("headrace").option("table", "shop.orders").load()
    enriched = lookup_join(orders, "127.0.0.1:9092", "shop.customers", on={"customer": "id"}, select={"name": "name"})

`session` makes a local SparkSession with everything that is needed. In a session of your own, `register(spark)`
registers the data source `headrace`. A name is imported when it is first used.
"""

from __future__ import annotations

from typing import Any

from headrace.protocol.loading.lazy import lazy_names

_find, __dir__, __all__ = lazy_names(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _find(name)
    except ModuleNotFoundError as error:
        if error.name in ("headrace.tablelayer.spark", "headrace.tablelayer.lake"):
            error.add_note(
                "headrace-client is installed, which does not have Spark's part: pip install 'headrace[spark]'"
            )
        raise
