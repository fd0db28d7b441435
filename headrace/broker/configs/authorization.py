"""The configurations of authorization: Kafka's own, and those of the audit log."""

from __future__ import annotations

from typing import Final

from headrace.broker.configs.config_key import ConfigKey, ConfigType, at_least

AUTHORIZERS: Final = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
)
"""Kafka's authorizers; ACLs mean the same to each."""


def super_users(text: str) -> frozenset[str]:
    """Return the principals of `User:ann;User:bob`. Raises ValueError."""
    principals = frozenset(part.strip() for part in text.split(";") if part.strip())
    for principal in principals:
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name):
            raise ValueError(f"{principal!r} is not a principal; write them as User:ann;User:bob")
    return principals


def _check_authorizer(name: str) -> str | None:
    if not name or name in AUTHORIZERS:
        return None
    return (
        f"this authorizer is not offered; use {AUTHORIZERS[0]}, or leave it empty to allow everything to "
        "all users"
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
        f"Class of the authorizer. With {AUTHORIZERS[0]}, ACLs decide what each user may do; empty: all "
        "users may do everything.",
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
        "With an authorizer: allow everything to all users on resources that have no ACL.",
    ),
    ConfigKey(
        "authorizer.audit.log.file",
        ConfigType.STRING,
        None,
        "With an authorizer: file that gets a line of JSON for each refusal. If not set, refusals go to the "
        "logger headrace.audit.",
    ),
    ConfigKey(
        "authorizer.audit.log.file.bytes",
        ConfigType.LONG,
        "10485760",
        "Maximum size of a file of the audit log, in bytes; then a new file is begun.",
        at_least(1024),
    ),
    ConfigKey(
        "authorizer.audit.log.files",
        ConfigType.INT,
        "10",
        "Number of old files of the audit log that are kept.",
        at_least(1),
    ),
    ConfigKey(
        "authorizer.audit.log.administration",
        ConfigType.BOOLEAN,
        "false",
        "Write a line to the audit log for each allowed change of topics, configurations, ACLs and users, "
        "too.",
    ),
)
