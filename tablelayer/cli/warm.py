"""Compile every numba kernel and keep the result in numba's cache."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from time import perf_counter

from protocol.kernel_cache import one_writer

#: Modules that have kernels, each with a `warm()`.
KERNEL_MODULES = (
    "protocol.records.decode",
    "protocol.records.encode",
    "protocol.records.gather",
    "broker.log.scan_kernels",
    "tablelayer.model.rows.keys",
    "tablelayer.model.rows.stored",
    "tablelayer.model.table.buckets",
    "tablelayer.model.filters.literals",
    "tablelayer.model.json.rows",
    "tablelayer.model.json.connect_schema",
    "tablelayer.model.json.debezium",
    "tablelayer.model.json.debezium_values",
    "tablelayer.model.avro.write",
    "tablelayer.model.avro.read",
    "tablelayer.server.stored_message",
    "tablelayer.server.merge.aggregation",
)


def warm_up() -> Iterator[tuple[str, float]]:
    """Warm the modules one after the other; yields each one's name and seconds."""
    one_writer()
    for name in KERNEL_MODULES:
        started = perf_counter()
        import_module(name).warm()
        yield name, perf_counter() - started
