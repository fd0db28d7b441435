"""Statements that change rows: the client's calls that they make, and the number of rows.

INSERT upserts or appends; INSERT OVERWRITE is in `overwrite`. UPDATE and DELETE with the whole primary key are a lookup
(does the row exist?) and one write. All others find their rows by a query and write them by key. An UPDATE writes only
the columns that it sets, in existing rows, so that it does not undo simultaneous writes of other clients. Rows of a
query are written as they arrive. If a row does not fit, the rows before it are written, and the error says how many.

A statement of one row is a single request if its table is known from an earlier statement. The server refuses it if the
table was altered since, and the statement runs again the general way; and it counts the rows that existed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.errors import KafkaError
from headrace.tablelayer.client import Connection, DataError, OutcomeUnknown, Table, stopping
from headrace.tablelayer.client.write.conform import conform
from headrace.tablelayer.client.write.definitions import definition_of
from headrace.tablelayer.model.ddl import (
    CreateTableAs,
    Default,
    Delete,
    Expression,
    Insert,
    InsertSelect,
    Select,
    Truncate,
    Update,
)
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.json.python_values import python_rows, python_value
from headrace.tablelayer.model.options.table_options import DeleteBehavior
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.quoting import quoted
from headrace.tablelayer.sql.answer import Answer
from headrace.tablelayer.sql.assign import Assignment
from headrace.tablelayer.sql.duck import connect, in_arrow
from headrace.tablelayer.sql.errors import SqlError
from headrace.tablelayer.sql.keys import are_values
from headrace.tablelayer.sql.overwrite import Overwrite

_ROWS_AT_ONCE = 200_000
_OPEN_MAX = 16
"""Maximum number of tables that stay open between statements."""
_LOOK_SECONDS = 0.05
_LAST_WRITE_SECONDS = 0.1
"""Time that a write gets to end when its statement is stopped."""
_SPEED_FROM_ROWS = 100_000
"""Number of rows from which a rate is shown."""

Query = Callable[[Select], Answer]
Analyze = Callable[[str], Select]


class Writes:
    """Writes rows for statements. `query` answers a SELECT; `analyze` parses one that this class writes."""

    def __init__(self, connection: Connection, query: Query, analyze: Analyze, *, files: bool = True) -> None:
        self._connection = connection
        self._query = query
        self._analyze = analyze
        self._files = files
        self._open: dict[TablePath, Table] = {}
        self._refused: dict[TablePath, StoredTable] = {}
        """Definitions by which the server has refused a write."""
        self.written_count = 0
        """Rows that the running statement has written so far. Another thread may read it."""

    @contextmanager
    def _table(self, path: TablePath) -> Iterator[Table]:
        """Context of a table as it is now. It stays open for the next statement, with its producer id."""
        definition = self._connection.admin.describe_table(path)
        table = self._open.pop(path, None)
        if table is not None and table.definition != definition:
            table.close()
            table = None
        if table is None:
            table = self._connection.open_table(definition)
        with self._in_use(path, table):
            yield table

    @contextmanager
    def _in_use(self, path: TablePath, table: Table) -> Iterator[None]:
        """Context in which another thread does not get this open table."""
        try:
            yield
        finally:
            unused = self._open.pop(path, None)
            self._open[path] = table
            if len(self._open) > _OPEN_MAX:
                unused = self._open.pop(next(iter(self._open)), None)
            if unused is not None:
                unused.close()

    def _at_once(self, path: TablePath, write: Callable[[Table], int | None]) -> int | None:
        """Return the count of a `checked` write of one row to a table that is known. None: nothing was written."""
        table = self._open.pop(path, None)
        if table is None:
            return None
        with self._in_use(path, table):
            definition = table.definition
            if definition.is_partitioned or self._refused.get(path) is definition:
                return None
            try:
                return write(table)
            except (TableError, DataError) as error:  # perhaps only because the definition is old
                if isinstance(error, TableError) and error.code is TableErrorCode.SCHEMA_CHANGED:
                    self._refused = {path: definition}
                return None

    def forget(self) -> None:
        """Ask for the definition of each table again before it is written to."""
        while self._open:
            self._open.popitem()[1].close()

    def insert(self, statement: Insert) -> int:
        if len(statement.rows) == 1 and statement.replaced is None:
            count = self._at_once(statement.path, lambda table: self._insert(table, statement, checked=True))
            if count is not None:
                return count
        with self._table(statement.path) as table:
            return self._insert(table, statement)

    def _insert(self, table: Table, statement: Insert, *, checked: bool = False) -> int:
        names = _names(table, statement.columns, statement.replaced)
        for values in statement.rows:
            if len(values) != len(names):
                raise TableError(
                    TableErrorCode.INVALID_ROW,
                    f"{table.path}: {len(values)} values for {len(names)} columns ({', '.join(names)})",
                )
        columns = table.definition.schema.select(names)
        known = self._worked_out(
            table,
            dict.fromkeys(
                (value.sql, column)
                for values in statement.rows
                for value, column in zip(values, columns, strict=True)
                if isinstance(value, Expression)
            ),
        )
        rows = [
            {
                column.name: known[value.sql, column.name]
                if isinstance(value, Expression)
                else _given(value, column)
                for value, column in zip(values, columns, strict=True)
            }
            for values in statement.rows
        ]
        if statement.replaced is not None:
            return Overwrite(table, statement.replaced).by([rows])
        try:
            self.rows(table, rows, names, named=statement.columns is not None, checked=checked)
        except stopping.Stopped as error:
            error.add_note(f"{count_text(len(rows), 'may be written')}")
            raise
        return len(rows)

    def _worked_out(
        self, table: Table, expressions: Mapping[tuple[str, Column], None]
    ) -> dict[tuple[str, str], Any]:
        """Return the values of expressions for columns, all at one moment."""
        if not expressions:
            return {}
        import duckdb

        listed = list(expressions)
        text = ", ".join(f"({sql}\n) AS v{index}" for index, (sql, _) in enumerate(listed))
        with connect(files=self._files) as database:
            try:
                row = in_arrow(database.sql(self._analyze(f"SELECT {text}").sql)).to_arrow_table()
            except duckdb.Error as error:
                raise SqlError(str(error)) from None
        with Assignment([column for _, column in listed], str(table.path)) as assignment:
            row = assignment.rows(row)
        return {
            (sql, column.name): python_value(row.column(index)[0])
            if column.type.is_nested
            else row.column(index)[0]
            for index, (sql, column) in enumerate(listed)
        }

    def rows(
        self, table: Table, rows: Any, names: Sequence[str], *, named: bool = False, checked: bool = False
    ) -> None:
        """Write rows with these columns. If the statement has `named` them, the other columns keep their values.
        `checked` as with `Table.append`.
        """
        definition = table.definition
        if not definition.is_primary_key_table:
            table.append(rows, checked=checked)
        elif definition.takes_some_columns and (named or len(names) < len(definition.schema.names)):
            table.partial(rows, names, checked=checked)
        else:
            table.upsert(rows, checked=checked)

    def insert_select(self, statement: InsertSelect) -> int:
        """Write the rows of a query. If it reads the table itself, all rows are read before the first is written."""
        table = self._connection.table(statement.path)
        names = _names(table, statement.columns, statement.replaced)
        if statement.replaced is not None:
            overwrite = Overwrite(table, statement.replaced)
            return self._assigned(table, self._query(statement.select), names, overwrite.by)
        answer = self._query(statement.select)
        if any(str(statement.path) in name for name in statement.select.tables):
            _ = answer.rows
        return self.answered(table, answer, names, named=statement.columns is not None)

    def answered(self, table: Table, answer: Answer, names: Sequence[str], *, named: bool = False) -> int:
        """Write an answer's rows into these columns, in order, and return their number. `named` as in `rows`."""

        def write(pieces: Iterator[pa.Table]) -> int:
            return self._each_written(pieces, lambda rows: self.rows(table, rows, names, named=named))

        return self._assigned(table, answer, names, write)

    def _assigned(
        self, table: Table, answer: Answer, names: Sequence[str], write: Callable[[Iterator[pa.Table]], int]
    ) -> int:
        """Call `write` with an answer's rows in the types of these columns, in pieces."""
        columns = table.definition.schema.select(list(names))
        assert answer.schema is not None
        if len(answer.schema) != len(names):
            raise TableError(
                TableErrorCode.INVALID_ROW,
                f"{table.path}: the query gives {len(answer.schema)} columns for {len(names)} ({', '.join(names)})",
            )
        with Assignment(columns, str(table.path)) as assignment:
            return write(map(assignment.rows, _pieces(answer)))

    def _each_written(self, pieces: Iterator[pa.Table], write: Callable[[pa.Table], Any]) -> int:
        """Write each piece while the next one is made; return the number of rows. An error has a note with it.

        When the work is stopped, a piece that is not written soon is given up: some of its rows may be written.
        """
        self.written_count = written = 0
        with ThreadPoolExecutor(1, thread_name_prefix="headrace-sql-write") as writer:
            under_way: tuple[int, Future[Any]] | None = None
            giving_up = stopping.Stop()

            def write_one(piece: pa.Table) -> None:
                with stopping.running(giving_up):
                    write(piece)

            try:
                for piece in pieces:
                    stopping.check()
                    if under_way is not None:
                        _await(under_way[1])
                        self.written_count = written = written + under_way[0]
                        under_way = None
                    if piece.num_rows:
                        under_way = piece.num_rows, writer.submit(write_one, piece)
                if under_way is not None:
                    _await(under_way[1])
                    written += under_way[0]
            except Exception as error:
                more = 0
                if under_way is not None:
                    is_written = _outcome(under_way[1], giving_up)
                    written += under_way[0] if is_written else 0
                    more = under_way[0] if is_written is None else 0
                stop = stopping.current()
                is_stopped = stop is not None and stop.is_set
                if written or is_stopped:
                    end = "the interruption" if is_stopped else "the error"
                    error.add_note(f"{count_text(written, 'written')} before {end}")
                if more:
                    error.add_note(f"some of the next {count_text(more, '').rstrip()} may be written, too")
                raise
        return written

    def create(self, statement: CreateTableAs) -> int | None:
        """Create a table and write its rows; None if it existed. The table is dropped if the write fails."""
        admin = self._connection.admin
        if admin.table_exists(statement.path):
            if statement.if_not_exists:
                return None
            raise TableError(TableErrorCode.TABLE_EXISTS, f"table {statement.path} exists already")
        answer = self._query(statement.select)
        assert answer.schema is not None
        admin.create_table(
            definition_of(
                statement.path,
                answer.schema,
                "the query",
                key=statement.primary_key,
                columns=statement.columns,
                partition_keys=statement.partition_keys,
                options=statement.options,
                comment=statement.comment,
            )
        )
        try:
            table = self._connection.table(statement.path)
            return self.answered(table, answer, answer.schema.names)
        except BaseException as error:
            with stopping.running(None):
                admin.drop_table(statement.path, if_exists=True)
            error.add_note(f"table {statement.path} was dropped")
            raise

    def update(self, statement: Update, require: Callable[[], None]) -> int:
        """Carry out UPDATE. `require` raises if the right is missing, which a write that finds no row does not show."""
        if statement.key is None:
            require()
        else:

            def write(table: Table) -> int | None:
                assignments, computed = self._assignments(table, statement)
                return None if computed else self._changed(table, statement.key, assignments, require)

            count = self._at_once(statement.path, write)
            if count is not None:
                return count
        with self._table(statement.path) as table:
            return self._update(table, statement, require)

    def _assignments(self, table: Table, statement: Update) -> tuple[dict[str, Any], dict[str, Expression]]:
        """Return the values of an UPDATE by column, and those among them that are computed for each row."""
        schema = table.definition.schema
        _must_have_key(table, "UPDATE")
        columns = schema.select(list(statement.assignments))
        assignments = {column.name: _given(statement.assignments[column.name], column) for column in columns}
        changed_key = [name for name in statement.assignments if name in schema.primary_key]
        if changed_key:
            raise TableError(
                TableErrorCode.INVALID_STATEMENT,
                f"UPDATE cannot change the primary key ({', '.join(changed_key)}): "
                "DELETE the row and INSERT another one",
            )
        if table.definition.settings.merge_engine is not None and not table.definition.takes_some_columns:
            raise TableError(
                TableErrorCode.INVALID_STATEMENT,
                f"{table.path} has the merge engine '{table.definition.settings.merge_engine}': UPDATE "
                "cannot change its rows; INSERT a whole row",
            )
        computed = {name: value for name, value in assignments.items() if isinstance(value, Expression)}
        return assignments, computed

    def _changed(
        self,
        table: Table,
        key: Mapping[str, Any] | None,
        assignments: Mapping[str, Any] | None,
        require: Callable[[], None],
    ) -> int | None:
        """Change the row with a key (no assignments: delete it) by one request, and return the number of rows that were
        there. None if that is not possible: the key is not a whole one, or a merge engine decides.
        """
        if table.definition.settings.merge_engine is not None or not _is_whole_key(table, key):
            return None
        assert key is not None
        with _of_one_row(require):
            if assignments is None:
                done = table.delete([key], checked=True)
            else:
                row = {**key, **assignments}
                done = table.partial([row], list(row), only_existing=True, checked=True)
        if done.logged_count is None:
            raise OutcomeUnknown(
                f"{table.path}: the change was made, if there was such a row, which is not known"
            )
        return int(done.logged_count > 0)

    def _update(self, table: Table, statement: Update, require: Callable[[], None]) -> int:
        schema = table.definition.schema
        assignments, computed = self._assignments(table, statement)
        columns = schema.select(list(assignments))
        if not computed and _is_whole_key(table, statement.key):
            assert statement.key is not None
            with _of_one_row(require):
                is_found = self._is_found(table, statement.key, require)
                if is_found:
                    row = {**statement.key, **assignments}
                    table.partial([row], list(row), only_existing=True)
            return int(is_found)
        require()
        names = [*schema.primary_key, *assignments]
        plain = [column for column in columns if column.name not in computed]
        given = {name: value for name, value in assignments.items() if name not in computed}
        one = conform([given], plain, table=str(table.path), fill_missing=False) if given else None
        called = quoted(statement.alias or table.path.table)
        among = f"{called}." if statement.others is not None else ""
        chosen = [f"{among}{quoted(name)}" for name in schema.primary_key]
        chosen += [
            f"({computed[column.name].sql}\n) AS {quoted(f'new {column.name}')}"
            for column in columns
            if column.name in computed
        ]

        def write(rows: pa.Table) -> None:
            if one is not None:
                for field, value in zip(one.schema, one.columns, strict=True):
                    rows = rows.append_column(field, pa.repeat(value[0], rows.num_rows))
            table.partial(rows.select(names), names, only_existing=True)

        if statement.others is None:
            beside = "" if statement.alias is None else f"AS {called}"
            found = self._found(table, chosen, statement.condition, beside)
        else:
            beside = f"AS {called}, {statement.others}"
            found = self._found(table, chosen, statement.condition, beside, distinct=True)
            _must_be_one_of_each(found, len(schema.primary_key), str(table.path))
        found_columns = [*schema.key_columns, *(column for column in columns if column.name in computed)]
        with Assignment(found_columns, str(table.path)) as assignment:
            return self._each_written(map(assignment.rows, _slices(found)), write)

    def delete(self, statement: Delete, require: Callable[[], None]) -> int:
        """Carry out DELETE; `require` as for `update`."""
        if statement.key is None:
            require()
        else:

            def write(table: Table) -> int | None:
                _must_delete(table)
                return self._changed(table, statement.key, None, require)

            count = self._at_once(statement.path, write)
            if count is not None:
                return count
        with self._table(statement.path) as table:
            return self._delete(table, statement, require)

    def _delete(self, table: Table, statement: Delete, require: Callable[[], None]) -> int:
        _must_delete(table)
        primary_key = list(table.definition.schema.primary_key)
        if _is_whole_key(table, statement.key):
            assert statement.key is not None
            with _of_one_row(require):
                is_found = self._is_found(table, statement.key, require)
                if is_found:
                    table.delete([statement.key])
            return int(is_found)
        require()
        called = quoted(statement.alias or table.path.table)
        beside = "" if statement.alias is None and statement.others is None else f"AS {called}"
        beside += "" if statement.others is None else f", {statement.others}"
        chosen = [f"{called}.{quoted(name)}" for name in primary_key]
        rows = self._found(table, chosen, statement.condition, beside, distinct=statement.others is not None)
        return self._each_written(_slices(rows), table.delete)

    def _is_found(self, table: Table, key: Mapping[str, Any], require: Callable[[], None]) -> bool:
        """Return whether there is a row with this key, and check the right to change it unless there is."""
        (is_found,), _ = table.lookup([key], columns=list(table.definition.schema.primary_key))
        if not is_found:
            require()
        return bool(is_found)

    def _found(
        self,
        table: Table,
        chosen: Sequence[str],
        condition: str | None,
        beside: str = "",
        *,
        distinct: bool = False,
    ) -> pa.Table:
        """Return the wanted columns of the rows that a condition is true for, all before anything is written.

        `beside` is the text after the table's name.
        """
        where = "" if condition is None else f" WHERE {condition}"
        path = f"{quoted(table.path.database)}.{quoted(table.path.table)}"
        what = f"{'DISTINCT ' if distinct else ''}{', '.join(chosen)}"
        rows = self._query(self._analyze(f"SELECT {what} FROM {path} {beside}{where}")).rows
        assert rows is not None
        if not (table.definition.is_partitioned and table.reads_lake()):
            return rows
        # Rows that only the lake has, those of expired partitions, cannot be changed.
        rows = pa.table(rows)
        key = list(table.definition.schema.primary_key)
        keys = rows.select(range(len(key))).rename_columns(key)
        return rows.filter(pa.array(table.lookup(keys, columns=key)[0]))

    def truncate(self, statement: Truncate) -> int:
        """Delete all rows: those of a primary-key table one by one, for its readers; a log table's log is cut."""
        table = self._connection.table(statement.path)
        definition = table.definition
        if definition.is_primary_key_table:
            return self.delete(Delete(statement.path), lambda: None)
        if definition.settings.datalake_enabled:
            raise TableError(
                TableErrorCode.INVALID_STATEMENT,
                f"{table.path} is tiered: TRUNCATE would delete its log only, because rows in the lake stay",
            )
        count = table.count()
        for partition, offsets in table.partition_offsets("latest").items():
            path = table.path.of_partition(partition) if partition else table.path
            self._connection.kafka.delete_records(path.topic, offsets)
        return count


@contextmanager
def _of_one_row(require: Callable[[], None]) -> Iterator[None]:
    """Context of requests for one row. After a refusal `require` names the missing right, which saves asking before."""
    try:
        yield
    except KafkaError:
        require()
        raise


def _await(write: Future[Any]) -> None:
    """Wait for a write. Raises its error, and Stopped."""
    while stopping.current() is not None and not wait([write], _LOOK_SECONDS).done:
        stopping.check()
    write.result()


def _outcome(write: Future[Any], giving_up: stopping.Stop) -> bool | None:
    """Return whether a write that is under way was carried out; None if it was given up and is not known."""
    stop = stopping.current()
    if stop is None or not stop.is_set:
        return write.exception() is None
    try:
        return write.exception(_LAST_WRITE_SECONDS) is None
    except TimeoutError:
        giving_up.set()
        return None


def _names(
    table: Table, columns: Sequence[str] | None, replaced: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the columns that a statement writes, without those that `replaced` gives."""
    schema, given = table.definition.schema, replaced or {}
    names = list(columns) if columns is not None else [each for each in schema.names if each not in given]
    schema.select([*names, *given])
    twice = sorted({*names} & {*given})
    if twice:
        raise TableError(
            TableErrorCode.INVALID_STATEMENT,
            f"{table.path}: column '{twice[0]}' has the value of PARTITION; leave it out of the columns",
        )
    return names


def _given(value: Any, column: Column) -> Any:
    """Return a value of a statement, or the column's default for DEFAULT."""
    if not isinstance(value, Default):
        return value
    return None if column.default is None else python_value(column.default_scalar())


def _must_have_key(table: Table, verb: str) -> None:
    if not table.definition.schema.primary_key:
        raise TableError(
            TableErrorCode.NOT_A_PRIMARY_KEY_TABLE,
            f"{table.path} is a log table: its rows cannot be changed by {verb}",
        )


def _must_delete(table: Table) -> None:
    """Raise TableError for a table whose rows cannot be deleted."""
    _must_have_key(table, "DELETE")
    if table.definition.settings.delete_behavior is DeleteBehavior.IGNORE:
        raise TableError(
            TableErrorCode.INVALID_STATEMENT,
            f"{table.path} ignores deletes: 'table.delete.behavior' is 'IGNORE'",
        )


def _must_be_one_of_each(found: pa.Table, key_columns: int, table: str) -> None:
    """Raise TableError if rows of FROM give one row different values. `found` has no equal rows."""
    keys = found.rename_columns([str(place) for place in range(found.num_columns)])
    names = keys.column_names[:key_columns]
    counted = keys.select(names).group_by(names).aggregate([([], "count_all")])
    more = python_rows(counted.filter(pc.greater(counted.column("count_all"), 1)).slice(0, 1))
    if more:
        named = zip(found.column_names, (more[0][name] for name in names), strict=False)
        key = ", ".join(f"{name} = {value}" for name, value in named)
        raise TableError(
            TableErrorCode.INVALID_STATEMENT,
            f"{table}: {more[0]['count_all']} rows of FROM give the row with {key} different values: nothing "
            "was written; leave one of them by WHERE or GROUP BY",
        )


def _is_whole_key(table: Table, key: Mapping[str, Any] | None) -> bool:
    """Return whether a condition names the whole primary key, by literals of the columns' own types."""
    return key is not None and set(key) == set(table.definition.schema.primary_key) and are_values(table, key)


def _pieces(answer: Answer) -> Iterator[pa.Table]:
    """Return an answer's rows in pieces of `_ROWS_AT_ONCE` or more."""
    waiting, count = list[pa.RecordBatch](), 0
    for batch in answer.batches(_ROWS_AT_ONCE):
        waiting.append(batch)
        count += batch.num_rows
        if count >= _ROWS_AT_ONCE:
            yield pa.Table.from_batches(waiting, answer.schema)
            waiting, count = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, answer.schema)


def _slices(rows: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
        yield rows.slice(start, _ROWS_AT_ONCE)


def count_text(rows: int, verb: str, seconds: float | None = None) -> str:
    """Return a text with the number of rows, and the rate of many rows."""
    speed = f" ({rows / seconds:,.0f}/s)" if seconds and rows >= _SPEED_FROM_ROWS else ""
    return f"{rows} row{'' if rows == 1 else 's'} {verb}{speed}"
