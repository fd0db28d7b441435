"""Apicurio Registry from its published files, a schema registry with Confluent's interface, in memory."""

from __future__ import annotations

import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from bench.maven import fetch, java
from bench.processes import Server, start
from simulator.ports import free_port

VERSION: Final = "2.6.13.Final"
INTERFACE: Final = "apis/ccompat/v7"
"""Path of Confluent's interface."""
_NAME: Final = f"apicurio-registry-app-{VERSION}"


def registry_files() -> Path:
    """Return the folder of the registry; fetched on the first call (142 MB)."""
    archive = ("io.apicurio", "apicurio-registry-app", VERSION, "all.tar.gz")
    folder = fetch(f"apicurio-{VERSION}", [archive], f"{_NAME}-all.tar.gz", needs=False)
    archive_file = folder / f"{_NAME}-all.tar.gz"
    if archive_file.exists():
        with tarfile.open(archive_file) as files:
            files.extractall(folder, filter="data")
        archive_file.unlink()
    return folder


def start_registry(folder: Path) -> Server:
    """Start the registry with its log in `folder`, and wait until it answers."""
    port = free_port()
    options = ["-Xmx400M", "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    command = [java(), *options, "-jar", str(registry_files() / f"{_NAME}-runner.jar")]
    return start("Apicurio Registry", command, port, folder / "registry.out", answers=_answers)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{INTERFACE}/subjects", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
