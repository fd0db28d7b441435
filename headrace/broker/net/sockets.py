"""The system's sockets, behind the `Sockets` port."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from headrace.broker.net.poller import make_poller
from headrace.broker.runtime.ports import Poller, Region, Stream

_TURNED_AWAY_TOGETHER = 64
_SHORT = "a log file is shorter than the records that were read from it"


class SystemSockets:
    def host_name(self) -> str:
        return socket.gethostname()

    def poller(self, loop: asyncio.AbstractEventLoop) -> Poller:
        return make_poller(loop)

    def bind(self, host: str, port: int, *, receive_buffer_bytes: int) -> SystemListeningSocket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setblocking(False)
            if receive_buffer_bytes >= 0:
                # Set before listening: the handshake of a connection negotiates its window.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            sock.bind((host, port))
        except BaseException:
            sock.close()
            raise
        return SystemListeningSocket(sock)

    async def addresses(self, host: str) -> list[str]:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return [str(address[0]) for *_, address in found]

    async def connect(self, host: str, port: int) -> Stream:
        loop = asyncio.get_running_loop()
        failed: OSError | None = None
        for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                failed = error
            except BaseException:
                sock.close()
                raise
            else:
                _set_options(sock)
                return sock
        raise failed or OSError(f"{host} has no address")

    def send_region(self, stream: Stream, region: Region, size_max: int) -> int:
        sent = os.sendfile(stream.fileno(), region.fileno(), region.position, min(region.size, size_max))
        if sent == 0:
            raise OSError(5, _SHORT)
        return sent

    def read_region(self, region: Region, room: memoryview) -> int:
        count = os.preadv(region.fileno(), [room[: region.size]], region.position)
        if count == 0:
            raise OSError(5, _SHORT)
        return count

    def has_ended(self, stream: Stream) -> bool:
        ends = select.poll()
        ends.register(stream.fileno(), getattr(select, "POLLRDHUP", 0))
        return bool(ends.poll(0))


def _spare() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


class SystemListeningSocket:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_acceptable: Callable[[], None] | None = None
        self._spare: int | None = None
        """A descriptor that is given up to accept a connection, and close it, when there are no others."""
        self.host: str
        self.port: int
        self.host, self.port = sock.getsockname()[:2]

    def start(self, backlog: int, on_acceptable: Callable[[], None]) -> None:
        self._sock.listen(backlog)
        self._spare = _spare()
        self._loop = asyncio.get_running_loop()
        self._on_acceptable = on_acceptable
        self.resume()

    def pause(self) -> None:
        if self._loop is not None and self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())

    def resume(self) -> None:
        if self._loop is not None and self._on_acceptable is not None and self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock.fileno(), self._on_acceptable)

    def accept(self, *, send_buffer_bytes: int) -> tuple[Stream, str, int]:
        sock, address = self._sock.accept()
        self._spare = _spare() if self._spare is None else self._spare
        sock.setblocking(False)
        _set_options(sock)
        if send_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        host, port = cast("tuple[str, int]", address[:2])
        return sock, host, port

    def turn_away(self) -> None:
        # Another thread may have taken the last one before a connection was accepted with it.
        spare, self._spare = _spare() if self._spare is None else self._spare, None
        if spare is None:
            return
        os.close(spare)
        with suppress(OSError):
            for _ in range(_TURNED_AWAY_TOGETHER):
                self._sock.accept()[0].close()
        self._spare = _spare()

    def close(self) -> None:
        self.pause()
        self._sock.close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None


def _set_options(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
