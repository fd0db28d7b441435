"""Versions of TLS and cipher suites: translate the names of Java and IANA to OpenSSL's."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Final

import msgspec

from headrace.broker.configs.config_key import ConfigError

PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

_OF_TLS_1_3: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
"""The suites that OpenSSL enables, in its order of preference. They cannot be chosen singly before Python 3.15."""


class Suites(msgspec.Struct, frozen=True):
    """`older`: suites of TLS 1.2, by OpenSSL's names; None: OpenSSL's own choice. `newer`: suites of TLS 1.3."""

    older: str | None
    newer: tuple[str, ...]


def choose_suites(names: Iterable[str]) -> Suites:
    """Choose suites by their names (IANA's, Java's); no names mean OpenSSL's own choice. Raises ConfigError."""
    names = list(names)
    if not names:
        return Suites(None, _OF_TLS_1_3)
    newer = tuple(name for name in names if "_WITH_" not in name)
    unknown = [name for name in newer if name not in _OF_TLS_1_3]
    if unknown:
        raise ConfigError(f"{unknown[0]} is not offered; of TLS 1.3 {', '.join(_OF_TLS_1_3)} are")
    if newer and _OF_TLS_1_3[0] not in newer:
        raise ConfigError(
            f"{_OF_TLS_1_3[0]} must be among the suites of TLS 1.3, because OpenSSL prefers it; add it, or "
            "leave TLS 1.3 out (ssl.enabled.protocols=TLSv1.2)"
        )
    older = [_openssl_name(name) for name in names if "_WITH_" in name]
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name, openssl_name in zip((name for name in names if "_WITH_" in name), older, strict=True):
        try:
            probe.set_ciphers(openssl_name)
        except ssl.SSLError:
            raise ConfigError(f"the cipher suite {name} is not known") from None
    return Suites(":".join(older) if older else "", newer)


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256; for
    TLS_RSA_WITH_... the first part is left out.
    """
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = (
        cipher.replace("AES_128", "AES128")
        .replace("AES_256", "AES256")
        .replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    )
    cipher = cipher.replace("_CBC_", "_")
    whole = cipher if exchange == "RSA" else f"{exchange}_{cipher}"
    return whole.replace("_", "-")
