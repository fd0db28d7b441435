from __future__ import annotations

import errno
import fcntl
import os
import sys
import uuid
from pathlib import Path

import pytest

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.partitions.data_dir import DataDirectory, lock_directory
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import DiskLock, SystemClock
from simulator.disk import SimulatedDisk, Tear
from simulator.fsyncs import recorded_fsyncs

NEW = uuid.UUID(int=7)


def opened(path, broker_id: int = 0) -> DataDirectory:
    return DataDirectory(path, broker_id, NEW, SystemDisk(), SystemClock())


def all_of(image: TopicImage) -> list[tuple[str, int]]:
    return [(image.name, index) for index in range(image.partition_count)]


def topic(name: str, partitions: int = 1) -> TopicImage:
    return TopicImage(name, uuid.uuid4(), partitions)


def test_a_second_broker_is_told_which_process_holds_the_directory(tmp_path) -> None:
    first = opened(tmp_path)
    with pytest.raises(ConfigError, match=r"in use by another broker \(process \d+\)"):
        opened(tmp_path)
    first.close(clean=True)
    opened(tmp_path).close(clean=True)


def test_the_cluster_id_stays_and_a_foreign_broker_id_is_refused(tmp_path) -> None:
    first = opened(tmp_path)
    first.close(clean=True)
    second = DataDirectory(tmp_path, 0, uuid.uuid4(), SystemDisk(), SystemClock())
    assert second.cluster_id == first.cluster_id
    assert len(first.cluster_id) == 22
    second.close(clean=True)
    with pytest.raises(ConfigError, match=r"belongs to broker 0, not 3; set node.id=0"):
        opened(tmp_path, 3)
    opened(tmp_path).close(clean=True)  # the refused one did not keep the lock


def test_data_of_a_newer_version_is_refused(tmp_path) -> None:
    opened(tmp_path).close(clean=True)
    properties = tmp_path / "meta.properties"
    properties.write_text(properties.read_text().replace("version=2", "version=3"))
    with pytest.raises(ConfigError, match="newer version"):
        opened(tmp_path)


def test_a_path_that_is_a_file_is_a_clear_error(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        opened(tmp_path / "file")


def test_a_directory_without_write_permission_names_the_user(tmp_path) -> None:
    """In a container the process's user is seldom the owner of a mounted directory."""

    class Mounted(SystemDisk):
        def lock(self, path: Path, holder: str) -> DiskLock:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with pytest.raises(ConfigError, match=rf"Permission denied \(this process is user {os.geteuid()}, who"):
        lock_directory(Mounted(), tmp_path)


def test_only_a_clean_stop_is_seen_as_clean_and_only_once(tmp_path) -> None:
    first = opened(tmp_path)
    assert not first.was_clean
    first.close(clean=True)
    second = opened(tmp_path)
    assert second.was_clean
    second.close(clean=False)
    third = opened(tmp_path)
    assert not third.was_clean
    third.close(clean=False)


def test_unflushed_data_is_trusted_only_within_the_same_boot() -> None:
    path, disk = Path("/data"), SimulatedDisk()

    def life(tear: Tear, *, is_noted: bool = True, synced: bool = False) -> tuple[bool, bool]:
        nonlocal disk
        directory = DataDirectory(path, 0, NEW, disk, SystemClock())
        if is_noted:
            directory.note_life("x", synced=synced)
        disk = disk.restart(tear)
        return directory.was_kept, directory.was_synced

    assert life(Tear.KEPT) == (False, False), "nothing is known of a first life"
    assert life(Tear.KEPT) == (True, False)
    assert life(Tear.LOST, synced=True) == (True, False)
    assert life(Tear.KEPT, is_noted=False) == (False, True)
    assert life(Tear.KEPT, is_noted=False) == (False, True), "the loss is still to be reported"
    assert life(Tear.KEPT) == (False, True)
    assert life(Tear.KEPT) == (True, False)


def test_files_of_an_earlier_topic_of_the_same_name_are_not_taken_over(tmp_path) -> None:
    directory = opened(tmp_path)
    old, new = topic("t"), topic("t")
    path = directory.prepare_partition_dir(old, 0)
    (path / "00000000000000000000.log").write_bytes(b"old")
    assert (directory.prepare_partition_dir(old, 0) / "00000000000000000000.log").exists()
    again = directory.prepare_partition_dir(new, 0)
    assert again == path
    assert not (again / "00000000000000000000.log").exists()
    directory.set_aside_strays(all_of(new))
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.is_dir()) == ["t-0"]
    directory.close(clean=True)


@pytest.mark.parametrize("name", ["t", "x" * 249, "a-0", "end-delete", "end-stray"])
def test_a_deleted_topic_frees_its_name_at_once_and_its_files_later(tmp_path, name) -> None:
    directory = opened(tmp_path)
    image = topic(name, 3)
    for index in range(3):
        (directory.prepare_partition_dir(image, index) / "f").write_text("x")
    other = topic("other")
    directory.prepare_partition_dir(other, 0)
    directory.set_aside(image)
    assert not directory.partition_dir(name, 0).exists()
    directory.remove_set_aside(image)
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_dir()] == ["other-0"]
    directory.close(clean=True)


def test_unexplained_folders_are_kept_under_another_name(tmp_path) -> None:
    directory = opened(tmp_path)
    known = topic("known", 2)
    directory.prepare_partition_dir(known, 0)
    (tmp_path / "lost-0").mkdir()
    (tmp_path / "lost-0" / "data").write_text("precious")
    (tmp_path / ("y" * 249 + "-11")).mkdir()
    (tmp_path / "known-2").mkdir()  # beyond the topic's partitions
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "extensions").mkdir()
    directory.set_aside_strays(all_of(known))
    names = sorted(entry.name for entry in tmp_path.iterdir() if entry.is_dir())
    assert [name for name in names if not name.endswith("-stray")] == ["extensions", "known-0", "lost+found"]
    kept = [name for name in names if name.startswith("lost-0.")]
    assert (tmp_path / kept[0] / "data").read_text() == "precious"
    assert len(names) == 6
    directory.set_aside_strays(all_of(known))  # and a second start leaves them alone
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.is_dir()) == names
    directory.close(clean=True)


def test_a_new_directory_is_durable_up_to_the_root_before_it_says_whose_it_is(tmp_path) -> None:
    path = tmp_path / "a" / "b" / "data"
    with recorded_fsyncs(tmp_path) as synced:
        directory = opened(path)
    identity = next(at for at, each in enumerate(synced) if each.name.startswith("meta.properties."))
    for above in (path.parent, path.parent.parent, tmp_path):
        assert above in synced[:identity]
    assert path in synced[identity:]
    directory.close(clean=True)
    with recorded_fsyncs(tmp_path) as synced:
        opened(path).close(clean=False)
    assert path.parent not in synced, "once is enough"


def test_partitions_of_a_new_directory_are_laid_out_apart(tmp_path) -> None:
    path, disk, asked = Path("/data"), SimulatedDisk(), []
    disk.spread = asked.append  # type: ignore[method-assign]
    for _ in range(2):
        DataDirectory(path, 0, NEW, disk, SystemClock()).close(clean=True)
    assert asked == [path], "existing directories stay in place"
    SystemDisk().spread(tmp_path)  # also where the file system does not support it
    SystemDisk().spread(tmp_path / "nowhere")


@pytest.mark.skipif(sys.platform != "linux", reason="an attribute of Linux's file systems")
def test_new_directories_are_spread_where_the_file_system_can(tmp_path, monkeypatch) -> None:
    """ext4 alone keeps the attribute; others refuse it."""
    calls: list[tuple[int, int]] = []

    def ioctl(_fd: int, request: int, data: bytes) -> bytes:
        calls.append((request, int.from_bytes(data[:4], sys.byteorder)))
        return (0x80000).to_bytes(4, sys.byteorder) + bytes(4)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    SystemDisk().spread(tmp_path)
    assert [flags for _, flags in calls] == [0, 0xA0000], "other flags stay"


def test_after_a_power_cut_no_clean_stop_of_an_earlier_run_is_seen(tmp_path) -> None:
    opened(tmp_path).close(clean=True)
    with recorded_fsyncs(tmp_path) as synced:
        directory = opened(tmp_path)
        assert directory.was_clean
    assert synced == [tmp_path]
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    directory.close(clean=False)


def test_a_clean_stop_is_on_disk_before_it_is_over(tmp_path) -> None:
    directory = opened(tmp_path)
    with recorded_fsyncs(tmp_path) as synced:
        directory.close(clean=True)
    assert [path.name.split(".")[1] for path in synced[:-1]] == ["kafka_cleanshutdown"]
    assert synced[-1] == tmp_path
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_deleted_topic_has_lost_its_name_durably_before_its_files_go(tmp_path, monkeypatch) -> None:
    directory = opened(tmp_path)
    image = topic("t")
    directory.prepare_partition_dir(image, 0)
    directory.set_aside(image)
    for remove in (lambda: directory.remove_set_aside(image), lambda: directory.set_aside_strays([])):
        with recorded_fsyncs(tmp_path) as synced:
            before = []
            monkeypatch.setattr(
                SystemDisk,
                "remove_tree",
                lambda _, path, before=before, synced=synced: before.append((path.name, *synced)),
            )
            remove()
        assert before == [(f"{image.topic_id.hex}-0-delete", tmp_path)]
    directory.close(clean=False)


def test_a_deletion_that_comes_late_leaves_the_next_topic_of_the_name_alone(tmp_path) -> None:
    directory = opened(tmp_path)
    old, new = topic("t"), topic("t")
    directory.prepare_partition_dir(old, 0)
    directory.set_aside(old)
    path = directory.prepare_partition_dir(new, 0)
    (path / "00000000000000000000.log").write_bytes(b"new")
    directory.set_aside(old)
    directory.remove_set_aside(old)
    assert (path / "00000000000000000000.log").read_bytes() == b"new"
    directory.close(clean=False)


def test_a_folder_that_lost_its_id_goes_with_its_topic(tmp_path) -> None:
    """A power cut leaves such a folder: the next topic of that name must not find the old one's records."""
    directory = opened(tmp_path)
    old, new = topic("t"), topic("t")
    path = directory.prepare_partition_dir(old, 0)
    (path / "partition.metadata").write_bytes(b"")
    (path / "00000000000000000000.log").write_bytes(b"old")
    directory.set_aside(old)
    again = directory.prepare_partition_dir(new, 0)
    assert not (again / "00000000000000000000.log").exists()
    directory.close(clean=False)


def test_temporary_files_of_a_killed_process_are_removed_at_start(tmp_path) -> None:
    directory = opened(tmp_path)
    (tmp_path / ".kafka_cleanshutdown.1234.tmp").write_bytes(b"half")
    directory.set_aside_strays([])
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]
    directory.close(clean=False)


def test_a_partly_removed_folder_does_not_block_its_deletion(tmp_path) -> None:
    """A power cut can leave both names of a rename, and a removal can stop halfway."""
    directory, image = opened(tmp_path), topic("t")
    set_aside = tmp_path / f"{image.topic_id.hex}-0-delete"
    for another in (False, True):
        set_aside.mkdir()
        (set_aside / "00000000000000000000.log").write_bytes(b"left")
        path = directory.prepare_partition_dir(image, 0)
        if another:  # a new topic of the same name: the old one's files make way
            directory.prepare_partition_dir(TopicImage(image.name, uuid.uuid4(), 1), 0)
        else:
            assert directory.set_aside_partition(image, 0)
            assert not path.exists()
        assert [each.name for each in set_aside.iterdir()] == ["partition.metadata"]
        directory.remove_set_aside(image)
        assert not set_aside.exists()
