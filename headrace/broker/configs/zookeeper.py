"""The configurations of the way to ZooKeeper, under the names that Apache Kafka had for them."""

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
    return "Not offered: whether certificates were taken back is not looked up" if value else None


def _string(name: str, default: str | None, doc: str, **more: object) -> ConfigKey:
    return ConfigKey(name, ConfigType.STRING, default, doc, **more)  # type: ignore[arg-type]


def _stores() -> tuple[ConfigKey, ...]:
    return tuple(
        key
        for store, holds in (
            ("keystore", "the broker's own key and certificate, for an ensemble that asks for one"),
            ("truststore", "the certificates that those of ZooKeeper's servers are signed with"),
        )
        for key in (
            _string(f"{_SSL}{store}.location", None, f"The file with {holds}."),
            ConfigKey(
                f"{_SSL}{store}.password",
                ConfigType.PASSWORD,
                None,
                "The password of that file, or of the key in it where it is PEM.",
            ),
            _string(
                f"{_SSL}{store}.type",
                None,
                "PKCS12, PEM or JKS; by default what the name of the file ends with says.",
                check=_check_store_type,
            ),
        )
    )


ZOOKEEPER_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    _string(
        "zookeeper.connect",
        None,
        "Servers of ZooKeeper and the cluster's path: host:port,host:port/path. Without it the broker is alone.",
    ),
    ConfigKey(
        "zookeeper.session.timeout.ms",
        ConfigType.INT,
        "6000",
        "A broker that ZooKeeper has not heard of for so long leads nothing any more.",
        at_least(1),
    ),
    ConfigKey(
        "zookeeper.connection.timeout.ms",
        ConfigType.INT,
        "18000",
        "How long a start waits for ZooKeeper.",
        at_least(1),
    ),
    ConfigKey(
        "zookeeper.set.acl",
        ConfigType.BOOLEAN,
        "false",
        "Whether nodes that are made in ZooKeeper are for this user of it alone (java.security.auth.login.config).",
    ),
    _string(
        "java.security.auth.login.config",
        None,
        "A file of JAAS: its section Client has the user and the password for ZooKeeper (SASL, DIGEST-MD5).",
    ),
    _string("zookeeper.sasl.clientconfig", "Client", "The section of that file."),
    ConfigKey(
        f"{_SSL}client.enable", ConfigType.BOOLEAN, "false", "Whether ZooKeeper is spoken to over TLS."
    ),
    _string(
        "zookeeper.clientCnxnSocket",
        None,
        f"No effect here. Kafka had to be given {_NETTY} for TLS.",
        choices=(_NETTY, "org.apache.zookeeper.ClientCnxnSocketNIO"),
    ),
    *_stores(),
    _string(
        f"{_SSL}endpoint.identification.algorithm",
        "HTTPS",
        "HTTPS: the certificate of a server of ZooKeeper has to have the name that it is connected to by; empty: "
        "that is not looked at.",
        choices=("HTTPS", "https", ""),
    ),
    ConfigKey(
        f"{_SSL}enabled.protocols",
        ConfigType.LIST,
        "",
        "The versions of TLS that are spoken; by default TLSv1.2 and TLSv1.3.",
        _check_protocols,
    ),
    _string(
        f"{_SSL}protocol",
        "TLSv1.3",
        "The newest version of TLS: TLSv1.2 leaves TLSv1.3 out.",
        choices=("TLSv1.2", "TLSv1.3", "TLS"),
    ),
    ConfigKey(
        f"{_SSL}cipher.suites",
        ConfigType.LIST,
        "",
        "The cipher suites of TLS 1.2 that are allowed, by their names of IANA; by default what OpenSSL takes for "
        "secure.",
        _check_suites,
    ),
    *(
        ConfigKey(
            f"{_SSL}{kind}.enable",
            ConfigType.BOOLEAN,
            "false",
            "Not offered: whether certificates were taken back is not looked up.",
            _not_offered,
        )
        for kind in ("crl", "ocsp")
    ),
)
