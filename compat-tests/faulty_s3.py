"""An S3 server, moto's or another one, behind a proxy that injects faults.

`mode` is one of these:

- "well", or "denied", as with wrong credentials;
- "500": every second request fails; "slow": each takes a while;
- "lost": every second request is carried out, and its answer never comes;
- "weak": every 7th request is answered 503, and every 11th answer is cut in the middle.
"""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BUCKET = "bucket"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
DENIED = b'<?xml version="1.0"?><Error><Code>InvalidAccessKeyId</Code><Message>No such key.</Message></Error>'
SLOW_DOWN = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Reduce your rate.</Message></Error>'
SLOW_SECONDS = 0.3


class FaultyS3:
    """`port`: that of another S3 server, in place of moto's."""

    def __init__(self, port: int | None = None) -> None:
        self._moto: Any = None
        if port is None:
            from moto.server import ThreadedMotoServer

            self._moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
            self._moto.start()
            port = self._moto.get_host_and_port()[1]
        self._port = port
        self.mode = "well"
        self.requests = self.faults = 0
        self._turn = itertools.count()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        if self._moto is not None:
            self.send("POST", "/moto-api/reset", b"")  # its contents belong to the process
            self.send("PUT", f"/{BUCKET}", b"")

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that a process needs to use moto's server."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.address, "AWS_ALLOW_HTTP": "true"}

    def send(
        self, method: str, path: str, body: bytes, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def names(self) -> list[str]:
        """The keys of the bucket; there are fewer than a thousand."""
        _, _, listed = self.send("GET", f"/{BUCKET}?list-type=2", b"")
        return [part.split("</Key>")[0] for part in listed.decode().split("<Key>")[1:]]

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        if self._moto is not None:
            self._moto.stop()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                store.requests += 1
                mode, turn = store.mode, next(store._turn)
                if mode == "slow":
                    time.sleep(SLOW_SECONDS)
                if mode == "denied":
                    return self._write(403, {}, DENIED)
                if mode == "weak" and turn % 7 == 6:
                    store.faults += 1
                    return self._write(503, {}, SLOW_DOWN)
                if mode == "500" and turn % 2:
                    return self._write(500, {}, b"")
                status, headers, data = store.send(self.command, self.path, body, dict(self.headers.items()))
                if mode == "lost" and turn % 2:
                    self.close_connection = True
                    self.connection.close()
                    return None
                return self._write(status, headers, data, cut=mode == "weak" and turn % 11 == 10)

            def _write(self, status: int, headers: dict[str, str], data: bytes, *, cut: bool = False) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in (
                        "content-length",
                        "connection",
                        "transfer-encoding",
                        "date",
                        "server",
                    ):
                        self.send_header(name, value)
                length = headers.get("Content-Length") if self.command == "HEAD" else str(len(data))
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data[: len(data) // 2] if cut else data)
                if cut and data:
                    store.faults += 1
                    self.close_connection = True

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 - the library's own names

        return Handler
