"""The broker configurations of remote storage: Kafka's names where Kafka has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.broker.configs.config_key import ConfigKey, ConfigType, at_least

UNLIMITED: Final = (1 << 63) - 1
"""Bytes a second of a remote quota that limits nothing."""

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
        "remote.log.group.positions.interval.ms",
        ConfigType.LONG,
        "30000",
        "How often at most what consumer groups have committed is copied to remote storage, of each partition of "
        "__consumer_offsets with groups whose positions have changed. Not one of Apache Kafka's.",
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
    *(
        ConfigKey(
            f"remote.log.manager.{work}.max.bytes.per.second",
            ConfigType.LONG,
            str(UNLIMITED),
            f"How many bytes a second are {doc}, of all topics of this broker.",
            at_least(1),
            dynamic=True,
        )
        for work, doc in (
            ("copy", "copied to remote storage at most"),
            ("fetch", "read from remote storage at most"),
        )
    ),
    *(
        ConfigKey(
            f"remote.log.manager.{work}.quota.window.{part}",
            ConfigType.INT,
            default,
            f"{doc}, over which remote.log.manager.{work}.max.bytes.per.second is measured: what it allows in a fifth "
            "of the window may come at once.",
            at_least(1),
        )
        for work in ("copy", "fetch")
        for part, default, doc in (
            ("num", "11", "How many samples"),
            ("size.seconds", "1", "The seconds of a sample"),
        )
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
