"""The data directory: who may use it, what it holds, and what is thrown away at start.

.lock                      held (flock) by the running broker
meta.properties            version, cluster.id, node.id
meta.db                    the embedded coordination store: the truth about topics
.kafka_cleanshutdown       there only between a clean stop and the next start
<topic>-<partition>/       a partition's log; `partition.metadata` names the topic's id
<topic id>-<partition>-delete/      a deleted topic's files, about to be removed
<topic>-<partition>.<time>-stray/   files that no topic in the store explains; kept for a person to look at
extensions/<name>/         an extension's own state

What a start has seen to stays so through a power cut: the directory itself, all the way up to the root of its file
system, and that the clean stop before this run is over. A deleted topic's folder loses its name durably before its
files go, so that none of them is found under the name again.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from broker import disk_errors
from broker.config_key import ConfigError

if TYPE_CHECKING:
    from broker.cluster.topic import TopicImage

logger = logging.getLogger("headrace.data")

LAYOUT_VERSION = 1
_CLEAN = ".kafka_cleanshutdown"
PARTITION_METADATA = "partition.metadata"


def holder(path: Path) -> str | None:
    """The process of the broker that uses a data directory; None if none does. Changes nothing."""
    try:
        lock = os.open(path / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
    finally:
        os.close(lock)
    return None


class DataDirectory:
    """An opened data directory. `was_clean` says whether the last broker closed every log."""

    def __init__(self, path: Path, broker_id: int, new_cluster_id: uuid.UUID) -> None:
        """Take the directory, or raise ConfigError saying why not."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"the data directory {path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = (path / ".lock").read_text().strip() or "unknown"
            os.close(self._lock)
            raise ConfigError(
                f"the data directory {path} is in use by another broker (process {owner}); "
                "stop that one or choose another directory"
            ) from None
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
            self.cluster_id = self._load_properties(broker_id, new_cluster_id)
        except BaseException:
            os.close(self._lock)
            raise
        self.was_clean = (path / _CLEAN).exists()
        if self.was_clean:
            (path / _CLEAN).unlink()
            _sync_directory(path)  # after a power cut it would say that nothing can be missing

    @property
    def store_path(self) -> Path:
        return self.path / "meta.db"

    def partition_dir(self, topic: str, index: int) -> Path:
        return self.path / f"{topic}-{index}"

    def close(self, *, clean: bool) -> None:
        """Let go of the directory; `clean` promises that every log was flushed and closed.

        Without room for the marker there is none: the next start looks at every log.
        """
        try:
            if clean:
                _write_durably(self.path / _CLEAN, b'{"version":0}')
        except OSError as error:
            disk_errors.tell(logger, f"{self.path} cannot be marked as cleanly closed", error)
        finally:
            os.close(self._lock)

    # -- partition folders ---------------------------------------------------------------------------------

    def make_partition_dir(self, image: TopicImage, index: int) -> Path | None:
        """Make the folder of a partition that has none yet; None if there is one."""
        path = self.partition_dir(image.name, index)
        try:
            os.mkdir(path)
        except FileExistsError:
            return None
        _write_topic_id(path, image.topic_id)
        return path

    def prepare_partition_dir(self, image: TopicImage, index: int) -> Path:
        """The folder for the partition of exactly this topic; files of an earlier one of that name are set aside."""
        path = self.partition_dir(image.name, index)
        if path.is_dir():
            owner = read_topic_id(path)
            if owner == image.topic_id:
                return path
            if owner is not None:
                path.rename(self._deleted_dir(owner, index))
        path.mkdir(exist_ok=True)
        _write_topic_id(path, image.topic_id)
        return path

    def set_aside(self, image: TopicImage) -> None:
        """Rename the folders of a deleted topic, so that its name is free at once."""
        for index in range(image.partition_count):
            path = self.partition_dir(image.name, index)
            # One that a power cut has left without its id holds what was not durable, and of this topic.
            if path.is_dir() and read_topic_id(path) in (image.topic_id, None):
                path.rename(self._deleted_dir(image.topic_id, index))

    def remove_set_aside(self, image: TopicImage) -> None:
        """Remove what `set_aside` renamed. Slow; belongs into a thread."""
        _sync_directory(self.path)
        for index in range(image.partition_count):
            shutil.rmtree(self._deleted_dir(image.topic_id, index), ignore_errors=True)

    def set_aside_strays(self, images: Iterable[TopicImage]) -> None:
        """At start: remove leftovers of deletions, rename partition folders that no topic explains."""
        _sync_directory(self.path)
        expected = {f"{image.name}-{index}" for image in images for index in range(image.partition_count)}
        for entry in sorted(os.scandir(self.path), key=lambda entry: entry.name):
            if not entry.is_dir(follow_symlinks=False) or entry.name == "extensions":
                continue
            path = Path(entry.path)
            if entry.name.endswith("-delete"):
                shutil.rmtree(path, ignore_errors=True)
                continue
            if entry.name.endswith("-stray") or entry.name in expected:
                continue
            topic, dash, index = entry.name.rpartition("-")
            if dash and index.isdigit():
                # Shortened: a topic's name may fill all that a file name can hold.
                target = f"{topic[:200]}-{index}.{time.time_ns()}-stray"
                path.rename(self.path / target)
                logger.warning("%s belongs to no known topic and was renamed to %s", entry.name, target)

    def _deleted_dir(self, topic_id: uuid.UUID, index: int) -> Path:
        return self.path / f"{topic_id.hex}-{index}-delete"

    # -- meta.properties -----------------------------------------------------------------------------------

    def _load_properties(self, broker_id: int, new_cluster_id: uuid.UUID) -> str:
        path = self.path / "meta.properties"
        if not path.exists():
            _sync_above(self.path)
            cluster_id = _to_base64(new_cluster_id)
            text = f"version={LAYOUT_VERSION}\ncluster.id={cluster_id}\nnode.id={broker_id}\n"
            _write_durably(path, text.encode())
            return cluster_id
        properties = dict(
            line.split("=", 1) for line in path.read_text().splitlines() if "=" in line and line[0] != "#"
        )
        try:
            version, node_id = int(properties["version"]), int(properties["node.id"])
            cluster_id = properties["cluster.id"]
        except (KeyError, ValueError) as error:
            raise ConfigError(f"{path} is damaged ({error!r}); restore it from a backup") from error
        if version > LAYOUT_VERSION:
            raise ConfigError(
                f"the data directory {self.path} was written by a newer version (layout {version}; "
                f"this one knows {LAYOUT_VERSION}); upgrade before you start it here"
            )
        if node_id != broker_id:
            raise ConfigError(
                f"the data directory {self.path} belongs to broker {node_id}, "
                f"not {broker_id}; set node.id={node_id}"
            )
        return cluster_id


def _to_base64(value: uuid.UUID) -> str:
    """Kafka's text form of an id: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def read_topic_id(path: Path) -> uuid.UUID | None:
    """None if the folder does not say (a crash between its creation and this file)."""
    try:
        for line in (path / PARTITION_METADATA).read_text().splitlines():
            if line.startswith("topic_id:"):
                return uuid.UUID(bytes=base64.urlsafe_b64decode(line.partition(":")[2].strip() + "=="))
    except (OSError, ValueError):
        pass
    return None


def _write_topic_id(path: Path, topic_id: uuid.UUID) -> None:
    fd = os.open(path / PARTITION_METADATA, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        data = f"version: 0\ntopic_id: {_to_base64(topic_id)}\n".encode()
        if os.write(fd, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(fd)


def _write_durably(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _sync_above(path: Path) -> None:
    """Make the entries durable that lead to `path`, as far up as its file system goes and may be read."""
    path = path.resolve()
    device = path.stat().st_dev
    for above in path.parents:
        if above.stat().st_dev != device:
            return
        try:
            _sync_directory(above)
        except PermissionError:
            return
