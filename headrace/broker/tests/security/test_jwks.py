"""The keys of an issuer over https: the trusted certificates, and the redirects that the broker refuses."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from joserfc import jwk, jwt

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.security.sasl.jwks import read_document
from headrace.broker.security.tls.client_tls import client_tls
from headrace.broker.tests.security.test_sasl_listener import broker
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from simulator.certificates import Identity, identity, trusted_pkcs12
from simulator.stores import eventually

AUTHORITY = identity("authority")
ISSUER = identity("issuer", AUTHORITY)
OF_ANOTHER_HOST = identity("other", AUTHORITY, names=())
KEY = jwk.ECKey.generate_key("P-256", {"kid": "e1", "alg": "ES256"})
DOCUMENT = json.dumps({"keys": [KEY.as_dict(private=False)]}).encode()
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


@contextmanager
def issuer(
    folder: Path,
    own: Identity | None = ISSUER,
    *,
    asks_for: Identity | None = None,
    leads_to: str = "",
    answer: Callable[[str, str], bytes | None] = lambda form, authorization: None,
) -> Iterator[str]:
    """Run a web server with DOCUMENT; return its URL.

    `own` None: without TLS. `asks_for` is the authority of clients' certificates. `answer` returns the answer to a
    posted form; None: 401.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.say(302 if leads_to else 200, DOCUMENT)

        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            said = answer(form, self.headers["Authorization"])
            self.say(401 if said is None else 200, said or b"")

        def say(self, status: int, document: bytes) -> None:
            self.send_response(status)
            if leads_to:
                self.send_header("Location", leads_to)
            self.send_header("Content-Length", str(len(document)))
            self.end_headers()
            self.wfile.write(document)

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if own is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own.write(folder, "issuer"))
        if asks_for is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.maximum_version = (
                ssl.TLSVersion.TLSv1_2
            )  # a client without a certificate is refused in the handshake
            context.load_verify_locations(cadata=asks_for.certificate_pem)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"{'http' if own is None else 'https'}://127.0.0.1:{server.server_port}/keys"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def trusting(folder: Path, *authorities: Identity) -> dict[str, str]:
    place = folder / "trusted.pem"
    place.write_text("".join(each.certificate_pem for each in authorities))
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(place)}


def test_keys_are_read_over_https_from_a_trusted_server(tmp_path: Path) -> None:
    (tmp_path / "trusted.p12").write_bytes(trusted_pkcs12([AUTHORITY.certificate], "changeit"))
    stored = {"ssl.truststore.location": str(tmp_path / "trusted.p12"), "ssl.truststore.password": "changeit"}
    inline = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": AUTHORITY.certificate_pem}
    with issuer(tmp_path) as url:
        for options in (trusting(tmp_path, AUTHORITY), stored, inline):
            assert read_document(url, client_tls(options).context) == DOCUMENT
        for options in ({}, trusting(tmp_path, identity("another authority"))):
            with pytest.raises(OSError, match="certificate verify failed"):
                read_document(url, client_tls(options).context)
    with issuer(tmp_path, OF_ANOTHER_HOST) as url, pytest.raises(OSError, match="certificate verify failed"):
        read_document(url, client_tls(trusting(tmp_path, AUTHORITY)).context)


def test_the_broker_shows_a_certificate_of_its_own_if_it_has_one(tmp_path: Path) -> None:
    own = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(identity("broker", AUTHORITY).write(tmp_path, "broker")),
    }
    with issuer(tmp_path, asks_for=AUTHORITY) as url:
        trusted = trusting(tmp_path, AUTHORITY)
        assert read_document(url, client_tls({**trusted, **own}).context) == DOCUMENT
        with pytest.raises(OSError):
            read_document(url, client_tls(trusted).context)


def test_cve_2025_27817_redirects_to_a_file_or_plain_http_are_refused(tmp_path: Path) -> None:
    """The issuer redirects to a file, or to plain HTTP."""
    (tmp_path / "secret").write_text("planted")
    with issuer(tmp_path, None) as plain:
        context = client_tls(trusting(tmp_path, AUTHORITY)).context
        with (
            issuer(tmp_path, leads_to=plain) as url,
            pytest.raises(ValueError, match="redirects from https:"),
        ):
            read_document(url, context)
        with issuer(tmp_path) as target, issuer(tmp_path, leads_to=target) as url:
            assert read_document(url, context) == DOCUMENT
    for leads_to in (f"file://{tmp_path}/secret", "ftp://127.0.0.1/x"):
        with (
            issuer(tmp_path, None, leads_to=leads_to) as url,
            pytest.raises((ValueError, OSError), match=r"[rR]edirect") as refused,
        ):
            read_document(url)
        assert "planted" not in str(refused.value)


def changes(url: str, options: dict[str, str]) -> dict[str, str]:
    named = " ".join(f'{name}="{value}"' for name, value in options.items())
    return {
        "oauthbearer.sasl.server.callback.handler.class": HANDLER,
        "oauthbearer.sasl.jaas.config": f"{MODULE} required {named};",
        "sasl.oauthbearer.jwks.endpoint.url": url,
    }


async def test_a_token_gets_in_whose_key_is_behind_https(tmp_path: Path) -> None:
    now = int(time.time())
    token = jwt.encode({"alg": "ES256", "kid": "e1"}, {"sub": "ann", "iat": now, "exp": now + 600}, KEY)
    said = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    with issuer(tmp_path) as url:
        async with broker(tmp_path, **changes(url, trusting(tmp_path, AUTHORITY))) as (one, connect):
            (source,) = one.sasl.parts.sources.values()

            async def are_read() -> bool:
                return source.current() is not None

            await eventually(are_read, "the keys are read")
            client = await connect()
            await client.send(SaslHandshakeRequest(mechanism="OAUTHBEARER"))
            answer = await client.send(SaslAuthenticateRequest(auth_bytes=said))
            assert answer.error_code == ErrorCode.NONE
            assert await client.is_served()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ssl.truststore.type": "PEM", "ssl.truststore.location": "/nowhere/ca.pem"}, "cannot be read"),
        ({"ssl.trustore.location": "ca.pem"}, "did you mean 'ssl.truststore.location'"),
        ({"ssl.truststore.type": "BKS", "ssl.truststore.location": "x"}, "String must be one of"),
    ],
)
async def test_trust_that_cannot_be_read_is_said_at_the_start(
    tmp_path: Path, options: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        async with broker(tmp_path, **changes("https://issuer.example/keys", options)):
            pass


@pytest.mark.parametrize(
    "prefix", ["", "oauthbearer.", "listener.name.client.", "listener.name.client.oauthbearer."]
)
async def test_cve_2025_27817_the_key_url_cannot_be_altered_at_run_time(tmp_path: Path, prefix: str) -> None:
    """The right to alter configurations does not choose files or addresses for the broker: as in Kafka, that takes
    a restart.
    """
    async with broker(tmp_path) as (_, connect):
        admin = await connect("PLAINTEXT")
        name = f"{prefix}sasl.oauthbearer.jwks.endpoint.url"
        config = AlterableConfig(name=name, config_operation=0, value="file:///etc/passwd")
        resource = AlterConfigsResource(resource_type=4, resource_name="0", configs=[config])
        answer = await admin.send(IncrementalAlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST
        assert "root:" not in str(answer)
