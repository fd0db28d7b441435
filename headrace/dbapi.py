"""Headrace as a module of Python's Database API 2.0 (PEP 249).

    from headrace import dbapi

    with dbapi.connect("127.0.0.1:9092", "shop") as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT name, price FROM fruit WHERE price < ?", [10])
        print(cursor.fetchall())

Parameters are `?` (`qmark`), or `:name` with a mapping. Rows are read as they are fetched. Every statement takes effect
at once: there are no transactions, `commit` does nothing, and `rollback` raises. Threads may share a connection but not
a cursor. SQLAlchemy uses `headrace://host:9092/database` (`headrace.sqlalchemy`).
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
    """An important warning. Never raised here."""


class Error(Exception):
    """Base of all errors. `__cause__` is the client's own error."""


class InterfaceError(Error):
    """A wrong use of a cursor or connection, such as one that is closed."""


class DatabaseError(Error):
    """An error of the server or of SQL."""


class DataError(DatabaseError):
    """Data that does not fit the table."""


class OperationalError(DatabaseError):
    """The server cannot be reached, refuses the credentials, or cannot answer now; or the outcome is unknown."""


class IntegrityError(DatabaseError):
    """A database, table or partition that exists already, or a database that is not empty."""


class InternalError(DatabaseError):
    """Never raised here."""


class ProgrammingError(DatabaseError):
    """A statement that cannot be understood, or that names something that does not exist."""


class NotSupportedError(DatabaseError):
    """A request that this server does not support."""


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
    """Raise the client's errors as the errors of PEP 249."""
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
    """A connection to a cluster, made by `connect`."""

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
        """The client's own connection, for calls that SQL does not have."""
        self.database = database
        """The database at first for tables that are named without one."""
        self._closed = False

    def cursor(self) -> Cursor:
        """Return a new cursor. InterfaceError if the connection is closed."""
        self.check_open()
        return Cursor(self)

    def execute(self, operation: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> Cursor:
        """Execute a statement with a new cursor and return the cursor."""
        return self.cursor().execute(operation, parameters)

    def check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the connection is closed")

    def commit(self) -> None:
        """Do nothing: every statement has taken effect already."""
        self.check_open()

    def rollback(self) -> None:
        """Raise NotSupportedError: every statement has taken effect already."""
        self.check_open()
        raise NotSupportedError(
            "cannot roll back: there are no transactions, every statement takes effect at once"
        )

    def close(self) -> None:
        """Close the connection. Idempotent."""
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
    """Executes statements one after the other and reads the rows of the last one."""

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
        """Execute a statement and return the cursor. `rowcount` is the number of changed rows, -1 for a query."""
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
        """Execute a statement for each row of parameters. An INSERT of one row writes them all at once."""
        self._forget()
        with _translated():
            self.rowcount = self.connection.client.sql_many(operation, rows)
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, None after the last. InterfaceError if there was no query."""
        with _translated():
            return next(self._open_rows(), None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """Return the next rows, at most `size` (default: `arraysize`)."""
        with _translated():
            return list(islice(self._open_rows(), self.arraysize if size is None else size))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the remaining rows."""
        with _translated():
            return list(self._open_rows())

    def fetch_arrow_table(self) -> Any:
        """Return all rows as a pyarrow Table. Call it before any row is fetched."""
        self._open_rows()
        assert self._result is not None
        with _translated():
            return self._result.to_arrow()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while (row := self.fetchone()) is not None:
            yield row

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Do nothing."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close the cursor and its query. Idempotent."""
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
            raise InterfaceError("there are no rows to fetch: execute a query first")
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
    """Return the column type for an Arrow type, or Arrow's name if there is none."""
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
    """Connect to a cluster; `properties` as for `headrace.connect`.

    Raises OperationalError if no server answers or accepts the credentials, ProgrammingError for an unknown database.
    """
    with _translated():
        client = headrace.connect(bootstrap, config, properties)
        try:
            client.sql('USE "' + database.replace('"', '""') + '"')
        except BaseException:
            client.close()
            raise
    return Connection(client, database)
