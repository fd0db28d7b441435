"""The broker configurations of remote storage, under Kafka's names if Kafka has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.broker.configs.config_key import ConfigKey, ConfigType, at_least

UNLIMITED: Final = (1 << 63) - 1
"""Bytes a second of a remote quota without a limit."""

REMOTE_CONFIGS: Final = (
    ConfigKey(
        "remote.log.storage.system.enable",
        ConfigType.BOOLEAN,
        "false",
        "Let topics move old segments to remote storage (remote.storage.enable). Needs "
        "remote.log.storage.directory.",
    ),
    ConfigKey(
        "remote.log.storage.directory",
        ConfigType.STRING,
        None,
        "Location of remote storage: a directory or a URL (s3, gs, az, abfs, file, or any that pyarrow or "
        "fsspec knows). Endpoints and credentials come from the environment. Not one of Apache Kafka's.",
    ),
    ConfigKey(
        "remote.log.manager.task.interval.ms",
        ConfigType.LONG,
        "30000",
        "Interval at which segments are copied to remote storage and expired ones removed from it, in "
        "milliseconds.",
        at_least(1),
    ),
    ConfigKey(
        "remote.log.group.positions.interval.ms",
        ConfigType.LONG,
        "30000",
        "Shortest interval between copies of committed offsets to remote storage, in milliseconds, for each "
        "partition of __consumer_offsets with changed offsets. Not one of Apache Kafka's.",
        at_least(1),
    ),
    ConfigKey(
        "remote.log.reader.threads",
        ConfigType.INT,
        "10",
        "Number of threads that read from remote storage; the same number of threads reads ahead.",
        at_least(1),
    ),
    ConfigKey(
        "remote.log.reader.cache.bytes",
        ConfigType.LONG,
        "67108864",
        "Maximum memory for data that was read from remote storage and may be asked for soon, in bytes. Not "
        "one of Apache Kafka's.",
        at_least(1 << 20),
    ),
    *(
        ConfigKey(
            f"remote.log.manager.{work}.max.bytes.per.second",
            ConfigType.LONG,
            str(UNLIMITED),
            f"Maximum number of bytes a second that are {doc}, of all topics of this broker.",
            at_least(1),
            dynamic=True,
        )
        for work, doc in (
            ("copy", "copied to remote storage"),
            ("fetch", "read from remote storage"),
        )
    ),
    *(
        ConfigKey(
            f"remote.log.manager.{work}.quota.window.{part}",
            ConfigType.INT,
            default,
            f"{doc}, over which remote.log.manager.{work}.max.bytes.per.second is measured. The amount for "
            "a fifth of the window may come at once.",
            at_least(1),
        )
        for work in ("copy", "fetch")
        for part, default, doc in (
            ("num", "11", "Number of samples"),
            ("size.seconds", "1", "Length of a sample in seconds"),
        )
    ),
    ConfigKey(
        "remote.fetch.max.wait.ms",
        ConfigType.INT,
        "500",
        "Shortest time that a fetch waits for data from remote storage, in milliseconds; data that comes "
        "later is in the next fetch.",
        at_least(1),
        dynamic=True,
    ),
)


def is_enabled(config: Mapping[str, str]) -> bool:
    """Return whether a topic's own configuration enables remote storage; the broker has no default for it."""
    return config.get("remote.storage.enable", "").strip().lower() == "true"
