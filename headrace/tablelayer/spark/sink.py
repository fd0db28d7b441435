"""Write a DataFrame or a stream into a table, each row exactly once.

    df.write.format("headrace").option("bootstrap.servers", ...).option("table", "db.t").mode("append").save()
    stream.writeStream.format("headrace")....option("checkpointLocation", ...).start()

- `write.mode`: `append` (log tables, their default), `upsert` (PK tables: whole rows), `delete` (by the primary key;
  other columns are ignored), `partial` (only `columns`, which include the key; by default those of the frame; other
  columns keep their values). With `columns`, `delete` clears only these. Without `write.mode`, a frame that has only
  some columns of a PK table is a partial update, as an INSERT with a column list is.
- `row.kind.column`: a text column of the frame with the kind of each row of an upsert: +I, +U, +A (or `insert`,
  `upsert`) or -D (or `delete`). -U rows are skipped, so that a changelog can be written as it is. Such a frame has all
  columns, or `write.mode` says what happens to the others: a partial update clears columns where it deletes.
- `delivery`: `exactly-once` (default) or `at-least-once` (rows go directly into the table: no row is stored twice,
  rows become visible as they come, and a repeated task repeats them).
- `txnAppId`, `txnVersion`: for `df.write` inside `foreachBatch`; a version that this application has already written
  is not written again.

**Exactly once** (R3.5): every run of a task stages its rows on the server under a unique name. When all tasks of the
batch are done, the driver commits one run of each, and only then do rows become visible. The commit carries the query's
id, which is in the checkpoint, and the batch's number, and the server decides each number once. Tasks, speculative
twins and whole batches may be repeated after a restart, in any order and in any number of partitions: the table has all
rows of one run of the batch, once. This also holds for log tables and aggregations, and for a partitioned table as a
whole, whose partitions are created as rows need them. The cost: rows are stored twice for a moment, and become visible
when the batch ends.

A query that starts with a new checkpoint is a new writer. A writer's ledger is kept for 90 days after its last batch; a
query that is restarted after a longer pause may repeat that batch.

Errors that Spark's schema shows (columns, types, the key) are raised before a task starts. Other errors are raised by
the task, with the column and the row.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.tablelayer.client.errors import DataError
from headrace.tablelayer.client.security.settings import Bootstrap
from headrace.tablelayer.client.table.staging import Receipt
from headrace.tablelayer.client.write.conform import conform
from headrace.tablelayer.client.write.writer import CHANGE_COLUMN
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.options.table_options import MergeEngine
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.spark.options import WriteMode, WriteOptions
from headrace.tablelayer.spark.types import arrow_of_spark
from headrace.tablelayer.spark.worker import connection
from headrace.tablelayer.spark.worker import table as open_table

QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"

_UPSERT, _DELETE = int(ChangeType.UPDATE_AFTER), int(ChangeType.DELETE)
_PASSED_OVER = 255
_KINDS = {
    "+I": _UPSERT, "+U": _UPSERT, "+A": _UPSERT, "insert": _UPSERT, "upsert": _UPSERT,
    "-D": _DELETE, "delete": _DELETE, "-U": _PASSED_OVER,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Conversion of a frame's rows to rows of the table; checked on the driver, used in the tasks."""

    bootstrap: Bootstrap
    definition: StoredTable
    mode: WriteMode
    columns: tuple[Column, ...]
    """Columns to write, in the table's order."""
    targets: tuple[int, ...] | None
    row_kind_column: str | None
    only_existing: bool = False
    """Write only rows whose key exists."""

    @property
    def change_type(self) -> int | None:
        return None if self.mode == "append" else _DELETE if self.mode == "delete" else _UPSERT

    def rows(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the table's rows, with CHANGE_COLUMN if each row has its own change type. Raises DataError."""
        path = str(self.definition.path)
        if self.mode == "delete":
            key = self.definition.schema.key_columns
            given = conform(
                batch.select([column.name for column in key]), key, table=path, fill_missing=False
            )
            arrays = [
                given.column(column.name)
                if column.name in given.column_names
                else pa.nulls(given.num_rows, column.type.arrow())
                for column in self.columns
            ]
            names = [column.name for column in self.columns]
            return pa.table(arrays, names=names)
        if self.row_kind_column is None:
            return conform(batch, self.columns, table=path, fill_missing=self.mode != "partial")
        kinds = self._kinds(batch.column(self.row_kind_column))
        plain = batch.drop_columns([self.row_kind_column])
        if (kinds == _PASSED_OVER).any():
            kept = kinds != _PASSED_OVER
            plain, kinds = plain.filter(pa.array(kept)), kinds[kept]
        # A delete needs only its key; the server checks an upsert's NULLs.
        key_names = self.definition.schema.primary_key
        relaxed = [c if c.name in key_names else replace(c, nullable=True) for c in self.columns]
        rows = conform(plain, relaxed, table=path, fill_missing=self.mode != "partial")
        return rows.append_column(CHANGE_COLUMN, pa.array(kinds, pa.uint8()))

    def _kinds(self, values: pa.Array) -> np.ndarray[Any, Any]:
        names = pa.array(list(_KINDS))
        found = pc.index_in(values.cast(pa.string()), value_set=names)
        if found.null_count:
            row = int(pc.index(found.is_null(), True).as_py())
            raise DataError(
                f"{self.definition.path}: row {row} has {values[row].as_py()!r} in the row kind column"
                f" '{self.row_kind_column}'; known kinds are {', '.join(_KINDS)}",
                column=self.row_kind_column,
                row=row,
            )
        kinds: np.ndarray[Any, Any] = np.array(list(_KINDS.values()), np.uint8)[found.to_numpy()]
        return kinds


def plan_write(options: WriteOptions, schema: Any, overwrite: bool) -> WritePlan:
    """Check options and Spark's schema against the table. Raises TableError, DataError or ValueError."""
    if overwrite:
        raise ValueError(
            "mode 'overwrite' would replace the table, which is not possible: use mode('append')"
        )
    server = connection(options.bootstrap)
    definition = server.admin.describe_table(options.table)
    server.security.require("INSERT", definition.path)  # a query without rows would not check this right
    path, keyed = definition.path, definition.is_primary_key_table
    mode, written = _mode_and_columns(options, definition, schema.fieldNames())
    if keyed == (mode == "append"):
        raise TableError(
            TableErrorCode.NOT_A_LOG_TABLE if keyed else TableErrorCode.NOT_A_PRIMARY_KEY_TABLE,
            f"write.mode '{mode}' is impossible: {path} "
            + ("has a primary key: upsert" if keyed else "is a log table: append"),
        )
    kind = options.row_kind_column
    if kind is not None and mode not in ("upsert", "partial"):
        raise ValueError(
            f"row.kind.column applies to upserts and partial updates, not to write.mode '{mode}'"
        )
    names = schema.fieldNames()
    if kind is not None and kind not in names:
        raise DataError(
            f"{path}: the row kind column '{kind}' is missing; the frame has {', '.join(names)}", column=kind
        )
    columns, targets = chosen_columns(definition, written)
    plan = WritePlan(options.bootstrap, definition, mode, columns, targets, kind)
    _check_types(plan, schema)
    return plan


def _mode_and_columns(
    options: WriteOptions, definition: StoredTable, names: Sequence[str]
) -> tuple[WriteMode, Sequence[str] | None]:
    """Return the kind of write, and the columns of a partial update or delete (None: whole rows).

    Raises ValueError for rows with kinds and without columns: a partial update would not delete whole rows.
    """
    known = definition.schema.names  # an unknown column is refused with the others
    given = [name for name in names if name in known and name != options.row_kind_column]
    mode: WriteMode = options.mode or ("upsert" if definition.is_primary_key_table else "append")
    if mode == "partial":
        return mode, given if options.columns is None else options.columns
    missing = [name for name in overwritten_columns(definition) if name not in given]
    if options.mode is not None or not missing:
        return mode, options.columns
    if options.row_kind_column in names:
        raise ValueError(
            f"{definition.path}: the frame has kinds of rows and no column '{missing[0]}': set write.mode to 'upsert'"
            " to write NULL or the default there, or to 'partial' to keep its values; deletions then clear only the"
            " frame's columns"
        )
    return "partial", given


def overwritten_columns(definition: StoredTable) -> list[str]:
    """Return the columns of an existing row that a whole row without them overwrites with NULL or the default."""
    schema, settings = definition.schema, definition.settings
    if not schema.primary_key or settings.merge_engine is MergeEngine.FIRST_ROW:
        return []
    kept = {*schema.primary_key, settings.auto_increment_column}
    return [name for name in schema.names if name not in kept]


def chosen_columns(
    definition: StoredTable, names: Sequence[str] | None
) -> tuple[tuple[Column, ...], tuple[int, ...] | None]:
    """Return the columns of a partial update (`names` and the key), and their ids (None: whole rows).

    Raises TableError for a column that does not exist, and for a NOT NULL one that is left out.
    """
    schema = definition.schema
    if names is None:
        return tuple(schema.columns), None
    schema.select(list(dict.fromkeys(names)))
    wanted = {*names, *schema.primary_key}
    chosen = tuple(column for column in schema.columns if column.name in wanted)
    left_out = [column.name for column in schema.columns if column.name not in wanted and not column.nullable]
    if left_out:
        raise TableError(
            TableErrorCode.INVALID_TARGET_COLUMNS,
            f"column '{left_out[0]}' of {definition.path} is NOT NULL: a partial update cannot leave it out; set"
            " write.mode to 'upsert' to write whole rows, with the default there",
        )
    return chosen, definition.target_ids(chosen)


def _check_types(plan: WritePlan, schema: Any) -> None:
    """Run the tasks' conversion with no rows, to find wrong names and types."""
    fields = []
    for field in schema.fields:
        arrow = arrow_of_spark(field.dataType)
        if arrow is None:
            raise DataError(
                f"{plan.definition.path}: column '{field.name}' is {field.dataType.simpleString()} in Spark, which"
                " no type of a table can hold",
                column=field.name,
            )
        fields.append(pa.field(field.name, arrow))
    if plan.row_kind_column is not None and schema[plan.row_kind_column].dataType.simpleString() != "string":
        raise DataError(
            f"the row kind column '{plan.row_kind_column}' must be text", column=plan.row_kind_column
        )
    if plan.mode == "delete":
        missing = [name for name in plan.definition.schema.primary_key if name not in schema.fieldNames()]
        if missing:
            raise DataError(
                f"{plan.definition.path}: key column '{missing[0]}' is missing; the frame has"
                f" {', '.join(schema.fieldNames())}",
                column=missing[0],
            )
    empty = pa.RecordBatch.from_pylist([], schema=pa.schema(fields))
    plan.rows(empty)


class StagedMessage(WriterCommitMessage):
    """Message of a task to the driver: writer, batch, and receipts."""

    def __init__(self, writer: str, batch_id: int, receipts: Sequence[Receipt]) -> None:
        self.writer = writer
        self.batch_id = batch_id
        self.receipts = tuple(receipts)


class StagedRows:
    """Rows of one run of a task, staged under a unique name."""

    def __init__(self, plan: WritePlan, writer: str, batch_id: int) -> None:
        self._plan = plan
        table = open_table(plan.bootstrap, plan.definition)
        self._staged = table.staged_writer(
            writer,
            batch_id,
            uuid.uuid4().hex,
            plan.targets,
            definition=plan.definition,
            only_existing=plan.only_existing,
        )

    def put(self, batch: pa.RecordBatch) -> pa.Table:
        """Stage rows and return them in the table's form. Raises as `WritePlan.rows` and `AsyncStagedWriter.write`."""
        rows = self._plan.rows(batch)
        if rows.num_rows:
            self._staged.write(rows, change_type=self._plan.change_type)
        return rows

    def finish(self) -> Receipt:
        receipt: Receipt = self._staged.finish()
        return receipt

    def close(self) -> None:
        """Abandon the rows in flight."""
        self._staged.close()


@dataclass(frozen=True, slots=True)
class Sink:
    """Writing that batches and streams share."""

    plan: WritePlan
    delivery: str

    def stage(self, batches: Iterator[pa.RecordBatch], writer: str, batch_id: int) -> StagedMessage:
        """Write a task's rows under a unique name (in a task)."""
        plan = self.plan
        if self.delivery == "at-least-once":
            table = open_table(plan.bootstrap, plan.definition)
            count = 0
            for batch in batches:
                count += batch.num_rows
                if batch.num_rows:
                    table.write_rows(
                        plan.rows(batch),
                        definition=plan.definition,
                        change_type=plan.change_type,
                        target_columns=plan.targets,
                        only_existing=plan.only_existing,
                    )
            return StagedMessage(writer, batch_id, [Receipt("", {}, count)])
        staged = StagedRows(plan, writer, batch_id)
        try:
            for batch in batches:
                staged.put(batch)
            return StagedMessage(writer, batch_id, [staged.finish()])
        except BaseException:
            staged.close()
            raise

    def finish(self, messages: Sequence[Any], *, single: bool, first: Sequence[Receipt] = ()) -> None:
        """Commit the rows that the tasks staged, after the rows of `first` (on the driver)."""
        found = _same_batch(messages)
        if found and self.delivery == "exactly-once":
            table = open_table(self.plan.bootstrap, self.plan.definition)
            receipts = [*first, *(receipt for message in found for receipt in message.receipts)]
            table.commit_staged(found[0].writer, found[0].batch_id, receipts, single=single)

    def give_up(self, messages: Sequence[Any]) -> None:
        """Drop the rows that the tasks staged (on the driver)."""
        found = _same_batch(messages)
        if found and self.delivery == "exactly-once":
            table = open_table(self.plan.bootstrap, self.plan.definition)
            receipts = [receipt for message in found for receipt in message.receipts]
            table.abort_staged(found[0].writer, found[0].batch_id, receipts)


def _same_batch(messages: Sequence[Any]) -> list[StagedMessage]:
    found = [message for message in messages if isinstance(message, StagedMessage)]
    if len({(message.writer, message.batch_id) for message in found}) > 1:
        raise RuntimeError(
            f"tasks of several batches in one commit: {[(m.writer, m.batch_id) for m in found]}"
        )
    return found


class HeadraceBatchWriter(DataSourceArrowWriter):
    """Writer of one DataFrame as a whole: a job that fails leaves nothing."""

    def __init__(self, sink: Sink, writer: str, batch_id: int, single: bool) -> None:
        self.sink = sink
        self.writer = writer
        self.batch_id = batch_id
        self.single = single

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        return self.sink.stage(iterator, self.writer, self.batch_id)

    def commit(self, messages: Sequence[Any]) -> None:
        self.sink.finish(messages, single=self.single)

    def abort(self, messages: Sequence[Any]) -> None:
        self.sink.give_up(messages)


class HeadraceStreamWriter(DataSourceStreamArrowWriter):
    """Writer of a query's micro-batches.

    Its identity comes from the task's local properties, which Spark sets from the checkpoint.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID_PROPERTY)
        batch = None if context is None else context.getLocalProperty(BATCH_ID_PROPERTY)
        if query is None or batch is None:
            raise RuntimeError("Spark set no query id and batch number for this task: use Spark 4.1 or newer")
        return self.sink.stage(iterator, stream_identity(query), int(batch))

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        self.sink.finish(messages, single=False)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        self.sink.give_up(messages)


def stream_identity(query_id: str) -> str:
    """Return the lasting name of a query as a writer."""
    return f"spark-query-{query_id}"


def batch_identity(options: WriteOptions) -> tuple[str, int, bool]:
    """Return one DataFrame's identity: writer name, batch number, and whether this is the writer's only batch."""
    if options.transaction is not None:
        app, version = options.transaction
        return f"spark-app-{app}", version, False
    return f"spark-batch-{uuid.uuid4()}", 0, True


def batch_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> HeadraceBatchWriter:
    """Return the writer for `df.write`."""
    parsed = WriteOptions.parse(options)
    sink = Sink(plan_write(parsed, schema, overwrite), parsed.delivery)
    return HeadraceBatchWriter(sink, *batch_identity(parsed))


def stream_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> HeadraceStreamWriter:
    """Return the writer for `df.writeStream`. It has no side effect: Spark calls it several times per batch."""
    parsed = WriteOptions.parse(options)
    if parsed.transaction is not None:
        raise ValueError("txnAppId applies to df.write: a stream's identity is in its checkpoint")
    return HeadraceStreamWriter(Sink(plan_write(parsed, schema, overwrite), parsed.delivery))
