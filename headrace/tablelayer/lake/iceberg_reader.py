"""Reader of an Iceberg table without Spark, by pyiceberg: for the client's union read and for `headrace sql`.

Position deletes and deletion vectors, which tiering writes, are applied. pyiceberg refuses equality deletes, which only
another writer can have added. The catalog is the server's: a Hadoop catalog is read through its folder's version hint,
any other through pyiceberg's catalog of that type. The metadata is read once, so head, offsets and columns are
consistent during concurrent tiering.

Memory: one data file with the selected columns at a time.
"""

from __future__ import annotations

import gzip
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.tablelayer.lake.adapter import (
    EPOCH_PROPERTY,
    OFFSETS_PROPERTY,
    TABLE_ID_PROPERTY,
    TIERED_NAME,
    LakeError,
    LakeState,
)
from headrace.tablelayer.lake.columns import COLUMNS_PROPERTY, fields_by_column, in_lake
from headrace.tablelayer.lake.history import LakeSnapshot, find_committed
from headrace.tablelayer.lake.reader import Piece, filtered, in_our_type, listed_offsets, snapshots_schema
from headrace.tablelayer.lake.stores import iceberg_properties
from headrace.tablelayer.model.filters.conditions import Predicate
from headrace.tablelayer.model.filters.filters import Filter
from headrace.tablelayer.model.lake.offsets import offsets_from_json
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.types.column_types import TypeKind

_GZIP = b"\x1f\x8b"
_PRUNED_KINDS = frozenset({TypeKind.INT, TypeKind.BIGINT, TypeKind.STRING})
_COMPARISONS = {
    "=": "EqualTo", "<": "LessThan", "<=": "LessThanOrEqual", ">": "GreaterThan", ">=": "GreaterThanOrEqual",
}  # fmt: skip


class IcebergReader:
    """A table's copy in an Iceberg catalog, as of the construction of this object."""

    def __init__(self, definition: StoredTable, properties: Mapping[str, str]) -> None:
        """`properties` as for `IcebergTable`. Raises LakeError: pyiceberg is missing, or cannot read the catalog."""
        self.definition = definition
        self.properties = properties
        self.table: Any = _load(definition, iceberg_properties(properties))

    @property
    def shape(self) -> StoredTable:
        """See `LakeReader`."""
        return in_lake(self.definition, None if self.table is None else self.table.properties)

    def exists(self) -> bool:
        return self.table is not None

    @property
    def metadata_location(self) -> str:
        """Location of the table's metadata file, as of the construction of this object."""
        return str(self.table.metadata_location)

    def metadata_text(self) -> str:
        """Return the metadata file as JSON text, including fields that pyiceberg does not know."""
        with self.table.io.new_input(self.metadata_location).open() as stream:
            found: bytes = stream.read()
        return (gzip.decompress(found) if found.startswith(_GZIP) else found).decode()

    def state(self, known_snapshot: int | None) -> LakeState:
        """See `LakeTable.find_committed`."""
        if self.table is None:
            return LakeState()
        head, tag = self.table.current_snapshot(), self.table.refs().get(TIERED_NAME)

        def look_up(number: int) -> LakeSnapshot | None:
            found = self.table.snapshot_by_id(number)
            return None if found is None else LakeSnapshot(number, found.parent_snapshot_id, _summary(found))

        return find_committed(
            self.definition,
            self.table.properties.get(TABLE_ID_PROPERTY),
            None if head is None else head.snapshot_id,
            look_up,
            known_snapshot if tag is not None and tag.snapshot_id == known_snapshot else None,
        )

    def snapshots(self) -> pa.Table:
        """Return a row for each remaining snapshot, oldest first, in `snapshots_schema`."""
        rows = []
        found = [] if self.table is None else self.table.metadata.snapshots
        for snapshot in sorted(found, key=lambda each: (each.timestamp_ms, each.snapshot_id)):
            summary = _summary(snapshot)
            text, epoch = summary.get(OFFSETS_PROPERTY), summary.get(EPOCH_PROPERTY)
            total = summary.get("total-records")
            rows.append(
                {
                    "snapshot_id": snapshot.snapshot_id,
                    "parent_id": snapshot.parent_snapshot_id,
                    "committed_at": snapshot.timestamp_ms,
                    "operation": None if snapshot.summary is None else snapshot.summary.operation.value,
                    "epoch": None if epoch is None else int(epoch),
                    "offsets": None if text is None else listed_offsets(offsets_from_json(text)),
                    "total_record_count": None if total is None else int(total),
                }
            )
        return pa.Table.from_pylist(rows, schema=snapshots_schema(self.definition))

    def first_snapshot(self) -> int | None:
        """See `LakeReader`. A snapshot whose parent was expired by pyiceberg has no parent either."""
        found = [] if self.table is None else self.table.metadata.snapshots
        first = (each for each in found if each.parent_snapshot_id is None)
        return next((each.snapshot_id for each in first if (each.sequence_number or 0) <= 1), None)

    def metadata(self, name: str) -> pa.Table:
        """See `LakeReader`."""
        from headrace.tablelayer.lake.iceberg_metadata import TABLES
        from headrace.tablelayer.lake.metadata import metadata_of

        return metadata_of(TABLES, name, self)

    def past_states(self) -> Iterator[LakeState]:
        """See `LakeReader`."""
        found = [] if self.table is None else self.table.metadata.snapshots
        for each in sorted(found, key=lambda each: (each.timestamp_ms, each.snapshot_id), reverse=True):
            text = _summary(each).get(OFFSETS_PROPERTY)
            if text is not None:
                yield LakeState(each.snapshot_id, each.snapshot_id, offsets_from_json(text))

    def read(
        self,
        snapshot: int,
        columns: Sequence[Column],
        wanted: Filter | None = None,
        predicate: Predicate | None = None,
        pieces: Collection[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """See `LakeReader`. A piece is a data file."""
        from pyiceberg.io.pyarrow import ArrowScan

        from headrace.tablelayer.lake.iceberg_projection import keep_nulls

        keep_nulls()
        at = self.table.snapshot_by_id(snapshot)
        schemas = self.table.schemas()
        names = {field.field_id: field.name for field in schemas[at.schema_id].fields}
        fields = fields_by_column(self.table.properties.get(COLUMNS_PROPERTY), self.definition, 1)
        sources = {column.name: names.get(fields.get(column.id, -1)) for column in columns}
        selected = tuple(name for name in sources.values() if name is not None)
        # Counting rows needs one column, and any will do.
        selected = selected or (next(iter(names.values())),)
        row_filter = _pruning(predicate, {column.name: column for column in columns}, sources)
        scan = self.table.scan(row_filter=row_filter, selected_fields=selected, snapshot_id=snapshot)
        arrow = ArrowScan(self.table.metadata, self.table.io, scan.projection(), scan.row_filter)
        schema = pa.schema([column.field() for column in columns])
        for task in scan.plan_files():
            if pieces is not None and task.file.file_path not in pieces:
                continue
            for batch in arrow.to_record_batches([task]):
                if not batch.num_rows:
                    continue
                arrays = [in_our_type(batch, column, sources[column.name]) for column in columns]
                rows = filtered(pa.RecordBatch.from_arrays(arrays, schema=schema), wanted)
                if rows.num_rows:
                    yield rows

    def pieces(self, snapshot: int, predicate: Predicate | None = None) -> list[Piece]:
        """See `LakeReader`."""
        at = self.table.snapshot_by_id(snapshot)
        names = {field.field_id: field.name for field in self.table.schemas()[at.schema_id].fields}
        fields = fields_by_column(self.table.properties.get(COLUMNS_PROPERTY), self.definition, 1)
        columns = {column.name: column for column in self.shape.schema.columns}
        sources = {name: names.get(fields.get(column.id, -1)) for name, column in columns.items()}
        row_filter = _pruning(predicate, columns, sources)
        return [
            Piece(task.file.file_path, int(task.file.record_count), int(task.file.file_size_in_bytes))
            for task in self.table.scan(row_filter=row_filter, snapshot_id=snapshot).plan_files()
        ]


def _summary(snapshot: Any) -> Mapping[str, str]:
    found: Mapping[str, str] = {} if snapshot.summary is None else snapshot.summary.additional_properties
    return found


def _load(definition: StoredTable, properties: Mapping[str, str]) -> Any:
    """Load pyiceberg's table; None if it does not exist yet."""
    path = definition.path
    try:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise LakeError(
            f"the lake of {path} is read by pyiceberg, which is not installed: pip install 'headrace[lake]'"
        ) from error
    try:
        if properties.get("type", "hadoop") == "hadoop" and "catalog-impl" not in properties:
            folder = f"{properties['warehouse'].rstrip('/')}/{path.database}/{path.table}"
            metadata = _newest_metadata(folder, properties)
            return None if metadata is None else StaticTable.from_metadata(metadata, dict(properties))
        from pyiceberg.catalog import load_catalog

        return load_catalog("lake", **properties).load_table((path.database, path.table))
    except (NoSuchNamespaceError, NoSuchTableError):
        return None
    except Exception as error:
        raise LakeError(f"the lake table of {path} cannot be read: {error}") from error


def _newest_metadata(folder: str, properties: Mapping[str, str]) -> str | None:
    """Return the newest metadata file of a Hadoop catalog's table.

    The hint may be behind when a writer died between commit and hint, so later versions are tried too.
    """
    from pyiceberg.io import load_file_io

    hint = f"{folder}/metadata/version-hint.text"
    files = load_file_io(dict(properties), hint)
    try:
        with files.new_input(hint).open() as stream:
            version = int(stream.read())
    except FileNotFoundError:
        version = 0
    found = None
    while files.new_input(f"{folder}/metadata/v{version or 1}.metadata.json").exists():
        version = version or 1
        found = f"{folder}/metadata/v{version}.metadata.json"
        version += 1
    return found


def _pruning(
    predicate: Predicate | None, columns: Mapping[str, Column], sources: Mapping[str, str | None]
) -> Any:
    """Translate the parts of a predicate that Iceberg's statistics evaluate in the same way; never narrower."""
    from pyiceberg import expressions as e

    if predicate is None:
        return e.AlwaysTrue()
    word, *parts = predicate
    if word in ("and", "or"):
        combined = e.And if word == "and" else e.Or
        found = [_pruning(part, columns, sources) for part in parts]
        result = found[0]
        for other in found[1:]:
            result = combined(result, other)
        return result
    if word in _COMPARISONS and parts[0] in columns and columns[parts[0]].type.kind in _PRUNED_KINDS:
        source, value = sources[parts[0]], parts[1]
        wanted: type = str if columns[parts[0]].type.kind is TypeKind.STRING else int
        if source is not None and type(value) is wanted:
            return getattr(e, _COMPARISONS[word])(source, value)
    return e.AlwaysTrue()
