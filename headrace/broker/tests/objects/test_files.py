"""The promises of every place for snapshots, tested on a directory and on a file system of Arrow's."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from obstore.store import MemoryStore
from pyarrow.fs import _MockFileSystem

from headrace.broker.objects.files import ArrowFiles, LocalFiles, ObjectFiles, RemoteFiles, open_files
from headrace.broker.runtime.disk import SystemDisk
from simulator.fsyncs import recorded_fsyncs


@pytest.fixture(params=["directory", "arrow", "objects"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> RemoteFiles:
    made = {
        "directory": lambda: LocalFiles(tmp_path / "remote"),
        "arrow": lambda: ArrowFiles(_MockFileSystem(), "a/b"),
        "objects": lambda: ObjectFiles(MemoryStore(), "memory:///"),
    }
    return made[request.param]()


def test_files_come_back_as_they_went(files: RemoteFiles, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(256)) * 10_000)
    assert files.names("t") == []
    files.put("t/0/1.json", b"{}")
    files.upload("t/0/1/CURRENT", source)
    files.put("t/1/other", b"")
    assert files.names("t/0") == ["t/0/1.json", "t/0/1/CURRENT"]
    assert files.names("t/0", after="t/0/1.json") == ["t/0/1/CURRENT"]
    assert files.names("t/0", after="t/0/1/CURRENT") == []
    assert files.names("t", after="t/0/2") == ["t/1/other"]
    assert files.read("t/0/1.json") == b"{}"
    files.download("t/0/1/CURRENT", target)
    assert target.read_bytes() == source.read_bytes()
    files.put("t/0/1.json", b"again")
    assert files.read("t/0/1.json") == b"again"


def test_ranges_parts_and_files_that_must_be_new(files: RemoteFiles) -> None:
    files.put("t/parts", iter([b"0123", b"4567", b"89"]))
    assert files.read("t/parts") == b"0123456789"
    assert files.read_range("t/parts", 3, 4) == b"3456"
    assert files.read_range("t/parts", 8, 4) == b"89"
    with pytest.raises(FileNotFoundError):
        files.read_range("t/none", 0, 1)
    files.put("t/new", b"first", create=True)
    with pytest.raises(FileExistsError):
        files.put("t/new", b"second", create=True)
    assert files.read("t/new") == b"first"


def test_one_of_two_processes_creates_a_file(tmp_path: Path) -> None:
    class Late(SystemDisk):
        """Another writer comes between the check and the write."""

        def rename_new(self, old: Path, new: Path) -> None:
            if not new.exists():
                LocalFiles(tmp_path).put("t/new", b"theirs", create=True)
            super().rename_new(old, new)

    with pytest.raises(FileExistsError):
        LocalFiles(tmp_path, Late()).put("t/new", b"ours", create=True)
    assert LocalFiles(tmp_path).read("t/new") == b"theirs"
    assert LocalFiles(tmp_path).names("") == ["t/new"]


@pytest.mark.parametrize("is_there", [False, True])
def test_without_hard_links_a_new_file_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    def refuse(*_paths: Path) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    if is_there:
        (tmp_path / "new").write_bytes(b"theirs")
    (tmp_path / "partial").write_bytes(b"ours")
    with pytest.raises(FileExistsError) if is_there else nullcontext():
        SystemDisk().rename_new(tmp_path / "partial", tmp_path / "new")
    assert (tmp_path / "new").read_bytes() == (b"theirs" if is_there else b"ours")


def test_a_missing_file_is_not_found_and_removing_it_succeeds(files: RemoteFiles, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read("t/none")
    with pytest.raises(FileNotFoundError):
        files.download("t/none", tmp_path / "x")
    files.remove("t/none")
    files.remove_folder("t")
    files.put("t/0/a", b"1")
    files.put("t/0/b", b"2")
    files.remove("t/0/a")
    assert files.names("t") == ["t/0/b"]
    files.remove_folder("t")
    assert files.names("t") == []


def test_a_file_is_durable_with_the_folders_that_lead_to_it(tmp_path: Path) -> None:
    """The log is truncated where a snapshot has its records, so the snapshot must survive a power cut."""
    files = LocalFiles(tmp_path / "new" / "remote")
    folder = tmp_path / "new" / "remote" / "t" / "0"
    with recorded_fsyncs(tmp_path) as synced:
        files.put("t/0/a", b"1")
    assert [path for path in synced if path.is_dir()] == [
        tmp_path,
        tmp_path / "new",
        tmp_path / "new" / "remote",
        folder.parent,
        folder,
    ]
    assert [path.name[:2] for path in synced].index("a.") == len(synced) - 2
    with recorded_fsyncs(tmp_path) as synced:
        files.put("t/0/b", b"2")
    assert len(synced) == 2, "once is enough"
    for name in ("t/0/a", "t/0/b"):
        files.remove(name)
    with recorded_fsyncs(tmp_path) as synced:
        files.put("t/0/c", b"3")
    assert folder.parent in synced, "it is another folder"
    files.remove_folder("t")
    with recorded_fsyncs(tmp_path) as synced:
        files.put("t/0/d", b"4")
    assert {folder.parent.parent, folder.parent, folder} <= set(synced)


def test_an_interrupted_upload_leaves_no_file(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "remote")
    with pytest.raises(FileNotFoundError):
        files.upload("t/x", tmp_path / "missing")
    assert files.names("t") == []


@pytest.mark.parametrize(
    ("location", "complaint"),
    [("file://relative/path", "absolute"), ("nonsense://somewhere", "nonsense")],
)
def test_a_place_that_cannot_be_used_is_named(location: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        open_files(location)


def test_paths_and_file_urls_are_directories(tmp_path: Path) -> None:
    for location in (str(tmp_path), f"file://{tmp_path}"):
        open_files(location).put("x/y", b"1")
        assert (tmp_path / "x" / "y").read_bytes() == b"1"
        assert str(open_files(location)) == str(tmp_path)


@pytest.fixture
def empty_store() -> Iterator[str]:
    """The address of a server that answers every request with nothing."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("location", "endpoint", "environment"),
    [
        ("s3://bucket/x", "AWS_ENDPOINT_URL", {"AWS_SKIP_SIGNATURE": "true", "AWS_REGION": "us-east-1"}),
        ("gs://bucket/x", "GOOGLE_BASE_URL", {"GOOGLE_SKIP_SIGNATURE": "true"}),
        (
            "az://bucket/x",
            "AZURE_STORAGE_ENDPOINT",
            {"AZURE_SKIP_SIGNATURE": "true", "AZURE_STORAGE_ACCOUNT_NAME": "account"},
        ),
    ],
)
def test_an_endpoint_may_be_plain_http(
    location: str,
    endpoint: str,
    environment: dict[str, str],
    empty_store: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**environment, endpoint: empty_store}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(FileNotFoundError):
        open_files(location).read("none")


def test_plain_http_is_used_where_it_was_asked_for(
    empty_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = tmp_path / "account.json"
    secrets = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    account.write_text(json.dumps({"gcs_base_url": empty_store, "disable_oauth": True, **secrets}))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(account))
    with pytest.raises(OSError, match="HTTP error") as refused:
        open_files("gs://bucket/x").read("none")
    assert not isinstance(refused.value, FileNotFoundError)
    monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
    with pytest.raises(FileNotFoundError):
        open_files("gs://bucket/x").read("none")
