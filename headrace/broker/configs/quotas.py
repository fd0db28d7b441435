"""Kafka's configurations of quotas: the times over which usage is measured."""

from __future__ import annotations

from typing import Final

from headrace.broker.configs.config_key import ConfigKey, ConfigType, at_least

QUOTA_CONFIGS: Final = (
    ConfigKey(
        "quota.window.num",
        ConfigType.INT,
        "11",
        "Number of samples over which bytes, time and connections are measured. A burst as large as a fifth "
        "of them is allowed.",
        at_least(1),
    ),
    ConfigKey(
        "quota.window.size.seconds",
        ConfigType.INT,
        "1",
        "Length of each sample of bytes, time and connections, in seconds.",
        at_least(1),
    ),
    ConfigKey(
        "controller.quota.window.num",
        ConfigType.INT,
        "11",
        "Number of samples over which changes of topics are measured. A burst as large as all of them is "
        "allowed.",
        at_least(1),
    ),
    ConfigKey(
        "controller.quota.window.size.seconds",
        ConfigType.INT,
        "1",
        "Length of each sample of changes of topics, in seconds.",
        at_least(1),
    ),
)
