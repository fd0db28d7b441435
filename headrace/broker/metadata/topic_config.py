"""Topic configurations: their names, the effective values of a topic, and the source of each value.

A value is looked for in the topic, then in the broker's configuration (`log.retention.ms` for `retention.ms`), then in
the declared default. The declared tables are the log's (`broker.configs.topics`) and the extensions'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from headrace.broker.configs.config_key import ConfigError, ConfigKey, unknown_name
from headrace.broker.configs.topics import PRODUCER_ID_EXPIRATION_MS, TOPIC_CONFIGS
from headrace.broker.log.config import LogConfig
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.partitions.topic import TopicImage

# The broker's own topics are journals: never cut by age or size, only rewritten by their owner.
INTERNAL_DEFAULTS = {"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "-1"}
_PARSED_MAX: Final = 256
"""Number of different configurations that are kept: most topics have one of a few."""


class TopicConfigs:
    """`broker_defaults` are the topic configurations that the broker's own configuration sets explicitly.
    `defaults_changed` replaces them while the broker runs.
    """

    def __init__(
        self,
        broker_defaults: Mapping[str, str],
        extension_keys: Sequence[ConfigKey] = (),
        *,
        strict: bool = False,
        remote_storage: bool = False,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
    ) -> None:
        """`strict`: clients' batches are decoded before they are appended (rule B9). `remote_storage`: the broker has
        remote storage.
        """
        self._remote_storage = remote_storage
        self.broker_defaults = dict(broker_defaults)
        self._strict = strict
        self._expiration_ms = producer_id_expiration_ms
        self.log_keys: Mapping[str, ConfigKey] = TOPIC_CONFIGS
        self.extension_keys = {key.name: key for key in extension_keys}
        self._parsed: dict[tuple[bool, frozenset[tuple[str, str]]], LogConfig] = {}
        LogConfig.parse(self.broker_defaults)

    def with_defaults(self, broker_defaults: Mapping[str, str]) -> TopicConfigs:
        """Return the same for other defaults of the broker."""
        return TopicConfigs(
            broker_defaults,
            tuple(self.extension_keys.values()),
            strict=self._strict,
            remote_storage=self._remote_storage,
            producer_id_expiration_ms=self._expiration_ms,
        )

    def keys(self, given: Iterable[str] = ()) -> dict[str, ConfigKey]:
        """Return all declared keys; of a family (`name.*`) those that are among the `given` names."""
        known = {**self.log_keys, **self.extension_keys}
        families = [known.pop(name) for name in self.extension_keys if name.endswith("*")]
        for name in given:
            family = next((key for key in families if name.startswith(key.name[:-1])), None)
            if family is not None and name not in known:
                known[name] = family.named(name)
        return known

    def check(self, config: Mapping[str, str], *, internal: bool = False) -> None:
        """Raise KafkaError(INVALID_CONFIG) for an unknown name or an illegal value."""
        known = self.keys(config)
        try:
            for name, text in config.items():
                key = known.get(name)
                if key is None:
                    raise unknown_name("topic", name, known)
                if name not in self.log_keys:
                    key.parse(text)
            parsed = LogConfig.parse(self._effective(config, internal=internal))
            if parsed.remote_storage_enable and not self._remote_storage:
                raise ConfigError(
                    "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote "
                    "log storage."
                )
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    def check_change(self, old: Mapping[str, str], new: Mapping[str, str]) -> None:
        """Raise KafkaError(INVALID_CONFIG) if a topic cannot change from one legal configuration to another."""
        before, after = (LogConfig.parse(self._effective(each, internal=False)) for each in (old, new))
        if (
            before.remote_storage_enable
            and not after.remote_storage_enable
            and not after.remote_log_delete_on_disable
        ):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                "It is invalid to disable remote storage without deleting remote data. To keep it and copy no more, "
                "set remote.log.copy.disable=true; to disable remote storage and delete all of it, set "
                "remote.storage.enable=false,remote.log.delete.on.disable=true.",
            )

    def is_extended(self, image: TopicImage) -> bool:
        """Return whether it sets a configuration of an extension: its records may differ from Kafka's."""
        return any(name not in self.log_keys for name in image.config)

    def log_config(self, image: TopicImage) -> LogConfig:
        """Return the configuration of the logs of the topic's partitions. Topics with equal ones share it.

        Any thread may call it.
        """
        parsed = self._parsed  # read before the defaults: `defaults_changed` replaces it after them
        given = image.internal, frozenset(each for each in image.config.items() if each[0] in self.log_keys)
        known = parsed.get(given)
        if known is None:
            if len(parsed) >= _PARSED_MAX:
                parsed.clear()
            config = LogConfig.parse(self._effective(image.config, internal=image.internal))
            known = parsed[given] = replace(
                config, strict_records=self._strict, producer_id_expiration_ms=self._expiration_ms
            )
        return known

    def defaults_changed(self, broker_defaults: Mapping[str, str], producer_id_expiration_ms: int) -> None:
        """Take over a change of the broker's own configuration. `MetadataFollower` tells the open logs."""
        LogConfig.parse(broker_defaults)
        self.broker_defaults = dict(broker_defaults)
        self._expiration_ms = producer_id_expiration_ms
        self._parsed = {}

    @property
    def min_isr(self) -> int:
        """`min.insync.replicas` of topics that do not set it, as this broker has it now."""
        return LogConfig.parse(self.broker_defaults).min_insync_replicas

    def _effective(self, config: Mapping[str, str], *, internal: bool) -> dict[str, str]:
        merged = {**self.broker_defaults, **(INTERNAL_DEFAULTS if internal else {})}
        merged.update((name, text) for name, text in config.items() if name in self.log_keys)
        return merged
