"""Java's keystores as keytool makes them, with every byte damaged or missing too."""

from __future__ import annotations

import contextlib

import pytest
from cryptography.hazmat.primitives.serialization import load_der_private_key
from cryptography.x509 import load_der_x509_certificate
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.protocol.security.jks import MAGIC, JksError, load_jks, read_jks
from headrace.protocol.tests.security.jks_files import KEY_PASSWORD, KEYSTORE, STORE_PASSWORD, TRUSTSTORE

CERTIFICATE_VERSION = KEYSTORE.index(bytes.fromhex("a003020102")) + 4
CERTIFICATE_SERIAL = CERTIFICATE_VERSION + 3


def test_a_key_is_read_with_its_certificate() -> None:
    (entry,) = read_jks(KEYSTORE, STORE_PASSWORD)
    assert entry.alias == "server"
    (certificate,) = map(load_der_x509_certificate, entry.certificates)
    key = load_der_private_key(entry.key(KEY_PASSWORD), None)
    assert key.public_key() == certificate.public_key()
    store = load_jks(KEYSTORE, STORE_PASSWORD, KEY_PASSWORD)
    assert store.cert is not None
    assert (store.cert.certificate, store.additional_certs) == (certificate, [])
    assert KEY_PASSWORD not in repr(entry)


def test_trusted_certificates_are_read_with_and_without_the_password() -> None:
    (own,) = read_jks(KEYSTORE, STORE_PASSWORD)
    for password in (STORE_PASSWORD, None):
        (entry,) = read_jks(TRUSTSTORE, password)
        assert (entry.alias, entry.protected_key, entry.certificates) == ("ca", None, own.certificates)
        store = load_jks(TRUSTSTORE, password, None)
        assert (store.key, store.cert, len(store.additional_certs)) == (None, None, 1)


@pytest.mark.parametrize(
    ("password", "key_password", "words"),
    [
        ("hunter2", KEY_PASSWORD, "its password is wrong"),
        (STORE_PASSWORD, "hunter2", "its key's password is wrong"),
        (STORE_PASSWORD, None, "its key's password is wrong"),
        (None, None, "a key has a password, and none is set"),
    ],
)
def test_a_wrong_password_is_said_and_not_shown(
    password: str | None, key_password: str | None, words: str
) -> None:
    with pytest.raises(JksError) as refused:
        load_jks(KEYSTORE, password, key_password)
    assert words in str(refused.value)
    assert "hunter2" not in str(refused.value)


@given(st.integers(0, len(KEYSTORE) - 1), st.integers(1, 255), st.booleans(), st.booleans())
@example(CERTIFICATE_VERSION, 1, False, False)
@example(CERTIFICATE_SERIAL, 128, False, False)
@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
def test_damage_is_refused(at: int, change: int, is_cut: bool, has_password: bool) -> None:
    """With the store's password any damage is refused. Without it, reading gives an error of JKS or a store."""
    damaged = KEYSTORE[:at] if is_cut else KEYSTORE[:at] + bytes([KEYSTORE[at] ^ change]) + KEYSTORE[at + 1 :]
    if has_password:
        with pytest.raises(JksError):
            load_jks(damaged, STORE_PASSWORD, KEY_PASSWORD)
        return
    with contextlib.suppress(JksError):
        load_jks(damaged, None, KEY_PASSWORD)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(tail: bytes) -> None:
    for version in (0, 1, 2, 3):
        data = MAGIC + version.to_bytes(4, "big") + tail
        with contextlib.suppress(JksError):
            load_jks(data, None, "x")
    with pytest.raises(JksError, match="not a file of JKS"):
        read_jks(b"\xce\xce\xce\xce" + tail, None)
