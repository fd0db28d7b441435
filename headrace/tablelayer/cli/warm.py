"""Compile every numba kernel and keep the result in numba's cache."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module
from time import perf_counter

from headrace.protocol.loading.kernel_cache import giving_way, one_writer, without_modules

#: Modules that have kernels, each with a `warm()`. The kernels that every write, lookup and scan of a table needs come
#: first, so that a server that was killed while it compiled the others has them at its next start.
KERNEL_MODULES = (
    "headrace.tablelayer.model.rows.keys",
    "headrace.tablelayer.model.rows.stored",
    "headrace.tablelayer.server.stored_message",
    "headrace.tablelayer.server.store.table_kernels",
    "headrace.tablelayer.server.store.pruning",
    "headrace.tablelayer.server.store.prefix_tables",
    "headrace.tablelayer.server.merge.aggregation",
    "headrace.protocol.records.decode",
    "headrace.protocol.records.check",
    "headrace.protocol.records.encode",
    "headrace.protocol.records.gather",
    "headrace.broker.log.scan_kernels",
    "headrace.tablelayer.model.table.buckets",
    "headrace.tablelayer.model.filters.literals",
    "headrace.tablelayer.server.read.key_search",
    "headrace.tablelayer.model.json.rows",
    "headrace.tablelayer.model.json.connect_schema",
    "headrace.tablelayer.model.json.debezium",
    "headrace.tablelayer.model.json.debezium_values",
    "headrace.tablelayer.model.avro.write",
    "headrace.tablelayer.model.avro.read",
)


_LONGEST = "headrace.tablelayer.model.json.rows"
"""A third of the work: begun first, so that no process ends with it alone."""


def warm_up_in(processes: int) -> Iterator[tuple[str, float]]:
    """Warm the modules in several processes, which share the cache; yield each one's name and seconds as it ends."""
    names = sorted(KERNEL_MODULES, key=lambda name: name != _LONGEST)
    spawn = multiprocessing.get_context("spawn")  # numba does not survive a fork
    with ProcessPoolExecutor(processes, spawn, one_writer) as pool:
        for done in as_completed([pool.submit(_warmed, name) for name in names]):
            yield done.result()


def warm_up() -> Iterator[tuple[str, float]]:
    """Warm the modules one after the other; yield each one's name and seconds.

    A thread that needs a kernel meanwhile waits for at most one of them. Call it from one thread.
    """
    one_writer()
    without_modules()
    with giving_way():
        for name in KERNEL_MODULES:
            yield _warmed(name)


def _warmed(name: str) -> tuple[str, float]:
    started = perf_counter()
    import_module(name).warm()
    return name, perf_counter() - started
