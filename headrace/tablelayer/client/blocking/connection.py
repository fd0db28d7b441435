"""The blocking connection. Tables, topics and users are imported when they are first used: numpy and pyarrow cost a
fifth of a second, which a command that lists names does not need.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from html import escape
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headrace.protocol.schema import ApiMessage
from headrace.tablelayer import plugins
from headrace.tablelayer.client.blocking.databases import Admin
from headrace.tablelayer.client.blocking.waiting import EXPECTED, LoopThread, rows_of
from headrace.tablelayer.client.config import ClientConfig
from headrace.tablelayer.client.connection import connect_async
from headrace.tablelayer.client.errors import ClientError
from headrace.tablelayer.client.metrics import ClientMetrics
from headrace.tablelayer.client.progress import watched
from headrace.tablelayer.client.security.settings import Bootstrap, ConnectionSettings
from headrace.tablelayer.client.wire.direct import DirectCluster

if TYPE_CHECKING:
    from headrace.tablelayer.client.blocking.kafka import KafkaAdmin
    from headrace.tablelayer.client.blocking.security import SecurityAdmin
    from headrace.tablelayer.client.blocking.table import Table
    from headrace.tablelayer.client.result import SqlResult
    from headrace.tablelayer.client.write.conform import Data
    from headrace.tablelayer.model.table.definition import TableDefinition
    from headrace.tablelayer.model.table.path import TablePath

ResponseT = TypeVar("ResponseT", bound=ApiMessage)


def _session(connection: Connection) -> Any:
    """Make the connection's SQL session. Raises ClientError where SQL is not installed."""
    try:
        return plugins.sql_session(connection)
    except ModuleNotFoundError as error:
        raise ClientError(
            f"SQL needs {error.name}, which is not installed: pip install headrace instead of headrace-client"
        ) from error


def _variables(frame: FrameType) -> Callable[[str], Any]:
    """Return a function that finds a variable of the calling function or of its module, or returns None."""
    return lambda name: frame.f_locals.get(name, frame.f_globals.get(name))


class Connection:
    """A client of one cluster. Make one with `connect`; close it, or use it in `with`."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        config: ClientConfig | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        self.settings = ConnectionSettings.make(bootstrap, properties)
        self.config = config or ClientConfig()
        self._loop = LoopThread()
        try:
            self._connection = self._loop.run(connect_async(self.settings, self.config))
        except BaseException:
            self._loop.stop()
            raise
        self._loop.counts = self._counts
        direct = DirectCluster(self.settings, self.config, self._connection.cluster)
        self._direct = direct if direct.is_possible else None
        self.admin = Admin(self._connection.admin, self._loop)
        self._session: Any = None
        self._session_made = threading.Lock()

    @cached_property
    def kafka(self) -> KafkaAdmin:
        """Administration of topics and groups."""
        from headrace.tablelayer.client.blocking.kafka import KafkaAdmin

        return KafkaAdmin(self._connection.kafka, self._loop)

    @cached_property
    def security(self) -> SecurityAdmin:
        """Administration of users and rights."""
        from headrace.tablelayer.client.blocking.security import SecurityAdmin

        return SecurityAdmin(self._connection.security, self._loop)

    @property
    def bootstrap(self) -> str:
        """The server addresses that it was made with."""
        return self.settings.bootstrap

    def table(self, path: TablePath | str) -> Table:
        """Open a table. TableError TABLE_NOT_FOUND if it does not exist."""
        from headrace.tablelayer.client.blocking.table import Table

        return Table(self._loop.run(self._connection.table(path)), self._loop, self._direct)

    def open_table(self, definition: TableDefinition) -> Table:
        """Open a table by its definition, including its id, without a request to the server."""
        from headrace.tablelayer.client.blocking.table import Table

        return Table(self._connection.open_table(definition), self._loop, self._direct)

    def create_table(
        self,
        path: TablePath | str,
        rows: Data,
        *,
        key: Sequence[str] = (),
        partition_keys: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        comment: str | None = None,
        if_not_exists: bool = False,
    ) -> Table:
        """Create a table with the columns of these rows, write them, and open it.

            connection.create_table("shop.orders", frame, key=["id"])

        `rows` are an Arrow table, a pandas or polars DataFrame, or dicts. Their types become the columns'. `key` names
        the primary key; without one it is a log table. `options` are those of `CREATE TABLE ... WITH`. With
        `if_not_exists`, an existing table is opened and nothing is written. A table whose rows cannot be written is
        dropped again. Raises TableError TABLE_EXISTS, DataError, and the errors of writes.
        """
        from headrace.tablelayer.client.blocking.table import Table

        created = self._connection.create_table(
            path,
            rows,
            key=key,
            partition_keys=partition_keys,
            options=options,
            comment=comment,
            if_not_exists=if_not_exists,
        )
        return Table(self._loop.run(created, rows_of(rows)), self._loop, self._direct)

    def execute(self, statement: str) -> None:
        """Run DDL: CREATE, ALTER or DROP of a DATABASE or TABLE. Semicolons separate several statements.

        Raises DdlError (a TableError) that points at the word it does not understand.
        """
        from headrace.tablelayer.client.admin.ddl import execute  # sqlglot takes half a second to import

        try:
            execute(self.admin, statement)
        except EXPECTED as error:
            error.__traceback__ = None
            raise

    def sql(self, query: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> SqlResult:
        """Run SQL: `connection.sql("SELECT name FROM fruit WHERE id = ?", [1]).to_pandas()`.

        The statements are those of `headrace sql`, with the same engine. `params` replace `?` in order, or `:name` and
        `$name` by name. They are values, never parts of the statement. Several statements give the answer of the last
        one. Tables without a database are in the one of an earlier `USE`, at first `default`. Views last as long as the
        connection. A name that is neither a table nor a topic may be a variable of the caller: a DataFrame of pandas or
        polars, or an Arrow table.

        Raises DdlError (a TableError) that points at a word, TableError, DataError, and SqlError (a ClientError) for
        errors of DuckDB; ClientError if SQL is not installed (`headrace-client` alone).
        """
        try:
            with watched(self._counts):
                answer: SqlResult = self._sql_session().query(query, params, _variables(sys._getframe(1)))
        except EXPECTED as error:
            error.__traceback__ = None
            raise
        answer.watched = partial(watched, self._counts)
        return answer

    def sql_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement for each row of values for its `?`, and return the number of rows written.

        An INSERT of one row writes them all at once. Errors as `sql`.
        """
        return int(self._sql_session().query_many(statement, rows))

    def _sql_session(self) -> Any:
        with self._session_made:
            if self._session is None:
                self._session = _session(self)
            return self._session

    def __repr__(self) -> str:
        return f"<Connection to {self.bootstrap}{', closed' if self._loop.is_stopped else ''}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self)[1:-1])}</p>"

    def call(
        self,
        request: ApiMessage,
        response: type[ResponseT],
        *,
        doing: str,
        repeatable: bool = True,
        changes: bool = False,
        to_controller: bool = False,
        node_id: int | None = None,
    ) -> ResponseT:
        """Send one request of the table extension to any server, one named, or the controller, with retries.

        The answer's error code is raised. `doing` describes the attempt for the error's text. `repeatable` says that
        doing it twice is harmless. `changes` says that an attempt without an answer leaves the outcome unknown.
        """
        return self._loop.run(
            self._connection.cluster.call(
                request,
                response,
                doing=doing,
                repeatable=repeatable,
                changes=changes,
                to_controller=to_controller,
                node_id=node_id,
            )
        )

    def metrics(self) -> ClientMetrics:
        """Return counts of this connection's requests, retries and rows."""
        found = self._connection.metrics()
        if self._direct is None:
            return found
        return replace(found, connections=found.connections + self._direct.connection_count)

    def _counts(self) -> tuple[int, int]:
        found = self._connection.metrics()
        return found.rows_written, found.rows_scanned

    def close(self) -> None:
        """Close the connection. Idempotent. In a forked child, leave the parent's connection open."""
        try:
            self._loop.run(self._connection.close())
        except RuntimeError:
            return  # closed already, or made before a fork
        self._loop.stop()
        if self._direct is not None:
            self._direct.close()  # threads that wait on it go to the loop, which raises ConnectionClosed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def connect(
    bootstrap: Bootstrap = "127.0.0.1:9092",
    config: ClientConfig | None = None,
    properties: Mapping[str, object] | None = None,
) -> Connection:
    """Connect to a cluster. The connection is closed at the end of a `with`.

        with connect("127.0.0.1:9092") as connection: ...

    `bootstrap` names some of its servers: "host:port,host:port". `properties` are Kafka's security properties, named as
    in Java and librdkafka: {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", ...}. None takes those
    of the environment. Raises ConnectionFailed at once if no server answers, AuthenticationFailed if a server refuses
    the credentials or is not trusted.
    """
    try:
        return Connection(bootstrap, config, properties)
    except EXPECTED as error:
        error.__traceback__ = None
        raise


@dataclass(frozen=True, slots=True)
class TableRef:
    """A picklable reference to a table, for other processes, which make their own connection.

    `with ref.connect() as connection: connection.table(ref.path)`.
    """

    bootstrap: Bootstrap
    path: str
    config: ClientConfig = field(default_factory=ClientConfig)

    def connect(self) -> Connection:
        """Return a new connection of this process to the table's cluster."""
        return Connection(self.bootstrap, self.config)
