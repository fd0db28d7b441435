"""TLS of connections that the broker makes to servers outside its cluster, such as an issuer's server of keys.

The configurations are the names of TLS among the options of a JAAS configuration, as in Kafka (JaasOptionsUtils):
`ssl.truststore.*` for the trusted certificates, `ssl.keystore.*` for a certificate of its own. The truststore of a
listener is not used: it names the clients that are let in. The server's name is always checked.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

import msgspec
from cryptography.hazmat.primitives import serialization

from headrace.broker.configs.config_key import ConfigError, unknown_name
from headrace.broker.configs.tls import STORE_TYPES, TLS_CONFIGS
from headrace.broker.security.tls.listener_tls import load_pair
from headrace.broker.security.tls.stores import Store, read_certificates, read_key_pair

_PREFIX: Final = "ssl."


class ClientTls(msgspec.Struct, frozen=True):
    """The trusted certificates, and the own one. Equal values make equal contexts of equal files."""

    trusted: Store
    keys: Store

    def context(self) -> ssl.SSLContext:
        """Read the files and make the context. Raises ConfigError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.trusted.is_set:
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            pems = (
                each.public_bytes(serialization.Encoding.PEM).decode()
                for each in read_certificates(self.trusted)
            )
            context.load_verify_locations(cadata="".join(pems))
        else:
            context.load_default_certs()
        if self.keys.is_set:
            load_pair(context, read_key_pair(self.keys))
        return context


def client_tls(options: Mapping[str, str]) -> ClientTls:
    """Return the TLS settings in the options of a JAAS configuration; by default the system's trusted certificates.
    Raises ConfigError.
    """
    known = [key.name for key in TLS_CONFIGS]
    for name in options:
        if name.startswith(_PREFIX) and name not in known:
            raise unknown_name("JAAS", name, known)
    return ClientTls(
        Store(
            "ssl.truststore",
            _type(options, "ssl.truststore.type"),
            options.get("ssl.truststore.location"),
            options.get("ssl.truststore.password"),
            options.get("ssl.truststore.certificates"),
        ),
        Store(
            "ssl.keystore",
            _type(options, "ssl.keystore.type"),
            options.get("ssl.keystore.location"),
            options.get("ssl.keystore.password"),
            options.get("ssl.keystore.certificate.chain"),
            options.get("ssl.keystore.key"),
            options.get("ssl.key.password"),
        ),
    )


def _type(options: Mapping[str, str], name: str) -> str:
    found = options.get(name, "JKS").upper()
    if found not in STORE_TYPES:
        raise ConfigError(
            f"Invalid value {found} for {name}: String must be one of: {', '.join(STORE_TYPES)}"
        )
    return found
