"""The parts of a broker with `authorizer.class.name`: the authorizer, its ACLs, and the audit log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.configs.authorization import super_users
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.security.acl.authorizer import AclAuthorizer
from headrace.broker.security.acl.rules import AclRules
from headrace.broker.security.acl.store import AclStore
from headrace.broker.security.audit import AuditLog

if TYPE_CHECKING:
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.runtime.ports import Clock, CoordinationStore
    from headrace.broker.runtime.slices import Slices


class Authorization(msgspec.Struct, frozen=True):
    authorizer: AclAuthorizer
    acls: AclStore
    audit: AuditLog

    @classmethod
    def configured(
        cls, config: BrokerConfig, store: CoordinationStore, clock: Clock, slices: Slices
    ) -> Authorization | None:
        """Return None without an authorizer. Raises ConfigError when the audit log cannot be written."""
        if not config["authorizer.class.name"]:
            return None
        authorizer = AclAuthorizer(
            AclRules(),
            super_users(config["super.users"]),
            allow_without_acl=config["allow.everyone.if.no.acl.found"],
        )
        name = config["authorizer.audit.log.file"]
        try:
            audit = AuditLog(
                clock.time_ms,
                Path(name) if name else None,
                bytes_max=config["authorizer.audit.log.file.bytes"],
                files=config["authorizer.audit.log.files"],
                with_administration=config["authorizer.audit.log.administration"],
            )
        except OSError as error:
            raise ConfigError(
                f"authorizer.audit.log.file: {name} cannot be written: {error.strerror or error}"
            ) from error
        return cls(authorizer, AclStore(store, authorizer.rules, authorizer.changed, slices), audit)
