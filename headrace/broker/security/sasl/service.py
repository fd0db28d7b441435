"""SASL of one broker: users, delegation tokens, and the mechanisms of each listener.

Changes of its configuration apply to authentications that begin afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from headrace.broker.runtime.background import BackgroundTasks
from headrace.broker.runtime.ports import Clock, CoordinationStore, Entropy
from headrace.broker.security.sasl.authentication import Mechanism
from headrace.broker.security.sasl.settings import SaslParts, sasl_of_listener
from headrace.broker.security.sasl.tokens import DelegationTokens
from headrace.broker.security.sasl.users import ScramUsers

if TYPE_CHECKING:
    from headrace.broker.configs.broker_config import BrokerConfig


class SaslService:
    """SASL of one broker; see the module."""

    def __init__(
        self,
        config: BrokerConfig,
        store: CoordinationStore,
        clock: Clock,
        entropy: Entropy,
        executor: Executor,
        background: BackgroundTasks,
    ) -> None:
        self.users = ScramUsers(store, entropy)
        self.tokens = DelegationTokens(
            store,
            config["delegation.token.secret.key"],
            lambda: int(config["delegation.token.max.lifetime.ms"]),
            lambda: int(config["delegation.token.expiry.time.ms"]),
        )
        self.mechanisms: dict[str, dict[str, Mechanism]] = {}
        """Mechanisms by the names of the listeners with SASL."""
        self._config = config
        self._clock = clock
        self._background = background
        self.parts = SaslParts(self.users, self.tokens, clock, entropy, executor)
        self._running: set[object] = set()

    async def start(self, listeners: Iterable[str]) -> None:
        """`listeners` are those with SASL. Raises ConfigError."""
        await self.users.load()
        await self.tokens.load()
        self.mechanisms = {listener: {} for listener in listeners}
        self.refresh()
        self._background.keep(self._follow_users, "users")
        if self.tokens.are_enabled:
            self._background.keep(self.tokens.run, "delegation tokens")
            self._background.keep(self._sweep_tokens, "removal of delegation tokens")

    def refresh(self) -> None:
        """Apply a changed configuration. Raises ConfigError, having changed nothing."""
        self.mechanisms.update(self._offered(self._config))
        for key, source in self.parts.sources.items():
            if key not in self._running:
                self._running.add(key)
                self._background.keep(source.run, "keys of bearer tokens")

    def check(self, config: BrokerConfig) -> None:
        """Raises ConfigError if this configuration could not be applied."""
        self._offered(config)

    def _offered(self, config: BrokerConfig) -> dict[str, dict[str, Mechanism]]:
        return {
            listener: sasl_of_listener(listener, config.explicit.get, self.parts)
            for listener in self.mechanisms
        }

    async def _follow_users(self) -> None:
        """Follow the changes that other brokers of the cluster make."""
        changed = asyncio.Event()
        unwatch = self.users.watch(changed.set)
        try:
            while True:
                await self.users.load()
                await changed.wait()
                changed.clear()
        finally:
            unwatch()

    async def _sweep_tokens(self) -> None:
        while True:
            await asyncio.sleep(self._config["delegation.token.expiry.check.interval.ms"] / 1000)
            await self.tokens.sweep(self._clock.time_ms())
