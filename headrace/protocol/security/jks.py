"""Keystores in Java's own format, JKS, keytool's default before Java 9. They are read, not written: use PKCS12 instead.

    magic, version 2, count, then for each entry: tag, alias, time, a key with its chain (1) or a certificate (2)
    SHA-1 of the password in UTF-16BE, "Mighty Aphrodite" and all bytes before it

A key is PKCS #8, encrypted by a stream of SHA-1 of the password and a salt (sun.security.provider.KeyProtector). Each
length is checked before the bytes are read.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

MAGIC: Final = bytes.fromhex("feedfeed")
_WHITENER: Final = b"Mighty Aphrodite"
_KEY, _CERTIFICATE = 1, 2
_PROTECTOR: Final = bytes.fromhex("300e060a2b060104012a021101010500")
"""The AlgorithmIdentifier of a key, 1.3.6.1.4.1.42.2.17.1.1, as Java writes it."""
_DIGEST_SIZE: Final = 20


class JksError(ValueError):
    """The keystore cannot be read. The message shows nothing of its content."""


class JksEntry(msgspec.Struct, frozen=True):
    """A key with its certificates, or a trusted certificate (`protected_key` is None). DER, the key's own first."""

    alias: str
    certificates: tuple[bytes, ...]
    protected_key: bytes | None = None

    def __repr__(self) -> str:
        return f"JksEntry({self.alias!r})"

    def key(self, password: str) -> bytes:
        """Return the private key, PKCS #8 in DER. Raises JksError if the password is wrong."""
        secret, hidden = password.encode("utf-16-be"), _octets(self.protected_key or b"")
        salt, check = hidden[:_DIGEST_SIZE], hidden[-_DIGEST_SIZE:]
        covered = hidden[_DIGEST_SIZE:-_DIGEST_SIZE]
        stream, block = bytearray(), salt
        while len(stream) < len(covered):
            block = hashlib.sha1(secret + block, usedforsecurity=False).digest()
            stream += block
        plain = bytes(one ^ other for one, other in zip(covered, stream, strict=False))
        if not hmac.compare_digest(hashlib.sha1(secret + plain, usedforsecurity=False).digest(), check):
            raise JksError("its key's password is wrong")
        return plain


def read_jks(data: bytes, password: str | None) -> list[JksEntry]:
    """Return all entries. Without a password the file's integrity is not checked. Raises JksError."""
    if not data.startswith(MAGIC):
        raise JksError("it is not a file of JKS")
    if password is not None:
        digest = hashlib.sha1(password.encode("utf-16-be") + _WHITENER, usedforsecurity=False)
        digest.update(data[:-_DIGEST_SIZE])
        if not hmac.compare_digest(digest.digest(), data[-_DIGEST_SIZE:]):
            raise JksError("its password is wrong, or it is damaged")
    reader = _Reader(data[len(MAGIC) : -_DIGEST_SIZE])
    version = reader.number()
    if version not in (1, 2):
        raise JksError("it is of an unknown version")
    return [_entry(reader, has_types=version == 2) for _ in range(reader.number())]


def load_jks(data: bytes, password: str | None, key_password: str | None) -> PKCS12KeyAndCertificates:
    """Return the first key with its chain, or else the trusted certificates, as PKCS12 has them.

    If `key_password` is None, the store's password is the key's too. Raises JksError.
    """
    from cryptography import x509  # a tenth of a second to import
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_der_private_key
    from cryptography.hazmat.primitives.serialization.pkcs12 import (
        PKCS12Certificate,
        PKCS12KeyAndCertificates,
    )

    entries = read_jks(data, password)
    with_key = next((each for each in entries if each.protected_key is not None), None)
    try:
        certificates = [
            PKCS12Certificate(x509.load_der_x509_certificate(each), None)
            for entry in ([with_key] if with_key is not None else entries)
            for each in entry.certificates
        ]
        if with_key is None or not certificates:
            return PKCS12KeyAndCertificates(None, None, certificates)
        secret = key_password or password
        if secret is None:
            raise JksError("a key has a password, and none is set")
        key: Any = load_der_private_key(with_key.key(secret), None)
    except JksError:
        raise
    except (ValueError, TypeError, x509.InvalidVersion, UnsupportedAlgorithm):
        raise JksError("it has a key or a certificate that cannot be read") from None
    return PKCS12KeyAndCertificates(key, certificates[0], certificates[1:])


def _entry(reader: _Reader, *, has_types: bool) -> JksEntry:
    def certificate() -> bytes:
        if has_types:
            reader.text()
        return reader.taken(reader.number())

    tag, alias, _ = reader.number(), reader.text(), reader.taken(8)
    if tag == _CERTIFICATE:
        return JksEntry(alias, (certificate(),))
    if tag != _KEY:
        raise JksError("it has an entry that is neither a key nor a certificate")
    protected_key = reader.taken(reader.number())
    return JksEntry(alias, tuple(certificate() for _ in range(reader.number())), protected_key)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def taken(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise JksError("it is cut off, or damaged")
        found, self._position = self._data[self._position : end], end
        return found

    def number(self) -> int:
        return int.from_bytes(self.taken(4), "big")

    def text(self) -> str:
        (size,) = struct.unpack(">H", self.taken(2))
        return self.taken(size).decode("utf-8", "replace")


def _octets(protected: bytes) -> bytes:
    """Return the encrypted data of an EncryptedPrivateKeyInfo (RFC 5208, 6)."""
    body, rest = _value(protected, 0x30)
    if rest or not body.startswith(_PROTECTOR):
        raise JksError("its key is protected in a way that is not known")
    octets, rest = _value(body[len(_PROTECTOR) :], 0x04)
    if rest or len(octets) < 2 * _DIGEST_SIZE:
        raise JksError("its key is damaged")
    return octets


def _value(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """Return the value of a DER element, and the bytes after the element."""
    if len(data) < 2 or data[0] != tag:
        raise JksError("its key is damaged")
    size, begin = data[1], 2
    if size >= 0x80:
        begin += size & 0x7F
        size = int.from_bytes(data[2:begin], "big")
    if begin + size > len(data):
        raise JksError("its key is damaged")
    return data[begin : begin + size], data[begin + size :]
