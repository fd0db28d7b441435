"""The data directory: its lock, its contents, and what a start removes.

.lock                         locked (flock) by the running broker
meta.properties               version, cluster.id, node.id; cluster.member if the topics are in ZooKeeper;
                              cluster.adoption if the broker was a single broker before; cluster.processes in the
                              directory of several broker processes (`broker.cluster.processes`)
meta.db                       the embedded coordination store, with the topics of a single broker or of processes
restored-from-remote-storage  the broker was made from remote storage; its partitions are still to follow
group-positions-from-remote-storage  the same; the committed offsets of its groups are still to be entered
.kafka_cleanshutdown          exists only between a clean stop and the next start
<topic>-<partition>/          a partition's log; `partition.metadata` names the topic's id
<topic id>-<partition>-delete/       a deleted topic's files, about to be removed
<topic>-<partition>.<time>-stray/    files that the store does not know; kept for an operator to look at
extensions/<name>/            an extension's own state

A start makes two facts durable: the directory itself, with its parents up to the root of its file system, and that the
clean stop before this run is over. A deleted topic's folder durably loses its name before its files are removed, so
that none of them is found under the name again.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.runtime import disk_errors
from headrace.broker.runtime.ports import LockedError

if TYPE_CHECKING:
    from headrace.broker.partitions.topic import TopicImage
    from headrace.broker.runtime.ports import Clock, Disk, DiskLock

logger = logging.getLogger("headrace.data")

LAYOUT_VERSION = 2
"""In layout 1 topics had no states of their partitions. An older layout is brought to this one when it is opened."""
_LOCK = ".lock"
_PROPERTIES = "meta.properties"
_MEMBER = "cluster.member"
_ADOPTION = "cluster.adoption"
_PROCESSES = "cluster.processes"
_TEMPORARY = ".tmp"
_CLEAN = ".kafka_cleanshutdown"
_LIFE = ".last-life"
INCARNATIONS_KEPT = 16
PARTITION_METADATA = "partition.metadata"
FROM_REMOTE_STORAGE = "restored-from-remote-storage"
POSITIONS_PENDING = "group-positions-from-remote-storage"


def holder(disk: Disk, path: Path) -> str | None:
    """Return the process of the broker that uses a data directory; None if it is not in use. Changes nothing."""
    return disk.lock_holder(path / _LOCK)


class DataDirectory:
    """An opened data directory. `was_clean` says whether the last broker closed every log."""

    def __init__(
        self,
        path: Path,
        broker_id: int,
        new_cluster_id: uuid.UUID,
        disk: Disk,
        clock: Clock,
        *,
        member_of: str | None = None,
    ) -> None:
        """Lock the directory, or raise ConfigError with the reason. `member_of` is the id of the cluster that its
        broker belongs to; None for a single broker.
        """
        self.path = path
        self._disk = disk
        self._clock = clock
        self.broker_id = broker_id
        make_directory(disk, path)
        self._lock = lock_directory(disk, path)
        try:
            self.cluster_id = self._load_properties(broker_id, new_cluster_id, member_of)
        except BaseException:
            self._lock.release()
            raise
        noted = self._noted()
        self.was_kept = noted.get("boot", "") == disk.boot_id() != ""
        """Whether the machine has run since the last stop, clean or not: then everything that was written is there."""
        self.was_synced = noted.get("synced") is True
        """Whether acknowledged records were on disk by default until the last stop, clean or not."""
        self.last_incarnations = tuple(map(str, noted.get("incarnations") or ()))
        """Incarnations of the broker that had the directory before and may still be registered."""
        self.was_clean = disk.size(path / _CLEAN) is not None
        if self.was_clean:
            disk.remove(path / _CLEAN)
            disk.sync_directory(path)  # after a power cut it would say that nothing can be missing

    def _noted(self) -> dict[str, Any]:
        try:
            noted = json.loads(self._disk.read(self.path / _LIFE))
        except (OSError, ValueError):
            return {}
        return noted if isinstance(noted, dict) else {}

    def note_incarnation(self, incarnation: str) -> None:
        """Note the incarnation of this run, before other brokers are told of it."""
        self._note(
            self._noted() | {"incarnations": [*self.last_incarnations, incarnation][-INCARNATIONS_KEPT:]}
        )

    def note_life(self, incarnation: str, *, synced: bool) -> None:
        """Note that from here on a stop loses nothing while the machine goes on, or nothing at all if acknowledged
        records are `synced` by default. Call it only when all brokers concerned know what the last stop has lost.
        """
        self._note({"boot": self._disk.boot_id(), "synced": synced, "incarnations": [incarnation]})

    def _note(self, life: dict[str, Any]) -> None:
        if self._noted() != life:
            self._disk.replace(self.path / _LIFE, json.dumps(life).encode(), sync=True)

    @property
    def store_path(self) -> Path:
        return store_of(self.path)

    def partition_dir(self, topic: str, index: int) -> Path:
        return self.path / f"{topic}-{index}"

    def close(self, *, clean: bool) -> None:
        """Release the directory; `clean` promises that every log was flushed and closed.

        If there is no room for the marker, the next start looks at every log.
        """
        try:
            if clean:
                self._disk.replace(self.path / _CLEAN, b'{"version":0}', sync=True)
        except OSError as error:
            disk_errors.tell(logger, f"{self.path} cannot be marked as cleanly closed", error)
        finally:
            self._lock.release()

    # -- partition folders ---------------------------------------------------------------------------------

    def make_partition_dir(self, image: TopicImage, index: int) -> Path | None:
        """Make the folder of a partition; return None if it exists."""
        path = self.partition_dir(image.name, index)
        if not self._disk.make_directory(path):
            return None
        self._write_topic_id(path, image.topic_id)
        return path

    def prepare_partition_dir(self, image: TopicImage, index: int) -> Path:
        """Return the folder for the partition of exactly this topic; files of an earlier topic of that name are set
        aside.
        """
        path = self.partition_dir(image.name, index)
        if self._disk.is_directory(path):
            owner = read_topic_id(self._disk, path)
            if owner == image.topic_id:
                return path
            if owner is not None:
                self._set_aside(path, owner, index)
        self._disk.make_directory(path)
        self._write_topic_id(path, image.topic_id)
        return path

    def has_partition_dir(self, image: TopicImage, index: int) -> bool:
        return self._disk.is_directory(self.partition_dir(image.name, index))

    def make_filled_partition_dir(self, image: TopicImage, index: int, files: Mapping[str, bytes]) -> None:
        """Make the folder of a partition that has none, with these files in it, durably: all of it or nothing."""
        disk, path = self._disk, self.partition_dir(image.name, index)
        # If this is interrupted, the next start removes the folder.
        making = path.with_name(f"{image.topic_id.hex}-{index}-delete")
        disk.remove_tree(making)
        disk.make_directory(making)
        self._write_topic_id(making, image.topic_id)
        disk.open_read_only(making / PARTITION_METADATA).sync()
        for name, data in files.items():
            disk.replace(making / name, data, sync=True)
        disk.sync_directory(making)
        disk.rename(making, path)
        disk.sync_directory(self.path)

    def set_aside(self, *images: TopicImage) -> None:
        """Rename the folders of deleted topics, so that their names are free at once."""
        for image in images:
            for index in range(image.partition_count):
                self.set_aside_partition(image, index)

    def set_aside_partition(self, image: TopicImage, index: int) -> bool:
        """Rename the folder of a replica that does not belong here any more. Return False if there is no folder."""
        path = self.partition_dir(image.name, index)
        # A folder that a power cut has left without its id has no durable contents, and is of this topic.
        is_its = self._disk.is_directory(path) and read_topic_id(self._disk, path) in (image.topic_id, None)
        if is_its:
            self._set_aside(path, image.topic_id, index)
        return is_its

    def _set_aside(self, path: Path, topic_id: uuid.UUID, index: int) -> None:
        """Rename a folder to a name of folders that are about to be removed. A remainder with that name, of an
        interrupted removal, is removed.
        """
        deleted = self._deleted_dir(topic_id, index)
        self._disk.remove_tree(deleted)
        self._disk.rename(path, deleted)

    def set_aside_damaged(self, image: TopicImage, index: int) -> str:
        """Rename the folder of a replica that cannot be opened, and return its name."""
        path = self.partition_dir(image.name, index)
        kept = self._stray_name(image.name, index)
        if self._disk.is_directory(path):
            self._disk.rename(path, self.path / kept)
            self._disk.sync_directory(self.path)
        return kept

    def _stray_name(self, topic: str, index: int | str) -> str:
        # Shortened: a topic's name may be as long as a file name can be.
        return f"{topic[:200]}-{index}.{self._clock.time_ms()}-stray"

    def remove_partition_set_aside(self, image: TopicImage, index: int) -> None:
        """Remove the folders that `set_aside_partition` renamed. Slow; call it in a thread."""
        self._disk.sync_directory(self.path)
        self._disk.remove_tree(self._deleted_dir(image.topic_id, index))

    def remove_set_aside(self, *images: TopicImage) -> None:
        """Remove the folders that `set_aside` renamed. Slow; call it in a thread."""
        self._disk.sync_directory(self.path)
        for image in images:
            for index in range(image.partition_count):
                self._disk.remove_tree(self._deleted_dir(image.topic_id, index))

    def set_aside_strays(self, expected: Iterable[tuple[str, int]]) -> None:
        """Remove leftovers of deletions at the start, and rename folders of partitions that are not `expected` here
        (topics and indexes).
        """
        disk = self._disk
        disk.sync_directory(self.path)
        names = {f"{topic}-{index}" for topic, index in expected}
        for name in disk.names(self.path):
            if name.endswith(_TEMPORARY):
                disk.remove(self.path / name)
        for name in sorted(disk.directories(self.path)):
            path = self.path / name
            if name.endswith("-delete"):
                disk.remove_tree(path)
            elif name not in names and _is_partition(name):
                topic, _, index = name.rpartition("-")
                target = self._stray_name(topic, index)
                disk.rename(path, self.path / target)
                logger.warning(
                    "%s is not a partition that belongs to this broker; it was renamed to %s",
                    name,
                    target,
                )

    def check_no_partitions(self) -> None:
        """Raises ConfigError if there are folders of partitions, although the store is new: it was lost."""
        found = next(filter(_is_partition, sorted(self._disk.directories(self.path))), None)
        if found is not None:
            raise ConfigError(
                f"{self.path} has partitions, such as {found}, but its coordination store has never had a topic: the"
                " store was lost or emptied; restore it from a backup"
            )

    def _deleted_dir(self, topic_id: uuid.UUID, index: int) -> Path:
        return self.path / f"{topic_id.hex}-{index}-delete"

    def _write_topic_id(self, path: Path, topic_id: uuid.UUID) -> None:
        data = f"version: 0\ntopic_id: {to_base64(topic_id)}\n".encode()
        file = self._disk.open(path / PARTITION_METADATA, create=True)
        file.truncate(0)
        file.write([data], 0)
        file.close()

    # -- meta.properties -----------------------------------------------------------------------------------

    def _load_properties(self, broker_id: int, new_cluster_id: uuid.UUID, member_of: str | None) -> str:
        path = self.path / _PROPERTIES
        properties = read_properties(self._disk, self.path)
        if properties is None:
            self._disk.spread(self.path)
            self._disk.sync_above(self.path)
            cluster_id = member_of or to_base64(new_cluster_id)
            new = Properties(LAYOUT_VERSION, cluster_id, broker_id, member_of is not None)
            self._disk.replace(path, new.encode(), sync=True)
            return cluster_id
        if properties.processes:
            raise ConfigError(
                f"the data directory {self.path} belongs to {properties.processes} broker processes: start it with"
                f" --processes {properties.processes}"
            )
        cluster_id, node_id, is_member = properties.cluster_id, properties.node_id, properties.is_member
        if node_id != broker_id:
            raise ConfigError(
                f"the data directory {self.path} belongs to broker {node_id}, not {broker_id}; set "
                f"node.id={node_id}"
            )
        above = read_properties(self._disk, self.path.parent) if is_member else None
        if member_of is None and above is not None and above.processes:
            raise ConfigError(
                f"the data directory {self.path} belongs to one of {above.processes} broker processes: start all of"
                f" them with --data {self.path.parent} --processes {above.processes}"
            )
        if is_member and member_of is None:
            raise ConfigError(
                f"the data directory {self.path} belongs to broker {node_id} of the cluster {cluster_id}, "
                "whose topics are in ZooKeeper: start it with --zookeeper"
            )
        if member_of is not None and not is_member:
            raise ConfigError(
                f"the data directory {self.path} belongs to a single broker and has its topics in it: it "
                "cannot join a cluster as it is. Choose another directory, or make it the first broker of "
                f"a new cluster with `headrace cluster adopt --data {self.path} --zookeeper ...`"
            )
        if member_of is not None and cluster_id != member_of:
            raise ConfigError(
                f"the data directory {self.path} belongs to the cluster {cluster_id}, and the one at --zookeeper is"
                f" {member_of}: choose the directory or the address and path that belong together"
            )
        if properties.version < LAYOUT_VERSION:
            # This comes first: an older broker must not open files that this one has written.
            self._disk.replace(path, properties.encode(), sync=True)
        return cluster_id


class Properties(msgspec.Struct, frozen=True):
    """The facts about its broker in a data directory. `adoption` is the id of the adoption that made it a member.
    `processes`: the directory has that number of brokers in folders of their own, and `node_id` is the first one's.
    """

    version: int
    cluster_id: str
    node_id: int
    is_member: bool
    adoption: str | None = None
    processes: int = 0

    def encode(self) -> bytes:
        """Encode in the present layout."""
        fields: dict[str, object] = {
            "version": LAYOUT_VERSION,
            "cluster.id": self.cluster_id,
            "node.id": self.node_id,
        }
        if self.is_member:
            fields[_MEMBER] = "true"
        if self.adoption is not None:
            fields[_ADOPTION] = self.adoption
        if self.processes:
            fields[_PROCESSES] = self.processes
        return "".join(f"{name}={value}\n" for name, value in fields.items()).encode()


def read_properties(disk: Disk, path: Path) -> Properties | None:
    """Return the properties; None if no broker was started with the directory before. Raises ConfigError if this
    version cannot read them.
    """
    file = path / _PROPERTIES
    try:
        if disk.size(file) is None:
            return None
        lines = disk.read(file).decode(errors="replace").splitlines()
    except OSError as error:
        raise _unusable(path, error) from error
    fields = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
    try:
        properties = Properties(
            int(fields["version"]),
            fields["cluster.id"],
            int(fields["node.id"]),
            _MEMBER in fields,
            fields.get(_ADOPTION),
            int(fields.get(_PROCESSES, 0)),
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{file} is damaged ({error!r}); restore it from a backup") from error
    if properties.version > LAYOUT_VERSION:
        raise ConfigError(
            f"the data directory {path} was written by a newer version (layout {properties.version}; "
            f"this one knows {LAYOUT_VERSION}); upgrade before you start it here"
        )
    return properties


def write_properties(disk: Disk, path: Path, properties: Properties) -> None:
    """Write the properties durably, all or nothing."""
    disk.replace(path / _PROPERTIES, properties.encode(), sync=True)


def _unusable(path: Path, error: OSError) -> ConfigError:
    """Return the error, with the user of this process if permissions are missing: a container's user is seldom the
    owner of a mounted directory.
    """
    who = (
        f" (this process is user {os.geteuid()}, who must be able to write there)"
        if isinstance(error, PermissionError)
        else ""
    )
    return ConfigError(f"the data directory {path} cannot be used: {error.strerror}{who}")


def make_directory(disk: Disk, path: Path) -> None:
    """Make a data directory if it is missing. Raises ConfigError."""
    try:
        disk.make_directory(path)
    except OSError as error:
        raise _unusable(path, error) from error


def lock_directory(disk: Disk, path: Path) -> DiskLock:
    """Lock an existing directory against other processes. Raises ConfigError."""
    try:
        return disk.lock(path / _LOCK, str(os.getpid()))
    except OSError as error:
        raise _unusable(path, error) from error
    except LockedError as error:
        raise ConfigError(
            f"the data directory {path} is in use by another broker (process {error.holder}); "
            "stop that one or choose another directory"
        ) from None


def found_directory(disk: Disk, path: Path, cluster_id: str, broker_id: int) -> None:
    """Write the properties of a single broker's data directory, durably: the next start accepts the directory as its
    own.
    """
    disk.make_directory(path)
    disk.sync_above(path)
    write_properties(disk, path, Properties(LAYOUT_VERSION, cluster_id, broker_id, is_member=False))


def is_clean(disk: Disk, path: Path) -> bool:
    """Return whether the last broker has closed every log. Changes nothing."""
    return disk.size(path / _CLEAN) is not None


def _is_partition(name: str) -> bool:
    """Return whether a folder with this name is that of a partition that is in use."""
    topic, _, index = name.rpartition("-")
    return bool(topic) and index.isdigit()


def store_of(path: Path) -> Path:
    """Return the file of the embedded store."""
    return path / "meta.db"


def to_base64(value: uuid.UUID) -> str:
    """Return Kafka's text form of an id: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def read_topic_id(disk: Disk, path: Path) -> uuid.UUID | None:
    """Return the topic's id; None if the folder does not have it (after a crash between its creation and this file)."""
    try:
        for line in disk.read(path / PARTITION_METADATA).decode().splitlines():
            if line.startswith("topic_id:"):
                return uuid.UUID(bytes=base64.urlsafe_b64decode(line.partition(":")[2].strip() + "=="))
    except (OSError, ValueError):
        pass
    return None
