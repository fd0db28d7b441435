"""The transport of a connection with TLS: a `TlsStream` between the socket and the buffers.

All bytes of one read are decrypted at once, so that nothing stays inside TLS while the socket is silent. Bytes to send
are encrypted a quarter of a megabyte at a time, and count as unsent until the encrypted bytes have left. Regions of
files must be read into memory first.

During the handshake (`tls_handshake.py`) the stream belongs to the handshake, perhaps in a thread. It calls
`established` at the end.
"""

from __future__ import annotations

import contextlib

from headrace.broker.net.faults import Fault
from headrace.broker.net.frame_receiver import FrameReceiver
from headrace.broker.net.reply import CloseConnection
from headrace.broker.net.send_queue import SendQueue
from headrace.broker.net.tls import TlsError, TlsStream
from headrace.broker.net.transport import TransportOwner
from headrace.broker.runtime.ports import Stream


class TlsTransport:
    """A transport that encrypts and decrypts; see the module."""

    __slots__ = (
        "_has_early_bytes",
        "_incoming",
        "_is_established",
        "_owner",
        "_sealed",
        "_sealed_plain",
        "_sock",
        "_unsent",
        "stream",
    )

    def __init__(
        self,
        owner: TransportOwner,
        sock: Stream,
        incoming: FrameReceiver,
        unsent: SendQueue,
        stream: TlsStream,
    ) -> None:
        self.stream = stream
        self._owner = owner
        self._sock = sock
        self._incoming = incoming
        self._unsent = unsent
        self._is_established = False
        self._has_early_bytes = False
        self._sealed = memoryview(b"")  # encrypted, and not sent
        self._sealed_plain = 0  # the number of unsent bytes that are in it, before encryption

    @property
    def has_ended(self) -> bool:
        return self.stream.is_closed

    def established(self) -> None:
        """Note that the handshake is complete. The first frame may have come with its last message: the next `receive`
        decrypts what is there, without the socket.
        """
        self._is_established = self._has_early_bytes = True

    def take_in(self, bytes_max: int) -> bool:
        """Hand bytes of the socket to TLS. Return False if the peer has closed its side. Raises OSError."""
        scratch = self._owner.scratch
        count = self._sock.recv_into(scratch[:bytes_max])
        self.stream.received(scratch[:count])
        return count > 0

    def receive(self) -> bool:
        if self._has_early_bytes:
            self._has_early_bytes = False
        elif not self.take_in(self._owner.limits.decrypted_bytes_per_call):
            return False
        stream, incoming = self.stream, self._incoming
        try:
            while count := stream.read_into(incoming.room()):
                incoming.received(count)
        except TlsError as error:
            raise CloseConnection(str(error), fault=Fault.HANDSHAKE) from None
        if stream.has_outgoing and not self._sealed:
            self.send()  # an answer of TLS itself; what the socket does not take goes before the next bytes
        return True

    def send_at_once(self, data: bytes) -> int:
        """Take nothing: the bytes are encrypted together with those that follow them."""
        return 0

    def send(self) -> bool:
        stream, unsent = self.stream, self._unsent
        enough = unsent.size - self._owner.limits.encrypted_bytes_per_turn
        try:
            while True:
                if not self._sealed:
                    if unsent.size:
                        if unsent.size < enough:
                            return False  # as if the socket took no more: others have their turn first
                        self._sealed_plain = self._seal()
                    if not stream.has_outgoing:
                        return True
                    self._sealed = memoryview(stream.outgoing())
                self._sealed = self._sealed[self._sock.send(self._sealed) :]
                if not self._sealed and self._sealed_plain:
                    unsent.sent(self._sealed_plain)
                    self._sealed_plain = 0
        except (BlockingIOError, InterruptedError):
            return False
        except TlsError as error:
            raise CloseConnection(str(error), fault=Fault.HANDSHAKE) from None

    def _seal(self) -> int:
        """Encrypt the next bytes to send; return their number before encryption. Raises OSError, TlsError."""
        owner, write = self._owner, self.stream.write
        room = owner.scratch[: owner.limits.encrypted_bytes_per_call]
        buffers, region = self._unsent.head(owner.limits.buffers_per_call)
        if buffers and memoryview(buffers[0]).nbytes >= len(room):
            write(memoryview(buffers[0]).cast("B")[: len(room)])
            return len(room)
        filled = 0
        for buffer in buffers:
            part = memoryview(buffer).cast("B")[: len(room) - filled]
            room[filled : filled + len(part)] = part
            filled += len(part)
        if region is not None and filled < len(room):
            filled += owner.sockets.read_region(region, room[filled:])
        write(room[:filled])
        return filled

    def send_alert(self) -> None:
        """Send the alert with which TLS ends, if the socket accepts it."""
        if not self._sealed and self.stream.has_outgoing:
            with contextlib.suppress(OSError):
                self._sock.send(self.stream.outgoing())

    def close(self) -> None:
        if self._is_established:
            self.stream.close()
            self.send_alert()
        self._sock.close()
        self._sealed = memoryview(b"")
