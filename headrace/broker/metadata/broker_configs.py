"""Broker configurations that are changed at runtime: for all brokers (named "") or for one (by its id).

They are in the coordination store, under `/broker-configs/default` and `/broker-configs/<id>`. On this broker a change
applies before it is answered, on other brokers when they have heard of it, and again after every restart. A value for
one broker takes precedence over one for all, and that over the one given at the start. Only configurations that are
declared `dynamic` may be set. A change is accepted or refused as a whole. It is refused if the configurations of any
topic would contradict each other.

A value that another broker has set and this one cannot use (the other one is of a newer version) stays in the store and
is logged; this broker goes on with the other values. It does not start with such a value.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.metadata.nodes import follow, modify
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.runtime.ports import CoordinationStore

logger = logging.getLogger("headrace.server")

_ROOT = "/broker-configs"
_DEFAULT = "default"
ALL_BROKERS = ""


def unknown_broker(name: str, own: str) -> KafkaError:
    """Return the error for a broker that is not this one, in Kafka's words."""
    if name.lstrip("-").isdigit():
        problem = f"Unexpected broker id, expected {own} or empty string, but received {name}"
    else:
        problem = f"Broker id must be an integer, but it is: {name}"
    return KafkaError(ErrorCode.INVALID_REQUEST, problem)


class BrokerConfigs:
    """Changes the `BrokerConfig` that all components read.

    `checks` are called with the changed configuration and raise KafkaError; `slow_checks` get the names that are set,
    too. `listeners` are called after the change.
    """

    def __init__(self, store: CoordinationStore, config: BrokerConfig, broker_id: int) -> None:
        self.checks: list[Callable[[BrokerConfig], None]] = []
        self.slow_checks: list[Callable[[BrokerConfig, Collection[str]], Awaitable[None]]] = []
        self.listeners: list[Callable[[], Awaitable[None]]] = []
        self._store = store
        self._config = config
        self._own = str(broker_id)
        self._explicit: dict[str, Mapping[str, str]] = {ALL_BROKERS: {}, self._own: {}}
        self._change = asyncio.Lock()

    async def load(self) -> None:
        """Raises ConfigError if a stored value is not legal any more, or not yet: set by a newer version."""
        found = await self._found()
        try:
            self._config.set_dynamic(found[ALL_BROKERS], found[self._own])
        except ConfigError as error:
            raise ConfigError(
                f"{error}\nThis was not given at the start but set while a broker ran, and is stored in "
                f"{_ROOT}. If a newer version has set it, start that version, delete the configuration "
                "there (`headrace configs`), and stop it"
            ) from error
        self._explicit.update(found)

    async def run(self) -> None:
        """Follow changes that are made through other brokers, until cancelled."""

        async def read() -> None:
            async with self._change:
                found = await self._found()
                if found != self._explicit:
                    self._use_what_can_be(found)
                    self._explicit.update(found)
                    await self._tell()

        await follow(self._store, _ROOT, read)

    async def _found(self) -> dict[str, dict[str, str]]:
        nodes = {name: await self._store.get(self._path(name)) for name in self._explicit}
        return {name: _from_json(None if node is None else node.data) for name, node in nodes.items()}

    def _use_what_can_be(self, found: Mapping[str, Mapping[str, str]]) -> None:
        """Use the values that other brokers have set, without those that cannot be used here. Change nothing if the
        rest contradicts itself.
        """
        try:
            self._config.set_dynamic(found[ALL_BROKERS], found[self._own])
        except ConfigError as error:
            usable = {name: self._each_usable(config) for name, config in found.items()}
            try:
                self._config.set_dynamic(usable[ALL_BROKERS], usable[self._own])
            except ConfigError as contradiction:
                logger.error(
                    "cannot use the configuration that another broker has set, so this broker's stays as it "
                    "is: %s",
                    contradiction,
                )
            else:
                left = sorted(
                    name for each, config in found.items() for name in config if name not in usable[each]
                )
                logger.warning("ignoring %s, which another broker has set: %s", ", ".join(left), error)

    def _each_usable(self, config: Mapping[str, str]) -> dict[str, str]:
        usable = {}
        for name, text in config.items():
            with contextlib.suppress(ConfigError):
                if (key := self._config.key(name)) is not None:
                    key.parse(text)
                    usable[name] = text
        return usable

    async def _tell(self) -> None:
        for listener in self.listeners:
            await listener()

    def explicit(self, name: str) -> Mapping[str, str]:
        """Return the values that are set for a broker, or for all. Raises KafkaError for another broker."""
        if name not in self._explicit:
            raise unknown_broker(name, self._own)
        return self._explicit[name]

    async def alter(
        self,
        name: str,
        changes: Callable[[Mapping[str, str]], Mapping[str, str | None]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Set configurations (None removes one), all or none. `changes` gets the present values. Raises KafkaError."""

        def changed(old: Mapping[str, str]) -> dict[str, str]:
            wanted = changes(old)
            new = {key: text for key, text in {**old, **wanted}.items() if text is not None}
            self._check(name, wanted, new)
            return new

        async with self._change:
            old = self.explicit(name)
            await self._check_slowly(name, changes(old), changed(old))
            if validate_only:
                return
            stored = await modify(
                self._store, self._path(name), lambda data: _to_json(changed(_from_json(data))), root=_ROOT
            )
            self._explicit[name] = _from_json(stored)
            self._use_what_can_be(self._explicit)
            await self._tell()

    def _check(self, name: str, changes: Mapping[str, str | None], config: Mapping[str, str]) -> None:
        try:
            for key_name, text in changes.items():
                if text is None:
                    # removing a value that is not set is allowed: Kafka's tools clear throttles that are not set
                    continue
                key = self._config.key(key_name)
                if key is None:
                    raise self._config.unknown(key_name)
                if not key.dynamic:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        f"Cannot update these configs dynamically: [{key_name}]; set it when you start it",
                    )
            changed = self._as_with(name, config)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        for check in self.checks:
            check(changed)

    async def _check_slowly(
        self, name: str, changes: Mapping[str, str | None], config: Mapping[str, str]
    ) -> None:
        if self.slow_checks:
            changed = self._as_with(name, config)
            names = [key for key, text in changes.items() if text is not None or key in self._config.explicit]
            for check in self.slow_checks:
                await check(changed, names)

    def _as_with(self, name: str, config: Mapping[str, str]) -> BrokerConfig:
        layers = {
            each: {key: text for key, text in its.items() if self._config.key(key) is not None}
            for each, its in {**self._explicit, name: config}.items()
        }
        return self._config.with_dynamic(layers[ALL_BROKERS], layers[self._own])

    @staticmethod
    def _path(name: str) -> str:
        return f"{_ROOT}/{name or _DEFAULT}"


def _from_json(data: bytes | None) -> dict[str, str]:
    values: dict[str, str] = {} if data is None else json.loads(data)
    return values


def _to_json(config: Mapping[str, str]) -> bytes | None:
    """Return None, for no node, if the configuration sets nothing."""
    return json.dumps(config, separators=(",", ":")).encode() if config else None
