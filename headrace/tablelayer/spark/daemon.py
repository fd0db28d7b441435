"""Spark's daemon of Python workers, with the installed pyspark instead of the archives that Spark puts first.

Spark puts two archives first on the path of its workers. The modules in `pyspark.zip` have no bytecode, so the daemon
starts a second later. The jar of Spark's core has 5,400 entries, which each task reads again
(`importlib.invalidate_caches`: 45 ms). The archives are left out if they belong to the installed pyspark; with any
other Spark, this is Spark's own daemon. `session` sets this module as `spark.python.daemon.module`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

_ARCHIVES: Final = (".zip", ".jar")


def without_archives(path: Sequence[str]) -> list[str]:
    """Return the path entries without archives that are in the folder of the pyspark that the other entries find."""
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
