"""The errors of the client.

A caller can tell three kinds apart:

- The server refused: `TableError` (codes of tables) or `KafkaError` (Kafka's codes), both with `.code` and
  `.retriable`.
- The server could not be reached, and nothing of the request was done: `ConnectionFailed`.
- The outcome is unknown: `OutcomeUnknown`. The request was sent, and no answer came within the deadline
  (`RequestTimeout`) or before the connection ended (`ConnectionLost`). Reads can be repeated. A change may or may not
  have been carried out. It is never reported as a plain failure: `except ConnectionFailed` does not catch it.

A call makes several attempts. If the last one failed and an earlier outcome is unknown, so is the call's.

`AuthenticationFailed`: one side does not trust the other. `SettingsError`: connection properties are wrong.

`DataError` is for data that does not fit the table's schema. It is found before anything is sent.
"""

from __future__ import annotations


class ClientError(Exception):
    """Base of the client's own errors. `retriable` says that another attempt can help, not that it is harmless."""

    retriable = False


class ConnectionFailed(ClientError):  # noqa: N818 - states what happened
    """No connection could be made, or it was lost before the request had any effect. Trying again is safe."""

    retriable = True


class OutcomeUnknown(ClientError):  # noqa: N818 - states what happened
    """The request was sent, and it is unknown whether it was carried out. For a read that does not matter."""

    retriable = True


class ConnectionLost(OutcomeUnknown):
    """The connection ended after the request was sent, before its answer came."""


class RequestTimeout(OutcomeUnknown):
    """No answer came within the deadline."""


class ConnectionClosed(RuntimeError):  # noqa: N818 - states what happened
    """The program uses a connection that it has closed."""


class SettingsError(ClientError, ValueError):
    """Connection properties that are wrong, or name a file that cannot be used. The message repeats no value."""


class AuthenticationFailed(ClientError):  # noqa: N818 - states what happened
    """One side does not accept the other: the server refused the password, the token or a client without credentials,
    or its certificate is not trusted. Nothing was done, and trying again does not help.
    """


class UnsupportedRequest(ClientError):  # noqa: N818 - states what happened
    """The server does not support this request, or no version of it that this client supports."""


class SqlError(ClientError):
    """A statement that cannot be carried out. Its text is for the author of the statement."""


class DataError(ClientError, ValueError):
    """Data that does not fit the schema. Nothing was sent.

    `column` names the column, `row` is the index of the first offending row in the data, if they are known.
    """

    def __init__(self, message: str, *, column: str | None = None, row: int | None = None) -> None:
        super().__init__(message)
        self.column = column
        self.row = row
