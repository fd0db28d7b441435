"""The configurations of the connection to ZooKeeper, under the names that Apache Kafka had for them."""

from __future__ import annotations

from typing import Final

from headrace.broker.configs.ciphers import PROTOCOLS, choose_suites
from headrace.broker.configs.config_key import ConfigError, ConfigKey, ConfigType, at_least

_SSL: Final = "zookeeper.ssl."
STORE_TYPES: Final = ("JKS", "PEM", "PKCS12")
_NETTY: Final = "org.apache.zookeeper.ClientCnxnSocketNetty"


def _check_store_type(text: str) -> str | None:
    return None if text.upper() in STORE_TYPES else f"String must be one of: {', '.join(STORE_TYPES)}"


def _check_protocols(names: list[str]) -> str | None:
    wrong = [name for name in names if name not in PROTOCOLS]
    return f"{wrong[0]} is not offered; {' and '.join(PROTOCOLS)} are" if wrong else None


def _check_suites(names: list[str]) -> str | None:
    try:
        choose_suites(names)
    except ConfigError as error:
        return str(error)
    return None


def _not_offered(value: bool) -> str | None:
    return "Not offered: revoked certificates are not checked" if value else None


def _string(name: str, default: str | None, doc: str, **more: object) -> ConfigKey:
    return ConfigKey(name, ConfigType.STRING, default, doc, **more)  # type: ignore[arg-type]


def _stores() -> tuple[ConfigKey, ...]:
    return tuple(
        key
        for store, holds in (
            ("keystore", "the broker's own key and certificate, for an ensemble that asks for one"),
            ("truststore", "the certificates of the signers of the ZooKeeper servers' certificates"),
        )
        for key in (
            _string(f"{_SSL}{store}.location", None, f"File with {holds}."),
            ConfigKey(
                f"{_SSL}{store}.password",
                ConfigType.PASSWORD,
                None,
                "Password of the store's file, or of the private key in it if it is PEM.",
            ),
            _string(
                f"{_SSL}{store}.type",
                None,
                "File format: PKCS12, PEM or JKS; by default the one that the file's extension names.",
                check=_check_store_type,
            ),
        )
    )


ZOOKEEPER_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    _string(
        "zookeeper.connect",
        None,
        "ZooKeeper servers and the cluster's path: host:port,host:port/path. Without it the broker is alone.",
    ),
    ConfigKey(
        "zookeeper.session.timeout.ms",
        ConfigType.INT,
        "6000",
        "Session timeout with ZooKeeper, in milliseconds: a broker that sends nothing to ZooKeeper for this "
        "time loses its leaderships.",
        at_least(1),
    ),
    ConfigKey(
        "zookeeper.connection.timeout.ms",
        ConfigType.INT,
        "18000",
        "Time that a start waits for ZooKeeper, in milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "zookeeper.set.acl",
        ConfigType.BOOLEAN,
        "false",
        "Restrict the nodes that this broker creates in ZooKeeper to its ZooKeeper user "
        "(java.security.auth.login.config).",
    ),
    _string(
        "java.security.auth.login.config",
        None,
        "JAAS file whose section Client has the user and the password for ZooKeeper (SASL, DIGEST-MD5).",
    ),
    _string(
        "zookeeper.sasl.clientconfig",
        "Client",
        "Section of java.security.auth.login.config that is used for ZooKeeper.",
    ),
    ConfigKey(f"{_SSL}client.enable", ConfigType.BOOLEAN, "false", "Connect to ZooKeeper over TLS."),
    _string(
        "zookeeper.clientCnxnSocket",
        None,
        f"No effect here. Kafka needed {_NETTY} for TLS.",
        choices=(_NETTY, "org.apache.zookeeper.ClientCnxnSocketNIO"),
    ),
    *_stores(),
    _string(
        f"{_SSL}endpoint.identification.algorithm",
        "HTTPS",
        "Check of host names: https: the certificate of a ZooKeeper server must have the name that the "
        "broker connects to; empty: the name is not checked.",
        choices=("HTTPS", "https", ""),
    ),
    ConfigKey(
        f"{_SSL}enabled.protocols",
        ConfigType.LIST,
        "",
        "Versions of TLS that are enabled for ZooKeeper; by default TLSv1.2 and TLSv1.3.",
        _check_protocols,
    ),
    _string(
        f"{_SSL}protocol",
        "TLSv1.3",
        "Newest version of TLS for ZooKeeper: TLSv1.2 leaves TLSv1.3 out.",
        choices=("TLSv1.2", "TLSv1.3", "TLS"),
    ),
    ConfigKey(
        f"{_SSL}cipher.suites",
        ConfigType.LIST,
        "",
        "Cipher suites of TLS 1.2 that are allowed for ZooKeeper, by their names of IANA; by default those "
        "that OpenSSL considers secure.",
        _check_suites,
    ),
    *(
        ConfigKey(
            f"{_SSL}{kind}.enable",
            ConfigType.BOOLEAN,
            "false",
            "Not offered: revoked certificates are not checked.",
            _not_offered,
        )
        for kind in ("crl", "ocsp")
    ),
)
