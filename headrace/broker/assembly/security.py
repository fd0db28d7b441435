"""Security: authorization with its audit log, authentication, quotas.

Starts: the thread of the audit log; background tasks that follow changes of ACLs and quotas by other brokers.
Stops:  the audit log, after everything that writes to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.metrics.access import shown_to
from headrace.broker.security.acl.authorization import Authorization
from headrace.broker.security.quotas.quotas import Quotas
from headrace.broker.security.quotas.store import QuotaStore
from headrace.broker.security.sasl.service import SaslService
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.assembly.network import Listeners
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.context import BrokerContext
    from headrace.broker.extension import Extension
    from headrace.broker.metadata.broker_configs import BrokerConfigs
    from headrace.broker.runtime.slices import Slices
    from headrace.broker.security.audit import AuditLog


async def start_authorization(
    context: BrokerContext, slices: Slices, extensions: Sequence[Extension], undo: AsyncExitStack
) -> AuditLog | None:
    """Give the context its authorizer. Return the audit log; None without an authorizer. Raises ConfigError."""
    config = context.config
    authorization = Authorization.configured(config, context.store, context.clock, slices)
    if authorization is None:
        return None
    authorizer, acls, audit = authorization.authorizer, authorization.acls, authorization.audit

    def judged_as(topic: str) -> str:
        for extension in extensions:
            topic = extension.judged_as(topic)
        return topic

    undo.callback(audit.close)
    audit.start()
    context.background.keep(audit.run, "reports of entries that the audit log left out")
    await acls.load()
    authorizer.judged_as = judged_as
    context.background.keep(acls.run, "following changes of ACLs")
    context.authorizer, context.acls = authorizer, acls
    if principal := config["metrics.principal"]:
        context.metrics.shown = shown_to(principal, authorizer)
    return audit


async def start_authentication(
    context: BrokerContext, configs: BrokerConfigs, listeners: Listeners
) -> SaslService:
    """Load users and tokens for the listeners with SASL, and follow changes. Raises ConfigError."""
    sasl = SaslService(
        context.config, context.store, context.clock, context.entropy, context.executor, context.background
    )
    await sasl.start(name for name, listener in listeners.by_name.items() if listener.protocol.has_sasl)

    def check(config: BrokerConfig) -> None:
        try:
            sasl.check(config)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    async def refresh() -> None:
        sasl.refresh()

    configs.checks.append(check)
    configs.listeners.append(refresh)
    return sasl


async def start_quotas(context: BrokerContext, listeners: Listeners) -> QuotaStore:
    """Load the quotas and apply those of connections."""
    config = context.config
    sample_seconds = config["quota.window.size.seconds"]
    quotas = QuotaStore(
        context.store,
        Quotas(
            context.clock.monotonic,
            config["quota.window.num"] * sample_seconds,
            config["controller.quota.window.num"] * config["controller.quota.window.size.seconds"],
            sample_seconds,
        ),
    )
    await quotas.load()
    context.background.keep(quotas.run, "following changes of quotas")
    listeners.network.connection_delay = quotas.quotas.connected
    return quotas
