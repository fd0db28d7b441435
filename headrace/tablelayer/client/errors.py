"""What can go wrong on the client's side of the wire, as three kinds a caller can tell apart.

- the server said no: `TableError` (codes of tables) or `KafkaError` (Kafka's codes), both with `.code` and
  `.retriable`;
- the server could not be reached, and nothing of the request was done: `ConnectionFailed`;
- nobody knows: `OutcomeUnknown`. The request was sent, and no answer came within the deadline (`RequestTimeout`) or
  before the connection ended (`ConnectionLost`). Reads can be repeated. What changes something may or may not have
  been carried out, and is never reported as a plain failure: `except ConnectionFailed` does not catch it.

A call makes several attempts. When the last one failed and an earlier one's outcome is unknown, so is the call's.

`AuthenticationFailed` says that one side does not know the other, `SettingsError` that the properties to connect with
are wrong.

`DataError` is the caller's own: data that does not fit the table's schema, found before anything is sent.
"""

from __future__ import annotations


class ClientError(Exception):
    """Base of the errors that the client itself raises. `retriable` says whether another attempt can help; whether a
    second execution does no harm is another question."""

    retriable = False


class ConnectionFailed(ClientError):  # noqa: N818 - states what happened
    """No connection could be made, or it was lost before the request had any effect. Trying again is safe."""

    retriable = True


class OutcomeUnknown(ClientError):  # noqa: N818 - states what happened
    """The request was sent, and whether it was carried out is not known. For a read that does not matter."""

    retriable = True


class ConnectionLost(OutcomeUnknown):
    """The connection ended after the request was sent, before its answer came."""


class RequestTimeout(OutcomeUnknown):
    """No answer within the deadline."""


class ConnectionClosed(RuntimeError):  # noqa: N818 - states what happened
    """The caller has closed the connection, and asks something of it: a fault of the program."""


class SettingsError(ClientError, ValueError):
    """Properties to connect with that make no sense, or a file of theirs that cannot be used. No value is repeated."""


class AuthenticationFailed(ClientError):  # noqa: N818 - states what happened
    """One of both sides is not who the other wants: the password or token was refused, the server's certificate is not
    trusted, or the server does not let in who says nothing. Nothing was done; trying again does not help.
    """


class UnsupportedRequest(ClientError):  # noqa: N818 - states what happened
    """The server does not offer this request, or no version of it that this client speaks."""


class DataError(ClientError, ValueError):
    """Data that does not fit the schema. Nothing was sent.

    `column` names the column, `row` is the index of the first offending row of the data given, where there is one.
    """

    def __init__(self, message: str, *, column: str | None = None, row: int | None = None) -> None:
        super().__init__(message)
        self.column = column
        self.row = row
