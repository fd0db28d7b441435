"""Client properties for a Java client (Spark's Kafka source): librdkafka's names become Java's."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.tablelayer.client.errors import SettingsError
from headrace.tablelayer.client.security.settings import ConnectionSettings

_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_BEARER_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_OF_LIBRDKAFKA: Final = (
    "sasl.mechanisms", "sasl.username", "sasl.password", "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location",
    "ssl.certificate.pem", "ssl.key.location", "ssl.key.pem", "enable.ssl.certificate.verification",
    "sasl.oauthbearer.method", "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret",
)  # fmt: skip


def for_java(settings: ConnectionSettings) -> dict[str, str]:
    """Return the properties for Java. Raises SettingsError for what Java cannot do and for unreadable PEM files."""
    given = settings.named()
    if given.get("enable.ssl.certificate.verification", "true").strip().lower() == "false":
        raise SettingsError(
            "enable.ssl.certificate.verification=false is not supported by Java clients: name the trusted"
            " certificates with ssl.ca.location"
        )
    made = {name: value for name, value in given.items() if name not in _OF_LIBRDKAFKA}
    if "security.protocol" in made:
        made["security.protocol"] = made["security.protocol"].strip().upper()
    mechanism = (given.get("sasl.mechanism") or given.get("sasl.mechanisms") or "").strip().upper()
    if mechanism:
        made["sasl.mechanism"] = mechanism
        options = {"username": given.get("sasl.username"), "password": given.get("sasl.password")}
        if mechanism == "OAUTHBEARER":
            made.setdefault("sasl.login.callback.handler.class", _BEARER_HANDLER)
            options = {
                "clientId": given.get("sasl.oauthbearer.client.id"),
                "clientSecret": given.get("sasl.oauthbearer.client.secret"),
                "scope": given.get("sasl.oauthbearer.scope"),
            }
        if "sasl.jaas.config" not in made or any(options.values()):
            pairs = "".join(
                f' {name}="{_quoted(value)}"' for name, value in options.items() if value is not None
            )
            made["sasl.jaas.config"] = f"{_MODULES.get(mechanism, mechanism)} required{pairs};"
    trusted = given.get("ssl.ca.pem") or _read("ssl.ca.location", given.get("ssl.ca.location"))
    if trusted:
        made |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
    chain = given.get("ssl.certificate.pem") or _read(
        "ssl.certificate.location", given.get("ssl.certificate.location")
    )
    if chain:
        key = given.get("ssl.key.pem") or _read("ssl.key.location", given.get("ssl.key.location"))
        pem = {"ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key or chain}
        made |= {"ssl.keystore.type": "PEM", **pem}
    return made


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _read(name: str, place: str | None) -> str | None:
    try:
        return Path(place).read_text("ascii") if place else None
    except (OSError, UnicodeDecodeError):
        raise SettingsError(f"{name}: cannot read {place}") from None
