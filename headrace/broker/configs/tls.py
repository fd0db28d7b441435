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


_WITHOUT_EFFECT: Final = "No effect here: TLS is OpenSSL's, and Java classes cannot be chosen for it."

TLS_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    _string(
        "ssl.keystore.type",
        "JKS",
        "File format: PKCS12, PEM or JKS. As in Java, PKCS12 and JKS files are accepted under each other's "
        "name.",
        check=_check_store_type,
    ),
    _string(
        "ssl.keystore.location",
        None,
        "File with the broker's private key and its certificates. It is read again when it changes, at "
        "SIGHUP, and when this is set again.",
    ),
    _secret("ssl.keystore.password", "Password of ssl.keystore.location, if that is PKCS12."),
    _secret("ssl.key.password", "Password of a private key in PEM."),
    _secret(
        "ssl.keystore.key",
        "The broker's private key itself in PEM (PKCS#8), with ssl.keystore.type=PEM instead of a file.",
    ),
    _secret(
        "ssl.keystore.certificate.chain",
        "Certificates of ssl.keystore.key in PEM, the broker's own first, then those of its signers.",
    ),
    _string(
        "ssl.truststore.type",
        "JKS",
        "Format of ssl.truststore.location: PKCS12, PEM or JKS, as for ssl.keystore.type.",
        check=_check_store_type,
    ),
    _string(
        "ssl.truststore.location",
        None,
        "File with the certificates of the signers of clients' certificates; by default those of the system.",
    ),
    _secret("ssl.truststore.password", "Password of ssl.truststore.location, if that is PKCS12."),
    _secret(
        "ssl.truststore.certificates",
        "Certificates of the signers of clients' certificates themselves, with ssl.truststore.type=PEM.",
    ),
    _string(
        "ssl.client.auth",
        "none",
        "Whether clients show a certificate: none, requested or required. For SASL_SSL listeners it counts "
        "only with the prefix listener.name.<name>.",
        choices=("none", "requested", "required"),
    ),
    ConfigKey(
        "ssl.principal.mapping.rules",
        ConfigType.STRING,
        "DEFAULT",
        "Rules that make the user's name from the certificate's distinguished name: "
        "RULE:pattern/replacement/[LU], DEFAULT (the name as it is), separated by commas. The first rule "
        "that matches counts; without a match the connection is closed.",
        _check_rules,
    ),
    ConfigKey(
        "ssl.enabled.protocols",
        ConfigType.LIST,
        "TLSv1.2,TLSv1.3",
        "Versions of TLS that are enabled.",
        _check_protocols,
        dynamic=True,
    ),
    _string(
        "ssl.protocol",
        "TLSv1.3",
        "Newest version of TLS: TLSv1.2 leaves TLSv1.3 out.",
        choices=("TLSv1.2", "TLSv1.3", "TLS"),
    ),
    ConfigKey(
        "ssl.cipher.suites",
        ConfigType.LIST,
        "",
        "Cipher suites that are allowed, by their names of IANA (TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256); by "
        "default those that OpenSSL considers secure.",
        _check_suites,
        dynamic=True,
    ),
    ConfigKey(
        "ssl.allow.dn.changes",
        ConfigType.BOOLEAN,
        "false",
        "Allow a certificate that is replaced while the broker runs to have another distinguished name.",
    ),
    ConfigKey(
        "ssl.allow.san.changes",
        ConfigType.BOOLEAN,
        "false",
        "Allow a certificate that is replaced while the broker runs to lack alternative names of the "
        "earlier one.",
    ),
    _string(
        "ssl.endpoint.identification.algorithm",
        "https",
        "Check of host names on connections to other brokers: https: their certificates must have the name "
        "that the broker connects to; empty: the name is not checked.",
    ),
    _string("ssl.keymanager.algorithm", "SunX509", _WITHOUT_EFFECT),
    _string("ssl.provider", None, _WITHOUT_EFFECT),
    _string("ssl.secure.random.implementation", None, _WITHOUT_EFFECT),
    _string("ssl.trustmanager.algorithm", "PKIX", _WITHOUT_EFFECT),
)
