"""Apply the configured limits of connections to the network, and follow changes of the configuration.

Three configurations count connections: `max.connections` and `max.connection.creation.rate`, for all listeners and for
one (KIP-612), and `max.connections.per.ip` with its overrides by host. If clients have another listener, the listener
between brokers is exempt from the broker-wide limits.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.connections import OVERRIDES, PER_ADDRESS, UNLIMITED
from headrace.broker.configs.listeners import inter_broker_listener
from headrace.broker.net.address_slots import addresses_of
from headrace.broker.net.connection_rates import ConnectionRates
from headrace.broker.net.limits import limits_of
from headrace.broker.security.quotas.quotas import BURST_PART
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.net.listener import Network

logger = logging.getLogger("headrace.server")


class ConnectionLimits:
    """The limits of one network. `listeners`: the names of all its listeners."""

    def __init__(self, config: BrokerConfig, network: Network, listeners: Collection[str]) -> None:
        self._config = config
        self._network = network
        self._listeners = listeners
        self._overrides: tuple[str, dict[str, int]] = ("", {})
        """`max.connections.per.ip.overrides` as configured, and by address."""

    async def begin(self) -> None:
        """Set every limit before connections are accepted. Raises ConfigError for a host without an address."""
        config = self._config
        samples, sample_seconds = config["quota.window.num"], config["quota.window.size.seconds"]
        self._network.rates = ConnectionRates(samples * sample_seconds / BURST_PART, sample_seconds)
        self._set_all_but_addresses()
        await self._set_per_address()

    async def follow(self) -> None:
        """Set every limit again after the configuration has changed."""
        self._set_all_but_addresses()
        try:
            await self._set_per_address()
        except ConfigError as error:
            logger.error("keeping the present limits of connections per address: %s", error)

    async def check(self, config: BrokerConfig, names: Collection[str]) -> None:
        """Check a configuration in which `names` are new. Raises KafkaError for a host without an address."""
        if OVERRIDES in names:
            try:
                await addresses_of(config[OVERRIDES], self._network.sockets)
            except ConfigError as error:
                raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    def _set_all_but_addresses(self) -> None:
        self._network.limits = limits_of(self._config)
        self._set_rates()
        self._set_connections_max()

    def _set_rates(self) -> None:
        config, name = self._config, "max.connection.creation.rate"
        rate = config[name]
        self._network.set_rates(
            None if rate == UNLIMITED else rate,
            {
                listener: config.of_listener(listener, name)
                for listener in self._listeners
                if config.is_set_for(listener, name)
            },
            self._exempt(),
        )

    def _set_connections_max(self) -> None:
        config, name = self._config, "max.connections"
        most = config[name]
        self._network.set_connections_max(
            None if most == UNLIMITED else most,
            {listener: config.of_listener(listener, name) for listener in self._listeners},
            self._exempt(),
        )

    def _exempt(self) -> str | None:
        """Return the listener between brokers, if clients have another one."""
        config = self._config
        if len(self._listeners) == 1:
            return None
        return inter_broker_listener(
            config["inter.broker.listener.name"], config["security.inter.broker.protocol"]
        )

    async def _set_per_address(self) -> None:
        config, network = self._config, self._network
        if config[OVERRIDES] != self._overrides[0]:
            self._overrides = (config[OVERRIDES], await addresses_of(config[OVERRIDES], network.sockets))
        network.set_connections_per_address(config[PER_ADDRESS], self._overrides[1])
