"""Spark's daemon of Python workers, with the installed pyspark in place of the archives that Spark puts in front.

Spark begins the path of its workers with `pyspark.zip`, whose modules have no bytecode, so that a daemon's start costs
a second more, and with the jar of its core, whose 5,400 entries each task reads anew (`importlib.invalidate_caches`:
45 ms). The archives are left out where they belong to the pyspark that is installed; with any other Spark this is
Spark's own daemon. `session` names this module as `spark.python.daemon.module`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

_ARCHIVES: Final = (".zip", ".jar")


def without_archives(path: Sequence[str]) -> list[str]:
    """The entries without archives in the folder of the pyspark that they find."""
    folders = [entry for entry in path if not entry.endswith(_ARCHIVES)]
    spec = PathFinder.find_spec("pyspark", folders)
    if spec is None or spec.origin is None:
        return list(path)
    installed = Path(spec.origin).resolve().parent
    return [
        entry
        for entry in path
        if not (entry.endswith(_ARCHIVES) and installed in Path(entry).resolve().parents)
    ]


def main() -> None:
    """Serve Spark's requests for workers until it ends; the first argument is the worker's module."""
    kept = without_archives(sys.path)
    for entry in {*sys.path} - {*kept}:
        sys.path_importer_cache.pop(entry, None)
    sys.path[:] = kept
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
