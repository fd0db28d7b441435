"""Parts that stand above a room and plug into it. `headrace/__init__.py` sets them before anything else is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

sql_session: Callable[[Any], Any]
"""Make the SQL session of a blocking `Connection`. Raises ModuleNotFoundError where SQL is not installed."""

union_scan: Callable[..., Any]
"""Plan a read of a tiered table's lake and log, see `tablelayer.lake.union_scan.planned`. It blocks.

Raises ModuleNotFoundError where the lake's code is not installed, ClientError for a lake that cannot be read.
"""

union_parts: Callable[..., Any]
"""Plan the lake's half of a batch in Spark, see `tablelayer.lake.union_parts`."""

snapshot_parts: Callable[..., Any]
"""Plan the lake's half of the first batch of a stream in Spark, see `tablelayer.lake.union_parts`."""

partitions_between: Callable[..., Any]
"""Return the partitions that a lake has got between two snapshots, see `tablelayer.lake.missed_rows`."""

missed_parts: Callable[..., Any]
"""Plan rows that left the log before a stream in Spark read them, see `tablelayer.lake.union_parts`.

Raises ModuleNotFoundError where the lake's code is not installed, ClientError if the lake does not have the rows.
"""

missed_rows: Callable[..., Any]
"""The same for a scan of the table client, see `tablelayer.lake.missed_rows.planned`. It blocks."""

read_union_part: Callable[[Any, Any], Any]
"""Read one task's part of the lake's half, on the worker."""

lake_schema: Callable[[Any], Any]
"""Return Spark's schema of a lake view (`db.t$lake`) from `ReadOptions`."""

lake_reader: Callable[[Any, list[str]], Any]
"""Make Spark's batch reader of a lake view (`db.t$lake`) from `ReadOptions` and the names of columns."""
