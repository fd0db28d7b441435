"""TLS of listeners: stores, names and rules, versions and suites, and certificates that change while it runs."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from contextlib import asynccontextmanager

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.ciphers import choose_suites
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.principal_rules import PrincipalRules
from headrace.broker.net import certificates as reloading
from headrace.broker.security.tls import kernel
from headrace.broker.security.tls.listener_tls import load_tls, settings_of
from headrace.broker.security.tls.names import subject_of
from headrace.broker.security.tls.stores import Store, read_certificates
from headrace.broker.server import Broker
from headrace.broker.tests.api.test_broker_configs import BROKER, SET, alter
from headrace.protocol.errors import ErrorCode
from headrace.protocol.tests.security import jks_files
from simulator.certificates import identity, trusted_pkcs12
from simulator.direct import DirectBroker

AUTHORITY = identity("authority")
SERVER = identity("localhost", AUTHORITY)
CLIENT = identity("ann", AUTHORITY)
LISTEN = ("127.0.0.1", 0)


def load(**explicit: str):
    config = BrokerConfig(
        {
            "listeners": "SSL://127.0.0.1:0",
            **{name.replace("_", "."): text for name, text in explicit.items()},
        }
    )
    (listener,) = config.listeners(LISTEN)
    return load_tls(settings_of(config, listener))


def inline(own=SERVER, authority=AUTHORITY, **more: str) -> dict[str, str]:
    return {
        "ssl_keystore_type": "PEM",
        "ssl_keystore_key": own.key_pem(),
        "ssl_keystore_certificate_chain": own.certificate_pem,
        "ssl_truststore_type": "PEM",
        "ssl_truststore_certificates": authority.certificate_pem,
        **more,
    }


def handshake(loaded, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Run a handshake of both ends; raise ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = loaded.context.wrap_bio(to_server, to_client, server_side=True)
    other = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(4):
        for end in (other, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return server, other


def client_context(authority=AUTHORITY) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.certificate_pem)


# -- stores ------------------------------------------------------------------------------------------------


@pytest.fixture
def stores(tmp_path):
    (tmp_path / "server.pem").write_text(SERVER.key_pem("s3cret") + SERVER.certificate_pem)
    (tmp_path / "plain.pem").write_text(SERVER.key_pem() + SERVER.certificate_pem)
    (tmp_path / "ca.pem").write_text(AUTHORITY.certificate_pem)
    (tmp_path / "server.p12").write_bytes(SERVER.pkcs12("changeit"))
    (tmp_path / "trust.p12").write_bytes(trusted_pkcs12([AUTHORITY.certificate], "changeit"))
    (tmp_path / "old.jks").write_bytes(bytes.fromhex("feedfeed00000002") + b"x" * 40)
    (tmp_path / "keytool.jks").write_bytes(jks_files.KEYSTORE)
    (tmp_path / "trust.jks").write_bytes(jks_files.TRUSTSTORE)
    (tmp_path / "noise").write_bytes(b"noise")
    return tmp_path


@pytest.mark.parametrize(
    "explicit",
    [
        {
            "ssl_keystore_type": "PEM",
            "ssl_keystore_location": "server.pem",
            "ssl_key_password": "s3cret",
            "ssl_truststore_type": "PEM",
            "ssl_truststore_location": "ca.pem",
        },
        *(
            {
                "ssl_keystore_type": kind,
                "ssl_keystore_location": "server.p12",
                "ssl_keystore_password": "changeit",
                "ssl_truststore_type": kind,
                "ssl_truststore_location": "trust.p12",
                "ssl_truststore_password": "changeit",
            }
            for kind in ("PKCS12", "JKS")
        ),
        {
            "ssl_keystore_type": "JKS",
            "ssl_keystore_location": "keytool.jks",
            "ssl_keystore_password": jks_files.STORE_PASSWORD,
            "ssl_key_password": jks_files.KEY_PASSWORD,
            "ssl_truststore_type": "PEM",
            "ssl_truststore_location": "ca.pem",
        },
        inline(),
        inline(ssl_keystore_key=SERVER.key_pem("s3cret"), ssl_key_password="s3cret"),
    ],
)
def test_keys_and_certificates_of_every_kind_are_read(stores, explicit) -> None:
    located = {
        name: str(stores / text) if name.endswith("location") else text for name, text in explicit.items()
    }
    loaded = load(**located, ssl_client_auth="required")
    client = client_context()
    of_keytool = Store("ssl.truststore", "JKS", str(stores / "trust.jks"), jks_files.STORE_PASSWORD, None)
    for certificate in read_certificates(of_keytool):
        client.load_verify_locations(cadata=certificate.public_bytes(serialization.Encoding.DER))
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_cert_chain(CLIENT.write(stores, "client"))
    server, _ = handshake(loaded, client)
    assert str(loaded.principal(server.getpeercert(binary_form=True))) == "User:CN=ann"


@pytest.mark.parametrize(
    ("explicit", "words"),
    [
        ({}, "a listener with TLS needs a key"),
        ({"ssl_keystore_location": "missing.p12"}, "missing.p12 cannot be read: No such file"),
        ({"ssl_keystore_location": "noise"}, "it is not a PKCS12"),
        (
            {"ssl_keystore_location": "server.p12", "ssl_keystore_password": "hunter2"},
            "its password is wrong",
        ),
        ({"ssl_keystore_location": "trust.p12", "ssl_keystore_password": "changeit"}, "no private key"),
        (
            {"ssl_keystore_location": "old.jks"},
            "old.jks (ssl.keystore.location) cannot be opened: it is cut off",
        ),
        (
            {"ssl_keystore_location": "keytool.jks", "ssl_keystore_password": "hunter2"},
            "cannot be opened: its password is wrong",
        ),
        (
            {"ssl_keystore_location": "keytool.jks", "ssl_keystore_password": jks_files.STORE_PASSWORD},
            "cannot be opened: its key's password is wrong",
        ),
        (
            {
                "ssl_keystore_location": "server.p12",
                "ssl_keystore_password": "changeit",
                "ssl_truststore_location": "noise",
                "ssl_client_auth": "required",
            },
            "it is not a PKCS12 or JKS file",
        ),
        ({"ssl_keystore_type": "PEM", "ssl_keystore_location": "ca.pem"}, "no private key in PEM"),
        ({"ssl_keystore_type": "PEM", "ssl_keystore_location": "server.pem"}, "set ssl.key.password"),
        (
            {
                "ssl_keystore_type": "PEM",
                "ssl_keystore_location": "server.pem",
                "ssl_key_password": "hunter2",
            },
            "ssl.key.password is wrong",
        ),
        (
            {
                "ssl_keystore_type": "PEM",
                "ssl_keystore_location": "plain.pem",
                "ssl_keystore_password": "hunter2",
            },
            "ssl.keystore.password cannot be set with ssl.keystore.type=PEM",
        ),
        (
            inline(ssl_keystore_certificate_chain=CLIENT.certificate_pem),
            "the first certificate of ssl.keystore is not the private key's",
        ),
        (inline(ssl_keystore_certificate_chain="hunter2"), "no certificate in PEM"),
        (inline(ssl_truststore_certificates="hunter2", ssl_client_auth="required"), "no certificate in PEM"),
    ],
)
def test_a_store_that_cannot_be_used_is_named_with_the_reason_and_without_its_secrets(
    stores, explicit, words
) -> None:
    located = {
        name: str(stores / text) if name.endswith("location") else text for name, text in explicit.items()
    }
    with pytest.raises(ConfigError) as refused:
        load(**located)
    assert str(refused.value).startswith("listener SSL: ")
    assert words in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_password_is_in_no_repr(stores) -> None:
    loaded = load(
        ssl_keystore_location=str(stores / "server.p12"),
        ssl_keystore_password="changeit",
        ssl_key_password="k",
    )
    assert "changeit" not in repr(loaded)
    assert "changeit" not in repr(loaded.settings)


# -- names -------------------------------------------------------------------------------------------------


def test_names_are_printed_as_java_prints_them() -> None:
    """The expected names are those of X500Principal.getName() of Java 17."""
    attribute = x509.NameAttribute
    name = x509.Name(
        [
            attribute(NameOID.COUNTRY_NAME, "US"),
            attribute(NameOID.STATE_OR_PROVINCE_NAME, "Cali, fornia"),
            attribute(NameOID.LOCALITY_NAME, 'a+b"c\\d<e>f;g=h#i'),
            attribute(NameOID.ORGANIZATION_NAME, "#lead"),
            attribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "  two spaces  "),
            attribute(NameOID.STREET_ADDRESS, "st 1"),
            attribute(NameOID.DOMAIN_COMPONENT, "example"),
            attribute(NameOID.USER_ID, "u1"),
            attribute(NameOID.EMAIL_ADDRESS, "a@b.c"),
            attribute(NameOID.SERIAL_NUMBER, "777"),
            attribute(NameOID.TITLE, "Dr"),
            attribute(NameOID.COMMON_NAME, 'Ünï "x"'),
        ]
    )
    assert _printed(name) == (
        r"CN=Ünï \"x\",2.5.4.12=#0c024472,2.5.4.5=#1303373737,1.2.840.113549.1.9.1=#16056140622e63,UID=u1,"
        r"DC=example,STREET=st 1,OU=\ \ two spaces\ \ ,O=\#lead,L=a\+b\"c\\d\<e\>f\;g\=h\#i,ST=Cali\, fornia,C=US"
    )
    several = x509.RelativeDistinguishedName(
        [attribute(NameOID.COMMON_NAME, "multi"), attribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "ou")]
    )
    organisation = x509.RelativeDistinguishedName([attribute(NameOID.ORGANIZATION_NAME, "o")])
    assert _printed(x509.Name([several, organisation])) == "O=o,OU=ou+CN=multi"
    assert _printed(x509.Name([attribute(NameOID.COMMON_NAME, "x\ny\r")])) == "CN=x\ny\\\r"
    assert _printed(x509.Name([attribute(NameOID.COMMON_NAME, "x" * 60)] * 3)) == ",".join(
        ["CN=" + "x" * 60] * 3
    )


def _printed(name: x509.Name) -> str:
    made = identity(name, AUTHORITY)
    return subject_of(made.certificate.public_bytes(serialization.Encoding.DER))


# Kafka's own cases: org.apache.kafka.common.security.ssl.SslPrincipalMapperTest
_RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U,RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        (_RULES, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (_RULES, "CN=duke,OU=JavaSoft,O=Sun Microsystems,L=SF,ST=CA,C=US", "duke@javasoft"),
        (_RULES, "cn=duke,ou=JavaSoft,dc=a,dc=b", "DUKE@JAVASOFT"),
        (_RULES, "OU=JavaSoft,O=Sun,C=US,CN=duke", "DUKE"),
        (_RULES, "OU=JavaSoft,O=Sun", "OU=JavaSoft,O=Sun"),
        ("RULE:^CN=([^,]*),.*$/$1/", "CN=ann,O=x", "ann"),
        ("RULE:^CN=([^,]*),.*$/$1/", "O=x", None),
        ("RULE:CN=/x/", "CN=ann", None),
        (r"RULE:^CN=([^,]*)(,.*)?$/\$1-$1-$3\//", "CN=ann", "$1-ann-$3/"),
        ("RULE:^CN=(.*?)[,].*$/$10/", "CN=ann,O=x", "ann0"),
        ("", "CN=ann", None),
    ],
)
def test_rules_make_names_of_principals(rules, name, expected) -> None:
    assert PrincipalRules(rules).name_of(name) == expected


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/",
        "RULE:CN=(.*?)/$1",
        "RULE:^CN=(.*?)/L",
        "RULE:(/x/",
        "RULE:a/b/LU",
    ],
)
def test_a_malformed_list_of_principal_rules_is_refused(rules) -> None:
    with pytest.raises(ConfigError, match="Invalid rule"):
        BrokerConfig({"ssl.principal.mapping.rules": rules})


# -- versions and suites -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("explicit", "versions"),
    [
        ({}, ["TLSv1.2", "TLSv1.3"]),
        ({"ssl_enabled_protocols": "TLSv1.3"}, ["TLSv1.3"]),
        ({"ssl_protocol": "TLSv1.2"}, ["TLSv1.2"]),
        ({"ssl_cipher_suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}, ["TLSv1.2"]),
        ({"ssl_cipher_suites": "TLS_AES_256_GCM_SHA384"}, ["TLSv1.3"]),
    ],
)
def test_only_the_allowed_versions_are_spoken(explicit, versions) -> None:
    loaded = load(**inline(), **explicit)
    spoken = []
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        client = client_context()
        client.minimum_version = client.maximum_version = version
        try:
            server, _ = handshake(loaded, client)
        except ssl.SSLError:
            continue
        spoken.append(server.version())
    assert spoken == versions


def test_suites_go_by_the_names_of_iana() -> None:
    suites = {
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384": "ECDHE-RSA-AES256-SHA384",
        "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256": "DHE-RSA-AES128-GCM-SHA256",
    }
    assert choose_suites(suites).older == ":".join(suites.values())
    loaded = load(**inline(), ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
    server, _ = handshake(loaded, client_context())
    cipher = server.cipher()
    assert cipher is not None
    assert cipher[0] == "ECDHE-ECDSA-AES128-GCM-SHA256"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ssl.enabled.protocols", "TLSv1.1,TLSv1.2", "TLSv1.1 is not offered; TLSv1.2 and TLSv1.3 are"),
        ("ssl.cipher.suites", "TLS_WHAT_WITH_EVER", "TLS_WHAT_WITH_EVER is not known"),
        (
            "ssl.cipher.suites",
            "TLS_AES_128_GCM_SHA256",
            "TLS_AES_256_GCM_SHA384 must be among the suites of TLS 1.3",
        ),
        ("ssl.cipher.suites", "TLS_FOO", "TLS_FOO is not offered"),
        ("ssl.client.auth", "yes", "none, requested, required"),
        ("ssl.keystore.type", "BKS", "JKS, PKCS12, PEM"),
    ],
)
def test_meaningless_tls_settings_are_refused(name, value, words) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig({name: value})
    assert words in str(refused.value)


# -- the principals of clients -----------------------------------------------------------------------------

OTHER_AUTHORITY = identity("authority")


@pytest.mark.parametrize(
    ("client", "asked", "is_let_in"),
    [
        (CLIENT, "required", True),
        (None, "required", False),
        (None, "requested", True),
        (identity("ann", OTHER_AUTHORITY), "required", False),
        (identity("ann", OTHER_AUTHORITY), "requested", False),
        (identity("ann", AUTHORITY, days=-1), "required", False),
        (identity("ann", OTHER_AUTHORITY), "none", True),
    ],
)
def test_certificates_of_clients(tmp_path, client, asked, is_let_in) -> None:
    loaded = load(**inline(ssl_client_auth=asked))
    context = client_context()
    if client is not None:
        context.load_cert_chain(client.write(tmp_path, "client"))
    if not is_let_in:
        with pytest.raises(ssl.SSLError):
            handshake(loaded, context)
        return
    server, _ = handshake(loaded, context)
    name = str(loaded.principal(server.getpeercert(binary_form=True)))
    assert name == ("User:CN=ann" if client is CLIENT else "User:ANONYMOUS")


def test_a_truststore_may_hold_the_clients_own_certificate_alone(tmp_path) -> None:
    loaded = load(**inline(authority=CLIENT, ssl_client_auth="required"))
    context = client_context()
    context.load_cert_chain(CLIENT.write(tmp_path, "client"))
    handshake(loaded, context)
    context.load_cert_chain(identity("eve", AUTHORITY).write(tmp_path, "eve"))
    with pytest.raises(ssl.SSLError):
        handshake(loaded, context)


def test_with_sasl_certificates_are_asked_for_only_by_that_listeners_own_configuration() -> None:
    asked = {}
    for own in ("", "listener.name.sasl_ssl."):
        config = BrokerConfig({"listeners": "SASL_SSL://h:1", f"{own}ssl.client.auth": "required"})
        asked[own] = settings_of(config, config.listeners(LISTEN)[0]).client_auth
    assert asked == {"": "none", "listener.name.sasl_ssl.": "required"}


# -- certificates that change ------------------------------------------------------------------------------


@asynccontextmanager
async def running(folder, **more: str):
    (folder / "server.pem").write_text(SERVER.key_pem() + SERVER.certificate_pem)
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        **more,
    }
    broker = Broker(BrokerConfig(config), data_dir=folder / "data")
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def serial_number(broker) -> int:
    """Return the serial number of the certificate that a new connection is shown."""
    context = client_context()
    _, writer = await asyncio.open_connection(
        "127.0.0.1", broker.listeners["SSL"].port, ssl=context, server_hostname="localhost"
    )
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return x509.load_der_x509_certificate(shown).serial_number


def replace_store(folder, text: str) -> None:
    """Replace the store as tools do: write a new file, and rename it."""
    (folder / "new").write_text(text)
    os.replace(folder / "new", folder / "server.pem")


async def set_location(broker, folder, prefix: str = "listener.name.ssl.") -> tuple[int, str | None]:
    """Set the same path again, as `kafka-configs --alter --entity-type brokers` does."""
    name = f"{prefix}ssl.keystore.location"
    answer: tuple[int, str | None] = await alter(
        DirectBroker(broker), BROKER, "0", (name, SET, str(folder / "server.pem"))
    )
    return answer


async def test_a_new_certificate_counts_for_new_connections_and_a_broken_one_is_refused(tmp_path) -> None:
    async with running(tmp_path) as broker:
        assert await serial_number(broker) == SERVER.certificate.serial_number
        second = identity("localhost", AUTHORITY)
        replace_store(tmp_path, second.key_pem() + second.certificate_pem)
        assert await serial_number(broker) == SERVER.certificate.serial_number
        await broker.reload_certificates()
        assert await serial_number(broker) == second.certificate.serial_number

        third = identity("localhost", AUTHORITY)
        replace_store(tmp_path, third.key_pem() + second.certificate_pem)
        for prefix in ("listener.name.ssl.", ""):
            code, message = await set_location(broker, tmp_path, prefix)
            assert code == ErrorCode.INVALID_REQUEST
            assert "is not the private key's" in (message or "")
        await broker.reload_certificates()
        assert await serial_number(broker) == second.certificate.serial_number

        replace_store(tmp_path, third.key_pem() + third.certificate_pem)
        assert await set_location(broker, tmp_path) == (0, None)
        assert await serial_number(broker) == third.certificate.serial_number


async def test_other_changes_are_taken_while_a_certificate_is_broken(tmp_path) -> None:
    async with running(tmp_path) as broker:
        replace_store(tmp_path, "broken")
        change = ("log.retention.ms", SET, "1000000")
        assert await alter(DirectBroker(broker), BROKER, "0", change) == (0, None)


async def test_files_are_looked_at_by_themselves(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(reloading, "LOOK_SECONDS", 0.01)
    async with running(tmp_path) as broker, asyncio.timeout(60):
        replace_store(tmp_path, "broken")
        while "so the present ones stay in use" not in caplog.text:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert caplog.text.count("so the present ones stay in use") == 1
        second = identity("localhost", AUTHORITY)
        replace_store(tmp_path, second.key_pem() + second.certificate_pem)
        while await serial_number(broker) != second.certificate.serial_number:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("new", "setting", "words"),
    [
        (
            identity("other", AUTHORITY),
            "ssl.allow.dn.changes",
            "is for CN=other, the one in use for CN=localhost",
        ),
        (
            identity("localhost", AUTHORITY, names=(x509.DNSName("localhost"),)),
            "ssl.allow.san.changes",
            "lacks alternative names of the one in use: 127.0.0.1",
        ),
    ],
)
async def test_a_new_certificate_may_change_the_name_only_if_configured(
    tmp_path, new, setting, words
) -> None:
    for is_allowed in (False, True):
        async with running(tmp_path, **{setting: str(is_allowed).lower()}) as broker:
            replace_store(tmp_path, new.key_pem() + new.certificate_pem)
            if is_allowed:
                await set_location(broker, tmp_path)
                assert await serial_number(broker) == new.certificate.serial_number
            else:
                code, message = await set_location(broker, tmp_path)
                assert code == ErrorCode.INVALID_REQUEST
                assert words in (message or "")
                assert await serial_number(broker) == SERVER.certificate.serial_number
        os.remove(tmp_path / "server.pem")
        for path in sorted((tmp_path / "data").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()


async def test_a_listener_without_a_key_does_not_start(tmp_path) -> None:
    broker = Broker(BrokerConfig({"listeners": "SSL://127.0.0.1:0"}), data_dir=tmp_path / "data")
    with pytest.raises(
        ConfigError, match=r"listener SSL: neither ssl.keystore.location nor ssl.keystore.key is set"
    ):
        await broker.start()


@pytest.mark.parametrize("by_openssl", [True, False])
@pytest.mark.parametrize(
    ("files", "by_kernel"),
    [
        ({}, False),
        ({"sys/net/ipv4/tcp_available_ulp": "mptcp\n"}, False),
        ({"sys/net/ipv4/tcp_available_ulp": "mptcp tls\n"}, True),
        ({"net/tls_stat": "TlsCurrTxSw 0\n"}, True),
    ],
)
def test_the_tls_provider_and_unused_offload_are_described(
    tmp_path, monkeypatch, files, by_kernel, by_openssl
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    monkeypatch.delattr(ssl, "OP_ENABLE_KTLS", raising=False)
    if by_openssl:
        monkeypatch.setattr(ssl, "OP_ENABLE_KTLS", 8, raising=False)
    said = kernel.told(tmp_path)
    assert said.startswith(ssl.OPENSSL_VERSION)
    assert ("OpenSSL's" in said, "the kernel's" in said) == (not by_openssl, not by_kernel)
    assert ("it is offered here" in said) is (by_openssl and by_kernel)


async def test_the_tls_provider_is_logged_once(tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, "headrace.security")
    async with running(tmp_path) as broker:
        await broker.reload_certificates()
    assert [message for message in caplog.messages if ssl.OPENSSL_VERSION in message] == [
        f"TLS is provided by {kernel.told()}"
    ]
