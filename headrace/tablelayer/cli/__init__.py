"""The `headrace` command: serve, sql, topics, tables, groups, top, tier."""

from time import perf_counter

#: `perf_counter()` when this process loaded the command, for "ready in ... s".
STARTED = perf_counter()
