"""The bytes of one connection, between its socket and its buffers: as they are, or encrypted.

A connection has one `Transport` and does not know which. `PlainTransport` is here; `tls_transport.py` has TLS. A
transport does not watch its socket: its connection calls it when the socket is ready.
"""

from __future__ import annotations

import socket
from typing import Protocol

from headrace.broker.net.frame_receiver import FrameReceiver
from headrace.broker.net.limits import Limits
from headrace.broker.net.send_queue import SendQueue
from headrace.broker.runtime.ports import Sockets, Stream

_MSG_MORE = getattr(socket, "MSG_MORE", 0)
"""Linux only: do not send the header of a sendfile in a packet of its own."""


class TransportOwner(Protocol):
    """The owner of connections, as far as transports need it (`listener.py`)."""

    limits: Limits
    scratch: memoryview
    sockets: Sockets


class Transport(Protocol):
    """Moves bytes from a socket to a `FrameReceiver`, and from a `SendQueue` to the socket."""

    @property
    def has_ended(self) -> bool:
        """Return whether the peer has announced that it sends nothing more."""

    def receive(self) -> bool:
        """Move bytes that have arrived. Return False if the peer has closed its side.

        Raises BlockingIOError if there are none, OSError, and CloseConnection if they are not accepted.
        """

    def send_at_once(self, data: bytes) -> int:
        """Send bytes while nothing is queued; return the number of bytes that were taken. Raises OSError."""

    def send(self) -> bool:
        """Send queued bytes. Return False if some are left until the socket is writable again. Raises OSError."""

    def close(self) -> None:
        """Close the socket. TLS announces the end to the peer, if the socket takes the announcement."""


class PlainTransport:
    """A transport that changes nothing."""

    __slots__ = ("_incoming", "_owner", "_sock", "_unsent", "send_at_once")

    has_ended = False

    def __init__(
        self, owner: TransportOwner, sock: Stream, incoming: FrameReceiver, unsent: SendQueue
    ) -> None:
        self._owner = owner
        self._sock = sock
        self._incoming = incoming
        self._unsent = unsent
        self.send_at_once = sock.send

    def receive(self) -> bool:
        count = self._sock.recv_into(self._incoming.room())
        if count:
            self._incoming.received(count)
        return count > 0

    def send(self) -> bool:
        unsent = self._unsent
        limits = self._owner.limits
        enough = unsent.size - limits.sent_bytes_per_turn
        try:
            while unsent.size:
                if unsent.size < enough:
                    return False  # as if the socket took no more: others have their turn first
                buffers, region = unsent.head(limits.buffers_per_call)
                if region is None:
                    sent = self._sock.send(buffers[0]) if len(buffers) == 1 else self._sock.sendmsg(buffers)
                elif buffers:
                    sent = self._sock.sendmsg(buffers, (), _MSG_MORE)
                else:
                    sent = self._owner.sockets.send_region(self._sock, region, limits.file_bytes_per_call)
                unsent.sent(sent)
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def close(self) -> None:
        self._sock.close()
