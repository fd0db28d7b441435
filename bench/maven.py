"""Published jars by their coordinates, fetched once: by the Ivy that pyspark carries, so Java is all that is needed.

They are kept in `$XDG_CACHE_HOME/headrace/<name>` (default `~/.cache`). `HEADRACE_MAVEN_ROOT` names a mirror instead of
Ivy's default repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

COMPLETE = ".complete"


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def fetch(name: str, artifacts: Sequence[tuple[str, str, str]], expected: str) -> Path:
    """The folder with these (organisation, artifact, revision) and what they need at run time.

    `expected` is the file without which the rest is of no use. Raises RuntimeError with what the resolver said.
    """
    folder = cache_root() / name
    if (folder / COMPLETE).exists():
        return folder
    import pyspark

    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mirror = os.environ.get("HEADRACE_MAVEN_ROOT")
    root = f' root="{mirror}"' if mirror else ""
    (folder / "ivysettings.xml").write_text(
        '<ivysettings><settings defaultResolver="central"/><resolvers>'
        f'<ibiblio name="central" m2compatible="true"{root}/></resolvers></ivysettings>\n'
    )
    wanted = "".join(
        f'<dependency org="{organisation}" name="{artifact}" rev="{revision}" conf="default->runtime,master"/>'
        for organisation, artifact, revision in artifacts
    )
    (folder / "ivy.xml").write_text(
        f'<ivy-module version="2.0"><info organisation="headrace" module="{name}"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{wanted}</dependencies></ivy-module>\n'
    )
    command = [java(), "-jar", str(ivy), "-settings", "ivysettings.xml", "-ivy", "ivy.xml"]
    command += ["-cache", str(cache_root() / "ivy"), "-retrieve", "[artifact]-[revision].[ext]"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not (folder / expected).exists():
        raise RuntimeError(f"{name} could not be fetched:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    (folder / COMPLETE).touch()
    return folder
