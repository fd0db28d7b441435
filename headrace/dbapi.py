"""Headrace by Python's Database API 2.0 (PEP 249).

    from headrace import dbapi

    with dbapi.connect("127.0.0.1:9092", "shop") as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT name, price FROM fruit WHERE price < ?", [10])
        print(cursor.fetchall())

Parameters are `?` (`qmark`), or `:name` with a mapping. Rows come as they are fetched. Every statement is carried out
at once: there are no transactions, `commit` does nothing, and `rollback` cannot take anything back. Connections may be
shared by threads, cursors not. `headrace://host:9092/database` is the same for SQLAlchemy (`headrace.sqlalchemy`).
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Self

import headrace
from headrace import ClientConfig, ClientError, KafkaError, SqlResult, TableError, TableErrorCode
from headrace.tablelayer.model.json.python_values import python_values

apilevel = "2.0"
threadsafety = 2
paramstyle = "qmark"


class Warning(Exception):  # noqa: A001, N818 - PEP 249's names
    """Something important that is no error. Never raised here."""


class Error(Exception):
    """Base of all errors; `__cause__` is the client's own."""


class InterfaceError(Error):
    """A cursor or connection is used as it cannot be."""


class DatabaseError(Error):
    """The server, or SQL, said no."""


class DataError(DatabaseError):
    """Data that does not fit the table."""


class OperationalError(DatabaseError):
    """The server cannot be reached, does not let us in, or cannot do it now; or nobody knows what was done."""


class IntegrityError(DatabaseError):
    """What is there already, or must be, is in the way."""


class InternalError(DatabaseError):
    """Never raised here."""


class ProgrammingError(DatabaseError):
    """A statement that makes no sense, or names what is not there."""


class NotSupportedError(DatabaseError):
    """What this server, or Headrace, does not do."""


_BY_CODE = {
    TableErrorCode.DATABASE_EXISTS: IntegrityError,
    TableErrorCode.TABLE_EXISTS: IntegrityError,
    TableErrorCode.PARTITION_EXISTS: IntegrityError,
    TableErrorCode.DATABASE_NOT_EMPTY: IntegrityError,
    TableErrorCode.BUFFER_EXHAUSTED: OperationalError,
    TableErrorCode.SCAN_EXPIRED: OperationalError,
    TableErrorCode.INVALID_ROW: DataError,
}


@contextmanager
def _translated() -> Iterator[None]:
    """The client's errors as PEP 249 names them."""
    try:
        yield
    except headrace.DataError as error:
        raise DataError(str(error)) from error
    except TableError as error:
        raise _BY_CODE.get(error.code, ProgrammingError)(str(error)) from error
    except headrace.UnsupportedRequest as error:
        raise NotSupportedError(str(error)) from error
    except (
        headrace.ConnectionFailed,
        headrace.OutcomeUnknown,
        headrace.AuthenticationFailed,
        KafkaError,
    ) as error:
        raise OperationalError(str(error)) from error
    except (ClientError, ValueError) as error:
        raise ProgrammingError(str(error)) from error


class _Type:
    """A type object: equal to the names of the column types that it stands for."""

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, str) and other.partition("(")[0].partition("<")[0] in self._names
        )

    def __hash__(self) -> int:
        return hash(self._names)


STRING = _Type("STRING", "CHAR")
BINARY = _Type("BYTES", "BINARY")
NUMBER = _Type("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN")
DATETIME = _Type("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ")
ROWID = _Type()

Date = datetime.date
Time = datetime.time
Timestamp = datetime.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> datetime.date:  # noqa: N802
    return datetime.date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> datetime.time:  # noqa: N802
    return datetime.time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> datetime.datetime:  # noqa: N802
    return datetime.datetime(*time.localtime(ticks)[:6])


Description = tuple[str, str, None, None, None, None, bool]


class Connection:
    """Make one with `connect`."""

    Warning = Warning
    Error = Error
    InterfaceError = InterfaceError
    DatabaseError = DatabaseError
    DataError = DataError
    OperationalError = OperationalError
    IntegrityError = IntegrityError
    InternalError = InternalError
    ProgrammingError = ProgrammingError
    NotSupportedError = NotSupportedError

    def __init__(self, client: headrace.Connection, database: str) -> None:
        self.client = client
        """The client's own connection, for what SQL does not say."""
        self.database = database
        """The database of tables that are named without one, when the connection began."""
        self._closed = False

    def cursor(self) -> Cursor:
        """A cursor. InterfaceError if the connection is closed."""
        self.check_open()
        return Cursor(self)

    def execute(self, operation: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> Cursor:
        """A cursor that has carried this out."""
        return self.cursor().execute(operation, parameters)

    def check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the connection is closed")

    def commit(self) -> None:
        """Nothing: what was done is done."""
        self.check_open()

    def rollback(self) -> None:
        """NotSupportedError: what was done is done."""
        self.check_open()
        raise NotSupportedError("there are no transactions: every statement is carried out at once")

    def close(self) -> None:
        """Idempotent."""
        if not self._closed:
            self._closed = True
            self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dbapi connection to {self.client.bootstrap}, {self.database}>"


class Cursor:
    """One statement after the other, and the rows of the last one."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self.description: list[Description] | None = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self._result: SqlResult | None = None
        self._rows: Iterator[tuple[Any, ...]] | None = None
        self._closed = False

    def execute(self, operation: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> Cursor:
        """Carry out a statement. `rowcount`: of rows that were changed, -1 for a query; itself is given back."""
        self._forget()
        with _translated():
            result = self.connection.client.sql(operation, parameters)
        self.rowcount = -1 if result.row_count is None else result.row_count
        if result.columns:
            self._result = result
            self.description = [
                (field.name, _type_name(field.type), None, None, None, None, True) for field in result.schema
            ]
            self._rows = _tuples(result)
        return self

    def executemany(self, operation: str, rows: Sequence[Sequence[Any]]) -> Cursor:
        """Carry out a statement for each of many rows of parameters; an INSERT of one row writes them all at once."""
        self._forget()
        with _translated():
            self.rowcount = self.connection.client.sql_many(operation, rows)
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, None after the last. InterfaceError if there was no query."""
        with _translated():
            return next(self._open_rows(), None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next rows, at most `size` (`arraysize`)."""
        with _translated():
            return list(islice(self._open_rows(), self.arraysize if size is None else size))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows that are left."""
        with _translated():
            return list(self._open_rows())

    def fetch_arrow_table(self) -> Any:
        """All rows as a pyarrow Table, if none was fetched yet."""
        self._open_rows()
        assert self._result is not None
        with _translated():
            return self._result.to_arrow()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while (row := self.fetchone()) is not None:
            yield row

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Nothing."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Nothing."""

    def close(self) -> None:
        """Read no further. Idempotent."""
        if not self._closed:
            self._closed = True
            self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_rows(self) -> Iterator[tuple[Any, ...]]:
        self._check_open()
        if self._rows is None:
            raise InterfaceError("there are no rows: no query was carried out")
        return self._rows

    def _check_open(self) -> None:
        self.connection.check_open()
        if self._closed:
            raise InterfaceError("the cursor is closed")

    def _forget(self) -> None:
        self._check_open()
        self._drop()
        self.description, self.rowcount = None, -1

    def _drop(self) -> None:
        if self._result is not None:
            self._result.close()
        self._result = self._rows = None


def _tuples(result: SqlResult) -> Iterator[tuple[Any, ...]]:
    for batch in result.batches():
        yield from zip(*(python_values(column) for column in batch.columns), strict=True)


def _type_name(arrow_type: Any) -> str:
    """The column type that holds an Arrow type; Arrow's name where none does."""
    from headrace.tablelayer.model.types.column_types import from_arrow

    try:
        return str(from_arrow(arrow_type))
    except TableError:
        return str(arrow_type).upper()


def connect(
    bootstrap: str = "127.0.0.1:9092",
    database: str = "default",
    config: ClientConfig | None = None,
    properties: Mapping[str, object] | None = None,
) -> Connection:
    """Connect to a cluster; `properties` as for `headrace.connect`. OperationalError if nobody answers or lets us in,
    ProgrammingError if there is no such database."""
    with _translated():
        client = headrace.connect(bootstrap, config, properties)
        try:
            client.sql('USE "' + database.replace('"', '""') + '"')
        except BaseException:
            client.close()
            raise
    return Connection(client, database)
