"""Configurations of single groups (resource type GROUP of DescribeConfigs and IncrementalAlterConfigs).

They are in the coordination store under `/group-configs/<group>`, whether or not the group exists. They take effect
with the next heartbeat. The broker's configuration has the values that a group does not set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from headrace.broker.configs.config_key import ConfigError, ConfigKey, ConfigType, at_least, unknown_name
from headrace.broker.groups.model.limits import Limits
from headrace.broker.metadata.nodes import follow, modify
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.runtime.ports import CoordinationStore

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
GROUP_CONFIGS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        ConfigKey(
            SESSION_TIMEOUT,
            ConfigType.INT,
            "45000",
            "Time without a heartbeat after which a member of the consumer protocol is removed, in milliseconds.",
            at_least(1),
        ),
        ConfigKey(
            HEARTBEAT_INTERVAL,
            ConfigType.INT,
            "5000",
            "Interval at which members of the consumer protocol send heartbeats, in milliseconds.",
            at_least(1),
        ),
    )
}
_ROOT = "/group-configs"


def broker_synonym(name: str) -> str:
    """Return the broker configuration that applies if the group does not set its own."""
    return f"group.{name}"


def limits_of(config: BrokerConfig) -> Limits:
    """Return the limits of groups that the broker's configuration sets."""
    policy = config["group.consumer.migration.policy"]
    return Limits(
        initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
        session_timeout_ms_min=config["group.min.session.timeout.ms"],
        session_timeout_ms_max=config["group.max.session.timeout.ms"],
        group_size_max=config["group.max.size"],
        offset_metadata_size_max=config["offset.metadata.max.bytes"],
        offsets_retention_ms=config["offsets.retention.minutes"] * 60_000,
        consumer_session_timeout_ms=config["group.consumer.session.timeout.ms"],
        consumer_heartbeat_interval_ms=config["group.consumer.heartbeat.interval.ms"],
        consumer_group_size_max=config["group.consumer.max.size"],
        allows_upgrade=policy in ("upgrade", "bidirectional"),
        allows_downgrade=policy in ("downgrade", "bidirectional"),
        consumer_assignors=tuple(config["group.consumer.assignors"]),
    )


class GroupConfigs:
    def __init__(self, store: CoordinationStore, broker: BrokerConfig) -> None:
        self._store = store
        self._broker = broker
        self._explicit: dict[str, dict[str, str]] = {}

    async def load(self) -> None:
        names = await self._store.children(_ROOT)
        nodes = await self._store.get_many([f"{_ROOT}/{name}" for name in names])
        self._explicit = {
            unquote(name): json.loads(node.data)
            for name, node in zip(names, nodes, strict=True)
            if node is not None
        }

    async def run(self) -> None:
        """Follow changes by other brokers, until cancelled."""
        await follow(self._store, _ROOT, self.load)

    def names(self) -> list[str]:
        """Return the groups that have a configuration."""
        return sorted(self._explicit)

    def explicit(self, group_id: str) -> Mapping[str, str]:
        return self._explicit.get(group_id, {})

    def value(self, group_id: str, name: str) -> int:
        """Return the value that applies to the group, in milliseconds."""
        text = self.explicit(group_id).get(name)
        return int(text) if text is not None else int(self._broker[broker_synonym(name)])

    async def alter(
        self,
        group_id: str,
        changes: Callable[[Mapping[str, str]], Mapping[str, str | None]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Set configurations, all or none. A value of None removes one.

        `changes` gets the group's configuration and returns the values to set. Raises KafkaError.
        """
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")

        def changed(old: Mapping[str, str]) -> dict[str, str]:
            wanted = changes(old)
            config = {name: text for name, text in {**old, **wanted}.items() if text is not None}
            self._check(config, wanted)
            return config

        if validate_only:
            changed(self.explicit(group_id))
            return
        path = f"{_ROOT}/{quote(group_id, safe='')}"
        stored = await modify(
            self._store,
            path,
            lambda data: (
                json.dumps(config, separators=(",", ":")).encode()
                if (config := changed({} if data is None else json.loads(data)))
                else None
            ),
            root=_ROOT,
        )
        if stored is not None:
            self._explicit[group_id] = json.loads(stored)
        else:
            self._explicit.pop(group_id, None)

    def _check(self, config: Mapping[str, str], changes: Mapping[str, str | None]) -> None:
        try:
            for name in changes:
                if name not in GROUP_CONFIGS:
                    raise unknown_name("group", name, GROUP_CONFIGS)
            values = {
                name: GROUP_CONFIGS[name].parse(config[name])
                if name in config
                else self._broker[broker_synonym(name)]
                for name in GROUP_CONFIGS
            }
            for name in config:
                kind = name.removeprefix("consumer.")
                low = self._broker[f"group.consumer.min.{kind}"]
                high = self._broker[f"group.consumer.max.{kind}"]
                if values[name] < low:
                    raise ConfigError(
                        f"{name} must be greater than or equal to group.consumer.min.{kind}, which is {low}"
                    )
                if values[name] > high:
                    raise ConfigError(
                        f"{name} must be less than or equal to group.consumer.max.{kind}, which is {high}"
                    )
            if values[SESSION_TIMEOUT] <= values[HEARTBEAT_INTERVAL]:
                raise ConfigError(
                    f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}; they are "
                    f"{values[SESSION_TIMEOUT]} and {values[HEARTBEAT_INTERVAL]}"
                )
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
