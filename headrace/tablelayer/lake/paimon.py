"""Paimon through its own Java library (`paimon_jvm.py`): a filesystem catalog, no Flink, no paimon-spark.

A round is a branch, as with Iceberg. It begins as a copy of the snapshot that was found and takes one commit with our
offsets in the snapshot's properties (`adapter.py`). The branch's new snapshot then becomes `main`'s next one, if that
does not exist yet. Paimon's branches share data and manifests with `main`, so the snapshot file is the only difference,
and creating it is a compare-and-set. Two appends never conflict in Paimon, so without this a tiering job that was
believed dead could add its rows a second time.

    commit user, identifier   headrace-tier, the snapshot's own number: Paimon drops a repeated one by itself

A partitioned table is one Paimon table with the same partition columns. Dropped partitions stay in the lake. When a
partition is recreated under its old name, the commit of its first rows removes the old files.

The newest snapshot with offsets counts. Other writers' compaction makes snapshots without them (ours carries them
along), and expiry could remove the last snapshot that has them. A consumer `headrace_tiered` points at it, which expiry
respects. If it was removed all the same, tiering stops with an error, because starting over would duplicate rows.

On a local folder the compare-and-set is a hard link, which only one process can create. On S3 it is a conditional
write (`If-None-Match`). Elsewhere it is Paimon's own `FileIO.tryToWriteAtomic`: correct on HDFS, and on other object
stores as safe as Paimon's own commits.

Writers only append (`write-only`); compaction is ours or the user's (`paimon_maintenance.py`). A tiering job that is
killed before its commit leaves unreferenced files, for Paimon's `remove_orphan_files`.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headrace.tablelayer.lake.adapter import (
    BRANCH_PREFIX,
    TABLE_ID_PROPERTY,
    TIERED_NAME,
    LakeError,
    LakeState,
    RoundLostError,
    replaced_partitions,
    round_properties,
)
from headrace.tablelayer.lake.columns import in_lake, stored_definition
from headrace.tablelayer.lake.history import LakeSnapshot, committed_in, find_committed
from headrace.tablelayer.lake.paimon_columns import (
    needs_evolution,
    new_table_options,
    paimon_type,
    schema_changes,
)
from headrace.tablelayer.lake.paimon_jvm import KIND_COLUMN, KIND_DELETE, KIND_INSERT, Jvm, java_error_name
from headrace.tablelayer.lake.paimon_maintenance import (
    compact,
    expire,
    expired_partitions,
    has_deletion_vectors,
    partition_names,
)
from headrace.tablelayer.lake.paimon_pieces import read_pieces
from headrace.tablelayer.lake.paimon_read import data_files, read_rows
from headrace.tablelayer.lake.stores import S3_SCHEMES, create_only, prepare
from headrace.tablelayer.model.lake.offsets import Offsets, PartitionBucket, in_order
from headrace.tablelayer.model.options.lake_options import PAIMON_PREFIX, passed_options
from headrace.tablelayer.model.schema.schema import SYSTEM_COLUMNS
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.partition_expiry import time_options
from headrace.tablelayer.model.table.partition_keys import values_of
from headrace.tablelayer.model.types.column_types import TypeKind
from headrace.tablelayer.spark.splits import DELETED_COLUMN

logger = logging.getLogger("headrace.lake")

COMMIT_USER = "headrace-tier"
STAGING_FOLDER = ".headrace-staging"
"""Folder in the lake table's own for the rows of a round, where the executors are on other machines."""

_DEFAULTS, _TABLE_OPTIONS = {"file.format": "parquet"}, {"write-only": "true"}
_WRITERS = 2
"""Number of concurrent writers of a round; each may use `write-buffer-size` (256 MB) of the heap."""
_NAN_KEY = (
    "key column '%s' has a NaN, which Paimon cannot tell from other keys: delete that row, or use Iceberg"
)
_TIMESTAMPS = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


class PaimonTable:
    """A table's copy in a Paimon filesystem catalog. Only the thread that created it may use it."""

    def __init__(self, spark: Any, definition: StoredTable, properties: Mapping[str, str]) -> None:
        """`properties` are the catalog's, as in `CatalogContext`; `warehouse` is required."""
        self.definition = definition
        self.table_id = str(definition.table_id)
        self.spark = spark
        self._properties = dict(properties)
        prepare(spark, properties)
        self.jvm = Jvm(spark)
        self.name = f"{definition.path.database}.{definition.path.table}"
        paimon = self.jvm.paimon
        # Another process may commit to the same tables, so the catalog's cache could be out of date.
        options = paimon.options.Options(self.jvm.map_of({**properties, "cache-enabled": "false"}))
        context = paimon.catalog.CatalogContext.create(options, spark.sparkContext._jsc.hadoopConfiguration())
        self._catalog = paimon.catalog.CatalogFactory.createCatalog(context)
        self._identifier = paimon.catalog.Identifier.create(definition.path.database, definition.path.table)

    # ---- state

    def exists(self) -> bool:
        return self._load() is not None

    def create(self, *, system_columns: bool = False) -> None:
        """Create the table if it does not exist. Raises LakeError for column types that Paimon does not have."""
        if self.exists():
            return
        definition = self.definition.with_system_columns() if system_columns else self.definition
        schema = definition.schema
        builder = self.jvm.paimon.schema.Schema.newBuilder()
        for column in schema.columns:
            builder = builder.column(column.name, paimon_type(self.jvm, column), column.comment)
        if definition.partition_keys:
            builder = builder.partitionKeys(self.jvm.list_of(definition.partition_keys))
        if schema.primary_key:
            builder = builder.primaryKey(self.jvm.list_of(schema.primary_key))
        if definition.comment:
            builder = builder.comment(definition.comment)
        bucketed = {"bucket": "-1"}
        if definition.bucket_key:
            bucketed = {
                "bucket": str(definition.bucket_count),
                "bucket-key": ",".join(definition.bucket_key),
            }
        options = {
            **bucketed,
            **_DEFAULTS,
            **passed_options(definition.options, PAIMON_PREFIX),
            **time_options(self.definition),
            **_TABLE_OPTIONS,
            TABLE_ID_PROPERTY: self.table_id,
            **new_table_options(definition),
        }
        made = builder.options(self.jvm.map_of(options)).build()
        self._catalog.createDatabase(definition.path.database, True, self.jvm.map_of({}))
        self._catalog.createTable(self._identifier, made, True)
        self._protect(self._must_load(), 1)

    def evolve(self) -> None:
        """Give the lake table the columns that the table has now.

        Raises RoundLostError when it has the columns of a newer schema, which means that another tiering job committed.
        """
        table = self._load()
        if table is not None and needs_evolution(table, self.definition):
            changes = schema_changes(self.jvm, table, in_lake(self.definition, table.options()))
            self._catalog.alterTable(self._identifier, changes, False)

    def stored_definition(self) -> StoredTable | None:
        """See `LakeTable`."""
        table = self._load()
        return None if table is None else stored_definition(self.definition, table.options())

    def find_committed(self, known_snapshot: int | None = None) -> LakeState:
        """Walk the history by number, because snapshots are numbered without gaps. See `LakeTable`."""
        table = self._load()
        if table is None:
            return LakeState()
        snapshots = table.snapshotManager()

        def look_up(number: int) -> LakeSnapshot | None:
            return _described(snapshots.snapshot(number)) if snapshots.snapshotExists(number) else None

        owner = table.options().get(TABLE_ID_PROPERTY)
        return find_committed(self.definition, owner, snapshots.latestSnapshotId(), look_up)

    def _load(self) -> Any | None:
        """Return Paimon's own table object, freshly loaded; None if there is no such table."""
        from py4j.protocol import Py4JJavaError

        try:
            return self._catalog.getTable(self._identifier)
        except Py4JJavaError as error:
            if java_error_name(error) in ("TableNotExistException", "DatabaseNotExistException"):
                return None
            raise

    def _must_load(self) -> Any:
        table = self._load()
        if table is None:
            raise LakeError(f"there is no lake table {self.name} yet: run `headrace tier --once` first")
        return table

    # ---- a round

    def write(self, base: LakeState, changes: Any, offsets: Offsets, epoch: int) -> int:
        """See `LakeTable`."""
        self.create(system_columns=SYSTEM_COLUMNS[0].name in changes.columns)
        self.evolve()
        table = self._must_load()
        branch = self._branch(table, base.head, epoch)
        messages = self._write_rows(table, base, changes)
        if base.head is not None:
            messages += self._cleared(table, base.head, replaced_partitions(base, offsets))
        return self._commit_on(branch, messages, base.head, round_properties(self.definition, offsets, epoch))

    def _branch(self, table: Any, head: int | None, epoch: int) -> Any:
        """Create the round's branch at snapshot `head` of main and return it as a table."""
        name = f"{BRANCH_PREFIX}{epoch}"
        if name in list(table.branchManager().branches()):
            table.deleteBranch(name)
        table.createBranch(name)
        branch = table.switchToBranch(name)
        if head is not None:
            copied = table.snapshotManager().snapshot(head).toJson()
            table.fileIO().tryToWriteAtomic(branch.snapshotManager().snapshotPath(head), copied)
        return branch

    def _write_rows(self, table: Any, base: LakeState, changes: Any) -> list[Any]:
        """Return Paimon's commit messages for the rows, in files that belong to no snapshot yet."""
        if self.definition.is_primary_key_table and base.head is None:  # nothing to delete yet
            changes = changes.where(f"NOT {DELETED_COLUMN}")
        scratch = Path(tempfile.mkdtemp(prefix="headrace-paimon-"))
        shared = None
        try:
            if self.spark.sparkContext.master.startswith("local"):
                files, rows = self.jvm.paimon.fs.local.LocalFileIO.create(), self._path(scratch / "rows")
            else:  # executors on other machines reach the warehouse
                shared = self._path(f"{table.location()}/{STAGING_FOLDER}/{uuid.uuid4()}")
                files, rows = table.fileIO(), shared
            self._stage(table, changes, rows)
            return self._feed(table, files, self._staged(files, rows), scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            if shared is not None:
                table.fileIO().deleteDirectoryQuietly(shared)

    def _path(self, text: Path | str) -> Any:
        return self.jvm.paimon.fs.Path(str(text))

    def _staged(self, files: Any, folder: Any) -> list[Any]:
        """Return the status of each staged file that has rows."""
        found = sorted(files.listStatus(folder), key=lambda each: str(each.getPath()))
        return [each for each in found if each.getPath().getName().endswith(".parquet")]

    def _cleared(self, table: Any, head: int, partitions: Sequence[str]) -> list[Any]:
        """Return commit messages that delete the old rows of recreated partitions at `head`: whole files."""
        messages = []
        io, nothing = self.jvm.paimon.io, self.jvm.java.java.util.ArrayList()
        unchanged = io.CompactIncrement.emptyIncrement()
        for name in partitions:
            spec = dict(zip(self.definition.partition_keys, values_of(name), strict=True))
            reader = table.newSnapshotReader().withSnapshot(head)
            for split in reader.withPartitionFilter(self.jvm.map_of(spec)).read().splits():
                gone = io.DataIncrement(nothing, split.dataFiles(), nothing)
                place = split.partition(), split.bucket(), split.totalBuckets()
                messages.append(self.jvm.paimon.table.sink.CommitMessageImpl(*place, gone, unchanged))
        return messages

    def _stage(self, table: Any, changes: Any, folder: Any) -> None:
        """Write the rows as Parquet files: the lake table's fields in its order, for a PK table then the row kind.

        A FLOAT or DOUBLE key is written as the table compares it: -0.0 is 0.0, for which Paimon has two buckets. Paimon
        takes a NaN for equal to every other key, so that one of two rows would be lost. A row with such a key fails the
        round. Its deletion is left out, because the lake never had the row.
        """
        wanted = [f"`{field.name()}`" for field in table.schema().fields()]
        if self.definition.is_primary_key_table:
            for column in self.definition.schema.key_columns:
                if column.type.kind in (TypeKind.FLOAT, TypeKind.DOUBLE):
                    name = f"`{column.name}`"
                    changes = changes.where(f"NOT ({DELETED_COLUMN} AND isnan({name}))")
                    said = f"{self.name}: {_NAN_KEY % column.name}".replace("'", "\\'")
                    one = f"{name} + CAST(0 AS {column.type.kind.value})"
                    wanted[wanted.index(name)] = f"IF(isnan({name}), raise_error('{said}'), {one}) AS {name}"
            kind = f"IF({DELETED_COLUMN}, {KIND_DELETE}, {KIND_INSERT})"
            wanted.append(f"CAST({kind} AS TINYINT) AS {KIND_COLUMN}")
        settings = self.spark.conf
        before = settings.get(_TIMESTAMPS[0])
        settings.set(*_TIMESTAMPS)
        try:
            changes.selectExpr(*wanted).write.parquet(folder.toString())
        finally:
            settings.set(_TIMESTAMPS[0], before)

    def _feed(self, table: Any, io: Any, files: Sequence[Any], scratch: Path) -> list[Any]:
        """Write the files with several writers. Each key of a round is in one file, so their order does not matter."""
        shares = [share for share in (files[each::_WRITERS] for each in range(_WRITERS)) if share]
        if len(shares) < 2:
            return [
                message
                for share in shares
                for message in self._feed_share(self.jvm, table, io, share, scratch)
            ]
        with ThreadPoolExecutor(len(shares)) as threads:
            asked = [
                threads.submit(
                    lambda share: self._feed_share(Jvm(self.spark), table, io, share, scratch), share
                )
                for share in shares
            ]
        return [message for each in asked for message in each.result()]

    def _feed_share(self, jvm: Jvm, table: Any, io: Any, files: Sequence[Any], scratch: Path) -> list[Any]:
        writer = table.newWrite(COMMIT_USER)
        try:
            writer.withIOManager(jvm.paimon.disk.IOManager.create(str(scratch)))
            jvm.write_files(table, writer, io, files)
            return list(writer.prepareCommit(True, 0))
        finally:
            writer.close()

    def _commit_on(
        self, branch: Any, messages: Sequence[Any], head: int | None, properties: Mapping[str, str]
    ) -> int:
        """Commit to a round's branch and return the new snapshot's number.

        A round without rows also makes a snapshot, for its offsets. A compaction must not make an empty snapshot before
        its own.
        """
        compacts = any(not message.compactIncrement().isEmpty() for message in messages)
        number = (head or 0) + 1
        committable = self.jvm.paimon.manifest.ManifestCommittable(number)
        for message in messages:
            committable.addFileCommittable(message)
        for name, value in properties.items():
            committable.addProperty(name, value)
        commit = branch.newCommit(COMMIT_USER)
        try:
            commit.ignoreEmptyCommit(compacts)
            commit.filterAndCommitMultiple(self.jvm.list_of([committable]))
        finally:
            commit.close()
        written = branch.snapshotManager().latestSnapshotId()
        if written != number:
            raise LakeError(
                f"branch {branch.snapshotManager().branch()} of {self.name} is at snapshot {written} and not at"
                f" {number} after its commit: another tiering job wrote to it"
            )
        return number

    def commit(self, base: LakeState, snapshot: int, epoch: int) -> None:
        """See `LakeTable`."""
        table = self._must_load()
        branch = table.switchToBranch(f"{BRANCH_PREFIX}{epoch}")
        self._publish(table, branch, base.head, snapshot)
        try:
            self._protect(table, snapshot)
        except Exception as error:  # noqa: BLE001 - the previous round is still protected
            logger.warning("%s: snapshot %d is not protected from expiry: %s", self.name, snapshot, error)

    def _publish(self, table: Any, branch: Any, head: int | None, number: int) -> None:
        """Make the branch's snapshot `number` main's, if main is at `head`. Raises as `LakeTable.commit` does."""
        snapshots = table.snapshotManager()
        text = branch.snapshotManager().snapshot(number).toJson()
        failure: Exception | None = None
        if snapshots.latestSnapshotIdFromFileSystem() == head:
            try:
                self._put(table, snapshots.snapshotPath(number), text)
            except Exception as error:  # noqa: BLE001 - for any error, only the table knows the outcome
                failure = error
        now = snapshots.latestSnapshotIdFromFileSystem()
        path = snapshots.snapshotPath(number)
        ours = snapshots.snapshotExists(number) and snapshots.snapshot(number).toJson() == text
        # If main moved on and the base is gone, the number may have been free because it was expired.
        if ours and (now == number or (head is not None and snapshots.snapshotExists(head))):
            with contextlib.suppress(Exception):  # only a hint
                snapshots.commitLatestHint(now)
            return
        if now == head and failure is not None:
            raise LakeError(f"{self.name}: the commit failed and changed nothing: {failure}") from failure
        if ours:  # not needed any more, even if it once was main's
            table.fileIO().deleteQuietly(path)
        raise RoundLostError(
            f"{self.name}: main is at snapshot {now}, no longer at {head}: another tiering job committed first"
        ) from failure

    def _put(self, table: Any, path: Any, text: str) -> bool:
        """Create the whole file with this text if it does not exist; return whether it was created."""
        scheme = path.toUri().getScheme()
        if scheme in S3_SCHEMES:
            return create_only(self.spark, path.toString(), text)
        if not table.fileIO().isObjectStore() and scheme in (None, "file"):
            return _link_new(Path(path.toUri().getPath()), text)
        return bool(table.fileIO().tryToWriteAtomic(path, text))

    def _protect(self, table: Any, snapshot: int) -> None:
        """Make expiry stop before this snapshot."""
        table.consumerManager().resetConsumer(TIERED_NAME, self.jvm.paimon.consumer.Consumer(snapshot))

    def maintain(self) -> str:
        """See `LakeTable`: `table.datalake.auto-compaction` and `.auto-expire-snapshot`.

        A table with deletion vectors is always compacted: other engines do not see its rows before.
        """
        settings = self.definition.settings
        done = []
        if settings.datalake_compaction or has_deletion_vectors(self._must_load()):
            done.append(self._compact())
        if settings.datalake_expiry:
            done.append(expire(self.jvm, self._must_load()))
        return ", ".join(each for each in done if each)

    # ---- expiry of partitions, see `partition_expiry.py`

    def partitions(self) -> list[str]:
        """Return the names of the partitions that have rows now."""
        return partition_names(
            self._catalog.listPartitions(self._identifier), self._must_load(), self.definition
        )

    def expired_partitions(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the partitions that are older than the table keeps them, and those whose time cannot be read."""
        return expired_partitions(self.jvm, self._must_load(), self.definition, names)

    def write_without(self, base: LakeState, partitions: Sequence[str], offsets: Offsets, epoch: int) -> int:
        """Write a snapshot without the rows of these partitions on top of `base`, as `write` does."""
        table = self._must_load()
        branch = self._branch(table, base.head, epoch)
        messages = [] if base.head is None else self._cleared(table, base.head, partitions)
        return self._commit_on(branch, messages, base.head, round_properties(self.definition, offsets, epoch))

    def _compact(self) -> str:
        """Compact in a round of its own. Its commit carries the present offsets and may lose to another one."""
        table, state = self._must_load(), self.find_committed()
        if state.head is None:
            return ""
        scratch = Path(tempfile.mkdtemp(prefix="headrace-paimon-"))
        try:
            messages, said = compact(self.jvm, table, self.definition, state.head, COMMIT_USER, scratch)
            if not messages:
                return said
            branch = self._branch(table, state.head, state.epoch)
            properties = round_properties(self.definition, state.offsets, state.epoch)
            number = self._commit_on(branch, messages, state.head, properties)
            self._publish(table, branch, state.head, number)
            self._protect(table, number)
            return said
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            self.discard(state.epoch)

    def discard(self, epoch: int) -> None:
        """See `LakeTable`. Branches of later epochs belong to other tiering jobs and stay."""
        try:
            table = self._load()
            if table is None:
                return
            for name in list(table.branchManager().branches()):
                number = name.removeprefix(BRANCH_PREFIX)
                if name.startswith(BRANCH_PREFIX) and number.isdigit() and int(number) <= epoch:
                    self._drop(table, name)
        except Exception as error:  # noqa: BLE001 - a branch that stays costs space; the next round tries again
            logger.warning("%s: branches of earlier rounds are left for the next round: %s", self.name, error)

    def _drop(self, table: Any, branch: str) -> None:
        table.deleteBranch(branch)

    # ---- reading

    def read(self, snapshot: int | None = None, *, system_columns: bool = False) -> Any:
        """See `LakeTable`. Raises LakeError if the table was never tiered."""
        table = self._must_load()
        number = table.snapshotManager().latestSnapshotId() if snapshot is None else snapshot
        shape = in_lake(self.definition, table.options()) if system_columns else self.definition
        files = [] if number is None else data_files(table, number)
        if all(file.is_read_by_spark for file in files):
            return read_rows(self.spark, table, shape, files)
        return read_pieces(self.spark, self.definition, shape, self._properties, number)

    def snapshots(self) -> Any:
        """See `LakeTable`. Raises LakeError if the table was never tiered."""
        rows = []
        found = sorted(
            self._must_load().snapshotManager().safelyGetAllSnapshots(), key=lambda each: int(each.id())
        )
        for index, each in enumerate(found):
            at = datetime.datetime.fromtimestamp(each.timeMillis() / 1000, datetime.UTC)
            state = committed_in(self.definition, _described(each), each.id())
            parent = each.id() - 1 if index else None
            epoch, offsets = (None, None) if state is None else (state.epoch, self._listed(state.offsets))
            kind, total = each.commitKind().toString().lower(), each.totalRecordCount()
            rows.append((each.id(), parent, at, kind, epoch, offsets, total))
        columns = "snapshot_id bigint, parent_id bigint, committed_at timestamp, operation string,"
        ends = "map<string,map<int,bigint>>" if self.definition.is_partitioned else "map<int,bigint>"
        columns = f"{columns} epoch bigint, offsets {ends}, total_record_count bigint"
        return self.spark.createDataFrame(rows, columns)

    def _listed(self, offsets: Offsets) -> dict[Any, Any]:
        """Return the offsets by bucket, or by partition and bucket."""
        if not self.definition.is_partitioned:
            return dict(offsets)
        listed: dict[str, dict[int, int]] = {}
        for place, offset in in_order(offsets):
            assert isinstance(place, PartitionBucket)
            listed.setdefault(place.partition, {})[place.bucket] = offset
        return listed


def _described(snapshot: Any) -> LakeSnapshot:
    """Describe a Java snapshot. Snapshots are numbered from 1."""
    number = snapshot.id()
    return LakeSnapshot(number, number - 1 or None, snapshot.properties())


def _link_new(path: Path, text: str) -> bool:
    """Create a whole file atomically: write a temporary file and link it, which fails if the name is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4()}.tmp")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True
