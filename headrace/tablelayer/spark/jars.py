"""Spark's extra jars: the Kafka connector, the Iceberg runtime, and for Paimon tables the Paimon bundle.

The jars are resolved once and kept. pyspark has Apache Ivy among its own jars, so fetching needs only Java: Ivy runs as
a stand-alone resolver before Spark starts, and Spark then gets local files (`spark.jars`). That is faster and quieter
than `spark.jars.packages`, is the same for a session, a test and a tiering job, and works offline after the first time.
The Paimon bundle is a list of its own, resolved when the first Paimon table is opened; so are the file systems of
object stores, resolved when a warehouse has their scheme.

One jar is ours: the catalog (`tablelayer.spark.catalog`). A wheel of `make wheel` contains it. Otherwise it is compiled
from the sources by Eclipse's compiler, which needs only a Java runtime, and kept beside the others.

Versions: the Kafka connector must come from Spark's own 4.1 line. Its token provider is a separate artifact, whose
releases are not published everywhere at the same time. So the pinned list is tried first, and if it cannot be fetched,
ranges that end at the installed pyspark.

Location: `$XDG_CACHE_HOME/headrace/jars-<pyspark version>-<hash of the list>/` (default `~/.cache`). The folder appears
by rename when it is complete, with a marker that lists its files; a missing or damaged file means resolving again. If
two processes resolve at once, one waits for the other.

Environment:
- `HEADRACE_SPARK_JARS`: a folder with the jars; nothing is resolved.
- `HEADRACE_MAVEN_ROOT`: root of a Maven mirror, instead of Ivy's default repository.

`python -m headrace.tablelayer.spark.jars` resolves them and prints one path per line; with `--all` also Paimon's and
those of the object stores, so that a machine without a network has everything.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.tablelayer.spark.ivy import MIRROR_VARIABLE, ivy_jar, jars_folder, one_at_a_time, retrieve

JARS_VARIABLE = "HEADRACE_SPARK_JARS"
JAVA_VERSION_MIN = 17

_MARKER = "complete.json"

# (organisation, name, pinned revision, range up to the installed pyspark, or None: the pinned revision)
Artifacts = tuple[tuple[str, str, str, str | None], ...]
_ARTIFACTS: Artifacts = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.1.3", "[4.1.0,{spark}]"),
    (
        "org.apache.spark",
        "spark-token-provider-kafka-0-10_2.13",
        "4.1.0-preview1",
        "[4.1.0-preview1,{spark}]",
    ),
    ("org.apache.kafka", "kafka-clients", "3.9.1", None),
    ("org.apache.commons", "commons-pool2", "2.12.1", None),
    ("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0", None),
)
_PAIMON_ARTIFACTS: Artifacts = (("org.apache.paimon", "paimon-bundle", "1.4.2", None),)
# Hadoop's own file systems, of the version that pyspark contains.
_SDK, _HADOOP = "2.29.52", "3.4.2"
_S3_ARTIFACTS: Artifacts = (
    ("org.apache.hadoop", "hadoop-aws", _HADOOP, None),
    *(
        ("software.amazon.awssdk", name, _SDK, None)
        for name in (
            "s3", "s3-transfer-manager", "sts", "apache-client", "url-connection-client", "netty-nio-client",
            "annotations", "arns", "auth", "aws-core", "aws-query-protocol", "aws-xml-protocol", "checksums",
            "checksums-spi", "crt-core", "endpoints-spi", "http-auth", "http-auth-aws", "http-auth-aws-eventstream",
            "http-auth-spi", "http-client-spi", "identity-spi", "json-utils", "metrics-spi", "profiles",
            "protocol-core", "regions", "retries", "retries-spi", "sdk-core", "third-party-jackson-core", "utils",
        )
    ),
    ("software.amazon.eventstream", "eventstream", "1.0.1", None),
    ("org.reactivestreams", "reactive-streams", "1.0.4", None),
)  # fmt: skip
_AZURE_ARTIFACTS: Artifacts = (("org.apache.hadoop", "hadoop-azure", _HADOOP, None),)
_STORES: dict[str, tuple[str, Artifacts, str]] = {
    **dict.fromkeys(("s3", "s3a", "s3n"), ("s3", _S3_ARTIFACTS, "Hadoop's S3 file system (10 MB, once)")),
    **dict.fromkeys(
        ("abfs", "abfss"), ("azure", _AZURE_ARTIFACTS, "Hadoop's Azure file system (1 MB, once)")
    ),
}
_COMPILER_ARTIFACTS: Artifacts = (("org.eclipse.jdt", "ecj", "3.40.0", None),)

CATALOG_FOLDER = Path(__file__).parent / "catalog"
CATALOG_JAR = "headrace-spark-4.1.jar"
_COMPILE_TIMEOUT_S = 300
_MANIFEST = "META-INF/MANIFEST.MF"
_SOURCES_ENTRY = "Headrace-Sources"


class SparkSetupError(Exception):
    """Spark cannot start on this machine. The message says what is missing and what to do."""


def java_command() -> str:
    """Return the `java` that Spark will use (JAVA_HOME first, then PATH), checked to be Java 17 or newer."""
    home = os.environ.get("JAVA_HOME")
    if home:
        candidate = Path(home) / "bin" / "java"
        if not candidate.is_file():
            raise SparkSetupError(
                f"JAVA_HOME is {home}, but there is no {candidate}: set JAVA_HOME to"
                f" a Java {JAVA_VERSION_MIN} or 21, or unset it."
            )
        java = str(candidate)
    else:
        found = shutil.which("java")
        if found is None:
            raise SparkSetupError(
                f"Spark needs Java {JAVA_VERSION_MIN} or 21, and there is no `java` on the PATH: install one"
                " (for example the package openjdk-17-jre-headless) or set JAVA_HOME."
            )
        java = found
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkSetupError(f"`{java} -version` failed ({error}): check JAVA_HOME and PATH.") from error
    version = _java_major(answer.stderr + answer.stdout)
    if version is None or version < JAVA_VERSION_MIN:
        seen = "an unknown version" if version is None else f"Java {version}"
        raise SparkSetupError(
            f"Spark needs Java {JAVA_VERSION_MIN} or 21, but {java} is {seen}:"
            " install a newer one or set JAVA_HOME."
        )
    return java


def _java_major(text: str) -> int | None:
    """Return the major version: Java 8 calls itself 1.8; from 9 on the first number is the version."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    first, second = int(found.group(1)), found.group(2)
    return int(second) if first == 1 and second is not None else first


def spark_jars(report: Callable[[str], None] | None = None) -> list[Path]:
    """Return the paths of the jars, resolved if they are not in the cache (about ten seconds, 57 MB).

    `report` receives one line before the network is used. Raises SparkSetupError.
    """
    return _jars(_ARTIFACTS, "jars", "Spark's Kafka connector and Iceberg runtime (57 MB, once)", report)


def missing_jars(named: str) -> list[str]:
    """Return the jars of `spark_jars` and `catalog_jar`, by name, that neither a text nor Spark's own folder names."""
    folder = jars_folder()
    present = [named, *(jar.name for jar in ([] if folder is None else folder.glob("*.jar")))]
    wanted = [*(name for _, name, _, _ in _ARTIFACTS), CATALOG_JAR.rpartition("-")[0]]
    return [name for name in wanted if not any(name in each for each in present)]


def paimon_jar(report: Callable[[str], None] | None = None) -> Path:
    """Return the jar with Paimon's Java library, resolved if it is not in the cache (49 MB). See `spark_jars`."""
    found = _jars(_PAIMON_ARTIFACTS, "paimon", "Paimon's library (49 MB, once)", report)
    return next(jar for jar in found if _is_artifact(jar, _PAIMON_ARTIFACTS[0][1]))


def store_jars(scheme: str, report: Callable[[str], None] | None = None) -> list[Path]:
    """Return the jars of the file system of a scheme, such as `s3a`; none if it is unknown. See `spark_jars`."""
    if scheme not in _STORES:
        return []
    prefix, artifacts, what = _STORES[scheme]
    found = _jars(artifacts, prefix, what, report)
    return [jar for jar in found if any(_is_artifact(jar, name) for _, name, _, _ in artifacts)]


def catalog_jar(report: Callable[[str], None] | None = None) -> Path:
    """Return the jar with Spark's catalog over tables, compiled if necessary (some seconds, once). See `spark_jars`."""
    digest = _sources_digest()
    shipped = CATALOG_FOLDER / CATALOG_JAR
    kept = _cache_root() / f"catalog-{digest}" / CATALOG_JAR
    for jar in (shipped, kept):
        if _made_of(jar) == digest:
            return jar
    java = java_command()
    compiler = _jars(_COMPILER_ARTIFACTS, "compiler", "Eclipse's compiler (3 MB, once)", report)[0]
    kept.parent.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(kept.with_name("lock")):
        if _made_of(kept) != digest:
            compile_catalog(java, compiler, kept)
    return kept


def compile_catalog(java: str, compiler: Path, target: Path) -> None:
    """Compile the catalog into the jar `target`. Raises SparkSetupError with the compiler's output."""
    sources = sorted((CATALOG_FOLDER / "java").rglob("*.java"))
    classpath = os.pathsep.join(str(jar) for jar in sorted(_ivy_jar().parent.glob("*.jar")))
    with tempfile.TemporaryDirectory(prefix="headrace-catalog-") as folder:
        command = [
            java,
            "-jar",
            str(compiler),
            "-17",
            "-proc:none",
            "-nowarn",
            "-cp",
            classpath,
            "-d",
            folder,
        ]
        try:
            done = subprocess.run(
                [*command, *map(str, sources)],
                capture_output=True,
                text=True,
                timeout=_COMPILE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise SparkSetupError(f"Spark's catalog could not be compiled: {error}") from error
        if done.returncode:
            said = (done.stdout + done.stderr)[-4000:]
            raise SparkSetupError(f"Spark's catalog could not be compiled:\n{said}")
        made = target.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as jar:
            jar.writestr(_MANIFEST, f"Manifest-Version: 1.0\n{_SOURCES_ENTRY}: {_sources_digest()}\n\n")
            for each in sorted(Path(folder).rglob("*.class")):
                jar.write(each, each.relative_to(folder))
        made.replace(target)


def _sources_digest() -> str:
    """Return a digest of the catalog's sources."""
    digest = hashlib.sha256()
    for source in sorted((CATALOG_FOLDER / "java").rglob("*.java")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:12]


def _made_of(jar: Path) -> str | None:
    """Return the digest of the sources that a jar was compiled from; None if the file is not such a jar."""
    try:
        with zipfile.ZipFile(jar) as opened:
            manifest = opened.read(_MANIFEST).decode()
    except (OSError, KeyError, zipfile.BadZipFile):
        return None
    found = re.search(rf"^{_SOURCES_ENTRY}: (\w+)", manifest, re.MULTILINE)
    return None if found is None else found.group(1)


def _jars(artifacts: Artifacts, prefix: str, what: str, report: Callable[[str], None] | None) -> list[Path]:
    given = os.environ.get(JARS_VARIABLE)
    if given:
        return _jars_of_folder(Path(given), artifacts)
    try:
        from pyspark.version import __version__ as spark_version  # spark-submit: of SPARK_HOME
    except ModuleNotFoundError:
        raise SparkSetupError("pyspark is not installed: pip install 'headrace[spark]'.") from None
    folder = _cache_root() / f"{prefix}-{spark_version}-{_list_hash(artifacts, spark_version)}"
    ready = _complete_jars(folder)
    if ready is not None:
        return ready
    java = java_command()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(folder.with_name(folder.name + ".lock")):
        ready = _complete_jars(folder)
        if ready is None:
            if report is not None:
                report(f"fetching {what} into {folder}")
            ready = _resolve(java, spark_version, folder, artifacts)
    return ready


def _jars_of_folder(folder: Path, artifacts: Artifacts) -> list[Path]:
    if not folder.is_dir():
        raise SparkSetupError(f"{JARS_VARIABLE} is {folder}, which is not a folder.")
    jars = sorted(folder.glob("*.jar"))
    missing = [name for _, name, _, _ in artifacts if not any(_is_artifact(jar, name) for jar in jars)]
    if missing:
        raise SparkSetupError(
            f"{JARS_VARIABLE} is {folder}, but these jars are not in it: {', '.join(missing)}."
        )
    return jars


def _is_artifact(jar: Path, name: str) -> bool:
    return re.fullmatch(re.escape(name) + r"-\d.*\.jar", jar.name) is not None


def _cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headrace"


def _list_hash(artifacts: Artifacts, spark_version: str) -> str:
    return hashlib.sha256(repr((artifacts, spark_version)).encode()).hexdigest()[:10]


def _complete_jars(folder: Path) -> list[Path] | None:
    """Return the jars that the marker names; None if the marker or a jar is missing or a jar has another size."""
    try:
        listed: dict[str, int] = json.loads((folder / _MARKER).read_text())
        jars = [folder / name for name in sorted(listed)]
        if all(jar.stat().st_size == listed[jar.name] for jar in jars):
            return jars
    except (OSError, ValueError):
        pass
    return None


def _resolve(java: str, spark_version: str, folder: Path, artifacts: Artifacts) -> list[Path]:
    ivy = _ivy_jar()
    spoken: list[str] = []
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as scratch:
        work = Path(scratch)
        for revisions in _revision_lists(artifacts, spark_version):
            shutil.rmtree(work / "cache", ignore_errors=True)  # Ivy remembers artifacts that it did not find
            jars = work / "jars"
            shutil.rmtree(jars, ignore_errors=True)
            wanted = [
                (organisation, name, revision)
                for (organisation, name, _, _), revision in zip(artifacts, revisions, strict=True)
            ]
            output = retrieve(java, ivy, work, wanted, into="jars", cache=work / "cache")
            found = sorted(jars.glob("*.jar")) if jars.is_dir() else []
            if len(found) == len(artifacts):
                (jars / _MARKER).write_text(json.dumps({jar.name: jar.stat().st_size for jar in found}))
                shutil.rmtree(folder, ignore_errors=True)
                jars.rename(folder)
                return [folder / jar.name for jar in found]
            spoken.append(output)
    raise SparkSetupError(_explain(spoken))


def _ivy_jar() -> Path:
    try:
        found = ivy_jar()
    except ModuleNotFoundError as error:
        raise SparkSetupError(str(error)) from None
    if found is None:
        raise SparkSetupError(
            "The installed pyspark has no ivy jar: install the full package from PyPI,"
            f" or set {JARS_VARIABLE} to a folder with the jars."
        )
    return found


def _revision_lists(artifacts: Artifacts, spark_version: str) -> list[Sequence[str]]:
    pinned = [revision for _, _, revision, _ in artifacts]
    ranges = [(span or revision).format(spark=spark_version) for _, _, revision, span in artifacts]
    return [pinned, ranges]


def _explain(spoken: Sequence[str]) -> str:
    """Summarise the resolver's output in one sentence: the network is unreachable, or an artifact is missing."""
    text = "\n".join(spoken)
    remedy = (
        f"Set {MIRROR_VARIABLE} to the root of a Maven repository that this machine reaches,"
        f" or {JARS_VARIABLE} to a folder with the jars."
    )
    away = re.search(
        r"(?:UnknownHost|Connect|NoRouteToHost|SocketTimeout)Exception|host \S+ not found|timeout:[^\n]*",
        text,
        re.I,
    )
    if away:
        reason = away.group(0).strip()
        return (
            f"Spark's jars could not be fetched: the Maven repository is not reachable ({reason}). {remedy}"
        )
    missing = sorted(set(re.findall(r":: ([\w.]+#[\w.\-]+;\S+): not found", text)))
    if missing:
        return f"Spark's jars could not be fetched: the Maven repository lacks {', '.join(missing)}. {remedy}"
    last = [line.strip() for line in text.splitlines() if line.strip()][-3:]
    return (
        f"Spark's jars could not be fetched ({' / '.join(last) or 'the resolver printed nothing'}). {remedy}"
    )


def main() -> int:
    try:
        java_command()

        def report(line: str) -> None:
            print(line, file=sys.stderr)  # noqa: T201

        if sys.argv[1:] not in ([], ["--all"]):
            raise SparkSetupError(f"{' '.join(sys.argv[1:])} is not understood: write --all, or nothing")
        jars = [*spark_jars(report), catalog_jar(report)]
        if sys.argv[1:]:
            jars += [
                paimon_jar(report),
                *(jar for scheme in ("s3", "abfs") for jar in store_jars(scheme, report)),
            ]
    except SparkSetupError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.writelines(f"{jar}\n" for jar in jars)
    return 0


if __name__ == "__main__":
    sys.exit(main())
