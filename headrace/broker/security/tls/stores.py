"""Keystores and truststores: read keys and certificates from files or texts, with errors that name the fault.

The formats are PEM (KIP-651), PKCS12 and Java's own JKS. PKCS12 and JKS are told apart by how a file begins, as in
Java. No error contains a password or a key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from headrace.broker.configs.config_key import ConfigError
from headrace.protocol.security import jks

_STORE_BYTES_MAX: Final = 16 << 20


class Store(msgspec.Struct, frozen=True):
    """The configurations of one store of keys or certificates.

    `name` is `ssl.keystore` or `ssl.truststore`; `key` and `certificates` are PEM texts instead of a file.
    """

    name: str
    type: str
    location: str | None
    password: str | None
    certificates: str | None
    key: str | None = None
    key_password: str | None = None

    def __repr__(self) -> str:
        return f"Store({self.name}, {self.type}, {self.location})"

    @property
    def is_set(self) -> bool:
        return self.location is not None or self.certificates is not None or self.key is not None


class KeyPair(msgspec.Struct, frozen=True):
    """A private key, and its certificates: the broker's own first, then those of its signers."""

    key: Any
    chain: tuple[x509.Certificate, ...]

    def __repr__(self) -> str:
        return f"KeyPair({self.chain[0].subject.rfc4514_string()})"


def read_key_pair(store: Store) -> KeyPair:
    """Read a key pair. Raises ConfigError."""
    if store.type == "PEM":
        _check_pem(store)
        if store.location is not None:
            text = _read(store)
            return _pair(
                store, _pem_key(store, text, store.location), _pem_certificates(store, text, store.location)
            )
        if store.key is None or store.certificates is None:
            raise ConfigError(
                "ssl.keystore.key and ssl.keystore.certificate.chain must both be set, or ssl.keystore.location"
            )
        key = _pem_key(store, store.key.encode(), "ssl.keystore.key")
        return _pair(
            store,
            key,
            _pem_certificates(store, store.certificates.encode(), "ssl.keystore.certificate.chain"),
        )
    bundle = _pkcs12(store)
    if bundle.key is None or bundle.cert is None:
        raise ConfigError(f"{store.location} ({store.name}.location) has no private key with a certificate")
    return KeyPair(
        bundle.key, _in_order(bundle.cert.certificate, [each.certificate for each in bundle.additional_certs])
    )


def read_certificates(store: Store) -> list[x509.Certificate]:
    """Return the certificates of a truststore. Raises ConfigError."""
    if store.type == "PEM":
        _check_pem(store)
        if store.location is not None:
            return _pem_certificates(store, _read(store), store.location)
        return _pem_certificates(store, (store.certificates or "").encode(), f"{store.name}.certificates")
    bundle = _pkcs12(store)
    found = [each.certificate for each in bundle.additional_certs]
    if bundle.cert is not None:
        found.append(bundle.cert.certificate)
    if not found:
        raise ConfigError(f"{store.location} ({store.name}.location) has no certificates")
    return found


def _check_pem(store: Store) -> None:
    if store.location is not None and (store.certificates is not None or store.key is not None):
        raise ConfigError(
            f"{store.name}.location and certificates in the configuration itself are both set: choose one"
        )
    if store.password is not None:
        raise ConfigError(
            f"{store.name}.password cannot be set with {store.name}.type=PEM; a key's is ssl.key.password"
        )


def _read(store: Store) -> bytes:
    path = Path(store.location or "")
    try:
        with path.open("rb") as file:
            data = file.read(_STORE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{store.name}.location: {path} cannot be read: {error.strerror}") from None
    if len(data) > _STORE_BYTES_MAX:
        raise ConfigError(f"{store.name}.location: {path} is larger than {_STORE_BYTES_MAX} bytes")
    return data


def _pkcs12(store: Store) -> pkcs12.PKCS12KeyAndCertificates:
    if store.location is None:
        raise ConfigError(f"{store.name}.location must be set with {store.name}.type={store.type}")
    data = _read(store)
    if data.startswith(jks.MAGIC):
        try:
            return jks.load_jks(data, store.password, store.key_password)
        except jks.JksError as error:
            raise ConfigError(f"{store.location} ({store.name}.location) cannot be opened: {error}") from None
    password = None if store.password is None else store.password.encode()
    try:
        return pkcs12.load_pkcs12(data, password)
    except (ValueError, TypeError) as error:
        reason = (
            "its password is wrong" if "password" in str(error).lower() else "it is not a PKCS12 or JKS file"
        )
        raise ConfigError(f"{store.location} ({store.name}.location) cannot be opened: {reason}") from None


def _pem_key(store: Store, text: bytes, place: str) -> Any:
    password = None if store.key_password is None else store.key_password.encode()
    begin = text.find(b"-----BEGIN ")
    while begin >= 0:
        label = text[begin : text.find(b"\n", begin)]
        if b"PRIVATE KEY" in label:
            break
        begin = text.find(b"-----BEGIN ", begin + 1)
    else:
        raise ConfigError(f"{place} has no private key in PEM")
    is_encrypted = b"ENCRYPTED" in text[begin : begin + 200]
    if is_encrypted and password is None:
        raise ConfigError(f"the private key in {place} is encrypted: set ssl.key.password")
    try:
        return serialization.load_pem_private_key(text[begin:], password if is_encrypted else None)
    except (ValueError, TypeError):
        reason = "ssl.key.password is wrong, or it is damaged" if is_encrypted else "it is damaged"
        raise ConfigError(f"the private key in {place} cannot be read: {reason}") from None
    except Exception as error:  # noqa: BLE001 - UnsupportedAlgorithm has no base to name
        raise ConfigError(f"the private key in {place} cannot be used: {error}") from None


def _pem_certificates(store: Store, text: bytes, place: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError:
        raise ConfigError(f"{place} ({store.name}) has no certificate in PEM, or a damaged one") from None


def _pair(store: Store, key: Any, chain: list[x509.Certificate]) -> KeyPair:
    if chain[0].public_key() != key.public_key():
        raise ConfigError(f"the first certificate of {store.name} is not the private key's")
    return KeyPair(key, tuple(chain))


def _in_order(own: x509.Certificate, others: list[x509.Certificate]) -> tuple[x509.Certificate, ...]:
    """Return the chain of issuers, as far as it is complete."""
    chain = [own]
    by_subject = {each.subject: each for each in others}
    while (issuer := by_subject.pop(chain[-1].issuer, None)) is not None:
        chain.append(issuer)
    return tuple(chain)
