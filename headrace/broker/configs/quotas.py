"""The configurations of quotas: over how long what is used is measured. Kafka's own."""

from __future__ import annotations

from typing import Final

from headrace.broker.configs.config_key import ConfigKey, ConfigType, at_least

QUOTA_CONFIGS: Final = (
    ConfigKey(
        "quota.window.num",
        ConfigType.INT,
        "11",
        "Samples over which bytes, time and connections are measured: a burst of a fifth of them is let pass.",
        at_least(1),
    ),
    ConfigKey(
        "quota.window.size.seconds", ConfigType.INT, "1", "How long each of these samples is.", at_least(1)
    ),
    ConfigKey(
        "controller.quota.window.num",
        ConfigType.INT,
        "11",
        "Samples over which changes of topics are measured: a burst of so many is let pass.",
        at_least(1),
    ),
    ConfigKey(
        "controller.quota.window.size.seconds",
        ConfigType.INT,
        "1",
        "How long each of these samples is.",
        at_least(1),
    ),
)
