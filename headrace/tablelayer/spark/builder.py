"""A table for Spark, lazily: columns, predicate, limit and offsets are gathered first and carried to the server
together.

    table(spark, "default.orders").select("order_key", "total_price").where("total_price > 100").to_df()

Spark's Python data sources prune no columns, and its push-down of filters returns wrong rows when a frame is used
twice. Here every `to_df` is a load of its own with its own options: only the columns that are selected or that a
predicate names leave the server, the part of the predicate that has one meaning everywhere is applied by the
reader, and offsets are pinned, so that self-joins, unions and frames that are used again see one state.

The server is the argument `bootstrap`, else Spark's setting `spark.headrace.bootstrap.servers`, else the
environment's HEADRACE_SERVER, else 127.0.0.1:9092. How to be let in is said by `ConnectionSettings` as `bootstrap`,
else by Spark's settings `spark.headrace.kafka.security.protocol` and its kin, else by the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from headrace.tablelayer.client.errors import DataError
from headrace.tablelayer.client.security.settings import Bootstrap, ConnectionSettings
from headrace.tablelayer.model.filters.conditions import push_down
from headrace.tablelayer.model.table.definition import DEFAULT_DATABASE
from headrace.tablelayer.spark.options import KAFKA_PREFIX, Mode, PartitionOffsets, server_options
from headrace.tablelayer.spark.types import METADATA_FIELDS
from headrace.tablelayer.spark.worker import connection
from headrace.tablelayer.spark.worker import table as open_table

Moment = int | datetime | Mapping[int, int] | PartitionOffsets
"""As of the table client."""
CONF_PREFIX = "spark.headrace."
BOOTSTRAP_CONF = f"{CONF_PREFIX}bootstrap.servers"


@dataclass(frozen=True, slots=True)
class TableBuilder:
    """One read in the making. Every method gives a new builder; `to_df` makes the DataFrame."""

    spark: Any
    bootstrap: ConnectionSettings
    path: str
    columns: tuple[str, ...] = ()
    predicates: tuple[str, ...] = ()
    row_limit: int | None = None
    mode: Mode = "current"
    end: Moment | None = None

    def select(self, *columns: str) -> TableBuilder:
        """Only these columns, in this order; metadata columns such as `_log_offset` too."""
        return replace(self, columns=columns)

    def where(self, predicate: str) -> TableBuilder:
        """Only rows for which a condition in Spark SQL holds; several are joined by AND."""
        return replace(self, predicates=(*self.predicates, predicate))

    def limit(self, count: int) -> TableBuilder:
        """At most `count` rows, any of them."""
        if count < 0:
            raise ValueError(f"a limit of {count} rows makes no sense")
        return replace(self, row_limit=count)

    def as_of(self, moment: Moment) -> TableBuilder:
        """The table as it was at a time (milliseconds or datetime; what was written then is included), or at offsets by
        bucket, of a partitioned table `{partition: {bucket: offset}}` (then of these partitions alone), as far back as
        its log goes; the table client's `as_of`.

        Only for log tables and for PK tables whose changelog has old images. Of a partitioned table at a time: what its
        present partitions held then.
        """
        return replace(self, end=dict(moment) if isinstance(moment, Mapping) else moment)

    def changelog(self) -> TableBuilder:
        """Every change instead of the current rows, with the metadata columns."""
        return replace(self, mode="changelog")

    def upserts(self) -> TableBuilder:
        """As `changelog`, without the old images of updates."""
        return replace(self, mode="upsert")

    def to_df(self) -> Any:
        """The DataFrame, at the offsets of this call. Raises TableError for a table or column that is not there."""
        definition = connection(self.bootstrap).admin.describe_table(self.path)
        known = definition.schema
        pushed = push_down(self.predicates, known)
        reader = self.spark.read.format("headrace").options(**server_options(self.bootstrap))
        reader = reader.option("table", self.path).option("mode", self.mode)
        reader = reader.option("ending.offsets", json.dumps(self._pinned(definition)))
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
    """A read of table `path` ("db.t")."""
    return TableBuilder(spark, bootstrap_of(spark, bootstrap), path)


def use(spark: Any, database: str = DEFAULT_DATABASE, bootstrap: Bootstrap | None = None) -> list[str]:
    """A temporary view for each table of the database, of the same name; the names, sorted.

    Views read the table as it is when a query runs. A table that Spark cannot read (TIME(9)) raises TableError
    naming its column; the others are not affected by views made before.
    """
    server = bootstrap_of(spark, bootstrap)
    names = sorted(connection(server).admin.list_tables(database))
    for name in names:
        create_view(spark, name, f"{database}.{name}", bootstrap=server)
    return names


def create_view(
    spark: Any, name: str, path: str, *, bootstrap: Bootstrap | None = None, **options: str
) -> None:
    """A temporary view of a table, with options of the data source. It is made of a frame and not by a statement, in
    whose text passwords would be seen."""
    if "`" in name:
        raise DataError(f"{name!r} cannot be the name of a view")
    reader = spark.read.format("headrace").options(**server_options(bootstrap_of(spark, bootstrap)))
    reader.option("table", path).options(**options).load().createOrReplaceTempView(f"`{name}`")


def conf_options(spark: Any) -> dict[str, str]:
    """The options of the data source that a session's settings stand for; none if they name no server."""
    if spark.conf.get(BOOTSTRAP_CONF, None) is None:
        return {}
    return server_options(bootstrap_of(spark, None))


def bootstrap_of(spark: Any, given: Bootstrap | None) -> ConnectionSettings:
    """Where the server is and how to be let in; see the module."""
    if isinstance(given, ConnectionSettings):
        return given
    default = os.environ.get("HEADRACE_SERVER", "127.0.0.1:9092")
    prefix = CONF_PREFIX + KAFKA_PREFIX
    properties = {
        name.removeprefix(prefix): value
        for name, value in spark.conf.getAll.items()
        if name.startswith(prefix)
    }
    return ConnectionSettings.make(given or str(spark.conf.get(BOOTSTRAP_CONF, default)), properties or None)
