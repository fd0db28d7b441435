"""A refused connection leaves nothing behind, at once, without the garbage collector."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
import struct
import warnings
from pathlib import Path

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.net.connection import Connection
from headrace.broker.net.tls_handshake import ServerHandshake
from headrace.broker.net.tls_transport import TlsTransport
from headrace.broker.security.sasl.authentication import Authentication
from headrace.broker.server import Broker
from headrace.protocol.headers import RequestHeader, encode_request_header
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.protocol.schema import ApiMessage
from simulator.certificates import identity

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def frame(request: ApiMessage, version: int) -> bytes:
    header = RequestHeader(request.API_KEY, version, 1, "c")
    body = encode_request_header(header, request.header_version(version)) + request.encode(version)
    return struct.pack(">i", len(body)) + body


async def hung_up_on(port: int, data: bytes, context: ssl.SSLContext | None) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(data)
    with contextlib.suppress(OSError):
        while await reader.read(1000):
            pass
    writer.transport.abort()


def kept() -> list[object]:
    """Return the objects of connections in this process, those of other tests' servers among them."""
    kinds = (Connection, ServerHandshake, TlsTransport, Authentication)
    # `type`, because `isinstance` asks a weak proxy for the class of its object, which may be gone
    return [each for each in gc.get_objects() if issubclass(type(each), kinds)]


async def test_refused_connections_leave_no_reference_cycles(tmp_path: Path) -> None:
    identity("localhost", identity("authority")).write(tmp_path, "server")
    config = BrokerConfig(
        {
            "listeners": "SASL_SSL://127.0.0.1:0",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(tmp_path / "server.pem"),
            "sasl.enabled.mechanisms": "PLAIN",
            "plain.sasl.jaas.config": f'{MODULE} required user_ann="secret";',
            "connection.failed.authentication.delay.ms": "0",
        }
    )
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    wrong = frame(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    wrong += frame(SaslAuthenticateRequest(auth_bytes=b"\0ann\0wrong"), 2)
    broker = Broker(config, data_dir=tmp_path / "data", port=0)
    await broker.start()
    with warnings.catch_warnings(action="ignore"):  # objects that other tests left open do not count here
        gc.collect()
    earlier = kept()
    gc.disable()
    try:
        for _ in range(3):
            await hung_up_on(broker.port, b"GET / HTTP/1.1\r\n\r\n", None)
            await hung_up_on(broker.port, wrong, context)
        async with asyncio.timeout(60):
            while broker.network.connection_count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert broker.network.faults.total() == 6
        async with asyncio.timeout(60):  # a thread frees its last handshake when it gets to it
            while any(all(each is not other for other in earlier) for each in kept()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
        await broker.stop()
