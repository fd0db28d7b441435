"""Reader of a Paimon table without Spark and Java: for the client's union read and for `headrace sql`.

Snapshots and schemas are JSON, manifests are Avro, data files mostly Parquet, in Paimon's file layout (its
documentation, "Concepts: Spec"). Data files may also be ORC or Avro, and have deletion vectors (`paimon_files.py`).
The files of a PK table become rows by the rules in `paimon_read.py`; rows of level 0 count, although Paimon's own
reads of a table with deletion vectors pass them over. The warehouse is a local folder, or a URI that pyarrow opens
(`stores.py`); other warehouses are read in Spark.

Memory: for a log table one batch of rows at a time; for a PK table the uncompacted rows of one bucket at a time.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.lake.adapter import (
    EPOCH_PROPERTY,
    OFFSETS_PROPERTY,
    TABLE_ID_PROPERTY,
    LakeError,
    LakeState,
)
from headrace.tablelayer.lake.columns import COLUMNS_PROPERTY, fields_by_column, in_lake
from headrace.tablelayer.lake.history import LakeSnapshot, find_committed
from headrace.tablelayer.lake.paimon_files import BATCH_ROWS, DeletionVector, read_file
from headrace.tablelayer.lake.paimon_partitions import (
    can_match,
    partition_condition,
    partition_folder,
    partition_values,
)
from headrace.tablelayer.lake.paimon_read import GONE_KINDS, KIND_COLUMN, SEQUENCE_COLUMN, DataFile
from headrace.tablelayer.lake.reader import Piece, filtered, in_our_type, listed_offsets, snapshots_schema
from headrace.tablelayer.lake.stores import open_files
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.filters.conditions import Predicate
from headrace.tablelayer.model.filters.filters import Filter
from headrace.tablelayer.model.lake.offsets import offsets_from_json
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.spark.key_set import KeySet
from headrace.tablelayer.spark.splits import DELETED_COLUMN, last_changes
from headrace.tablelayer.spark.types import spark_arrow_type

_ADD, _DELETE = 0, 1
"""Kinds of manifest entries."""
_SYSTEM_TYPES = {KIND_COLUMN: pa.int8(), SEQUENCE_COLUMN: pa.int64()}


class PaimonReader:
    """A table's copy in a Paimon filesystem catalog, as of the construction of this object."""

    def __init__(self, definition: StoredTable, properties: Mapping[str, str]) -> None:
        """`properties` as for `PaimonTable`. Raises LakeError when the warehouse cannot be opened here."""
        from pyarrow import fs

        self.definition = definition
        self._partition_columns = [definition.schema.column(key) for key in definition.partition_keys]
        warehouse = properties["warehouse"].rstrip("/")
        path = f"{warehouse}/{definition.path.database}.db/{definition.path.table}"
        self._files: Any
        try:
            if "://" in path or path.startswith("file:"):
                self._files, self._folder = open_files(path, properties)
            else:
                self._files, self._folder = fs.LocalFileSystem(), path
        except (OSError, ValueError) as error:
            raise LakeError(
                f"the warehouse {warehouse} of {definition.path} cannot be opened without Spark: {error}; read it in"
                " Spark (tablelayer.lake.union_read)"
            ) from error
        self._schemas: dict[int, dict[str, Any]] = {}
        self._newest = max(self._numbers("schema"), default=None)
        self._snapshots = self._listed()

    def _entries(self, folder: str) -> list[Any]:
        """Return the files and folders in a folder of the table, by name."""
        from pyarrow import fs

        found = self._files.get_file_info(fs.FileSelector(f"{self._folder}/{folder}", allow_not_found=True))
        return sorted(found, key=lambda each: str(each.base_name))

    def _numbers(self, kind: str) -> list[int]:
        """Return the numbers N of the files `kind-N`, sorted."""
        numbers = (each.base_name.removeprefix(f"{kind}-") for each in self._entries(kind))
        return sorted(int(number) for number in numbers if number.isdigit())

    def _listed(self) -> dict[int, dict[str, Any]]:
        """Return snapshots by number, newest first, without those that are expired during the listing."""
        found = {}
        for number in reversed(self._numbers("snapshot")):
            try:
                found[number] = json.loads(self._bytes(f"snapshot/snapshot-{number}"))
            except FileNotFoundError:
                break
        return found

    def _bytes(self, name: str) -> bytes:
        with self._files.open_input_stream(f"{self._folder}/{name}", compression=None) as stream:
            data: bytes = stream.read()
        return data

    def _schema(self, schema_id: int) -> dict[str, Any]:
        if schema_id not in self._schemas:
            self._schemas[schema_id] = json.loads(self._bytes(f"schema/schema-{schema_id}"))
        return self._schemas[schema_id]

    @property
    def options(self) -> Mapping[str, str]:
        """Return the table's present options."""
        options: Mapping[str, str] = {} if self._newest is None else self._schema(self._newest)["options"]
        return options

    @property
    def shape(self) -> StoredTable:
        """See `LakeReader`."""
        return in_lake(self.definition, self.options if self.exists() else None)

    def exists(self) -> bool:
        return self._newest is not None

    # -- metadata

    @property
    def head(self) -> int | None:
        """The newest snapshot."""
        return next(iter(self._snapshots), None)

    def first_snapshot(self) -> int | None:
        """See `LakeReader`."""
        return 1

    def metadata(self, name: str) -> pa.Table:
        """See `LakeReader`."""
        from headrace.tablelayer.lake.metadata import metadata_of
        from headrace.tablelayer.lake.paimon_metadata import TABLES

        return metadata_of(TABLES, name, self)

    def schemas(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the schemas by number, oldest first."""
        for number in self._numbers("schema"):
            yield number, self._schema(number)

    def tags(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the tags, each with the snapshot that it protects, by name."""
        for info in self._entries("tag"):
            if info.base_name.startswith("tag-"):
                yield info.base_name.removeprefix("tag-"), json.loads(self._bytes(f"tag/{info.base_name}"))

    def branches(self) -> Iterator[tuple[str, Any]]:
        """Yield the branches with the times of their folders, by name."""
        for info in self._entries("branch"):
            if info.base_name.startswith("branch-"):
                yield info.base_name.removeprefix("branch-"), info.mtime

    # -- state

    def state(self, known_snapshot: int | None) -> LakeState:
        """See `PaimonTable.find_committed`."""
        if self._newest is None:
            return LakeState()

        def look_up(number: int) -> LakeSnapshot | None:
            if number not in self._snapshots:
                return None
            return LakeSnapshot(number, number - 1 or None, self._snapshots[number].get("properties"))

        owner = self.options.get(TABLE_ID_PROPERTY)
        return find_committed(self.definition, owner, next(iter(self._snapshots), None), look_up)

    def snapshots(self) -> pa.Table:
        """See `LakeReader.snapshots`."""
        rows: list[dict[str, Any]] = []
        for number, snapshot in sorted(self._snapshots.items()):
            properties = snapshot.get("properties") or {}
            text, epoch = properties.get(OFFSETS_PROPERTY), properties.get(EPOCH_PROPERTY)
            rows.append(
                {
                    "snapshot_id": number,
                    "parent_id": number - 1 if rows else None,
                    "committed_at": snapshot["timeMillis"],
                    "operation": snapshot["commitKind"].lower(),
                    "epoch": None if epoch is None else int(epoch),
                    "offsets": None if text is None else listed_offsets(offsets_from_json(text)),
                    "total_record_count": snapshot.get("totalRecordCount"),
                }
            )
        return pa.Table.from_pylist(rows, schema=snapshots_schema(self.definition))

    def past_states(self) -> Iterator[LakeState]:
        """See `LakeReader`."""
        for number, snapshot in self._snapshots.items():
            text = (snapshot.get("properties") or {}).get(OFFSETS_PROPERTY)
            if text is not None:
                yield LakeState(number, number, offsets_from_json(text))

    # -- files

    def _manifest(self, name: str) -> list[dict[str, Any]]:
        data = self._bytes(f"manifest/{name}")
        try:
            return read_manifest(data)
        except ImportError as error:
            raise LakeError(
                f"the lake of {self.definition.path} is read by fastavro, which is not installed: pip install"
                " 'headrace[lake]'"
            ) from error
        except ValueError as error:
            raise LakeError(
                f"manifest {name} of the lake table of {self.definition.path}: {error} (only 'manifest.format' avro is"
                " read here)"
            ) from error

    def data_files(self, snapshot: int, predicate: Predicate | None = None) -> list[DataFile]:
        """Return the data files of a snapshot, by bucket and from the oldest sorted run to the newest.

        Partitions without a row for the predicate are left out. Raises LakeError.
        """
        vectors = self._deletion_vectors(snapshot)
        living = [self._data_file(each, vectors) for each in self.living_entries(snapshot, predicate)]
        return sorted(living, key=lambda each: (each.bucket, each.run, each.path))

    def _deletion_vectors(self, snapshot: int) -> dict[str, DeletionVector]:
        """Return the deletion vectors of a snapshot by the names of their data files."""
        manifest, found = self._snapshots[snapshot].get("indexManifest"), {}
        for entry in self._manifest(manifest) if manifest else ():
            if entry["_KIND"] != _ADD or entry["_INDEX_TYPE"] != "DELETION_VECTORS":
                continue
            path = entry.get("_EXTERNAL_PATH") or f"{self._folder}/index/{entry['_FILE_NAME']}"
            for each in entry["_DELETIONS_VECTORS_RANGES"]:
                found[each["f0"]] = DeletionVector(path, each["f1"], each["f2"])
        return found

    def living_entries(
        self, snapshot: int | None, predicate: Predicate | None = None
    ) -> list[Mapping[str, Any]]:
        """Return the manifest entries of a snapshot's files, each with the partition's folder as `_FOLDER`.

        Partitions without a row for the predicate are left out.
        """
        added: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        removed = set()
        folders = self._folders(predicate)
        for manifest in self.manifests(snapshot):
            for entry in self._manifest(manifest["_FILE_NAME"]):
                file, folder = entry["_FILE"], folders(entry["_PARTITION"])
                if folder is None:
                    continue
                key = (entry["_PARTITION"], entry["_BUCKET"], file["_LEVEL"], file["_FILE_NAME"])
                if entry["_KIND"] == _DELETE:
                    removed.add(key)
                else:
                    added[key] = {**entry, "_FOLDER": folder}
        return [entry for key, entry in added.items() if key not in removed]

    def manifests(self, snapshot: int | None) -> Iterator[Mapping[str, Any]]:
        """Yield the entries of a snapshot's manifest lists; None: there is no snapshot."""
        described = {} if snapshot is None else self._snapshots[snapshot]
        for part in ("baseManifestList", "deltaManifestList"):
            if described.get(part):
                yield from self._manifest(described[part])

    def path_of(self, entry: Mapping[str, Any]) -> str:
        """Return the path of an entry's file."""
        file = entry["_FILE"]
        outside: str | None = file.get("_EXTERNAL_PATH")
        return outside or f"{self._bucket_folder(entry)}/{file['_FILE_NAME']}"

    def _bucket_folder(self, entry: Mapping[str, Any]) -> str:
        data = (self._folder, self.options.get("data-file.path-directory"), entry["_FOLDER"])
        return "/".join([*filter(None, data), f"bucket-{entry['_BUCKET']}"])

    def _folders(self, predicate: Predicate | None) -> Callable[[bytes], str | None]:
        """Return a function from a manifest's partition to its folder, "" without partitions.

        It returns None for a partition without a row for the predicate.
        """
        columns, options = self._partition_columns, self.options
        condition = partition_condition(predicate, columns)

        @cache
        def folder(partition: bytes) -> str | None:
            if not columns:
                return ""
            try:
                values = partition_values(partition, columns)
            except ValueError as error:
                raise LakeError(
                    f"a manifest of the lake table of {self.definition.path} has a partition that does not fit the"
                    f" table: {error}"
                ) from error
            if not can_match(condition, columns, values):
                return None
            return partition_folder(columns, values, options)

        return folder

    def _data_file(self, entry: Mapping[str, Any], vectors: Mapping[str, DeletionVector]) -> DataFile:
        file = entry["_FILE"]
        level = file["_LEVEL"]
        run = (-level, 0 if level else file["_MAX_SEQUENCE_NUMBER"])
        place = self._bucket_folder(entry), entry["_BUCKET"]
        return DataFile(
            self.path_of(entry),
            place,
            run,
            file["_SCHEMA_ID"],
            file["_ROW_COUNT"],
            size_bytes=file["_FILE_SIZE"],
            deleted=vectors.get(file["_FILE_NAME"]),
        )

    # -- rows

    def read(
        self,
        snapshot: int,
        columns: Sequence[Column],
        wanted: Filter | None = None,
        predicate: Predicate | None = None,
        pieces: Collection[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """See `LakeReader`. A piece is a data file, of a PK table a bucket.

        `predicate` skips whole partitions, not files: versions of a key may match differently.
        """
        try:
            files = self.data_files(snapshot, predicate)
            if pieces is not None:
                files = [file for file in files if self._piece_of(file) in pieces]
            rows = (
                self._merged(files, columns)
                if self.definition.is_primary_key_table
                else self._rows(files, columns)
            )
            for batch in rows:
                found = filtered(batch, wanted)
                if found.num_rows:
                    yield found
        except FileNotFoundError as error:
            raise LakeError(
                f"snapshot {snapshot} of the lake table of {self.definition.path} was expired during this read:"
                " read again"
            ) from error

    def pieces(self, snapshot: int, predicate: Predicate | None = None) -> list[Piece]:
        """See `LakeReader`."""
        found: dict[str, Piece] = {}
        for file in self.data_files(snapshot, predicate):
            key = self._piece_of(file)
            known = found.get(key, Piece(key, 0, 0))
            found[key] = Piece(key, known.row_count + file.rows, known.size_bytes + file.size_bytes)
        return list(found.values())

    def _piece_of(self, file: DataFile) -> str:
        """Return the key of a file's piece: versions of a key are in one bucket, and are read together."""
        return str(file.bucket) if self.definition.is_primary_key_table else file.path

    def rows_and_deletions(
        self, snapshot: int, columns: Sequence[Column]
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield the newest version of each row, and whether it is a deletion that is not compacted away yet."""
        files = self.data_files(snapshot)
        if self.definition.is_primary_key_table:
            yield from self._newest_versions(files, columns)
            return
        for batch in self._rows(files, columns):
            yield batch, pa.repeat(pa.scalar(False), batch.num_rows)

    def _merged(self, files: Sequence[DataFile], columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a PK table, one bucket after the other."""
        for batch, deleted in self._newest_versions(files, columns):
            yield batch.filter(pc.invert(deleted))

    def _newest_versions(
        self, files: Sequence[DataFile], columns: Sequence[Column]
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        key = self.definition.schema.primary_key
        names = [column.name for column in columns]
        missing = [self.definition.schema.column(name) for name in key if name not in names]
        needed = [*columns, *missing]
        for _, group in groupby(files, key=lambda file: file.bucket):
            of_bucket = list(group)
            oldest = of_bucket[0].run
            newer = [file for file in of_bucket if file.run != oldest]
            versions = list(last_changes(self._changes(newer, needed), key))
            latest = pa.Table.from_batches(versions).combine_chunks() if versions else None
            replaced = None if latest is None else KeySet(latest, key)
            for batch, kinds in self._changes([file for file in of_bucket if file.run == oldest], needed):
                rows, deleted = batch.select(names), pa.array(kinds == ChangeType.DELETE)
                if replaced is not None:
                    keep = pc.invert(replaced.contains(batch))
                    rows, deleted = rows.filter(keep), deleted.filter(keep)
                yield rows, deleted
            if latest is not None:
                for batch in latest.to_batches(max_chunksize=BATCH_ROWS):
                    yield batch.select(names), batch.column(DELETED_COLUMN)

    def _changes(
        self, files: Sequence[DataFile], columns: Sequence[Column]
    ) -> Iterator[tuple[pa.RecordBatch, np.ndarray[Any, Any]]]:
        """Yield versions of rows with their change types: insert or delete."""
        for batch in self._rows(files, columns, KIND_COLUMN):
            kinds = batch.column(KIND_COLUMN).to_numpy()
            gone = np.isin(kinds, GONE_KINDS)
            yield (
                batch.drop_columns([KIND_COLUMN]),
                np.where(gone, ChangeType.DELETE, ChangeType.INSERT).astype(np.uint8),
            )

    def _rows(
        self, files: Sequence[DataFile], columns: Sequence[Column], *system: str
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows of these files, in the table's own types, followed by Paimon's `system` columns."""
        fields = fields_by_column(self.options.get(COLUMNS_PROPERTY), self.definition, 0)
        for file in files:
            names = {field["id"]: field["name"] for field in self._schema(file.schema_id)["fields"]}
            sources = {column.name: names.get(fields.get(column.id, -1)) for column in columns}
            selected = [*dict.fromkeys(name for name in sources.values() if name is not None), *system]
            # Counting rows needs one column, and any will do.
            selected = selected or [next(iter(names.values()))]
            types = {sources[column.name] or "": spark_arrow_type(column.type) for column in columns}
            for batch in read_file(
                self._files, file.path, file.deleted, selected, {**types, **_SYSTEM_TYPES}
            ):
                arrays = [in_our_type(batch, column, sources[column.name]) for column in columns]
                known = [column.field() for column in columns]
                kept = [batch.schema.field(name) for name in system]
                yield pa.RecordBatch.from_arrays(
                    [*arrays, *(batch.column(name) for name in system)], schema=pa.schema([*known, *kept])
                )


def read_manifest(data: bytes) -> list[dict[str, Any]]:
    """Return the records of an Avro object container file. Raises ValueError if it is damaged or not Avro."""
    import fastavro

    try:
        records: list[dict[str, Any]] = list(fastavro.reader(io.BytesIO(data)))
    except Exception as error:  # for damaged bytes: any error of the codecs and the parser
        raise ValueError(f"it is damaged or not an Avro file: {error!r}") from error
    return records
