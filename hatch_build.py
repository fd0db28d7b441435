"""Put Spark's compiled catalog into wheels and source distributions.

The catalog's Java is compiled against the jars of pyspark, so a build takes the jar that this machine has compiled
before, or compiles it if pyspark and Java are there. An isolated build on a new machine has neither: its wheel has the
sources, and the first Spark session compiles them. `python -m wheels` refuses to build a wheel without the jar.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CatalogHook(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        with _without_dependencies(root):
            from headrace.tablelayer.spark import jars
        try:
            jar = jars.catalog_jar()
        except jars.SparkSetupError as error:
            self.app.display_warning(f"Spark's catalog is compiled at the first session, not now: {error}")
            return
        place = (jars.CATALOG_FOLDER / jars.CATALOG_JAR).relative_to(root)
        build_data["force_include"][str(jar)] = place.as_posix()


@contextmanager
def _without_dependencies(root: Path) -> Iterator[None]:
    """Let modules of the tree be imported without the client, whose packages an isolated build does not have."""
    packages = {}
    for name in ("headrace", "headrace.tablelayer"):
        packages[name] = ModuleType(name)
        packages[name].__path__ = [str(root.joinpath(*name.split(".")))]
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "headrace"}
    sys.modules.update(packages)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "headrace"]:
            del sys.modules[name]
        sys.modules.update(before)
