"""A new machine that has nothing but remote storage: a data directory of what is there (KIP-405's purpose).

`make_directory` makes a data directory with the metadata that was kept there (`cluster_copy`) and a note that
partitions are to follow. The broker that starts with it gives each partition that has a remote part a log that begins,
locally, where that ends (`partition_files`), before any log is opened; the note goes when all of them are there. What
was never copied is not there: the segments that were being written, and topics without remote storage, which come back
empty.

Members of a cluster, whose metadata is in ZooKeeper, do the same for each partition that they have no folder of.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.cluster.data_dir import FROM_REMOTE_STORAGE, found_directory
from broker.cluster.store import write_store
from broker.log.checkpoint import CHECKPOINT_NAME, Checkpoint, encode_checkpoint
from broker.log.epochs import FILE_NAME as EPOCHS_NAME
from broker.log.epochs import LeaderEpochs
from broker.log.recovery import snapshot_name
from broker.remote.cluster_copy import ClusterCopyError, ClusterImage, clusters, read_newest

if TYPE_CHECKING:
    from broker.objects.files import RemoteFiles
    from broker.ports import Disk
    from broker.remote.manifest import Manifest

_STORE_NAME: Final = "meta.db"


def make_directory(
    files: RemoteFiles, location: str, cluster_id: str | None, disk: Disk, data_dir: Path
) -> ClusterImage:
    """Make the data directory of a cluster that remote storage has, durably; of the only one without an id. It must not
    be there, or be empty. Raises ClusterCopyError, OSError; nothing is there then.
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
        raise ClusterCopyError(f"{location} has no cluster {cluster_id}, but {', '.join(found) or 'none'}")
    image = read_newest(files, cluster_id)
    making = data_dir.with_name(f"{data_dir.name}.restoring")
    disk.remove_tree(making)
    try:
        found_directory(disk, making, image.cluster_id, image.broker_id)
        write_store(making / _STORE_NAME, image.store)
        disk.open_read_only(making / _STORE_NAME).sync()
        disk.replace(making / FROM_REMOTE_STORAGE, f"{location}\n".encode(), sync=True)
        disk.sync_directory(making)
        disk.remove_directory(data_dir)
        disk.rename(making, data_dir)
        disk.sync_directory(data_dir.parent)
    except BaseException:
        disk.remove_tree(making)
        raise
    return image


def partition_files(manifest: Manifest, producers: bytes) -> dict[str, bytes]:
    """What the folder of a log has that begins, locally, where its remote part ends. `producers`: the snapshot of
    producers there, if there is one.
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
