"""Google's XML API for fake-gcs-server, which answers reads, lists and deletes by XML but accepts uploads only by JSON.

A server in front of it translates uploads of the XML API, whole or in parts, into the JSON API, with their
preconditions, which fake-gcs-server checks. Other requests pass unchanged.
"""

from __future__ import annotations

import http.client
import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

PRECONDITION = "x-goog-if-generation-match"
_OF_A_CONNECTION = frozenset(("host", "connection", "content-length", "transfer-encoding", "date", "server"))

Answer = tuple[int, dict[str, str], bytes]


class XmlUploads:
    """A server on a free port of 127.0.0.1 in front of the fake-gcs-server on `port`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = itertools.count(1)
        self._parts: dict[str, dict[int, bytes]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def send(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def _answer(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> Answer:
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        upload = query.get("uploadId", "")
        if method == "POST" and "uploads" in query:
            upload = str(next(self._numbers))
            self._parts[upload] = {}
            return 200, {}, _xml("InitiateMultipartUploadResult", UploadId=upload)
        if upload and upload not in self._parts:
            return 404, {}, b""
        match method:
            case "PUT" if upload:
                self._parts[upload][int(query["partNumber"])] = body
                return 200, {"ETag": f'"{query["partNumber"]}"'}, b""
            case "DELETE" if upload:
                del self._parts[upload]
                return 204, {}, b""
            case "POST" if upload:
                parts = self._parts.pop(upload)
                status, answered, data = self._put(
                    url.path, b"".join(parts[each] for each in sorted(parts)), headers
                )
                return status, answered, data or _xml("CompleteMultipartUploadResult", ETag=answered["ETag"])
            case "PUT":
                return self._put(url.path, body, headers)
        return self.send(method, target, body, headers)

    def _put(self, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Upload an object; the body is empty if it exists now."""
        bucket, _, name = unquote(path).removeprefix("/").partition("/")
        target = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}"
        lowered = {name.lower(): value for name, value in headers.items()}
        if PRECONDITION in lowered:
            target += f"&ifGenerationMatch={lowered[PRECONDITION]}"
        status, answered, data = self.send("POST", target, body, {"Content-Type": "application/octet-stream"})
        if status != 200:
            return status, answered, data
        made = json.loads(data)
        return 200, {"ETag": f'"{made["etag"]}"', "x-goog-generation": made["generation"]}, b""

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = {
                    name: value
                    for name, value in self.headers.items()
                    if name.lower() not in _OF_A_CONNECTION
                }
                status, headers, data = store._answer(self.command, self.path, body, asked)
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in _OF_A_CONNECTION:
                        self.send_header(name, value)
                length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 - the library's own names

        return Handler


def _xml(root: str, **fields: str) -> bytes:
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
    return f'<?xml version="1.0"?><{root}>{inner}</{root}>'.encode()
