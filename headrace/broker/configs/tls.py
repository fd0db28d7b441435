"""The configurations of TLS, under Kafka's names. Each can be set for one listener (`broker.configs.listeners`)."""

from __future__ import annotations

from typing import Final

from headrace.broker.configs.ciphers import PROTOCOLS, choose_suites
from headrace.broker.configs.config_key import ConfigError, ConfigKey, ConfigType
from headrace.broker.configs.principal_rules import PrincipalRules

STORE_TYPES: Final = ("JKS", "PKCS12", "PEM")


def _check_store_type(text: str) -> str | None:
    return None if text.upper() in STORE_TYPES else f"String must be one of: {', '.join(STORE_TYPES)}"


def _check_protocols(names: list[str]) -> str | None:
    wrong = [name for name in names if name not in PROTOCOLS]
    if wrong or not names:
        return f"{', '.join(wrong) or 'none'} is not offered; {' and '.join(PROTOCOLS)} are"
    return None


def _check_suites(names: list[str]) -> str | None:
    try:
        choose_suites(names)
    except ConfigError as error:
        return str(error)
    return None


def _check_rules(text: str) -> str | None:
    try:
        PrincipalRules(text)
    except ConfigError as error:
        return str(error)
    return None


def _string(name: str, default: str | None, doc: str, **more: object) -> ConfigKey:
    return ConfigKey(name, ConfigType.STRING, default, doc, dynamic=True, **more)  # type: ignore[arg-type]


def _secret(name: str, doc: str) -> ConfigKey:
    return ConfigKey(name, ConfigType.PASSWORD, None, doc, dynamic=True)


_WITHOUT_EFFECT: Final = "No effect here: TLS is OpenSSL's, and nothing of Java can be chosen for it."

TLS_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    _string(
        "ssl.keystore.type",
        "JKS",
        "PKCS12, PEM or JKS. As in Java, files of PKCS12 and of JKS are accepted under each other's name.",
        check=_check_store_type,
    ),
    _string(
        "ssl.keystore.location",
        None,
        "The file with the private key and its certificates. Read again when it changes, at SIGHUP, and when this is "
        "set again.",
    ),
    _secret("ssl.keystore.password", "The password of that file, where it is PKCS12."),
    _secret("ssl.key.password", "The password of a private key in PEM."),
    _secret(
        "ssl.keystore.key",
        "The private key itself in PEM (PKCS#8), with ssl.keystore.type=PEM instead of a file.",
    ),
    _secret(
        "ssl.keystore.certificate.chain",
        "Its certificates in PEM, the broker's own first, then who has signed it.",
    ),
    _string("ssl.truststore.type", "JKS", "As ssl.keystore.type.", check=_check_store_type),
    _string(
        "ssl.truststore.location",
        None,
        "The file with the certificates that clients' certificates are signed with; by default those of the system.",
    ),
    _secret("ssl.truststore.password", "The password of that file, where it is PKCS12."),
    _secret("ssl.truststore.certificates", "Those certificates themselves, with ssl.truststore.type=PEM."),
    _string(
        "ssl.client.auth",
        "none",
        "Whether clients show a certificate: none, requested or required. Of listeners with SASL_SSL it counts only "
        "when it is given with listener.name.<name>. before it.",
        choices=("none", "requested", "required"),
    ),
    ConfigKey(
        "ssl.principal.mapping.rules",
        ConfigType.STRING,
        "DEFAULT",
        "Makes the user's name of the certificate's distinguished name: RULE:pattern/replacement/[LU], DEFAULT (the "
        "name as it is), separated by commas; the first that matches counts, without a match the connection is closed.",
        _check_rules,
    ),
    ConfigKey(
        "ssl.enabled.protocols",
        ConfigType.LIST,
        "TLSv1.2,TLSv1.3",
        "The versions of TLS that are spoken.",
        _check_protocols,
        dynamic=True,
    ),
    _string(
        "ssl.protocol",
        "TLSv1.3",
        "The newest version of TLS: TLSv1.2 leaves TLSv1.3 out.",
        choices=("TLSv1.2", "TLSv1.3", "TLS"),
    ),
    ConfigKey(
        "ssl.cipher.suites",
        ConfigType.LIST,
        "",
        "The cipher suites that are allowed, by their names of IANA (TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256); by "
        "default what OpenSSL takes for secure.",
        _check_suites,
        dynamic=True,
    ),
    ConfigKey(
        "ssl.allow.dn.changes",
        ConfigType.BOOLEAN,
        "false",
        "Whether another certificate may take the place of one while the broker runs that has another name.",
    ),
    ConfigKey(
        "ssl.allow.san.changes",
        ConfigType.BOOLEAN,
        "false",
        "Whether it may lack alternative names that the earlier one has.",
    ),
    _string(
        "ssl.endpoint.identification.algorithm",
        "https",
        "Of connections to other brokers: https, their certificates have to have the name that they are connected to "
        "by; empty, that is not looked at.",
    ),
    _string("ssl.keymanager.algorithm", "SunX509", _WITHOUT_EFFECT),
    _string("ssl.provider", None, _WITHOUT_EFFECT),
    _string("ssl.secure.random.implementation", None, _WITHOUT_EFFECT),
    _string("ssl.trustmanager.algorithm", "PKIX", _WITHOUT_EFFECT),
)
