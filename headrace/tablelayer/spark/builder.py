"""Lazy builder of a table read in Spark: columns, predicate, limit and offsets are sent to the server together.

    table(spark, "default.orders").select("order_key", "total_price").where("total_price > 100").to_df()

Spark's Python data sources do not prune columns, and their push-down of filters returns wrong rows when a frame is used
twice. Here every `to_df` is a separate load with its own options. Only columns that are selected or named in a
predicate leave the server. The reader applies the part of the predicate that means the same everywhere. Offsets are
pinned, so that self-joins, unions and reused frames see one state.

The server is the argument `bootstrap`, else Spark's setting `spark.headrace.bootstrap.servers`, else that of the
environment (`environment_server`). Credentials come from `ConnectionSettings` as `bootstrap`, else from Spark's
settings `spark.headrace.kafka.security.protocol` and similar, else from the environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from headrace.tablelayer.client.errors import DataError
from headrace.tablelayer.client.security.settings import (
    Bootstrap,
    ConnectionSettings,
    environment_server,
)
from headrace.tablelayer.model.filters.conditions import push_down
from headrace.tablelayer.model.table.path import DEFAULT_DATABASE
from headrace.tablelayer.spark.options import KAFKA_PREFIX, LAKE, Mode, PartitionOffsets, server_options
from headrace.tablelayer.spark.types import METADATA_FIELDS
from headrace.tablelayer.spark.worker import connection
from headrace.tablelayer.spark.worker import table as open_table

Moment = int | datetime | Mapping[int, int] | PartitionOffsets
"""A moment, as in the table client."""
CONF_PREFIX = "spark.headrace."
BOOTSTRAP_CONF = f"{CONF_PREFIX}bootstrap.servers"


@dataclass(frozen=True, slots=True)
class TableBuilder:
    """An unfinished read. Every method returns a new builder; `to_df` returns the DataFrame."""

    spark: Any
    bootstrap: ConnectionSettings
    path: str
    columns: tuple[str, ...] = ()
    predicates: tuple[str, ...] = ()
    row_limit: int | None = None
    mode: Mode = "current"
    end: Moment | None = None

    def select(self, *columns: str) -> TableBuilder:
        """Select only these columns, in this order; metadata columns such as `_log_offset` are allowed."""
        return replace(self, columns=columns)

    def where(self, predicate: str) -> TableBuilder:
        """Keep only rows for which a Spark SQL condition holds; several conditions are joined by AND."""
        return replace(self, predicates=(*self.predicates, predicate))

    def limit(self, count: int) -> TableBuilder:
        """Return at most `count` rows, in no particular order."""
        if count < 0:
            raise ValueError(f"a limit of {count} rows is negative: give 0 or more")
        return replace(self, row_limit=count)

    def as_of(self, moment: Moment) -> TableBuilder:
        """Read the table as it was at a time or at offsets, as far back as its log goes.

        A time is in milliseconds or a datetime; rows written at that time are included. Offsets are by bucket, or for a
        partitioned table `{partition: {bucket: offset}}`, which reads only these partitions. See the table client's
        `as_of`.

        Only for log tables and for PK tables whose changelog has old images. A partitioned table at a time has the rows
        of its present partitions at that time.
        """
        return replace(self, end=dict(moment) if isinstance(moment, Mapping) else moment)

    def changelog(self) -> TableBuilder:
        """Read every change instead of the current rows, with the metadata columns."""
        return replace(self, mode="changelog")

    def upserts(self) -> TableBuilder:
        """Read changes as `changelog` does, without the old images of updates."""
        return replace(self, mode="upsert")

    def to_df(self) -> Any:
        """Return the DataFrame, at the offsets of this call. Raises TableError for an unknown table or column.

        `db.t$lake` and its metadata tables are read as they are when the frame is first used.
        """
        if LAKE in self.path:
            return self._of_lake()
        definition = connection(self.bootstrap).admin.describe_table(self.path)
        known = definition.schema
        pushed = push_down(self.predicates, known)
        reader = self.spark.read.format("headrace").options(**server_options(self.bootstrap))
        reader = reader.option("table", self.path).option("mode", self.mode)
        reader = reader.option("ending.offsets", json.dumps(self._pinned(definition)))
        if self.end is None and self.mode == "current":
            reader = reader.option("ofNow", "true")
        wanted = self.columns
        if wanted:
            named = [name for name in METADATA_FIELDS if any(name in each for each in self.predicates)]
            reader = reader.option("columns", ",".join(dict.fromkeys([*wanted, *pushed.columns, *named])))
        if pushed.predicate is not None:
            reader = reader.option("where", json.dumps(pushed.predicate))
        if self.row_limit and pushed.complete:
            reader = reader.option("limit", self.row_limit)
        frame = reader.load()
        for predicate in self.predicates:
            frame = frame.where(predicate)
        if wanted:
            frame = frame.select(*[f"`{name}`" for name in wanted])
        return frame if self.row_limit is None else frame.limit(self.row_limit)

    def _of_lake(self) -> Any:
        if self.end is not None or self.mode != "current":
            raise ValueError(
                f"{self.path} has neither changes nor offsets: read an older snapshot by format('headrace') with the"
                " option 'snapshot' or 'endingTimestamp'"
            )
        reader = self.spark.read.format("headrace").options(**server_options(self.bootstrap))
        frame = reader.option("table", self.path).load()
        for predicate in self.predicates:
            frame = frame.where(predicate)
        if self.columns:
            frame = frame.select(*[f"`{name}`" for name in self.columns])
        return frame if self.row_limit is None else frame.limit(self.row_limit)

    def _pinned(self, definition: Any) -> Mapping[Any, Any]:
        if isinstance(self.end, Mapping):
            return self.end
        table = open_table(self.bootstrap, definition)
        if self.end is None:
            return table.partition_offsets("latest") if definition.is_partitioned else table.offsets("latest")
        if definition.is_partitioned:
            return table.partition_offsets_as_of(self.end)
        return table.offsets_as_of(self.end)


def table(spark: Any, path: str, bootstrap: Bootstrap | None = None) -> TableBuilder:
    """Return a builder that reads table `path` ("db.t")."""
    return TableBuilder(spark, bootstrap_of(spark, bootstrap), path)


def use(spark: Any, database: str = DEFAULT_DATABASE, bootstrap: Bootstrap | None = None) -> list[str]:
    """Create a temporary view of the same name for each table of the database; return the sorted names.

    A view reads the table as it is when a query runs. A table that Spark cannot read (TIME(9)) raises TableError naming
    its column; views created before it stay.
    """
    server = bootstrap_of(spark, bootstrap)
    names = sorted(connection(server).admin.list_tables(database))
    for name in names:
        create_view(spark, name, f"{database}.{name}", bootstrap=server)
    return names


def create_view(
    spark: Any, name: str, path: str, *, bootstrap: Bootstrap | None = None, **options: str
) -> None:
    """Create a temporary view of a table, with options of the data source.

    The view is created from a frame and not by a statement, whose text would show passwords.
    """
    if "`" in name:
        raise DataError(f"{name!r} cannot be the name of a view: it contains a backquote")
    reader = spark.read.format("headrace").options(**server_options(bootstrap_of(spark, bootstrap)))
    reader.option("table", path).options(**options).load().createOrReplaceTempView(f"`{name}`")


def conf_options(spark: Any) -> dict[str, str]:
    """Return the data source options that the session's settings give; none if they name no server."""
    if spark.conf.get(BOOTSTRAP_CONF, None) is None:
        return {}
    return server_options(bootstrap_of(spark, None))


def bootstrap_of(spark: Any, given: Bootstrap | None) -> ConnectionSettings:
    """Return the server's address and credentials; see the module."""
    if isinstance(given, ConnectionSettings):
        return given
    prefix = CONF_PREFIX + KAFKA_PREFIX
    properties = {
        name.removeprefix(prefix): value
        for name, value in spark.conf.getAll.items()
        if name.startswith(prefix)
    }
    named = given or spark.conf.get(BOOTSTRAP_CONF, None) or environment_server()
    return ConnectionSettings.make(str(named), properties or None)
