"""A proxy in front of the server that records which client used which API version, and the errors in the answers.

The server advertises the tap's address, so that clients stay with it. Bytes pass unchanged. Clients are told apart by
the client id of their requests. Answers are decoded with the project's own messages to find error codes.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pkgutil import iter_modules

from headrace.protocol import messages as message_modules
from headrace.protocol.errors import DecodeError
from headrace.protocol.headers import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    peek_request,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.schema import ApiMessage
from headrace.protocol.tests.framing import FrameSplitter, encode_frame, frame_size

API_VERSIONS = 18


@dataclass
class Usage:
    """The usage of one version of one API by one client."""

    requests: int = 0
    answers: int = 0
    errors: Counter[int] = field(default_factory=Counter)


def messages() -> dict[int, tuple[type[ApiMessage], type[ApiMessage]]]:
    """Requests and responses of Kafka's APIs, by API key."""
    found: dict[int, dict[bool, type[ApiMessage]]] = defaultdict(dict)
    for module in iter_modules(message_modules.__path__):
        for value in vars(import_module(f"headrace.protocol.messages.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, ApiMessage) and hasattr(value, "API_KEY"):
                found[value.API_KEY][value.__name__.endswith("Request")] = value
    return {key: (pair[True], pair[False]) for key, pair in found.items() if len(pair) == 2}


class Tap:
    """Listens on ports of 127.0.0.1 in a thread of its own and passes everything on: `upstreams` by port."""

    def __init__(self, upstreams: Mapping[int, int]) -> None:
        self.address = ",".join(f"127.0.0.1:{port}" for port in upstreams)
        self.usages: dict[tuple[str, int, int], Usage] = defaultdict(Usage)
        self.failures: list[str] = []
        self._messages = messages()
        self._upstreams = dict(upstreams)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tap", daemon=True)

    def start(self) -> Tap:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        listening = [
            self._loop.run_until_complete(
                asyncio.start_server(partial(self._serve, upstream), "127.0.0.1", port, limit=2**20)
            )
            for port, upstream in self._upstreams.items()
        ]
        self._ready.set()
        self._loop.run_forever()
        for each in listening:
            each.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    async def _serve(self, upstream: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", upstream)
        except OSError:
            writer.close()
            return
        pending: dict[int, tuple[Usage, int, int]] = {}
        await asyncio.gather(
            _copy(reader, up_writer, lambda frame: self._request(frame, pending)),
            _copy(up_reader, writer, lambda frame: self._response(frame, pending)),
            return_exceptions=True,
        )

    def _request(self, frame: bytes, pending: dict[int, tuple[Usage, int, int]]) -> None:
        key, version, correlation = peek_request(frame)
        header, _ = decode_request_header(frame, 1)  # the client id has the same position in both versions
        usage = self.usages[header.client_id or "", key, version]
        usage.requests += 1
        pending[correlation] = (usage, key, version)

    def _response(self, frame: bytes, pending: dict[int, tuple[Usage, int, int]]) -> None:
        correlation = int.from_bytes(frame[:4], "big", signed=True)
        usage, key, version = pending.pop(correlation, (None, 0, 0))
        if usage is None:
            return
        usage.answers += 1
        if key not in self._messages or key == API_VERSIONS:
            return
        response = self._messages[key][1]
        try:
            _, position = decode_response_header(frame, response.header_version(version))
            usage.errors.update(error_codes(response.decode(memoryview(frame)[position:], version)))
        except DecodeError as error:
            self.failures.append(f"the answer to {key} v{version} cannot be decoded: {error}")


def advertised_by(port: int) -> dict[int, tuple[int, int]]:
    """Return the version range of each API in a server's ApiVersions answer."""
    request = ApiVersionsRequest(client_software_name="compat", client_software_version="1")
    body = [encode_request_header(RequestHeader(API_VERSIONS, 3, 1, "compat"), 2), request.encode(3)]
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(b"".join(encode_frame(body)))
        stream = connection.makefile("rb")
        frame = stream.read(frame_size(stream.read(4)))
    response = ApiVersionsResponse.decode(memoryview(frame)[4:], 3)
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


def error_codes(value: object) -> list[int]:
    """Every error code other than 0 in a message, however deep."""
    found = []
    for name in getattr(type(value), "FIELDS", ()):
        inner = getattr(value, name)
        if name == "error_code" and inner:
            found.append(inner)
        elif isinstance(inner, list):
            found += [code for each in inner for code in error_codes(each)]
        elif hasattr(type(inner), "FIELDS"):
            found += error_codes(inner)
    return found


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note) -> None:
    splitter = FrameSplitter()
    try:
        while data := await reader.read(2**16):
            for frame in splitter.feed(data):
                note(frame)
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
