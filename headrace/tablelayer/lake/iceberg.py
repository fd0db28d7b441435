"""Iceberg through Spark's own connector.

A round is a branch. It is created at the snapshot that was found, filled by one append or MERGE that carries our
offsets as snapshot properties (`adapter.py`), and then `fast_forward` moves `main` onto it. Iceberg never lets two
appends conflict, so without this a tiering job that was believed dead could add its rows a second time. fast_forward is
a compare-and-set on `main`; it fails if another commit came in between.

Other writers' compaction makes snapshots without the offsets, so the newest ancestor of `main` that has them counts.
Our own compaction (`iceberg_maintenance.py`) carries them along. Expiry may remove that ancestor; the tag
`headrace_tiered` keeps the last one alive. The tag is believed when its snapshot is in the history or is the one
reported to the server. Otherwise tiering stops with an error, because starting over would duplicate rows.

Columns are matched by id on both sides: `iceberg_columns.py` maps fields of the lake table to columns, and applies ADD,
DROP, RENAME and widening before a round is written.

A partitioned table is one lake table, whose first partition fields are the partition columns (identity). Dropped
partitions stay in the lake. A partition that is recreated under its old name replaces the old rows, in one step with
its first new rows.

Bucket i of the table is bucket i of the lake table when the bucket key is one column. A Hadoop catalog on a local
folder commits by renaming, which does not exclude two writers. Tierers on one machine therefore take a file lock for
every change of the table's metadata.
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.tablelayer.lake.adapter import (
    BRANCH_PREFIX,
    EPOCH_PROPERTY,
    OFFSETS_PROPERTY,
    TABLE_ID_PROPERTY,
    TIERED_NAME,
    LakeError,
    LakeState,
    RoundLostError,
    partition_condition,
    replaced_partitions,
    round_properties,
    touched_partitions,
)
from headrace.tablelayer.lake.columns import in_lake, stored_definition
from headrace.tablelayer.lake.history import LakeSnapshot, find_committed
from headrace.tablelayer.lake.iceberg_columns import (
    check_fields,
    evolve_columns,
    needs_evolution,
    new_table_properties,
    read_columns,
    spark_ddl_type,
)
from headrace.tablelayer.lake.iceberg_maintenance import compact, expire
from headrace.tablelayer.lake.stores import prepare
from headrace.tablelayer.model.lake.offsets import Offsets
from headrace.tablelayer.model.options.lake_options import ICEBERG_PREFIX, passed_options
from headrace.tablelayer.model.schema.schema import SYSTEM_COLUMNS, Column
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.types.column_types import TypeKind
from headrace.tablelayer.spark.sessions import LAKE_CATALOG, activate, attach_catalog
from headrace.tablelayer.spark.splits import DELETED_COLUMN
from headrace.tablelayer.spark.types import spark_schema

logger = logging.getLogger("headrace.lake")

_CHANGES_VIEW = "headrace_changes"

_DEFAULTS = {"format-version": "2"}
_TABLE_PROPERTIES = {
    # Updates and deletes write small delete files instead of rewriting whole data files.
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    # Rows already come bucket by bucket: a shuffle would only cost time.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
}


# Iceberg's bucket transform does not support these types.
_WITHOUT_BUCKETS = frozenset({TypeKind.BOOLEAN, TypeKind.FLOAT, TypeKind.DOUBLE})


class IcebergTable:
    """A table's copy in an Iceberg catalog.

    A MERGE takes its snapshot properties from the session's settings. A session that writes must therefore belong to
    this object alone: `spark.newSession()`.
    """

    def __init__(
        self,
        spark: Any,
        definition: StoredTable,
        properties: Mapping[str, str],
        catalog: str = LAKE_CATALOG,
    ) -> None:
        """`properties` are the catalog's, as in `spark.sql.catalog.<name>.*`; `warehouse` is required."""
        self.definition = definition
        self.table_id = str(definition.table_id)
        self.spark = spark
        prepare(spark, properties)
        attach_catalog(self.spark, properties, catalog)
        path = definition.path
        self.namespace = f"`{catalog}`.`{path.database}`"
        self.catalog = catalog
        self.name = f"{self.namespace}.`{path.table}`"
        self._plain_name = f"{catalog}.{path.database}.{path.table}"
        self._lock_file = _lock_file(properties, definition)
        self._seen: Any = None
        """Iceberg's table object of the last `find_committed`, good for reads of its snapshots."""

    # ---- state

    def exists(self) -> bool:
        return bool(self.spark.catalog.tableExists(self.name))

    def create(self, *, system_columns: bool = False) -> None:
        """Create the table if it does not exist. Raises LakeError for column types that Iceberg does not have."""
        if self.exists():
            return
        shape = self.definition.with_system_columns() if system_columns else self.definition
        schema = shape.schema
        columns = ", ".join(
            f"`{c.name}` {spark_ddl_type(c)}{'' if c.nullable else ' NOT NULL'}" for c in schema.columns
        )
        bucket_key = self.definition.bucket_key
        fields = [f"`{name}`" for name in self.definition.partition_keys]
        if len(bucket_key) == 1 and schema.column(bucket_key[0]).type.kind not in _WITHOUT_BUCKETS:
            fields.append(f"bucket({self.definition.bucket_count}, `{bucket_key[0]}`)")
        partitioned = f"PARTITIONED BY ({', '.join(fields)})" if fields else ""
        listed = {
            **_DEFAULTS,
            **passed_options(self.definition.options, ICEBERG_PREFIX),
            **_TABLE_PROPERTIES,
            TABLE_ID_PROPERTY: self.table_id,
            **new_table_properties(shape),
        }
        properties = ", ".join(f"'{_escaped(name)}'='{_escaped(value)}'" for name, value in listed.items())
        with self._turn():
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.namespace}")
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}) USING iceberg {partitioned}"
                f" TBLPROPERTIES ({properties})"
            )

    def evolve(self) -> None:
        """Give the lake table the columns that the table has now.

        Raises RoundLostError when it has the columns of a newer schema, which means that another tiering job committed;
        LakeError when its fields are not the recorded ones.
        """
        table = self._load()
        if table is None:
            return
        shape = in_lake(self.definition, table.properties())
        if not needs_evolution(table, shape):
            check_fields(table, shape)
            return
        with self._turn():
            evolve_columns(self.spark, self._load(), shape)
            self.spark.sql(f"REFRESH TABLE {self.name}")

    def stored_definition(self) -> StoredTable | None:
        """See `LakeTable`."""
        table = self._load()
        return None if table is None else stored_definition(self.definition, table.properties())

    def find_committed(self, known_snapshot: int | None = None) -> LakeState:
        """Read the table's metadata once, so that head and offsets are consistent. See `LakeTable`."""
        table = self._seen = self._load()
        if table is None:
            return LakeState()
        head, tag = table.currentSnapshot(), table.refs().get(TIERED_NAME)

        def look_up(number: int) -> LakeSnapshot | None:
            found = table.snapshot(number)
            return None if found is None else LakeSnapshot(number, found.parentId(), found.summary())

        return find_committed(
            self.definition,
            table.properties().get(TABLE_ID_PROPERTY),
            None if head is None else head.snapshotId(),
            look_up,
            known_snapshot if tag is not None and tag.snapshotId() == known_snapshot else None,
        )

    def _load(self) -> Any | None:
        """Return Iceberg's own table object, freshly loaded; None if there is no such table."""
        from pyspark.errors import AnalysisException

        activate(self.spark)  # Spark looks the catalog up in the settings of the active session
        helper = self.spark._jvm.org.apache.iceberg.spark.Spark3Util
        try:
            return helper.loadIcebergTable(self.spark._jsparkSession, self.name)
        except AnalysisException:
            if not self.exists():
                return None
        # The first round has made it meanwhile, or the error is another one.
        return helper.loadIcebergTable(self.spark._jsparkSession, self.name)

    # ---- a round

    def write(self, base: LakeState, changes: Any, offsets: Offsets, epoch: int) -> int:
        """See `LakeTable`."""
        self.create(system_columns=SYSTEM_COLUMNS[0].name in changes.columns)
        self.evolve()
        columns = self._shape().schema.columns
        branch = f"{BRANCH_PREFIX}{epoch}"
        properties = round_properties(self.definition, offsets, epoch)
        as_of = "" if base.head is None else f" AS OF VERSION {base.head}"
        with self._turn():
            self.spark.sql(f"ALTER TABLE {self.name} CREATE OR REPLACE BRANCH `{branch}`{as_of}")
            before = self._branch_snapshot(branch)
            target = f"{self.name}.branch_{branch}"
            if not self.definition.is_primary_key_table:
                if base.head is not None:
                    self._clear(replaced_partitions(base, offsets), target, properties)
                self._append(changes, columns, target, properties)
            elif base.head is None:  # nothing to match yet
                living = changes.where(f"NOT {DELETED_COLUMN}").drop(DELETED_COLUMN)
                self._append(living, columns, target, properties)
            else:
                self._clear(replaced_partitions(base, offsets), target, properties)
                self._merge(changes, columns, target, properties, touched_partitions(base, offsets))
            if self._branch_snapshot(branch) == before:  # a round may advance the offsets and change no row
                nothing = self.spark.createDataFrame([], spark_schema(columns))
                self._append(nothing, columns, target, properties)
            written = self._branch_snapshot(branch)
        if written is None:
            raise LakeError(
                f"branch {branch} of {self._plain_name} disappeared while it was written:"
                " another tiering job removed it"
            )
        return written

    def _append(
        self, rows: Any, columns: Sequence[Column], target: str, properties: Mapping[str, str]
    ) -> None:
        writer = rows.select(*[f"`{c.name}`" for c in columns]).writeTo(target)
        for name, value in properties.items():
            writer = writer.option(f"snapshot-property.{name}", value)
        writer.append()

    def _clear(self, partitions: Sequence[str], target: str, properties: Mapping[str, str]) -> None:
        """Delete the lake's old rows of recreated partitions: whole files, without reading them."""
        if partitions:
            with self._snapshot_properties(properties):
                self.spark.sql(
                    f"DELETE FROM {target} WHERE {partition_condition(self.definition, partitions)}"
                )

    def _merge(
        self,
        changes: Any,
        columns: Sequence[Column],
        target: str,
        properties: Mapping[str, str],
        partitions: Sequence[str] = (),
    ) -> None:
        """Merge the changes; with `partitions`, only files of these partitions are scanned."""
        changes.createOrReplaceTempView(_CHANGES_VIEW)
        schema = self.definition.schema
        on = " AND ".join(f"t.`{name}` = c.`{name}`" for name in schema.primary_key)
        if partitions:
            on += f" AND {partition_condition(self.definition, partitions, 't.')}"
        rest = [c.name for c in columns if c.name not in schema.primary_key]
        update = ", ".join(f"t.`{name}` = c.`{name}`" for name in rest)
        names = ", ".join(f"`{c.name}`" for c in columns)
        values = ", ".join(f"c.`{c.name}`" for c in columns)
        try:
            with self._snapshot_properties(properties):
                self.spark.sql(
                    f"MERGE INTO {target} t USING {_CHANGES_VIEW} c ON {on}"
                    f" WHEN MATCHED AND c.`{DELETED_COLUMN}` THEN DELETE"
                    + (f" WHEN MATCHED THEN UPDATE SET {update}" if rest else "")
                    + f" WHEN NOT MATCHED AND NOT c.`{DELETED_COLUMN}` THEN INSERT ({names}) VALUES ({values})"
                )
        finally:
            self.spark.catalog.dropTempView(_CHANGES_VIEW)

    @contextmanager
    def _snapshot_properties(self, properties: Mapping[str, str]) -> Iterator[None]:
        """Set snapshot properties in the session, as SQL statements have no options; reset them at the end."""
        settings = {
            f"spark.sql.iceberg.snapshot-property.{name}": value for name, value in properties.items()
        }
        for name, value in settings.items():
            self.spark.conf.set(name, value)
        try:
            yield
        finally:
            for name in settings:
                self.spark.conf.unset(name)

    def commit(self, base: LakeState, snapshot: int, epoch: int) -> None:
        """See `LakeTable`."""
        branch = f"{BRANCH_PREFIX}{epoch}"
        with self._turn():
            try:
                self.spark.sql(
                    f"CALL `{self.catalog}`.system.fast_forward('{self.name}', 'main', '{branch}')"
                )
                failure: Exception | None = None
            except Exception as error:  # noqa: BLE001 - for any error, only the table knows the outcome
                failure = error
            head = self._main_snapshot()
            if not self._contains(head, snapshot):
                if head == base.head and failure is not None:
                    raise LakeError(
                        f"{self._plain_name}: the commit failed and changed nothing: {failure}"
                    ) from failure
                raise RoundLostError(
                    f"{self._plain_name}: main is at snapshot {head}, no longer at {base.head}:"
                    " another tiering job committed first"
                ) from failure
            self.spark.sql(
                f"ALTER TABLE {self.name} CREATE OR REPLACE TAG `{TIERED_NAME}` AS OF VERSION {snapshot}"
            )

    def _contains(self, head: int | None, snapshot: int) -> bool:
        """Whether `snapshot` is `head` or in its history."""
        table = self._load()
        at = head
        while at is not None and at != snapshot:
            found = None if table is None else table.snapshot(at)
            at = None if found is None else found.parentId()
        return at is not None

    def maintain(self) -> str:
        """See `LakeTable`: `table.datalake.auto-compaction` and `.auto-expire-snapshot`."""
        settings = self.definition.settings
        done = []
        if settings.datalake_compaction:
            with self._turn():
                table, state = self._load(), self.find_committed()
                properties = round_properties(self.definition, state.offsets, state.epoch)
                done.append(compact(self.spark, table, properties, self.definition.bucket_count))
        if settings.datalake_expiry:
            with self._turn():
                done.append(expire(self._load(), TIERED_NAME))
        return ", ".join(each for each in done if each)

    def discard(self, epoch: int) -> None:
        """See `LakeTable`. Branches of later epochs belong to other tiering jobs and stay."""
        try:
            table = self._load()
            names = [] if table is None else list(table.refs().keySet())
            for name in names:
                number = name.removeprefix(BRANCH_PREFIX)
                if name.startswith(BRANCH_PREFIX) and number.isdigit() and int(number) <= epoch:
                    with self._turn():
                        self.spark.sql(f"ALTER TABLE {self.name} DROP BRANCH IF EXISTS `{name}`")
        except Exception as error:  # noqa: BLE001 - a branch that stays costs space; the next round tries again
            logger.warning("%s: branches of earlier rounds are left for the next round: %s", self.name, error)

    def _main_snapshot(self) -> int | None:
        table = self._load()
        head = None if table is None else table.currentSnapshot()
        return None if head is None else int(head.snapshotId())

    def _branch_snapshot(self, branch: str) -> int | None:
        table = self._load()
        reference = None if table is None else table.refs().get(branch)
        return None if reference is None else int(reference.snapshotId())

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._lock_file is None:
            yield
            return
        self._lock_file.parent.mkdir(parents=True, exist_ok=True)
        with self._lock_file.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    # ---- reading

    def read(self, snapshot: int | None = None, *, system_columns: bool = False) -> Any:
        """See `LakeTable`. Raises LakeError if the table was never tiered."""
        table = self._seen
        if snapshot is None or table is None or table.snapshot(snapshot) is None:
            self._must_exist()
            table = self._load()
        shape = in_lake(self.definition, table.properties()) if system_columns else self.definition
        return read_columns(self.spark, table, self.name, shape, snapshot)

    def snapshots(self) -> Any:
        """See `LakeTable`. Raises LakeError if the table was never tiered."""
        from pyspark.sql import functions

        self._must_exist()
        summary = functions.col("summary")
        return (
            self.spark.table(f"{self.name}.snapshots")
            .orderBy("committed_at", "snapshot_id")
            .select(
                "snapshot_id",
                "parent_id",
                "committed_at",
                "operation",
                summary[EPOCH_PROPERTY].cast("bigint").alias("epoch"),
                functions.expr(self._offsets_expression()).alias("offsets"),
                summary["total-records"].cast("bigint").alias("total_record_count"),
            )
        )

    def _offsets_expression(self) -> str:
        """Return an SQL expression that parses the offsets property into a map by bucket.

        For a partitioned table it is a map by partition of such maps.
        """
        by_bucket, text = "(bucket, _) -> int(bucket)", f"summary['{OFFSETS_PROPERTY}']"
        if not self.definition.is_partitioned:
            return f"transform_keys(from_json({text}, 'map<string,bigint>'), {by_bucket})"
        by_partition = (
            f"transform_values(from_json({text}, 'map<string,map<string,bigint>>'),"
            f" (_, ends) -> transform_keys(ends, {by_bucket}))"
        )
        return f"transform_keys({by_partition}, (name, _) -> substring_index(name, '@', 1))"

    def _must_exist(self) -> None:
        if not self.exists():
            raise LakeError(
                f"there is no lake table {self._plain_name} yet: run `headrace tier --once` first"
            )

    def _shape(self) -> StoredTable:
        """Return the table as its lake table has it."""
        table: Any = self._load()
        return in_lake(self.definition, table.properties())


def _escaped(text: str) -> str:
    """Escape text for a literal in quotes of Spark SQL."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _lock_file(properties: Mapping[str, str], definition: StoredTable) -> Path | None:
    """Return the lock file; None except for a Hadoop catalog on a local folder."""
    warehouse = properties.get("warehouse", "").removeprefix("file://")
    if properties.get("type", "hadoop") != "hadoop" or "://" in warehouse or not warehouse:
        return None
    return Path(warehouse) / ".headrace" / f"{definition.path.database}.{definition.path.table}.lock"
