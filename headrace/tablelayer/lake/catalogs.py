"""Catalogs of the lake: the one module that knows the lake formats and finds a table's copy by its name.

A format has two adapters, each loaded on demand: one in Spark, used to write, and one without Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from headrace.tablelayer.lake.adapter import LakeError, LakeTable
from headrace.tablelayer.lake.coordinator import TOKEN_VARIABLE, LakeStatus, ServerCoordinator
from headrace.tablelayer.lake.reader import LakeReader
from headrace.tablelayer.model.lake.offsets import Offsets
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.spark.sessions import iceberg_catalog_properties

CATALOG_PROPERTY_PREFIX = "datalake.{format}."
"""Prefix of the server's settings for a lake format's catalog; the rest of the name is the format's property."""


@dataclass(frozen=True, slots=True)
class LakeCatalog:
    """Catalog of a lake format, `iceberg` or `paimon`. Its properties have the format's names and may be secret."""

    format: str
    properties: Mapping[str, str] = field(repr=False)

    def table(self, spark: Any, definition: StoredTable) -> LakeTable:
        """Return a table's copy, for reading and writing in this session. Raises LakeError."""
        if self.format == "paimon":
            from headrace.tablelayer.lake.paimon import PaimonTable

            return PaimonTable(spark, definition, self.properties)
        from headrace.tablelayer.lake.iceberg import IcebergTable

        return IcebergTable(spark, definition, self.properties)

    def reader(self, definition: StoredTable) -> LakeReader:
        """Return a table's copy as it is now, for reading without Spark. Raises LakeError."""
        if self.format == "paimon":
            from headrace.tablelayer.lake.paimon_reader import PaimonReader

            return PaimonReader(definition, self.properties)
        from headrace.tablelayer.lake.iceberg_reader import IcebergReader

        return IcebergReader(definition, self.properties)


@dataclass(frozen=True, slots=True)
class TieredTable:
    """A table and its lake's catalog.

    `known_snapshot` is the last lake snapshot that was reported to the server, and `known_offsets` are its offsets by
    place. `dropped` as in `LakeState`, `has_expired` as in `LakeStatus`.
    """

    definition: StoredTable
    catalog: LakeCatalog
    known_snapshot: int | None
    dropped: Mapping[str, UUID] = field(default_factory=dict)
    known_offsets: Offsets = field(default_factory=dict)
    has_expired: bool = False


def tiered_table(connection: Any, name: str, warehouse: str | None) -> TieredTable:
    """Return the tiered table "db.t"; `warehouse` overrides the server's setting.

    Raises LakeError when the table is not tiered or is a partition, and TableError when it does not exist.
    """
    path = TablePath.parse(name)
    if path.partition is not None:
        raise LakeError(f"{path} is a partition, which is tiered together with its table: read {path.whole}")
    definition = connection.admin.describe_table(path)
    status = ServerCoordinator(connection, "union read").describe(definition.table_id)
    catalog = lake_catalog(status, warehouse, path)
    return TieredTable(
        definition, catalog, status.snapshot_id, status.dropped, status.offsets, status.expired
    )


def lake_catalog(status: LakeStatus, warehouse: str | None, path: TablePath | str) -> LakeCatalog:
    """Return the catalog of a table, or of the plain topic of that name, from the server's `datalake.<format>.*`.

    `warehouse`, if given, overrides the server's. Raises LakeError when the table is not tiered, or when no warehouse
    is configured.
    """
    if not status.enabled:
        option = "datalake.enabled" if isinstance(path, str) else "table.datalake.enabled"
        raise LakeError(f"{path} is not tiered: it was created without '{option}'='true'")
    prefix = CATALOG_PROPERTY_PREFIX.format(format=status.format)
    kept = [name for name, value in status.properties.items() if name.startswith(prefix) and value is None]
    if kept:
        raise LakeError(
            f"the server returns {', '.join(kept)} only to clients that present its tiering token: set"
            f" datalake.tiering.token on the server, and {TOKEN_VARIABLE} to the same text in the environment"
            " of this process"
        )
    given = {
        name.removeprefix(prefix): value
        for name, value in status.properties.items()
        if name.startswith(prefix) and value
    }
    place = warehouse or given.pop("warehouse", None)
    given.pop("warehouse", None)
    if status.format == "paimon":
        if given.get("metastore", "filesystem") != "filesystem":
            raise LakeError(
                f"{path}: '{prefix}metastore' is '{given['metastore']}', but Paimon tables are tiered into"
                " filesystem catalogs only"
            )
    elif status.format != "iceberg":
        raise LakeError(
            f"{path} asks for lake format '{status.format}': tables are tiered into iceberg or paimon"
        )
    elif given.get("type", "hadoop") != "hadoop" or "catalog-impl" in given:
        # Such a catalog knows its own warehouse.
        return LakeCatalog(status.format, {**given, **({"warehouse": place} if place else {})})
    if not place:
        raise LakeError(
            f"no warehouse is configured for the lake of {path}: start the server with"
            f" --set {prefix}warehouse=FOLDER, or pass the warehouse to this command"
        )
    if status.format == "paimon":
        place = place if "://" in place else str(Path(place).resolve())
        return LakeCatalog(status.format, {**given, "warehouse": place})
    return LakeCatalog(status.format, {**iceberg_catalog_properties(place), **given})
