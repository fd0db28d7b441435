"""Open the remote log by the broker's configuration, and enter the positions of a restored data directory.

Its modules are imported only with remote storage.
"""

from __future__ import annotations

import logging
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.partitions.data_dir import FROM_REMOTE_STORAGE, POSITIONS_PENDING
from headrace.broker.remote.parts import RemoteParts
from headrace.protocol.errors import KafkaError

if TYPE_CHECKING:
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.remote.manager import RemoteLogManager
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.runtime.ports import Clock, Disk

logger = logging.getLogger("headrace.server")


def open_remote_log(parts: RemoteParts) -> RemoteLogManager | None:
    """Return the remote log; None without remote storage. Raises ConfigError."""
    config, disk, directory = parts.config, parts.disk, parts.directory
    if not config["remote.log.storage.system.enable"]:
        if disk.size(directory.path / FROM_REMOTE_STORAGE) is not None:
            raise ConfigError(
                f"the data directory {directory.path} was restored from remote storage, which has its "
                "records: start it with remote.log.storage.system.enable=true and the same remote.log.storage.directory"
            )
        return None
    location = config["remote.log.storage.directory"]
    if not location:
        raise ConfigError(
            "remote.log.storage.system.enable is true, but remote.log.storage.directory is not set: set "
            "it to a directory or a URL, such as s3://bucket/path"
        )
    from headrace.broker.objects.files import open_files
    from headrace.broker.remote.manager import RemoteLogManager

    try:
        files = open_files(location, disk, parts.entropy)
    except (ValueError, OSError) as error:
        raise ConfigError(f"remote.log.storage.directory: {error}") from error
    return RemoteLogManager(parts, files, location)


async def enter_restored_positions(
    disk: Disk,
    data_dir: Path,
    groups: GroupCoordinator,
    metadata: ClusterMetadata,
    replicas: LocalReplicas,
    clock: Clock,
    executor: Executor,
) -> None:
    """Enter the positions of consumer groups of a data directory that was restored from remote storage; do nothing for
    other directories. Raises ConfigError.
    """
    if disk.size(data_dir / POSITIONS_PENDING) is None:
        return
    from headrace.broker.remote.cluster_copy import ClusterCopyError
    from headrace.broker.remote.entering import enter

    try:
        entered = await enter(disk, data_dir, groups, metadata, replicas, clock, executor)
    except (KafkaError, OSError, ClusterCopyError) as error:
        raise ConfigError(
            f"cannot enter the positions of consumer groups from remote storage: {error}; start again "
            f"when that is repaired, or remove {data_dir / POSITIONS_PENDING} to start without them"
        ) from error
    logger.info("%s", entered)
