"""Relays in front of servers that can be cut off from some of their clients: faults of a network, in a process of their
own.

A client is identified by its first request (`client_id` of Kafka's header). A client that has not sent one yet, or that
uses another protocol, has no name. A cut is silence: neither side is told, and bytes under way arrive after the cut, or
never if the connections are lost with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import subprocess
import sys
import threading

from simulator.ports import free_port

FRAME_HEAD = struct.Struct(">ihhih")  # size, API key, version, correlation id, length of client_id
FIRST_BYTES_MAX = FRAME_HEAD.size + 0x7FFF
EVERYBODY = ""


class Relays:
    """Relays by name. `with Relays() as relays: port = relays.add("a", 9092)`."""

    def __enter__(self) -> Relays:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._asking = threading.Lock()
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()
        self._process.wait(30)

    def _ask(self, verb: str, *words: object):
        with self._asking:
            self._process.stdin.write(json.dumps([verb, *words]) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def add(self, name: str, target: int) -> int:
        """Return the port of 127.0.0.1 that is relayed to that one from now on."""
        return self._ask("add", name, target, free_port())

    def open(self, name: str) -> None:
        """Open the relay again after `close`, on the same port."""
        self._ask("open", name)

    def close(self, name: str) -> None:
        """Close all connections and refuse new ones, as a machine without the server does."""
        self._ask("close", name)

    def cut(self, name: str, client: str = EVERYBODY) -> None:
        """Cut this client off."""
        self._ask("cut", name, client)

    def heal(self, *, lose: bool = False) -> None:
        """Heal all cuts. `lose`: the cut connections end, and no byte under way arrives."""
        self._ask("heal", lose)


class _Relay:
    def __init__(self, target: int, port: int) -> None:
        self.target = target
        self.port = port
        self.cut: set[str] = set()
        self.lines: set[_Line] = set()
        self.server: asyncio.Server | None = None

    async def open(self) -> None:
        if self.server is None:
            loop = asyncio.get_running_loop()
            self.server = await loop.create_server(
                lambda: _Line(self).client, "127.0.0.1", self.port, backlog=128
            )

    def close(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.close()
        self.cut.clear()
        for line in list(self.lines):
            line.end()

    def heal(self, *, lose: bool) -> None:
        cut = [line for line in self.lines if line.is_cut]
        self.cut.clear()
        for line in cut:
            if lose:
                line.end()
            else:
                line.go_on()


class _Line:
    """One connection through a relay: two sides, and the bytes that each is still to get."""

    def __init__(self, relay: _Relay) -> None:
        self.relay = relay
        self.first = b""
        """Bytes that the client sent before it had identified itself."""
        self.name: str | None = None
        self.client, self.server = _Side(self), _Side(self)
        self.client.other, self.server.other = self.server, self.client
        relay.lines.add(self)

    @property
    def is_cut(self) -> bool:
        return EVERYBODY in self.relay.cut or self.name in self.relay.cut

    async def connect(self) -> None:
        try:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: self.server, "127.0.0.1", self.relay.target)
        except OSError:
            self.end()

    def end(self) -> None:
        self.relay.lines.discard(self)
        for side in (self.client, self.server):
            side.held.clear()
            if side.transport is not None:
                side.transport.abort()

    def go_on(self) -> None:
        for side in (self.client, self.server):
            side.tell()


class _Side(asyncio.Protocol):
    other: _Side

    def __init__(self, line: _Line) -> None:
        self.line = line
        self.transport: asyncio.Transport | None = None
        self.held: list[bytes] = []
        """Held bytes for this side."""
        self.is_over = False

    def connection_made(self, transport) -> None:
        self.transport = transport
        if self is self.line.client:
            self.connecting = asyncio.get_running_loop().create_task(self.line.connect())
        elif self.line not in self.line.relay.lines:
            transport.abort()
        else:
            self.tell()

    def data_received(self, data: bytes) -> None:
        line = self.line
        if self is line.client and line.name is None and len(line.first) < FIRST_BYTES_MAX:
            line.first += data
            line.name = client_of(line.first)
        self.other.held.append(data)
        self.other.tell()

    def connection_lost(self, _) -> None:
        self.other.is_over = True
        self.other.tell()

    def tell(self) -> None:
        """Send the held bytes, unless the connection is cut."""
        if self.transport is None or self.line.is_cut:
            return
        self.transport.writelines(self.held)
        self.held.clear()
        if self.is_over:
            self.transport.close()
            self.line.relay.lines.discard(self.line)

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.resume_reading()


def client_of(frame: bytes) -> str | None:
    """Return the client_id of a request; None if this is not the beginning of one."""
    if len(frame) < FRAME_HEAD.size:
        return None
    length = FRAME_HEAD.unpack_from(frame)[-1]
    name = frame[FRAME_HEAD.size : FRAME_HEAD.size + max(length, 0)]
    return name.decode("utf-8", "replace") if len(name) == length else None


async def _serve() -> None:
    relays: dict[str, _Relay] = {}
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        verb, *words = json.loads(line)
        answer = None
        if verb == "add":
            name, target, port = words
            relays[name] = _Relay(target, port)
            await relays[name].open()
            answer = port
        elif verb == "open":
            await relays[words[0]].open()
        elif verb == "close":
            relays[words[0]].close()
        elif verb == "cut":
            relays[words[0]].cut.add(words[1])
        elif verb == "heal":
            for relay in relays.values():
                relay.heal(lose=words[0])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve())
