"""A lake in memory for tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from headrace.tablelayer.lake.catalogs import LakeCatalog, TieredTable
from headrace.tablelayer.model.table.definition import TableDefinition


def tiered_into(lake: Any, definition: TableDefinition) -> TieredTable:
    """A table whose lake is read by `lake`, a `LakeReader`."""
    lake.shape = definition
    catalog = cast(LakeCatalog, SimpleNamespace(reader=lambda _: lake))
    return TieredTable(definition, catalog, None, getattr(lake, "dropped", {}))
