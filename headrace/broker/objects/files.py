"""Files of snapshots, backups and the remote log: in a directory, or in an object store behind a URL.

`open_files` accepts a local path, `file://`, object stores (`s3://`, `gs://`, `az://` and `abfs://`, by obstore),
`hdfs://` and other systems of pyarrow, and any other URL that fsspec knows, if fsspec is installed (`memory://`,
`sftp://`, ...). Endpoints and credentials of object stores come from the environment (`AWS_ENDPOINT_URL`,
`AWS_ACCESS_KEY_ID`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_KEY`, ...) or from the machine's role; an
endpoint may be plain HTTP.

All of them promise: a file is there whole or not at all, whatever is interrupted; names are relative, with `/`;
removing a missing file is not an error. Everything blocks, and raises OSError when the store cannot be reached; a write
that raises may have been done. Requests to an object store are repeated a few times (`_RETRIES`).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import Disk, DiskFile, Entropy, SystemEntropy
from headrace.protocol.one_line import one_line

PIECE_BYTES = 1 << 20
_PARTIAL = ".partial"


class RemoteFiles(Protocol):
    """Files below one place; see the module."""

    def put(self, name: str, data: bytes | Iterable[bytes], *, create: bool = False) -> None:
        """Write bytes, or parts of them one after the other. With `create`, raises FileExistsError if the file exists.
        If two processes create it at a time, only one succeeds, where the place can promise it (object stores; a
        directory with hard links).
        """

    def upload(self, name: str, source: Path) -> None: ...

    def read(self, name: str) -> bytes:
        """Return the contents. Raises FileNotFoundError."""

    def read_range(self, name: str, position: int, size: int) -> bytes:
        """Return a range, fewer bytes only at the end of the file. Raises FileNotFoundError."""

    def download(self, name: str, target: Path) -> None:
        """Copy a file to `target`. Raises FileNotFoundError."""

    def names(self, prefix: str, after: str = "") -> list[str]:
        """Return all files below a folder whose names are greater than `after`, sorted, also those that interrupted
        uploads left there; an empty list without the folder.
        """

    def remove(self, name: str) -> None: ...

    def remove_folder(self, prefix: str) -> None: ...


class LocalFiles:
    """Files below a directory of this machine, durable when a call returns, with the folders that lead to them."""

    def __init__(self, root: Path, disk: Disk | None = None, entropy: Entropy | None = None) -> None:
        """`disk` has `root`; the default is the system's. Uploads and downloads are on the system's own."""
        self._root = root
        self._disk: Disk = disk or SystemDisk()
        self._system = SystemDisk()
        self._entropy: Entropy = entropy or SystemEntropy()
        self._durable: set[Path] = set()
        """Folders whose names this process has synced."""

    def __str__(self) -> str:
        return str(self._root)

    def put(self, name: str, data: bytes | Iterable[bytes], *, create: bool = False) -> None:
        if create and self._disk.size(self._root / name) is not None:
            raise FileExistsError(errno.EEXIST, "it exists", name)
        with self._writing(name, create=create) as partial:
            position = 0
            for part in _parts(data):
                partial.write([part], position)
                position += len(part)

    def upload(self, name: str, source: Path) -> None:
        with self._writing(name) as partial:
            _copy(self._system.open_read_only(source), partial)

    @contextlib.contextmanager
    def _writing(self, name: str, *, create: bool = False) -> Iterator[DiskFile]:
        disk, target = self._disk, self._root / name
        self._make_folder(target.parent)
        partial = target.with_name(f"{target.name}.{self._entropy.uuid().hex}{_PARTIAL}")
        try:
            file = disk.open(partial, create=True)
            try:
                yield file
                file.sync()
            finally:
                file.close()
            if create:
                disk.rename_new(partial, target)
            else:
                disk.rename(partial, target)
            disk.sync_directory(target.parent)
        except BaseException:
            disk.remove(partial)
            raise

    def _make_folder(self, folder: Path) -> None:
        if folder in self._durable and self._disk.is_directory(folder):
            return
        if folder == self._root:
            self._make_durably(folder)
        else:
            self._make_folder(folder.parent)
            self._disk.make_directory(folder)
            self._disk.sync_directory(folder.parent)
        self._durable.add(folder)

    def _make_durably(self, folder: Path) -> None:
        """Make a missing folder durably, with its parents."""
        if not self._disk.is_directory(folder):
            self._make_durably(folder.parent)
            self._disk.make_directory(folder)
            self._disk.sync_directory(folder.parent)

    def read(self, name: str) -> bytes:
        return self._disk.read(self._root / name)

    def read_range(self, name: str, position: int, size: int) -> bytes:
        file = self._disk.open_read_only(self._root / name)
        try:
            return file.read(size, position)
        finally:
            file.close()

    def download(self, name: str, target: Path) -> None:
        source = self._disk.open_read_only(self._root / name)
        file = self._system.open(target, create=True)
        try:
            file.truncate(0)
            _copy(source, file)
        finally:
            file.close()

    def names(self, prefix: str, after: str = "") -> list[str]:
        found = (path.relative_to(self._root).as_posix() for path in self._below(self._root / prefix))
        return sorted(name for name in found if name > after)

    def _below(self, folder: Path) -> Iterator[Path]:
        if not self._disk.is_directory(folder):
            return
        for name in self._disk.names(folder):
            yield folder / name
        for name in self._disk.directories(folder):
            yield from self._below(folder / name)

    def remove(self, name: str) -> None:
        path = self._root / name
        self._disk.remove(path)
        self._disk.remove_directory(path.parent)

    def remove_folder(self, prefix: str) -> None:
        self._disk.remove_tree(self._root / prefix)


def _parts(data: bytes | Iterable[bytes]) -> Iterable[bytes]:
    return [data] if isinstance(data, bytes) else data


def _copy(source: DiskFile, target: DiskFile) -> None:
    position = 0
    while piece := source.read(PIECE_BYTES, position):
        target.write([piece], position)
        position += len(piece)


class ArrowFiles:
    """Files of a `pyarrow.fs.FileSystem`. Object stores show an object only when it was completely written."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self._filesystem = filesystem
        self._root = PurePosixPath(root)

    def __str__(self) -> str:
        return f"{self._filesystem.type_name}:{self._root}"

    def put(self, name: str, data: bytes | Iterable[bytes], *, create: bool = False) -> None:
        if create and name in self.names(name.rpartition("/")[0]):
            raise FileExistsError(errno.EEXIST, "it exists", name)
        self._make_folder(name)
        with self._filesystem.open_output_stream(self._path(name)) as out:
            for part in _parts(data):
                out.write(part)

    def upload(self, name: str, source: Path) -> None:
        self._make_folder(name)
        with source.open("rb") as file, self._filesystem.open_output_stream(self._path(name)) as out:
            while piece := file.read(PIECE_BYTES):
                out.write(piece)

    def read(self, name: str) -> bytes:
        with self._filesystem.open_input_stream(self._path(name)) as file:
            return bytes(file.read())

    def read_range(self, name: str, position: int, size: int) -> bytes:
        with self._filesystem.open_input_file(self._path(name)) as file:
            return bytes(file.read_at(size, position))

    def download(self, name: str, target: Path) -> None:
        with self._filesystem.open_input_stream(self._path(name)) as file, target.open("wb") as out:
            while piece := file.read(PIECE_BYTES):
                out.write(piece)

    def names(self, prefix: str, after: str = "") -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        found = self._filesystem.get_file_info(
            FileSelector(self._path(prefix), allow_not_found=True, recursive=True)
        )
        start = len(str(self._root)) + 1
        names = (info.path[start:] for info in found if info.type == FileType.File)
        return sorted(name for name in names if name > after)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(self._path(name))

    def remove_folder(self, prefix: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_dir(self._path(prefix))

    def _path(self, name: str) -> str:
        return str(self._root / name)

    def _make_folder(self, name: str) -> None:
        self._filesystem.create_dir(str((self._root / name).parent), recursive=True)


class ObjectFiles:
    """Objects of an `obstore` store."""

    def __init__(self, store: Any, location: str) -> None:
        self._store = store
        self._location = location

    def __str__(self) -> str:
        return self._location

    def put(self, name: str, data: bytes | Iterable[bytes], *, create: bool = False) -> None:
        import obstore

        with _as_os_errors(name):
            # Only a single request can be refused because the object exists.
            whole = data if isinstance(data, bytes) else _whole_if_small(data, always=create)
            obstore.put(self._store, name, whole, mode="create" if create else "overwrite")

    def upload(self, name: str, source: Path) -> None:
        import obstore

        with _as_os_errors(name):
            obstore.put(self._store, name, source)

    def read(self, name: str) -> bytes:
        import obstore

        with _as_os_errors(name):
            return bytes(obstore.get(self._store, name).bytes())

    def read_range(self, name: str, position: int, size: int) -> bytes:
        import obstore

        with _as_os_errors(name):
            return bytes(obstore.get_range(self._store, name, start=position, length=size))

    def download(self, name: str, target: Path) -> None:
        import obstore

        with _as_os_errors(name), target.open("wb") as out:
            for piece in obstore.get(self._store, name).stream(min_chunk_size=PIECE_BYTES):
                out.write(piece)

    def names(self, prefix: str, after: str = "") -> list[str]:
        import obstore

        with _as_os_errors(prefix):
            found = obstore.list(self._store, prefix or None, offset=after or None, chunk_size=1000)
            return sorted(each["path"] for some in found for each in some)

    def remove(self, name: str) -> None:
        import obstore

        with contextlib.suppress(FileNotFoundError), _as_os_errors(name):
            obstore.delete(self._store, name)

    def remove_folder(self, prefix: str) -> None:
        import obstore

        names = self.names(prefix)
        for first in range(0, len(names), _REMOVED_TOGETHER):
            with contextlib.suppress(FileNotFoundError), _as_os_errors(prefix):
                obstore.delete(self._store, names[first : first + _REMOVED_TOGETHER])


def _whole_if_small(parts: Iterable[bytes], *, always: bool) -> bytes | Iterator[bytes]:
    """Return small contents in one piece, which one request can send instead of three."""
    rest, first, size = iter(parts), list[bytes](), 0
    for part in rest:
        first.append(part)
        size += len(part)
        if size >= _ONE_REQUEST_BYTES and not always:
            return chain(first, rest)
    return b"".join(first)


_ONE_REQUEST_BYTES = 8 << 20
_REMOVED_TOGETHER = 1000
_RETRIES = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=2),
        "base": 2,
    },
}
_CLIENT = {"timeout": "30s", "connect_timeout": "5s"}
_PROVIDERS = {
    **dict.fromkeys(("s3", "s3a"), "AWS"),
    "gs": "GOOGLE",
    **dict.fromkeys(("az", "adl", "azure", "abfs", "abfss"), "AZURE"),
}
_ENDPOINTS = {
    "AWS": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"),
    "GOOGLE": ("GOOGLE_BASE_URL",),
    "AZURE": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""The variables from which obstore takes the address."""


@contextlib.contextmanager
def _as_os_errors(name: str) -> Iterator[None]:
    from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError

    try:
        yield
    except AlreadyExistsError:
        raise FileExistsError(errno.EEXIST, "it exists", name) from None
    except NotFoundError:
        raise FileNotFoundError(errno.ENOENT, "it does not exist", name) from None
    except BaseError as error:
        raise OSError(errno.EIO, one_line(str(error).split("\n\n")[0], 500), name) from error


def _may_be_plain(provider: str) -> bool:
    """Return whether HTTP without TLS was asked for, by the address or by a switch (which explicit options would
    hide).
    """
    endpoints = (os.environ.get(name, "") for name in _ENDPOINTS[provider])
    switch = os.environ.get(f"{provider}_ALLOW_HTTP", "")
    return switch.lower() in ("1", "true", "yes", "on") or any(
        endpoint.startswith("http://") for endpoint in endpoints
    )


def _object_store(location: str) -> ObjectFiles:
    """Raises ValueError."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    make: Any = from_url
    options: dict[str, Any] = dict(_CLIENT)
    if _may_be_plain(_PROVIDERS[location.partition("://")[0]]):
        options["allow_http"] = True
    try:
        store: Any = make(location, client_options=options, retry_config=_RETRIES)
    except (BaseError, ValueError) as error:
        raise ValueError(f"{location!r} cannot be opened: {error}") from error
    return ObjectFiles(store, location)


def open_files(location: str, disk: Disk | None = None, entropy: Entropy | None = None) -> RemoteFiles:
    """Return the files at a path, which is on `disk`, or at a URL. Raises ValueError if the URL is wrong or a package
    is not installed.
    """
    scheme, separator, rest = location.partition("://")
    if not separator:
        return LocalFiles(Path(location).absolute(), disk, entropy)
    if scheme == "file":
        if not rest.startswith("/"):
            raise ValueError(f"{location!r} has no absolute path; write file:///directory")
        return LocalFiles(Path(rest), disk, entropy)
    if scheme in _PROVIDERS:
        return _object_store(location)
    from pyarrow import ArrowInvalid
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    try:
        filesystem, root = FileSystem.from_uri(location)
    except ArrowInvalid as arrow_error:
        try:
            import fsspec
        except ModuleNotFoundError:
            raise ValueError(f"{location!r} needs fsspec (pip install fsspec): {arrow_error}") from None
        try:
            filesystem, root = fsspec.core.url_to_fs(location)
        except (ValueError, ImportError) as error:
            raise ValueError(f"{location!r} cannot be opened: {error}") from error
        filesystem = PyFileSystem(FSSpecHandler(filesystem))
    return ArrowFiles(filesystem, root)
