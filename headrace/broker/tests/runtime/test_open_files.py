"""The budget of open files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.broker.runtime import disk as disks
from headrace.broker.runtime import open_files
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.open_files import OpenFiles


class File:
    def __init__(self, files: OpenFiles) -> None:
        self.used = False
        self.is_open = True
        files.opened(self)

    def close_file(self) -> None:
        self.is_open = False


def test_the_oldest_file_that_was_not_used_is_closed_first() -> None:
    files = OpenFiles()
    files.max = 3
    opened = [File(files) for _ in range(3)]
    opened[0].used = True
    opened.append(File(files))
    assert [each.is_open for each in opened] == [True, False, True, True]
    assert (files.count, files.closed) == (3, 1)
    for each in opened:
        each.used = True
    opened.append(File(files))
    assert sum(each.is_open for each in opened) == 3


def test_owners_that_are_gone_are_forgotten() -> None:
    files = OpenFiles()
    files.max = 8
    kept, gone = File(files), File(files)
    files.forget(kept)
    del gone
    assert not files.close_some()
    assert (files.count, kept.is_open) == (0, True)


def test_other_kinds_of_files_are_closed_when_there_is_nothing_else() -> None:
    class Others:
        left = 1

        def close(self) -> bool:
            self.left -= 1
            return self.left >= 0

    files, others = OpenFiles(), Others()
    files.also(others.close)
    file = File(files)
    assert files.close_some()
    assert (file.is_open, others.left) == (False, 1)
    assert not files.close_some(at_once=True)
    assert files.close_some()
    assert not files.close_some()
    del others
    assert not files.close_some()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_disk_closes_files_that_are_not_in_use_and_opens_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    files = OpenFiles()
    monkeypatch.setattr(disks, "SEGMENT_FILES", files)
    held, real = File(files), os.open

    def few(path: Path, flags: int, mode: int = 0o777) -> int:
        if held.is_open:
            raise OSError(code, os.strerror(code))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", few)
    disk = SystemDisk()
    for work in (
        lambda: disk.open(tmp_path / "a", create=True).close(),
        lambda: disk.open_read_only(tmp_path / "a").close(),
        lambda: disk.replace(tmp_path / "b", b"x", sync=True),
        lambda: disk.read(tmp_path / "b"),
        lambda: disk.sync_directory(tmp_path),
    ):
        held.is_open = True
        files.opened(held)
        work()
        assert not held.is_open
        held.is_open = True
        with pytest.raises(OSError, match=os.strerror(code)):
            work()


def test_the_share_follows_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, expected in ((600, 150), (20, 8), (-1, 1 << 18), (1 << 30, 1 << 18)):
        monkeypatch.setattr(open_files.resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert open_files.share() == expected
    assert open_files.count() > 2
