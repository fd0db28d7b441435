"""The client's side of TLS by Kafka's properties: PEM in files or inline, PKCS12, and Java's JKS.

It supports TLS 1.2 and 1.3, by the standard library. The server's certificate and host name are checked, unless the
properties of librdkafka or Java turn that off. Trusted certificates are those of `ssl.ca.location` (or its
equivalents), else the system's. Private keys that are inline, or come from a PKCS12 store, are never written to a disk.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.protocol.security import jks
from headrace.tablelayer.client.errors import SettingsError

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_FILES: Final = (
    "ssl.ca.location", "ssl.truststore.location", "ssl.certificate.location", "ssl.key.location",
    "ssl.keystore.location",
)  # fmt: skip


@dataclass(slots=True)
class Tls:
    """Makes the context of connections, again when a file has changed (a renewed certificate)."""

    properties: Mapping[str, str] = field(repr=False)
    _context: ssl.SSLContext | None = field(default=None, repr=False)
    _made_of: tuple[Any, ...] = ()

    def context(self) -> ssl.SSLContext:
        """Return the context. Raises SettingsError, which names the property that is wrong or cannot be read."""
        present = tuple(_stamp(self.properties.get(name)) for name in _FILES)
        if self._context is None or present != self._made_of:
            self._context, self._made_of = _make_context(self.properties), present
        return self._context


def _stamp(path: str | None) -> tuple[int, int] | None:
    try:
        status = os.stat(path) if path else None
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_ino)


def _make_context(given: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    named = [part.strip() for part in given.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3").split(",")]
    versions = [_VERSIONS[name] for name in named if name in _VERSIONS]
    if not versions:
        raise SettingsError(f"ssl.enabled.protocols is {','.join(named)!r}: use {', '.join(_VERSIONS)}")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    ciphers = given.get("ssl.cipher.suites")
    if ciphers:
        try:
            context.set_ciphers(ciphers.replace(",", ":"))
        except ssl.SSLError:
            raise SettingsError(
                f"ssl.cipher.suites is {ciphers!r}: OpenSSL does not know any of these"
            ) from None
    if _flag(given, "enable.ssl.certificate.verification"):
        algorithm = given.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
        if algorithm not in ("https", "none", ""):
            raise SettingsError(f"ssl.endpoint.identification.algorithm is {algorithm!r}: use https or none")
        context.check_hostname = algorithm == "https"
        _trust(context, given)
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _present(context, given)
    return context


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "true").strip().lower()
    if text not in ("true", "false"):
        raise SettingsError(f"{name} is {text!r}: use true or false")
    return text == "true"


def _trust(context: ssl.SSLContext, given: Mapping[str, str]) -> None:
    for name in ("ssl.ca.pem", "ssl.truststore.certificates"):
        if given.get(name):
            _load_ca(context, name, given[name])
            return
    if given.get("ssl.ca.location"):
        _load_ca_file(context, "ssl.ca.location", given["ssl.ca.location"])
    elif given.get("ssl.truststore.location"):
        name, place = "ssl.truststore.location", given["ssl.truststore.location"]
        if _is_pem(name, place, given.get("ssl.truststore.type")):
            _load_ca_file(context, name, place)
        else:
            store = _store(name, place, given.get("ssl.truststore.password"))
            certificates = [*store.additional_certs, *([store.cert] if store.cert else [])]
            _load_ca(context, name, "".join(_pem(each.certificate) for each in certificates))
    else:
        context.load_default_certs()


def _load_ca(context: ssl.SSLContext, name: str, pem: str) -> None:
    try:
        context.load_verify_locations(cadata=pem.replace("\\n", "\n"))
    except (ssl.SSLError, ValueError):
        raise SettingsError(f"{name} does not have a certificate in PEM") from None


def _load_ca_file(context: ssl.SSLContext, name: str, place: str) -> None:
    try:
        if Path(place).is_dir():
            context.load_verify_locations(capath=place)
        else:
            context.load_verify_locations(cafile=place)
    except ssl.SSLError:
        raise SettingsError(f"{name}: {place} does not have a certificate in PEM") from None
    except OSError as error:
        raise SettingsError(f"{name}: cannot read {place}: {error.strerror}") from None


def _present(context: ssl.SSLContext, given: Mapping[str, str]) -> None:
    """Load the client's own certificate, if it has one."""
    password = given.get("ssl.key.password") or given.get("ssl.keystore.password")
    chain = given.get("ssl.certificate.pem") or given.get("ssl.keystore.certificate.chain")
    key = given.get("ssl.key.pem") or given.get("ssl.keystore.key")
    if chain or key:
        if not chain or not key:
            raise SettingsError(
                "a certificate needs its key: set ssl.keystore.certificate.chain and ssl.keystore.key, or"
                " ssl.certificate.pem and ssl.key.pem"
            )
        _load_inline(context, "ssl.keystore.key", f"{key}\n{chain}".replace("\\n", "\n").encode(), password)
    elif given.get("ssl.certificate.location"):
        place = given["ssl.certificate.location"]
        _load_chain(
            context, "ssl.certificate.location", place, given.get("ssl.key.location") or None, password
        )
    elif given.get("ssl.keystore.location"):
        name, place = "ssl.keystore.location", given["ssl.keystore.location"]
        if _is_pem(name, place, given.get("ssl.keystore.type")):
            _load_chain(context, name, place, None, password)
        else:
            store = _store(name, place, given.get("ssl.keystore.password"), given.get("ssl.key.password"))
            if store.key is None or store.cert is None:
                raise SettingsError(f"{name}: {place} has no private key with its certificate")
            _load_inline(context, name, _pem_of_key(store), None)


def _load_chain(
    context: ssl.SSLContext, name: str, place: str, key: str | None, password: str | None
) -> None:
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(place, key, (password or "").encode)
    except ssl.SSLError:
        files = place if key is None else f"{place} and {key}"
        raise SettingsError(
            f"{name}: {files} must have a certificate and its key in PEM, and ssl.key.password must be the key's"
        ) from None
    except OSError as error:
        raise SettingsError(f"{name}: cannot read {key or place}: {error.strerror}") from None


def _load_inline(context: ssl.SSLContext, name: str, pem: bytes, password: str | None) -> None:
    with _memory_file(pem) as place:
        try:
            context.load_cert_chain(place, None, (password or "").encode)
        except ssl.SSLError:
            raise SettingsError(
                f"{name} must have a key with its certificate in PEM, and ssl.key.password must be the key's"
            ) from None


@contextmanager
def _memory_file(content: bytes) -> Iterator[str]:
    """Give the path of a file in memory while it is used: `ssl` loads keys from paths only."""
    descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _is_pem(name: str, place: str, kind: str | None) -> bool:
    """Return whether a store is PEM, by its declared type or its first bytes. Raises SettingsError."""
    try:
        with open(place, "rb") as file:
            head = file.read(64)
    except OSError as error:
        raise SettingsError(f"{name}: cannot read {place}: {error.strerror}") from None
    if kind is not None and kind.upper() in ("PEM", "PKCS12", "JKS"):
        return kind.upper() == "PEM"
    return not head.startswith((b"\x30", jks.MAGIC))


def _store(name: str, place: str, password: str | None, key_password: str | None = None) -> Any:
    """Open a PKCS12 or JKS store. As in Java, the first bytes of the file decide."""
    from cryptography.hazmat.primitives.serialization import pkcs12  # a tenth of a second to import

    data = Path(place).read_bytes()
    try:
        if data.startswith(jks.MAGIC):
            return jks.load_jks(data, password, key_password)
        return pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except jks.JksError as error:
        raise SettingsError(f"{name}: {place} cannot be opened: {error}") from None
    except ValueError:
        raise SettingsError(
            f"{name}: {place} is not a PKCS12 or JKS store, or its password is wrong"
        ) from None


def _pem(certificate: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return str(certificate.public_bytes(Encoding.PEM).decode())


def _pem_of_key(store: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key: bytes = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = [store.cert, *store.additional_certs]
    return key + "".join(_pem(each.certificate) for each in chain).encode()
