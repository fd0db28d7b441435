"""The broker's side of the network: listeners, certificates, limits, and connections to other brokers.

Starts: the listeners' sockets (bound, not accepting yet), a thread for TLS handshakes, the check for new certificates.
Stops:  the network with its connections and sockets, then the thread.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from headrace.broker.api.dispatch import Dispatcher
from headrace.broker.cluster.endpoints import address_of
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.listeners import Listener, SecurityProtocol, inter_broker_listener
from headrace.broker.net.connection_limits import ConnectionLimits
from headrace.broker.net.limits import limits_of
from headrace.broker.net.listener import Network
from headrace.broker.net.peers import Address, Peers

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from headrace.broker.assembly.ports import Ports
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.metadata.broker_configs import BrokerConfigs
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.metadata.identity import BrokerIdentity
    from headrace.broker.net.certificates import Certificates
    from headrace.broker.runtime.background import BackgroundTasks

HANDSHAKE_THREADS: Final = 1
"""Threads for TLS handshakes. They leave the other cores to connections that are served already."""
WILDCARD_HOSTS: Final = ("0.0.0.0", "::", "")


class Listeners:
    """The listeners of one broker, by name, in the order of its configuration. `bind` makes one."""

    def __init__(self, config: BrokerConfig, ports: Ports, network: Network) -> None:
        self.network = network
        self.by_name: dict[str, Listener] = {}
        """The listeners, with the host and the port that each is bound to."""
        self.certificates: Certificates | None = None
        """The certificates; None if no listener has TLS."""
        self._config = config
        self._ports = ports

    @classmethod
    def bind(
        cls, config: BrokerConfig, default: tuple[str, int], ports: Ports, undo: AsyncExitStack
    ) -> Listeners:
        """Bind every listener of the configuration, or one at the address `default`. Raises ConfigError."""
        wanted = config.listeners(default)
        with_tls = [listener for listener in wanted if listener.protocol.has_tls]
        certificates, threads = None, None
        if with_tls:
            from headrace.broker.net.certificates import Certificates  # imports the readers of certificates

            threads = ports.threads.pool(HANDSHAKE_THREADS, "handshakes")
            undo.callback(threads.shutdown, wait=True)
            certificates = Certificates(config, with_tls, threads)
        network = Network(
            Dispatcher(()),
            limits_of(config),
            loop=asyncio.get_running_loop(),
            handshakes_in=threads,
            sockets=ports.sockets,
        )
        undo.callback(network.close)
        listeners = cls(config, ports, network)
        listeners.certificates = certificates
        for listener in wanted:
            listeners._bind(listener)
        return listeners

    def _bind(self, listener: Listener) -> None:
        encryption = None
        if self.certificates is not None and listener.protocol.has_tls:
            encryption = self.certificates.of(listener)
        try:
            bound = self.network.bind(
                listener.host or "0.0.0.0",
                listener.port,
                name=listener.name,
                encryption=encryption,
                with_sasl=listener.protocol.has_sasl,
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {listener.host}:{listener.port}: {error.strerror or error}; "
                "is another broker running there? Choose another port"
            ) from error
        # A client could resolve the name localhost to an address that the broker does not listen on.
        host = bound.host if listener.host in ("localhost", "") else listener.host
        self.by_name[listener.name] = replace(listener, host=host, port=bound.port)

    @property
    def first(self) -> Listener:
        return next(iter(self.by_name.values()))

    async def configure(self, configs: BrokerConfigs, background: BackgroundTasks) -> None:
        """Set the limits of connections, load certificates, and follow changes of both. Raises ConfigError."""
        limits = ConnectionLimits(self._config, self.network, self.by_name)
        await limits.begin()
        configs.slow_checks.append(limits.check)
        configs.listeners.append(limits.follow)
        if self.certificates is not None:
            await self.certificates.load()
            configs.slow_checks.append(self.certificates.check)
            configs.listeners.append(self.certificates.reload)
            background.keep(self.certificates.run, "new certificates")

    def advertised(self, name: str) -> tuple[str, int]:
        """Return the host and port that clients of a listener are told."""
        listener = self.by_name.get(name) or self.first
        if listener.advertised is not None:
            host, port = listener.advertised
            return host, port or listener.port
        if listener.host in WILDCARD_HOSTS:
            return self._ports.sockets.host_name(), listener.port
        return listener.host, listener.port

    def endpoints(self) -> list[tuple[str, str, int]]:
        """Return name, advertised host and advertised port of each listener."""
        return [(name, *self.advertised(name)) for name in self.by_name]

    def peers(self, metadata: ClusterMetadata, identity: BrokerIdentity) -> Peers:
        """Return the connections to the other brokers of the cluster. Raises ConfigError if their listener is not
        known.
        """
        listener = self._inter_broker()

        def find(broker_id: int) -> Address | None:
            broker = metadata.image.brokers.get(broker_id)
            where = None if broker is None else address_of(identity, broker, listener.name)
            return None if broker is None or where is None else Address(*where, broker.epoch)

        return Peers(self.network, find, client_id=f"broker-{identity.broker_id}")

    async def introduce_to_others(self, executor: Executor) -> None:
        """Set how connections to other brokers of a cluster authenticate. Raises ConfigError."""
        if self._ports.store is None:
            return
        listener = self._inter_broker()
        if listener.protocol is not SecurityProtocol.PLAINTEXT:
            from headrace.broker.net.introductions import InterBroker  # imports the readers of certificates

            introduction = InterBroker(self._config, listener, self._ports.entropy, executor)
            await introduction.check()
            self.network.introduction = introduction

    def _inter_broker(self) -> Listener:
        """Return the listener that brokers use among themselves, or the only listener. Raises ConfigError."""
        config = self._config
        name = inter_broker_listener(
            config["inter.broker.listener.name"], config["security.inter.broker.protocol"]
        )
        if name in self.by_name:
            return self.by_name[name]
        if self._ports.store is not None and len(self.by_name) > 1:
            raise ConfigError(
                f"inter.broker.listener.name is not set, and listeners has no {name}: say which of"
                f" {', '.join(self.by_name)} the brokers of the cluster use among themselves"
            )
        return self.first
