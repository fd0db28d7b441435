"""The TLS of one listener: made of its configurations, and made again when they or their files change.

A new one applies to later connections; existing connections keep theirs. Files that cannot be read or do not fit are
refused, and the last valid ones stay (KIP-226, KIP-519).
"""

from __future__ import annotations

import os
import secrets
import ssl
import tempfile
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from headrace.broker.configs.ciphers import PROTOCOLS, choose_suites
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.listeners import Listener
from headrace.broker.configs.principal_rules import PrincipalRules
from headrace.broker.security.principal import ANONYMOUS, Principal
from headrace.broker.security.tls.names import distinguished_name, subject_of
from headrace.broker.security.tls.stores import KeyPair, Store, read_certificates, read_key_pair

_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class Configs(Protocol):
    """The configurations of a broker."""

    def of_listener(self, listener: str, name: str) -> Any:
        """Return the value that counts for a listener."""
        ...

    def is_set_for(self, listener: str, name: str) -> bool:
        """Return whether it is set for the listener alone."""
        ...


class TlsSettings(msgspec.Struct, frozen=True):
    """The TLS configurations of a listener; equal settings make equal contexts of equal files."""

    listener: str
    keys: Store
    trusted: Store
    client_auth: str
    rules: str
    protocols: tuple[str, ...]
    suites: tuple[str, ...]
    may_change_name: bool
    may_change_alternatives: bool

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(store.location for store in (self.keys, self.trusted) if store.location is not None)


def settings_of(config: Configs, listener: Listener) -> TlsSettings:
    def value(name: str) -> Any:
        return config.of_listener(listener.name, name)

    client_auth = value("ssl.client.auth")
    if listener.protocol.has_sasl and not config.is_set_for(listener.name, "ssl.client.auth"):
        client_auth = "none"
    protocols = [
        name
        for name in value("ssl.enabled.protocols")
        if name == "TLSv1.2" or value("ssl.protocol") != "TLSv1.2"
    ]
    return TlsSettings(
        listener.name,
        Store(
            "ssl.keystore",
            value("ssl.keystore.type").upper(),
            value("ssl.keystore.location"),
            value("ssl.keystore.password"),
            value("ssl.keystore.certificate.chain"),
            value("ssl.keystore.key"),
            value("ssl.key.password"),
        ),
        Store(
            "ssl.truststore",
            value("ssl.truststore.type").upper(),
            value("ssl.truststore.location"),
            value("ssl.truststore.password"),
            value("ssl.truststore.certificates"),
        ),
        client_auth,
        value("ssl.principal.mapping.rules"),
        tuple(protocols),
        tuple(value("ssl.cipher.suites")),
        value("ssl.allow.dn.changes"),
        value("ssl.allow.san.changes"),
    )


class LoadedTls(msgspec.Struct, frozen=True):
    """TLS that is ready for connections. `stamps` identifies the state of its files."""

    settings: TlsSettings
    context: ssl.SSLContext
    certificate: x509.Certificate
    rules: PrincipalRules
    newer_suites: frozenset[str]
    stamps: tuple[tuple[int, ...], ...]

    def principal(self, certificate: bytes | None) -> Principal | None:
        """Return the principal of a client's certificate (DER); None when no rule matches."""
        if certificate is None:
            return ANONYMOUS
        name = self.rules.name_of(subject_of(certificate))
        return None if name is None else Principal("User", name)


def stamps_of(files: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Return a stamp per file, which changes when the file is written or replaced; () for a missing one."""
    stamps: list[tuple[int, ...]] = []
    for file in files:
        try:
            found = os.stat(file)
        except OSError:
            stamps.append(())
        else:
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
    return tuple(stamps)


def load_tls(settings: TlsSettings, before: LoadedTls | None = None) -> LoadedTls:
    """Read the stores, and make the context. This takes milliseconds to a second, depending on the stores'
    passwords.

    `before` is the TLS that it replaces. Raises ConfigError.
    """
    try:
        stamps = stamps_of(settings.files)
        if not settings.keys.is_set:
            raise ConfigError(
                "neither ssl.keystore.location nor ssl.keystore.key is set: a listener with TLS needs a key"
            )
        pair = read_key_pair(settings.keys)
        if before is not None:
            _check_change(settings, before.certificate, pair.chain[0])
        suites = choose_suites(settings.suites)
        context = _context(settings, pair)
        return LoadedTls(
            settings, context, pair.chain[0], PrincipalRules(settings.rules), frozenset(suites.newer), stamps
        )
    except ConfigError as error:
        raise ConfigError(f"listener {settings.listener}: {error}") from None


def _context(settings: TlsSettings, pair: KeyPair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A handshake costs the broker more than the client: once per connection is enough.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    suites = choose_suites(settings.suites)
    versions = [
        PROTOCOLS[name]
        for name in settings.protocols
        if (suites.older != "" if name == "TLSv1.2" else bool(suites.newer))
    ]
    if not versions:
        raise ConfigError("ssl.enabled.protocols, ssl.protocol and ssl.cipher.suites leave no version of TLS")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if suites.older:
        context.set_ciphers(suites.older)
    try:
        load_pair(context, pair)
    except ssl.SSLError as error:
        raise ConfigError(f"OpenSSL refuses the certificate or its key: {error.reason or error}") from None
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    if context.verify_mode != ssl.CERT_NONE:
        # As in Java, each certificate of a truststore is trusted by itself, also one that another has signed.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if settings.trusted.is_set:
            found = read_certificates(settings.trusted)
            pems = (each.public_bytes(serialization.Encoding.PEM).decode() for each in found)
            context.load_verify_locations(cadata="".join(pems))
        else:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return context


def load_pair(context: ssl.SSLContext, pair: KeyPair) -> None:
    """Load a key pair. OpenSSL reads keys from files only, so it gets a temporary file, encrypted with a password that
    is used once.
    """
    password = secrets.token_hex(16)
    encrypted = pair.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode()),
    )
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        file = Path(folder) / "key.pem"
        chain = b"".join(each.public_bytes(serialization.Encoding.PEM) for each in pair.chain)
        file.write_bytes(encrypted + chain)
        context.load_cert_chain(file, password=password)


def _check_change(settings: TlsSettings, old: x509.Certificate, new: x509.Certificate) -> None:
    """Refuse a new certificate with another name, which clients that have verified the old name would not expect
    (KIP-978).
    """
    if not settings.may_change_name and old.subject != new.subject:
        raise ConfigError(
            f"the new certificate is for {distinguished_name(new.subject)}, the one in use for "
            f"{distinguished_name(old.subject)}; set ssl.allow.dn.changes to allow this"
        )
    missing = _alternatives(old) - _alternatives(new)
    if missing and not settings.may_change_alternatives:
        raise ConfigError(
            f"the new certificate lacks alternative names of the one in use: {', '.join(sorted(missing))}; "
            "set ssl.allow.san.changes to allow this"
        )


def _alternatives(certificate: x509.Certificate) -> set[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    return {str(each.value) for each in found.value}
