"""Published jars with their dependencies, fetched once, by Ivy (`tablelayer.spark.ivy`).

They are kept in `$XDG_CACHE_HOME/headrace/<name>` (default `~/.cache`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.tablelayer.spark.ivy import Coordinates, ivy_jar, one_at_a_time, retrieve

COMPLETE = ".complete"
ATTEMPTS = 3


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def made_once(folder: Path, make: Callable[[], object]) -> Path:
    """Return the folder, whose contents `make` has made in it once. A process waits while another one makes them.

    An attempt that failed or was interrupted is begun again with an empty folder.
    """
    complete = folder / COMPLETE
    if not complete.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(folder.with_name(f"{folder.name}.lock")):
            if not complete.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make()
                complete.touch()
    return folder


def fetch(
    name: str,
    artifacts: Sequence[Coordinates],
    expected: str,
    *,
    needs: bool = True,
    without: Sequence[tuple[str, str]] = (),
) -> Path:
    """Return the folder with these jars and their run-time dependencies, without `without` (organisation, artifact).

    Without the file `expected` the rest is useless. Raise RuntimeError with the resolver's error.
    """
    folder, cache = cache_root() / name, cache_root() / "ivy"

    def make() -> None:
        ivy, said = ivy_jar(), ""
        if ivy is None:
            raise RuntimeError("the installed pyspark has no ivy jar: install the full package from PyPI")
        for _ in range(ATTEMPTS):
            said = retrieve(
                java(), ivy, folder, artifacts, into=".", cache=cache, needs=needs, without=without
            )
            if (folder / expected).exists():
                return
        raise RuntimeError(f"{name} could not be fetched:\n{said[-4000:]}")

    return made_once(folder, make)
