"""The Python environment of this process as an archive that executors unpack (`spark-submit --archives`).

The archive has the installed packages, a `pyvenv.cfg`, and links to the interpreter. A virtual environment works
wherever it is unpacked, as long as its interpreter is at the same path there. The archive has no pyspark, because Spark
gives its own to its workers. This package is copied from where it is, so that a checkout works too.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headrace.tablelayer.spark.jars import CATALOG_JAR, SparkSetupError, catalog_jar

LINK: Final = "env"
"""Name of the folder into which executors unpack the archive."""
LEFT_OUT: Final = ("pyspark", "py4j")
_PACKAGE: Final = "headrace"
_COMPRESSION: Final = 3
"""A level 9 takes six times as long, for an archive that is 4 % smaller."""


def write_environment(target: Path, interpreter: str | None = None) -> str:
    """Write the archive, a `.tar.gz`, and return the interpreter that it links to.

    `interpreter` is the path of Python on the executors' machines (default: as here). Raises SparkSetupError for a
    package that was installed in editable mode, because its files are elsewhere.
    """
    editable = [name for name in _editable() if name != _PACKAGE]
    if editable:
        raise SparkSetupError(
            f"{', '.join(sorted(editable))}: installed in editable mode, so that the files are not in the environment:"
            " install without --editable"
        )
    python = interpreter or os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    site = f"lib/python{version}/site-packages"
    made = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        with tarfile.open(made, "w:gz", compresslevel=_COMPRESSION) as archive:
            for name, file in _files():
                archive.add(file, f"{site}/{name}", recursive=False)
            archive.add(catalog_jar(), f"{site}/{_CATALOG_PLACE}")
            config = f"home = {os.path.dirname(python)}\ninclude-system-site-packages = false\nversion = {version}\n"
            _put(archive, "pyvenv.cfg", config.encode())
            for name in ("python", "python3", f"python{version}"):
                _link(archive, f"bin/{name}", python)
        made.replace(target)
    finally:
        made.unlink(missing_ok=True)
    return python


_CATALOG_PLACE: Final = f"{_PACKAGE}/tablelayer/spark/catalog/{CATALOG_JAR}"


def _files() -> Iterator[tuple[str, Path]]:
    """Yield the installed files with their names below site-packages; each once, although `lib64` may be `lib`."""
    skipped = {*LEFT_OUT, _PACKAGE}
    folders = dict.fromkeys(Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib"))
    for folder in folders:
        for entry in sorted(folder.iterdir()):
            stem = (
                entry.name.partition("-")[0]
                if entry.name.endswith((".dist-info", ".egg-info"))
                else entry.name
            )
            if stem not in skipped and not (entry.suffix == ".pth" and _PACKAGE in entry.name):
                yield from _below(entry, folder)
    package = Path(__file__).resolve().parents[2]
    yield from (
        (name, file)
        for name, file in _below(package, package.parent)
        if "tests" not in file.parts[len(package.parts) :] and name != _CATALOG_PLACE
    )
    described = importlib.metadata.distribution(_PACKAGE)
    for file in described.files or ():
        if file.parts[0].endswith(".dist-info") and file.name in ("METADATA", "entry_points.txt"):
            yield str(file), Path(str(described.locate_file(file)))


def _below(entry: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    if not entry.is_dir():
        yield str(entry.relative_to(folder)), entry
        return
    for parent, _, names in os.walk(entry):
        for name in sorted(names):
            yield os.path.relpath(os.path.join(parent, name), folder), Path(parent, name)


def _editable() -> list[str]:
    """Return the packages whose files are outside of the environment."""
    found = []
    for each in importlib.metadata.distributions():
        text = each.read_text("direct_url.json")
        if text and json.loads(text).get("dir_info", {}).get("editable"):
            found.append(each.name)
    return found


def _put(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _link(archive: tarfile.TarFile, name: str, to: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, to
    archive.addfile(member)
