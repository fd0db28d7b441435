"""Start a new machine from remote storage alone: make a data directory from its content (the purpose of KIP-405).

`make_directory` makes a data directory with the copied metadata (`cluster_copy`) and a note that partitions are
missing. Before the broker opens any log, it gives each partition with a remote part a log that begins, locally, where
that part ends (`partition_files`); then it removes the note. Records that were never copied are lost: those of active
segments, and of topics without remote storage, which come back empty.

From a cluster's metadata it makes a single broker with all partitions (`shared_copy.made_single`); `headrace cluster
adopt` makes it the first broker of a new cluster.

Committed positions of consumer groups are put in a file, which the first start enters (`entering`).

Members of a cluster, whose metadata is in ZooKeeper, do the same for each partition without a folder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from headrace.broker.configs.remote_log import is_enabled
from headrace.broker.log.checkpoint import CHECKPOINT_NAME, Checkpoint, encode_checkpoint
from headrace.broker.log.epochs import FILE_NAME as EPOCHS_NAME
from headrace.broker.log.epochs import LeaderEpochs
from headrace.broker.log.recovery import snapshot_name
from headrace.broker.metadata import tree
from headrace.broker.partitions.data_dir import FROM_REMOTE_STORAGE, POSITIONS_PENDING, found_directory
from headrace.broker.remote.cluster_copy import (
    OF_SEVERAL,
    ClusterCopyError,
    ClusterImage,
    clusters,
    read_newest,
)
from headrace.broker.remote.entering import Entered, Range, encode_pending, fitted
from headrace.broker.remote.group_positions import NewerError, decode
from headrace.broker.remote.group_positions import read_newest as read_newest_positions
from headrace.broker.remote.log import newest_manifest
from headrace.broker.remote.manifest import Manifest, ManifestError, partition_folder
from headrace.broker.remote.shared_copy import made_single
from headrace.broker.stores.embedded import write_store

if TYPE_CHECKING:
    from headrace.broker.objects.files import RemoteFiles
    from headrace.broker.partitions.topic import TopicImage
    from headrace.broker.runtime.ports import Disk

NODES: Final = "/remote-log"
"""The parent of one node for each topic that has something in remote storage, named by its id."""
ALONE: Final = 0
"""The id of the broker that is made from a cluster's metadata: the default of `node.id`."""
_STORE_NAME: Final = "meta.db"


class Restored(msgspec.Struct, frozen=True):
    """A restored directory. `positions`: what the first start will do with committed positions, by the present content
    of remote storage; `positions_ms`: time from which on commits may be missing in it, None without positions.
    `damaged`: objects of positions that cannot be read.
    """

    image: ClusterImage
    positions: Entered
    positions_ms: int | None = None
    damaged: tuple[str, ...] = ()
    lowered: tuple[str, ...] = ()


def make_directory(
    files: RemoteFiles,
    location: str,
    cluster_id: str | None,
    disk: Disk,
    data_dir: Path,
    executor: Executor | None = None,
) -> Restored:
    """Make the data directory of a cluster in remote storage, durably. `cluster_id` None: of the only cluster. The
    directory must not exist, or be empty. `executor`: reads many objects concurrently. Raises ClusterCopyError,
    OSError; the directory is not made then.
    """
    if disk.names(data_dir) or disk.directories(data_dir):
        raise ClusterCopyError(f"{data_dir} is not empty: restore into a new directory")
    found = clusters(files)
    if cluster_id is None:
        if len(found) != 1:
            several = f"several clusters ({', '.join(found)}): choose one with --cluster-id"
            raise ClusterCopyError(f"{location} has {several if found else 'no metadata of a cluster'}")
        (cluster_id,) = found
    elif cluster_id not in found:
        raise ClusterCopyError(
            f"{location} has no cluster {cluster_id}; its clusters: {', '.join(found) or 'none'}"
        )
    image = read_newest(files, cluster_id)
    each = map if executor is None else executor.map
    objects, damaged = _readable(read_newest_positions(files, cluster_id))
    manifests = _manifests(files, image, each)
    lowered: list[str] = []
    if image.version == OF_SEVERAL:
        image, lowered = made_single(
            image, ALONE, lambda *where: manifests[where].last_epoch if where in manifests else -1
        )
    restored = replace(_fitted(image, objects, damaged, manifests), lowered=tuple(lowered))
    making = data_dir.with_name(f"{data_dir.name}.restoring")
    disk.remove_tree(making)
    try:
        found_directory(disk, making, image.cluster_id, image.broker_id)
        write_store(making / _STORE_NAME, image.store)
        disk.open_read_only(making / _STORE_NAME).sync()
        if restored.positions.positions:
            disk.replace(making / POSITIONS_PENDING, encode_pending(objects), sync=True)
        disk.replace(making / FROM_REMOTE_STORAGE, f"{location}\n".encode(), sync=True)
        disk.sync_directory(making)
        disk.remove_directory(data_dir)
        disk.rename(making, data_dir)
        disk.sync_directory(data_dir.parent)
    except BaseException:
        disk.remove_tree(making)
        raise
    return restored


def _readable(objects: Mapping[str, bytes]) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the readable objects of positions, and the names of the others. Raises NewerError."""
    found, damaged = {}, []
    for name, data in objects.items():
        try:
            decode(name, data)
        except NewerError:
            raise
        except ClusterCopyError:
            damaged.append(name)
        else:
            found[name] = data
    return found, tuple(damaged)


def _manifests(
    files: RemoteFiles, image: ClusterImage, each: Callable[..., Iterable[Any]]
) -> dict[tuple[str, int], Manifest]:
    """Return the manifests of partitions that may have a remote part, by topic and index. Raises ClusterCopyError,
    OSError.
    """
    nodes = {path: data for path, data, _ in image.store.nodes}
    wanted = [
        (topic, index)
        for topic in _topics(image)
        if is_enabled(topic.config) or f"{NODES}/{topic.topic_id}" in nodes
        for index in range(topic.partition_count)
    ]
    folders = [partition_folder(topic.topic_id, index) for topic, index in wanted]
    try:
        found = list(each(partial(newest_manifest, files), folders))
    except ManifestError as error:
        raise ClusterCopyError(str(error)) from error
    return {(topic.name, index): manifest for (topic, index), manifest in zip(wanted, found, strict=True)}


def _topics(image: ClusterImage) -> list[TopicImage]:
    return [tree.decode_topic(data) for path, data, _ in image.store.nodes if tree.is_topic(path)]


def _fitted(
    image: ClusterImage,
    objects: Mapping[str, bytes],
    damaged: tuple[str, ...],
    manifests: Mapping[tuple[str, int], Manifest],
) -> Restored:
    topics = {topic.name: topic for topic in _topics(image)}
    entered, oldest = Entered(), None
    for name, data in objects.items():
        head, records = decode(name, data)
        oldest = head.made_ms if oldest is None else min(oldest, head.made_ms)

        def range_of(name: str, index: int, ids: Mapping[str, str] = head.topics) -> Range | None:
            topic = topics.get(name)
            if topic is None or index >= topic.partition_count or ids.get(name) != str(topic.topic_id):
                return None
            manifest = manifests.get((name, index), Manifest())
            return max(manifest.start_offset, manifest.log_start_offset), manifest.end_offset

        deque(fitted(records, range_of, entered), maxlen=0)
    return Restored(image, entered, oldest, damaged)


def partition_files(manifest: Manifest, producers: bytes) -> dict[str, bytes]:
    """Return the files of a log that begins, locally, where its remote part ends. `producers`: the snapshot of
    producers at that offset, empty without one.
    """
    end_offset = manifest.end_offset
    checkpoint = Checkpoint(
        max(manifest.start_offset, manifest.log_start_offset), end_offset, tiered_to=end_offset
    )
    contents = {
        CHECKPOINT_NAME: encode_checkpoint(checkpoint),
        EPOCHS_NAME: LeaderEpochs(manifest.epochs()).encode(),
    }
    if producers:
        contents[snapshot_name(end_offset)] = producers
    return contents
