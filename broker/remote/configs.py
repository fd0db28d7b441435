"""The broker configurations of remote storage: Kafka's names where Kafka has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.config_key import ConfigKey, ConfigType, at_least

REMOTE_CONFIGS: Final = (
    ConfigKey(
        "remote.log.storage.system.enable",
        ConfigType.BOOLEAN,
        "false",
        "Let topics have old segments in remote storage (remote.storage.enable). Needs remote.log.storage.directory.",
    ),
    ConfigKey(
        "remote.log.storage.directory",
        ConfigType.STRING,
        None,
        "Where remote storage is: a directory or a URL (s3, gs, az, abfs, file, or any that pyarrow or fsspec knows). "
        "Endpoints and credentials are those of the environment. Not one of Apache Kafka's.",
    ),
    ConfigKey(
        "remote.log.manager.task.interval.ms",
        ConfigType.LONG,
        "30000",
        "How often segments are copied to remote storage, and those removed that retention no longer covers.",
        at_least(1),
    ),
    ConfigKey(
        "remote.log.reader.threads",
        ConfigType.INT,
        "10",
        "Threads that read from remote storage, and as many that read ahead.",
        at_least(1),
    ),
    ConfigKey(
        "remote.log.reader.cache.bytes",
        ConfigType.LONG,
        "67108864",
        "Most memory for what was read from remote storage and may be asked for soon. Not one of Apache Kafka's.",
        at_least(1 << 20),
    ),
    ConfigKey(
        "remote.fetch.max.wait.ms",
        ConfigType.INT,
        "500",
        "How long a fetch waits at least for what it wants from remote storage; what comes later is in the next one.",
        at_least(1),
        dynamic=True,
    ),
)


def is_enabled(config: Mapping[str, str]) -> bool:
    """Of a topic's own configuration: there is no default of the broker's."""
    return config.get("remote.storage.enable", "").strip().lower() == "true"
