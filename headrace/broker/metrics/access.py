"""Access to the metrics: HTTP's basic (RFC 7617) or bearer (RFC 6750) authentication, and TLS."""

from __future__ import annotations

import base64
import hmac
import logging
import ssl
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.listeners import Listener, SecurityProtocol
from headrace.broker.configs.metrics import METRICS_LISTENER
from headrace.broker.metrics.model import OTHERS, Shown
from headrace.broker.security.principal import Principal, Session
from headrace.broker.security.rights import Authorizer, Operation, ResourceType

if TYPE_CHECKING:
    from headrace.broker.configs.broker_config import BrokerConfig

logger = logging.getLogger("headrace.metrics")

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Access(msgspec.Struct, frozen=True):
    """`context` None: without TLS. With neither `credentials` nor `token`, every client that can connect may read."""

    context: Callable[[], ssl.SSLContext] | None = None
    credentials: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return "Access()"

    @classmethod
    def configured(cls, config: BrokerConfig) -> Access:
        """Read the configuration. Raises ConfigError for a key or certificate that cannot be used."""
        is_tls = config["metrics.security.protocol"].upper() == "SSL"
        return cls(
            _Certificates(config).context if is_tls else None,
            config["metrics.basic.auth.user.info"] or None,
            config["metrics.bearer.token"] or None,
        )

    def guard(self, application: Wsgi) -> Wsgi:
        """Return the application with a check of credentials in front of it."""
        accepted: dict[str, str] = {}
        if self.credentials is not None:
            accepted["basic"] = base64.b64encode(self.credentials.encode()).decode()
        if self.token is not None:
            accepted["bearer"] = self.token
        if not accepted:
            return application
        challenges = [("WWW-Authenticate", f'{scheme.capitalize()} realm="metrics"') for scheme in accepted]

        def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            scheme, _, given = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
            wanted = accepted.get(scheme.lower())
            if wanted is not None and hmac.compare_digest(given.strip().encode("latin-1"), wanted.encode()):
                return application(environ, start_response)
            start_response("401 Unauthorized", challenges)
            return [b"Who reads metrics here has to authenticate.\n"]

        return guarded


_DESCRIBED: Final = {"topic": ResourceType.TOPIC, "table": ResourceType.TOPIC, "group": ResourceType.GROUP}
"""Resource types of labels."""


def shown_to(principal: str, authorizer: Authorizer) -> Shown:
    """Return the filter of the resources that `metrics.principal` may describe, from any host."""
    kind, _, name = principal.partition(":")
    session = Session(Principal(kind, name), METRICS_LISTENER)

    def is_shown(label: str, value: str) -> bool:
        resource_type = _DESCRIBED.get(label)
        if resource_type is None or value == OTHERS:
            return True
        return authorizer.may(session, "", Operation.DESCRIBE, resource_type, value)

    return is_shown


class _Certificates:
    """The certificate of the metrics' listener. It is read again when its files have changed; the last one stays if the
    new one cannot be used.
    """

    def __init__(self, config: BrokerConfig) -> None:
        from headrace.broker.security.tls.listener_tls import load_tls, settings_of, stamps_of

        self._load, self._stamps = load_tls, stamps_of
        listener = Listener(METRICS_LISTENER, SecurityProtocol("SSL"), "", 0)
        self._loaded = load_tls(settings_of(config, listener))
        self._refused: object = None

    def context(self) -> ssl.SSLContext:
        loaded = self._loaded
        stamps = self._stamps(loaded.settings.files)
        if stamps != loaded.stamps and stamps != self._refused:
            try:
                self._loaded = loaded = self._load(loaded.settings, loaded)
            except ConfigError as error:
                self._refused = stamps
                logger.error(
                    "keeping the certificate of the metrics, because the new one cannot be used: %s", error
                )
        return loaded.context
