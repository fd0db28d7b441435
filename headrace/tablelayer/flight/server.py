"""The Flight SQL server: a client's request becomes one statement that reads, and its rows are streamed.

Nothing is kept between two requests. A ticket is the statement itself, and the handle of a prepared statement has it
also with its bound values, so that no client can leave anything behind. A query is bound to its tables' columns when it
is planned, and runs when its rows are requested. Rows that a client does not take are not read. Clients authenticate by
the console's `Access`: by a password, for which they get a token, or by a bearer token. They have the rights of the
console's connection.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from headrace.tablelayer.client import ClientError, Connection, KafkaError
from headrace.tablelayer.console.access import Access
from headrace.tablelayer.flight.messages import MessageError, bare, packed, unpacked
from headrace.tablelayer.flight.metadata import SCHEMAS, Metadata
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.json.python_values import python_value
from headrace.tablelayer.sql.parameters import bind, places_count
from headrace.tablelayer.sql.select import Plan
from headrace.tablelayer.sql.session import Session

logger = logging.getLogger("headrace.flight")

STREAMS_MAX: Final = 32
"""Streams at a time. Each has a DuckDB or a scan of the server until its client has all rows or is gone."""
BATCH_BYTES_MAX: Final = 2 << 20
"""Maximum size of a message. Clients accept 4 MB (gRPC's default) to 16 MB (ADBC's)."""
STATEMENT_BYTES_MAX: Final = 1 << 20
_CREATE, _CLOSE = "CreatePreparedStatement", "ClosePreparedStatement"
_HARMLESS: Final = ("CloseSession", "CancelFlightInfo")
"""Actions that are accepted and do nothing."""


class FlightSql(flight.FlightServerBase):
    """Serves from its creation until `close`. `host` and `port` (0: a free one) are a listener's.

    The caller closes `connection`. Raises OSError if it cannot listen on the address.
    """

    def __init__(self, connection: Connection, access: Access, host: str, port: int, version: str) -> None:
        self._connection = connection
        self._metadata = Metadata(connection, version)
        self._streams = threading.Semaphore(STREAMS_MAX)
        self._closing = threading.Event()
        place = f"[{host}]" if ":" in host else host
        try:
            super().__init__(
                f"grpc://{place}:{port}", auth_handler=_NoHandshake(), middleware={"access": _Door(access)}
            )
        except (pa.ArrowException, flight.FlightError) as error:
            logger.debug("gRPC did not start", exc_info=error)
            raise OSError(
                f"cannot listen on {place}:{port}: the port is in use, or the address is not this machine's"
            ) from None

    def close(self, seconds: float) -> bool:
        """Stop: streams end at their next rows. Return whether all have ended within `seconds`."""
        self._closing.set()
        ending = threading.Thread(target=self.shutdown, name="headrace-flight-close", daemon=True)
        ending.start()
        ending.join(seconds)
        return not ending.is_alive()

    # -- Flight's own calls

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        schema, ticket = self._planned(descriptor)
        return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], -1, -1)

    def get_schema(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.SchemaResult:
        return flight.SchemaResult(self._planned(descriptor)[0])

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        with _said():
            name, message = unpacked(ticket.ticket)
            if name in SCHEMAS:
                return flight.RecordBatchStream(self._metadata.rows(name, message))
            if name != "TicketStatementQuery":
                raise MessageError(f"a ticket cannot be a {name}")
            return self._stream(self._plan(_text(message.statement_handle)))

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Bind one row of values to a prepared statement's placeholders."""
        with _said():
            name, message = _command(descriptor)
            if name != "CommandPreparedStatementQuery":
                raise MessageError(
                    "this server only reads; run statements that change something with headrace sql"
                )
            prepared = _prepared(message.prepared_statement_handle)
            values = _one_row(reader)
            bound = _Prepared(prepared.query, bind(prepared.query, values) if values else None)
            result = bare("DoPutPreparedStatementResult", prepared_statement_handle=bound.handle())
            writer.write(pa.py_buffer(result))

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        return [(_CREATE, "Prepare a statement with placeholders."), (_CLOSE, "Does nothing: none is kept.")]

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
        with _said():
            if action.type == _CREATE:
                _, message = unpacked(action.body.to_pybytes())
                return iter([self._prepared(message.query)])
            if action.type == _CLOSE or action.type in _HARMLESS:
                return iter(())
            raise MessageError(f"there is no action {action.type[:100]}: this server only reads")

    # -- statements

    def _session(self) -> Session:
        return Session(self._connection, files=False)

    def _plan(self, query: str) -> Plan:
        return self._session().reading(_bounded(query))

    def _planned(self, descriptor: flight.FlightDescriptor) -> tuple[pa.Schema, bytes]:
        """Return (schema of the rows, ticket for them) of a command."""
        with _said():
            name, message = _command(descriptor)
            if name in SCHEMAS:
                return SCHEMAS[name](message), descriptor.command
            if name == "CommandStatementQuery":
                query = message.query
            elif name == "CommandPreparedStatementQuery":
                prepared = _prepared(message.prepared_statement_handle)
                query = prepared.query if prepared.bound is None else prepared.bound
            else:
                raise MessageError(
                    "this server only reads; run statements that change something with headrace sql"
                )
            return self._plan(query).schema(), packed("TicketStatementQuery", statement_handle=query.encode())

    def _prepared(self, query: str) -> bytes:
        count = places_count(_bounded(query))
        rows = self._plan(bind(query, [None] * count) if count else query).schema()
        places = self._session().places(query) if count else pa.schema([])
        return packed(
            "ActionCreatePreparedStatementResult",
            prepared_statement_handle=_Prepared(query).handle(),
            dataset_schema=rows.serialize().to_pybytes(),
            parameter_schema=places.serialize().to_pybytes() if count else b"",
        )

    def _stream(self, plan: Plan) -> flight.FlightDataStream:
        if not self._streams.acquire(blocking=False):
            raise flight.FlightUnavailableError(
                f"{STREAMS_MAX} queries are running, which is the limit: try again later"
            )
        try:
            rows = plan.run()
        except BaseException:
            self._streams.release()
            raise
        batches = rows if isinstance(rows, pa.RecordBatchReader) else rows.to_batches()
        return flight.GeneratorStream(rows.schema, _Rows(batches, self._closing, self._streams.release))


class _Rows:
    """Batches of a size that clients accept. At their end, or if the client is gone, `done` is called once."""

    def __init__(self, batches: Any, closing: threading.Event, done: Callable[[], None]) -> None:
        self._pieces = self._all(batches)
        self._closing = closing
        self._done: Callable[[], None] | None = done

    def __iter__(self) -> _Rows:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            with _said():
                if self._closing.is_set():
                    raise flight.FlightUnavailableError("the server is stopping")
                return next(self._pieces)
        except BaseException:
            self._end()
            raise

    def __del__(self) -> None:
        self._end()  # a client that has disconnected takes no more rows

    def _end(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            self._pieces.close()
            done()

    @staticmethod
    def _all(batches: Any) -> Generator[pa.RecordBatch, None, None]:
        for batch in batches:
            yield from pieces_of(batch)


def pieces_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch in order into pieces of at most BATCH_BYTES_MAX, or of one row."""
    if batch.nbytes <= BATCH_BYTES_MAX or batch.num_rows <= 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from pieces_of(batch.slice(0, half))
    yield from pieces_of(batch.slice(half))


# -- authentication


class _NoHandshake(flight.ServerAuthHandler):
    """Accepts Flight's handshake without content: clients authenticate by headers."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        return None

    def is_valid(self, token: bytes) -> bytes:
        return b""


class _Door(flight.ServerMiddlewareFactory):
    """Checks the password or token of every call. The token for a password is valid while the server runs."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._given = secrets.token_urlsafe(32)

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Any]) -> _Named | None:
        found = next((value for name, value in headers.items() if name.lower() == "authorization"), [""])
        said = found[0] if isinstance(found[0], str) else found[0].decode("latin-1")
        scheme, _, text = said.partition(" ")
        if scheme.lower() == "bearer" and secrets.compare_digest(text.strip().encode(), self._given.encode()):
            return None
        if not self._access.admits(said):
            raise flight.FlightUnauthenticatedError(
                "this server requires authentication: give a password or a token"
            )
        return _Named(self._given) if scheme.lower() == "basic" else None


class _Named(flight.ServerMiddleware):
    def __init__(self, token: str) -> None:
        self._token = token

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}"}


# -- messages and errors


def _command(descriptor: flight.FlightDescriptor) -> tuple[str, Any]:
    if descriptor.descriptor_type != flight.DescriptorType.CMD:
        raise MessageError("the descriptor is a path: give a Flight SQL command")
    return unpacked(descriptor.command)


def _text(handle: bytes) -> str:
    try:
        return handle.decode()
    except UnicodeDecodeError:
        raise MessageError("this is not the handle of a statement") from None


class _Prepared(msgspec.Struct, array_like=True):
    """A prepared statement, and the same with the values that were bound last. Clients bind others to it later."""

    query: str
    bound: str | None = None

    def handle(self) -> bytes:
        return msgspec.json.encode(self)


def _prepared(handle: bytes) -> _Prepared:
    try:
        return msgspec.json.decode(handle, type=_Prepared)
    except msgspec.DecodeError:
        raise MessageError("this is not the handle of a prepared statement") from None


def _bounded(query: str) -> str:
    if len(query) > STATEMENT_BYTES_MAX:
        raise MessageError(
            f"the statement has {len(query)} characters, but at most {STATEMENT_BYTES_MAX} are allowed"
        )
    return query


def _one_row(reader: Any) -> list[Any]:
    values: list[Any] | None = None
    for chunk in reader:
        batch = chunk.data
        if batch is None or not batch.num_rows:
            continue
        if values is not None or batch.num_rows > 1:
            raise MessageError("a query takes one row of values, not several")
        values = [python_value(column[0]) for column in batch.columns]
    return values or []


@contextmanager
def _said() -> Iterator[None]:
    """Raise errors as Flight's, in a sentence: for others Flight would send the traceback to the client."""
    try:
        yield
    except (flight.FlightError, StopIteration):
        raise
    except (KafkaError, TableError) as error:
        text = str(getattr(error, "message", None) or error)
        if error.code.name.endswith("AUTHORIZATION_FAILED"):
            raise flight.FlightUnauthorizedError(text) from None
        raise flight.FlightServerError(text) from None
    except (ClientError, MessageError) as error:
        raise flight.FlightServerError(str(error)) from None
    except Exception:
        logger.exception("a request of Flight SQL failed")
        raise flight.FlightInternalError("an internal error: the server's log has the details") from None
