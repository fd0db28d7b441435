"""Compile every numba kernel and keep the result in numba's cache."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from time import perf_counter

from protocol.kernel_cache import giving_way, one_writer

#: Modules that have kernels, each with a `warm()`. What every write, lookup and scan of a table needs comes first: a
#: server that was killed while it compiled the others has it again at once.
KERNEL_MODULES = (
    "tablelayer.model.rows.keys",
    "tablelayer.model.rows.stored",
    "tablelayer.server.stored_message",
    "tablelayer.server.merge.aggregation",
    "protocol.records.decode",
    "protocol.records.check",
    "protocol.records.encode",
    "protocol.records.gather",
    "broker.log.scan_kernels",
    "tablelayer.model.table.buckets",
    "tablelayer.model.filters.literals",
    "tablelayer.model.json.rows",
    "tablelayer.model.json.connect_schema",
    "tablelayer.model.json.debezium",
    "tablelayer.model.json.debezium_values",
    "tablelayer.model.avro.write",
    "tablelayer.model.avro.read",
)


def warm_up() -> Iterator[tuple[str, float]]:
    """Warm the modules one after the other; yields each one's name and seconds. Whoever needs a kernel meanwhile does
    not wait for more than one of them. From one thread.
    """
    one_writer()
    with giving_way():
        for name in KERNEL_MODULES:
            started = perf_counter()
            import_module(name).warm()
            yield name, perf_counter() - started
