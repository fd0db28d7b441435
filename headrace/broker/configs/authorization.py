"""The configurations of authorization: Kafka's own, and those of the audit log."""

from __future__ import annotations

from typing import Final

from headrace.broker.configs.config_key import ConfigKey, ConfigType, at_least

AUTHORIZERS: Final = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
)
"""Kafka's, whose ACLs all mean the same."""


def super_users(text: str) -> frozenset[str]:
    """The principals of `User:ann;User:bob`. Raises ValueError."""
    principals = frozenset(part.strip() for part in text.split(";") if part.strip())
    for principal in principals:
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name):
            raise ValueError(f"{principal!r} is no principal; write them as User:ann;User:bob")
    return principals


def _check_authorizer(name: str) -> str | None:
    if not name or name in AUTHORIZERS:
        return None
    return (
        f"this authorizer is not offered; {AUTHORIZERS[0]} is, or leave it empty: everybody may do everything"
    )


def _check_super_users(text: str) -> str | None:
    try:
        super_users(text)
    except ValueError as error:
        return str(error)
    return None


AUTHORIZATION_CONFIGS: Final = (
    ConfigKey(
        "authorizer.class.name",
        ConfigType.STRING,
        "",
        f"{AUTHORIZERS[0]}: who may do what is decided by ACLs. Empty: everybody may do everything.",
        _check_authorizer,
    ),
    ConfigKey(
        "super.users",
        ConfigType.STRING,
        "",
        "Principals that may do everything, separated by semicolons: User:ann;User:bob.",
        _check_super_users,
    ),
    ConfigKey(
        "allow.everyone.if.no.acl.found",
        ConfigType.BOOLEAN,
        "false",
        "With an authorizer: everybody may do everything with resources that no ACL is about.",
    ),
    ConfigKey(
        "authorizer.audit.log.file",
        ConfigType.STRING,
        None,
        "With an authorizer: the file that gets a line of JSON for each refusal; otherwise the logger headrace.audit "
        "does.",
    ),
    ConfigKey(
        "authorizer.audit.log.file.bytes",
        ConfigType.LONG,
        "10485760",
        "The audit log begins another file beyond this size.",
        at_least(1024),
    ),
    ConfigKey(
        "authorizer.audit.log.files",
        ConfigType.INT,
        "10",
        "Old files of the audit log that stay.",
        at_least(1),
    ),
    ConfigKey(
        "authorizer.audit.log.administration",
        ConfigType.BOOLEAN,
        "false",
        "The audit log has a line for each change that was allowed, too: of topics, configurations, ACLs, users.",
    ),
)
