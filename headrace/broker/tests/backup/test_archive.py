"""The archive: files that a backup takes from the one before it."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.broker.backup.archive import Manifest, Part, choose, make_backup, read_manifest, restore
from headrace.broker.backup.cut import BesideFile, Cut
from headrace.broker.objects.files import LocalFiles
from headrace.broker.runtime.disk import SystemDisk


class Given:
    """A broker's file, always with the same time."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.written_ms = 1.0
        self.reads = 0

    def open(self, place: str) -> Given:
        return self

    def size(self) -> int:
        return len(self._data)

    def read(self, size: int, position: int) -> bytes:
        self.reads += 1
        return self._data[position : position + size]

    def close(self) -> None:
        """Do nothing."""


def test_a_file_of_another_broker_is_read(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "backups")
    cut = Cut("", 0, [], [BesideFile("t-0/x.log", "t-0/x.log", 3)])
    one, two, three = Given(b"one"), Given(b"two"), Given(b"two")
    with ThreadPoolExecutor(1) as pool:
        for made_ms, node, given in ((1, 1, one), (2, 2, two), (3, 2, three)):
            manifest = make_backup(
                files, pool, [Part(cut, given, node)], Manifest(str(made_ms), made_ms, "c", "0", ())
            )
        restore(files, manifest, SystemDisk(), pool, tmp_path / "restored")
    assert (tmp_path / "restored" / "t-0" / "x.log").read_bytes() == b"two"
    assert (one.reads, two.reads, three.reads) == (1, 1, 0)


def test_an_archive_of_an_earlier_version_is_restored(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "backups")
    digest = hashlib.sha256(b"one").hexdigest()
    files.put(f"chunks/{digest[:2]}/{digest}", b"one")
    manifest = {
        "id": "1", "made_ms": 1, "cluster_id": "c", "node_id": "7", "version": 1,
        "files": [
            {"path": "meta.properties", "text": "node.id=7"},
            {"path": "t-0/x.log", "size": 3, "written_ms": 1.5, "chunks": [digest]},
        ],
    }  # fmt: skip
    files.put("backups/19700101T000000.001Z-1.json", json.dumps(manifest).encode())
    read = read_manifest(files, choose(files, None))
    assert (read.brokers, read.lowered) == ((), ())
    with ThreadPoolExecutor(1) as pool:
        restore(files, read, SystemDisk(), pool, tmp_path / "restored")
    assert (tmp_path / "restored" / "t-0" / "x.log").read_bytes() == b"one"
    assert (tmp_path / "restored" / "meta.properties").read_text() == "node.id=7"
