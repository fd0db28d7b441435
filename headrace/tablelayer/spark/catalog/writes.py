"""Writes of Spark's catalog: INSERT, INSERT OVERWRITE, UPDATE, DELETE, MERGE, and micro-batches.

Each function answers one request of `helper`. All writes stage rows as the data source's sink does, and become visible
as a whole. A statement that fails in part leaves nothing, and a micro-batch is in the table once.

- **UPDATE and MERGE** mark for each row the columns that they change, by comparing the row that Spark read with the
  new one. Only these columns are written (R6), so concurrent changes of other columns stay, and a row that is deleted
  concurrently stays deleted (R6.10). A row whose key changes is written as a whole. Deletions come first, so that
  `UPDATE t SET id = id + 1` loses no row.
- **INSERT OVERWRITE** of a primary-key table upserts its rows. Then it deletes the table's keys that the query does
  not have: in the whole table, where a condition holds, or in the partitions of the new rows. So readers of the
  changelog see the differences, and no reader sees an empty table. The driver holds the keys of the new rows. Rows
  that others insert while the statement runs may stay. A log table cannot be overwritten, unless it never had a row:
  appended rows stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from headrace.tablelayer.client.security.settings import ConnectionSettings
from headrace.tablelayer.client.table.staging import Receipt
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters.conditions import Predicate
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.replacing import must_be_replaceable
from headrace.tablelayer.spark.batch import HeadraceReader
from headrace.tablelayer.spark.catalog.requests import (
    Request,
    object_of,
    table_definition,
    table_options,
    text_of,
)
from headrace.tablelayer.spark.key_set import KeySet
from headrace.tablelayer.spark.options import ReadOptions, WriteOptions, plain
from headrace.tablelayer.spark.sink import (
    Sink,
    StagedMessage,
    StagedRows,
    WritePlan,
    batch_identity,
    plan_write,
    stream_identity,
)
from headrace.tablelayer.spark.types import conform, spark_arrow_schema, spark_schema
from headrace.tablelayer.spark.worker import connection
from headrace.tablelayer.spark.worker import table as open_table

ROW_KIND_COLUMN = "_headrace_row_kind"
"""Column of the rows of UPDATE, DELETE and MERGE with the kind of change."""
CHANGED_COLUMN = "_headrace_changed"
"""Column of the same rows with the places of the changed columns, as `1,4`; null for a row that is written whole."""
_DELETE = "-D"
_COLUMN_SETS_MAX = 16
"""Maximum sets of columns that one task stages separately; for rows with further sets all columns are written."""
_ALL_COLUMNS = "*"

Overwrite = Literal["all", "where", "partitions"]


class StatementMessage(StagedMessage):
    """Message of a statement's task to the driver: its receipts, and for an overwrite its rows' keys (Arrow stream)."""

    def __init__(
        self,
        writer: str,
        batch_id: int,
        receipts: Sequence[Receipt],
        gone: Receipt | None = None,
        keys: bytes | None = None,
    ) -> None:
        super().__init__(writer, batch_id, receipts)
        self.gone = gone
        self.keys = keys


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, or the micro-batches of one query; sent to the tasks."""

    sink: Sink
    writer: str
    batch_id: int
    single: bool
    by_change: bool
    overwrite: Overwrite | None = None
    predicate: Predicate | None = None
    """Condition of an overwrite "where"."""
    chosen: tuple[str, ...] | None = None
    """Columns of the rows that a partial update writes; the others have Spark's filler. None: all."""

    @property
    def definition(self) -> StoredTable:
        return self.sink.plan.definition

    def stage(self, batches: Iterable[pa.RecordBatch], batch_id: int) -> StagedMessage:
        """Stage a task's rows under unique names (in a task)."""
        if self.by_change:
            with _Changes(self, batch_id) as changes:
                for batch in batches:
                    changes.put(batch)
                return changes.finish()
        if self.overwrite is None:
            given = iter(batches)
            if self.chosen is not None:
                given = (batch.select(list(self.chosen)) for batch in batches)
            return self.sink.stage(given, self.writer, batch_id)
        staged = StagedRows(self.sink.plan, self.writer, batch_id)
        try:
            keys = [self._keys(staged.put(batch)) for batch in batches]
            return StatementMessage(self.writer, batch_id, [staged.finish()], keys=self._packed(keys))
        except BaseException:
            staged.close()
            raise

    def commit(self, messages: Sequence[StagedMessage], batch_id: int) -> None:
        """Make the whole statement visible, deletions first (on the driver)."""
        found = [message for message in messages if isinstance(message, StatementMessage)]
        gone = [message.gone for message in found if message.gone is not None]
        if self.overwrite is not None:
            gone.append(self._stage_gone(found, batch_id))
            messages = messages or [StatementMessage(self.writer, batch_id, [])]
        self.sink.finish(messages, single=self.single, first=gone)

    def abort(self, messages: Sequence[StagedMessage]) -> None:
        """Drop the whole statement (on the driver)."""
        self.sink.give_up(messages)

    # ---- rows that an overwrite deletes

    @property
    def _key_schema(self) -> pa.Schema:
        return spark_arrow_schema(self.definition.schema.key_columns)

    def _keys(self, rows: pa.Table) -> list[pa.RecordBatch]:
        key = rows.select(list(self.definition.schema.primary_key))
        return [conform(batch, self._key_schema) for batch in key.to_batches()]

    def _packed(self, keys: Iterable[list[pa.RecordBatch]]) -> bytes:
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, self._key_schema, options=options) as stream:
            for batches in keys:
                for batch in batches:
                    stream.write_batch(batch)
        return bytes(sink.getvalue())

    def _stage_gone(self, messages: Sequence[StatementMessage], batch_id: int) -> Receipt:
        """Stage the deletion of the keys that are in the table and not in the new rows."""
        schema = self._key_schema
        packed = [message.keys for message in messages if message.keys is not None]
        kept = pa.concat_tables(
            [schema.empty_table(), *(pa.ipc.open_stream(each).read_all() for each in packed)]
        )
        fresh = KeySet(kept, schema.names)
        staged = StagedRows(plan_of_deletions(self.sink.plan), self.writer, batch_id)
        try:
            for batch in self._present(kept):
                staged.put(batch.filter(pc.invert(fresh.contains(batch))))
            return staged.finish()
        except BaseException:
            staged.close()
            raise

    def _present(self, kept: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the table's keys in the overwritten part."""
        predicate = self.predicate
        if self.overwrite == "partitions":
            if not kept.num_rows:
                return
            predicate = partitions_predicate(kept, self.definition.partition_keys)
        plan = self.sink.plan
        given = {"bootstrap.servers": "-", "table": str(plan.definition.path), "scan.mode": "log"}
        if predicate is not None:
            given["where"] = json.dumps(predicate)
        options = replace(ReadOptions.parse(given), bootstrap=ConnectionSettings.make(plan.bootstrap))
        reader = HeadraceReader(options, list(self.definition.schema.primary_key))
        for split in reader.partitions():
            yield from reader.read(split)


class _Changes:
    """Changes of one run of a task of UPDATE, DELETE or MERGE; each kind and set of columns is staged separately."""

    def __init__(self, statement: Statement, batch_id: int) -> None:
        self._statement, self._batch_id = statement, batch_id
        self._gone: StagedRows | None = None
        self._puts: dict[str | None, tuple[list[str], StagedRows]] = {}

    def __enter__(self) -> _Changes:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            for staged in [self._gone, *(each for _, each in self._puts.values())]:
                if staged is not None:
                    staged.close()

    def put(self, batch: pa.RecordBatch) -> None:
        kinds, sets = batch.column(ROW_KIND_COLUMN), batch.column(CHANGED_COLUMN)
        rows = batch.drop_columns([ROW_KIND_COLUMN, CHANGED_COLUMN])
        deleted = pc.equal(kinds, _DELETE)
        if deleted.true_count:
            if self._gone is None:
                self._gone = self._staged(plan_of_deletions(self._statement.sink.plan))
            self._gone.put(rows.filter(deleted))
        if deleted.true_count == len(deleted):
            return
        put = pc.invert(deleted)
        masks: dict[str | None, pa.BooleanArray] = {None: pc.and_(put, pc.is_null(sets))}
        for text in pc.unique(sets.filter(put)).to_pylist():
            if text is None:
                continue
            kind = text if text in self._puts or len(self._puts) < _COLUMN_SETS_MAX else _ALL_COLUMNS
            mask = pc.fill_null(pc.equal(sets, text), False)
            masks[kind] = pc.or_(masks[kind], mask) if kind in masks else mask
            if kind != _ALL_COLUMNS:
                self._columns(kind, rows.schema.names)
        for kind, mask in masks.items():
            if mask.true_count:
                names, staged = self._columns(kind, rows.schema.names)
                staged.put(rows.filter(mask).select(names))

    def finish(self) -> StatementMessage:
        receipts = [staged.finish() for _, staged in self._puts.values()]
        gone = None if self._gone is None else self._gone.finish()
        return StatementMessage(self._statement.writer, self._batch_id, receipts, gone)

    def _columns(self, text: str | None, names: Sequence[str]) -> tuple[list[str], StagedRows]:
        """Return the columns to write and the writer for rows that change these columns (None: new rows)."""
        found = self._puts.get(text)
        if found is None:
            plan = self._statement.sink.plan
            if text is None:
                plan, chosen = replace(plan, mode="upsert", row_kind_column=None), list(names)
            else:
                changed = names if text == _ALL_COLUMNS else [names[int(place)] for place in text.split(",")]
                plan = plan_of_columns(plan, changed)
                chosen = [column.name for column in plan.columns]
            found = self._puts[text] = chosen, self._staged(plan)
        return found

    def _staged(self, plan: WritePlan) -> StagedRows:
        return StagedRows(plan, self._statement.writer, self._batch_id)


def plan_of_columns(plan: WritePlan, changed: Sequence[str]) -> WritePlan:
    """Return the plan that writes these columns of existing rows."""
    schema = plan.definition.schema
    wanted = {*changed, *schema.primary_key}
    columns = tuple(column for column in schema.columns if column.name in wanted)
    return replace(
        plan,
        mode="partial",
        columns=columns,
        targets=plan.definition.target_ids(columns),
        row_kind_column=None,
        only_existing=True,
    )


def plan_of_deletions(plan: WritePlan) -> WritePlan:
    """Return the plan that deletes rows by their key."""
    return replace(
        plan, mode="delete", columns=tuple(plan.definition.schema.columns), targets=None, row_kind_column=None
    )


def partitions_predicate(rows: pa.Table, keys: Sequence[str]) -> Predicate:
    """Return the predicate for rows in the partitions of these rows."""
    values = rows.select(list(keys)).group_by(list(keys)).aggregate([])
    told = [
        [
            "and",
            *(
                ["=", name, value if isinstance(value, (str, int)) else str(value)]
                for name, value in row.items()
            ),
        ]
        for row in values.to_pylist()
    ]
    return told[0] if len(told) == 1 else ["or", *told]


# ---- requests


def begin_write(request: Request) -> str:
    """Return the writer of one statement, or of a query's micro-batches (`query`: its id).

    Spark's schema is that of the rows; rows with ROW_KIND_COLUMN are changes. `left_out` are columns that an INSERT
    does not name: existing rows keep their values, unless the option `write.mode` is `upsert`.
    """
    schema = StructType.fromJson(json.loads(request["schema"]))
    given = table_options(request)
    by_change = ROW_KIND_COLUMN in schema.fieldNames()
    if by_change:
        given |= {"row.kind.column": ROW_KIND_COLUMN, "write.mode": "upsert"}
        schema = StructType([field for field in schema.fields if field.name != CHANGED_COLUMN])
    options, chosen = _of_insert(given, schema, request.get("left_out"))
    if chosen is not None:
        schema = StructType([field for field in schema.fields if field.name in chosen])
    overwrite: Overwrite | None = request.get("overwrite")
    if overwrite is not None:
        definition = table_definition(request)
        if _is_empty_log(
            options, definition
        ):  # a table that CREATE OR REPLACE TABLE ... AS SELECT just created
            overwrite = None
        else:
            must_be_replaceable(definition)
    sink = Sink(plan_write(options, schema, False), options.delivery)
    if overwrite == "partitions" and not sink.plan.definition.partition_keys:
        overwrite = "all"
    if by_change or overwrite is not None:
        sink = replace(sink, delivery="exactly-once")
    query = request.get("query")
    identity = batch_identity(options) if query is None else (stream_identity(query), 0, False)
    predicate = request.get("predicate")
    condition = None if predicate is None else json.loads(predicate)
    return text_of(Statement(sink, *identity, by_change, overwrite, condition, chosen))


def _of_insert(
    given: dict[str, str], schema: StructType, left_out: Sequence[str] | None
) -> tuple[WriteOptions, tuple[str, ...] | None]:
    """Return the options of a write, and the columns that it writes; None: all of them."""
    if left_out is None:
        return WriteOptions.parse(given), None
    stated = next(
        (value.lower() for name, value in given.items() if plain(name) == plain("write.mode")), None
    )
    if stated not in (None, "partial") or not (left_out or stated):
        return WriteOptions.parse(given), None
    if any(plain(name) == "columns" for name in given):
        raise ValueError("the option 'columns' is for df.write: an INSERT names its columns in the statement")
    names = tuple(name for name in schema.fieldNames() if name not in left_out)
    others = {name: value for name, value in given.items() if plain(name) != plain("write.mode")}
    return replace(WriteOptions.parse(others), mode="partial", columns=names), names


def _is_empty_log(options: WriteOptions, definition: StoredTable) -> bool:
    if definition.is_primary_key_table:
        return False
    table = open_table(options.bootstrap, definition)
    ends = table.partition_offsets("latest").values()
    return not any(any(offsets.values()) for offsets in ends) and not table.reads_lake()


def write(request: Request, stream: BinaryIO) -> str:
    """Stage the rows of an Arrow stream; return the task's message to the driver."""
    statement: Statement = object_of(request["writer"])
    with pa.ipc.open_stream(stream) as batches:
        return text_of(statement.stage(batches, _batch(statement, request)))


def commit(request: Request) -> None:
    statement: Statement = object_of(request["writer"])
    statement.commit([object_of(each) for each in request["messages"]], _batch(statement, request))


def abort(request: Request) -> None:
    statement: Statement = object_of(request["writer"])
    statement.abort([object_of(each) for each in request["messages"]])


def _batch(statement: Statement, request: Request) -> int:
    """Return the number of a query's micro-batch."""
    given = request.get("batch")
    return statement.batch_id if given is None else int(given)


def truncate(request: Request) -> bool:
    """Remove all rows of a table: delete those of a PK table, so that changelog readers see it; restart a log.

    Raises TableError(INVALID_STATEMENT) for a log table that is tiered.
    """
    definition, options = table_definition(request), WriteOptions.parse(table_options(request))
    if definition.is_primary_key_table:
        must_be_replaceable(definition)
        sink = Sink(plan_write(options, spark_schema(definition.schema.columns), False), "exactly-once")
        statement = Statement(sink, *batch_identity(options), False, "all")
        statement.commit([], statement.batch_id)
        return True
    if definition.settings.datalake_enabled:
        raise TableError(
            TableErrorCode.INVALID_STATEMENT,
            f"{definition.path} is tiered: TRUNCATE would delete only its log, and the rows in the lake would stay",
        )
    client, table = connection(options.bootstrap), open_table(options.bootstrap, definition)
    for partition, offsets in table.partition_offsets("latest").items():
        path = definition.path.of_partition(partition) if partition else definition.path
        client.kafka.delete_records(path.topic, offsets)
    return True
