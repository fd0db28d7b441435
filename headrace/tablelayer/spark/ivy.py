"""Published jars by their coordinates, fetched by the Apache Ivy in pyspark; the only requirement is Java.

`HEADRACE_MAVEN_ROOT` names the root of a Maven mirror, instead of Ivy's default repository: Ivy does not read Maven's
settings.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from xml.sax.saxutils import quoteattr

MIRROR_VARIABLE: Final = "HEADRACE_MAVEN_ROOT"
RESOLVE_TIMEOUT_S: Final = 600
"""Timeout, generous for 57 MB over a slow line; a resolver that is stopped leaves nothing behind."""

Coordinates = tuple[str, str, str] | tuple[str, str, str, str]
"""Organisation, artifact and revision or range of revisions; optionally the classifier of another jar, as `test`, or
that of another file with its ending, as `all.tar.gz`.
"""


def jars_folder() -> Path | None:
    """Return the folder of Spark's own jars, of SPARK_HOME or else of the installed pyspark; None if there is none.

    Under `spark-submit`, pyspark is imported from an archive of SPARK_HOME. Raises ModuleNotFoundError without pyspark.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pyspark is not installed: pip install 'headrace[spark]'.", name="pyspark")
    homes = [os.environ.get("SPARK_HOME"), str(Path(spec.origin).parent)]
    folders = (Path(home) / "jars" for home in homes if home)
    return next((folder for folder in folders if folder.is_dir()), None)


def ivy_jar() -> Path | None:
    """Return Ivy's jar; None if Spark came without its jars. Raises ModuleNotFoundError without pyspark."""
    folder = jars_folder()
    return None if folder is None else max(folder.glob("ivy-*.jar"), default=None)


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Hold the lock file of a folder, so that only one process fetches into it at a time."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def retrieve(
    java: str,
    ivy: Path,
    work: Path,
    artifacts: Sequence[Coordinates],
    *,
    into: str,
    cache: Path,
    needs: bool = False,
    without: Sequence[tuple[str, str]] = (),
) -> str:
    """Fetch the artifacts into the folder `work / into` and return the resolver's output.

    With `needs`, also fetch their runtime dependencies, except those in `without` (organisation, artifact). An artifact
    that could not be fetched is missing afterwards: callers check. Artifacts in `cache` are not fetched again. Ivy's
    settings are written into `work`.
    """
    mirror = os.environ.get(MIRROR_VARIABLE)
    root = f" root={quoteattr(mirror.rstrip('/') + '/')}" if mirror else ""
    (work / "settings.xml").write_text(
        '<ivysettings><settings defaultResolver="repository"/><resolvers>'
        f'<ibiblio name="repository" m2compatible="true"{root}/></resolvers></ivysettings>\n'
    )
    which = 'conf="default->runtime,master"' if needs else 'transitive="false" conf="default->master"'
    wanted = "".join(_dependency(*each, which=which) for each in artifacts)
    wanted += "".join(
        f"<exclude org={quoteattr(organisation)} module={quoteattr(name)}/>" for organisation, name in without
    )
    (work / "ivy.xml").write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="headrace" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{wanted}</dependencies></ivy-module>\n"
    )
    command = [java, "-jar", str(ivy), "-settings", "settings.xml", "-ivy", "ivy.xml", "-cache", str(cache)]
    command += ["-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]"]
    try:
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"timeout: the resolver did not finish in {RESOLVE_TIMEOUT_S} s"
    return done.stdout + done.stderr


def _dependency(organisation: str, name: str, revision: str, classifier: str = "", *, which: str) -> str:
    start = (
        f"<dependency org={quoteattr(organisation)} name={quoteattr(name)} rev={quoteattr(revision)} {which}"
    )
    if not classifier:
        return f"{start}/>"
    classifier, _, kind = classifier.partition(".")
    kind = quoteattr(kind or "jar")
    file = f"name={quoteattr(name)} type={kind} ext={kind} m:classifier={quoteattr(classifier)}"
    return f"{start}><artifact {file}/></dependency>"
