"""A SparkSession with the Kafka connector, Iceberg and the `headrace` data source.

Without a master it is local and quiet: one process, with everything on 127.0.0.1, no UI and few shuffle partitions.
The JVM's stderr goes to a file, because much of it is written before Spark's log level can be set. With a master, under
`spark-submit` and over Spark Connect, a session keeps every setting that it is given, and adds what is missing
(`needed_settings`):
- the jars of `tablelayer.spark.jars`, as local files, with the catalog `headrace` for SQL over tables;
- our daemon of workers (`tablelayer.spark.daemon`), which starts in a quarter of the time;
- the session time zone UTC, so that TIMESTAMP_LTZ columns mean the same everywhere;
- Iceberg's SQL extensions (they are static in Spark), and a catalog `lake` if a warehouse is given.

A JVM that `session` starts gets PYSPARK_PYTHON, so that executors run this interpreter unless another one is set, and
PYTHONPATH, so that planning finds this package even if it is not installed.

There is one JVM per process. A second call returns the running session with the settings that can still change. It
fails with a clear error if it asks for a catalog that already has another warehouse.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from headrace.tablelayer.spark import daemon
from headrace.tablelayer.spark.jars import (
    CATALOG_JAR,
    SparkSetupError,
    catalog_jar,
    java_command,
    missing_jars,
    spark_jars,
)
from headrace.tablelayer.spark.pythons import refuse_py_files

logger = logging.getLogger("headrace.spark")

LAKE_CATALOG = "lake"
TABLES_CATALOG = "headrace"
ARROW_BATCH_ROWS_MAX = 65_536
"""Rows per Arrow batch between Spark and Python: large batches need fewer lookups, and were fastest in measurements."""

_ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_ICEBERG_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_TABLES_CATALOG_CLASS = "headrace.spark.HeadraceCatalog"
_JARS = "spark.jars"
_CATALOG = f"spark.sql.catalog.{TABLES_CATALOG}"
_LISTS: Final = (_JARS, "spark.sql.extensions")
"""Settings with commas between their parts, to which ours are added."""
_LOCAL_CORES = 2
_LOCAL_MEMORY = "1g"


def session(
    app: str,
    *,
    master: str | None = None,
    cores: int | None = None,
    memory: str | None = None,
    warehouse: str | Path | None = None,
    extra: Mapping[str, str] | None = None,
    log_file: Path | None = None,
) -> Any:
    """Start a `pyspark.sql.SparkSession`, or return the running one.

    Without `master` the session is local, unless `spark-submit`, SPARK_REMOTE or spark-defaults.conf say where it runs.
    `master` is a cluster's address, or that of a Spark Connect server (`sc://`). A local session has `cores` (2) and
    `memory`, the JVM's heap (1g). `warehouse` is the folder (or URI) of an Iceberg Hadoop catalog named `lake`; `extra`
    has more Spark settings; `log_file` receives the stderr of a local session's JVM (default: a file in the temporary
    folder). Raises SparkSetupError when Java or the jars are missing.
    """
    wanted = dict(extra or {})
    if master is not None:
        wanted["spark.remote" if master.startswith("sc://") else "spark.master"] = master
    remote = wanted.get("spark.remote") or os.environ.get("SPARK_REMOTE")
    given = {} if remote else {**_given(), **wanted}
    refuse_py_files(given)
    local = not remote and "spark.master" not in given and "PYSPARK_SUBMIT_ARGS" not in os.environ
    if not local and not _is_running() and not (cores is None and memory is None):
        raise SparkSetupError(
            "cores and memory are those of a local session: on a cluster give spark.executor.cores,"
            " spark.executor.memory and spark.driver.memory in `extra` or to spark-submit"
        )
    if remote:
        spark = _connected(app, remote, wanted)
    elif local:
        spark = _local(app, cores or _LOCAL_CORES, memory or _LOCAL_MEMORY, wanted, log_file)
    else:
        spark = _on_a_cluster(app, given, wanted)
    if warehouse is not None:
        attach_catalog(spark, iceberg_catalog_properties(warehouse))
    from headrace.tablelayer.spark.source import register

    register(spark)
    return spark


def _local(app: str, cores: int, memory: str, wanted: Mapping[str, str], log_file: Path | None) -> Any:
    """Start a quiet session in this process."""
    java_command()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    _find_this_package()
    settings = {**needed_settings({}, _jars()), **_local_settings(cores, memory), **wanted}
    with _stderr_to(log_file or Path(tempfile.gettempdir()) / f"headrace-spark-{os.getpid()}.log"):
        spark = _builder(app, settings).getOrCreate()  # the JVM inherits stderr for its whole life
    spark.sparkContext.setLogLevel("ERROR")
    _silence_python_side()
    return spark


def _on_a_cluster(app: str, given: Mapping[str, str], wanted: Mapping[str, str]) -> Any:
    """Return a session where its settings say, or the running one. Given settings stay, and needed ones are added."""
    if not _is_submitted() and not _is_running():
        java_command()
        # pyspark itself reads the setting only from spark-submit
        os.environ.setdefault("PYSPARK_PYTHON", given.get("spark.pyspark.python", sys.executable))
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        _find_this_package()
    needed = needed_settings(given, [] if _has_jars(given) else _jars())
    if _is_submitted() and not _is_running():
        _load_jars(given, needed)
    return _builder(app, {**needed, **wanted}).getOrCreate()


def _connected(app: str, remote: str, wanted: Mapping[str, str]) -> Any:
    """Return a session of a Spark Connect server, whose own settings stay; "local[2]" starts a server here."""
    if remote.startswith("local"):
        _find_this_package()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        wanted = {**needed_settings({}, _jars()), **wanted}
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(remote).appName(app)
    for name, value in wanted.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        if remote.startswith("local"):  # its server has them already, and refuses to be given them again
            warnings.filterwarnings("ignore", "Failed to set spark", UserWarning)
        spark = builder.getOrCreate()
    if spark.conf.get(_CATALOG, None) is None:
        # A jar that a client adds does not do: the server reads what a writing task returns without it.
        logger.warning(
            "SQL over headrace.DATABASE.TABLE is not available: start the Spark Connect server with the settings of"
            " `headrace spark conf`"
        )
    return spark


def is_remote(spark: Any) -> bool:
    """Return whether a session is one of Spark Connect, which has no virtual machine in this process."""
    from pyspark.sql import SparkSession

    return not isinstance(spark, SparkSession)


def _builder(app: str, settings: Mapping[str, str]) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def _is_running() -> bool:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def _is_submitted() -> bool:
    """Return whether `spark-submit` has started this program, so that its JVM is there."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _given() -> dict[str, str]:
    """Return the settings of the running session, of spark-submit, or of spark-defaults.conf."""
    if _is_running():
        from pyspark.sql import SparkSession

        return dict(SparkSession.active().conf.getAll)
    if _is_submitted():
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    file = Path(folder or "-") / "spark-defaults.conf"
    return parse_defaults(file.read_text()) if folder and file.is_file() else {}


def parse_defaults(text: str) -> dict[str, str]:
    """Return the settings of a spark-defaults.conf: a name and a value on each line."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (re.split(r"\s*[=:\s]\s*", line, maxsplit=1) for line in lines if line and line[0] not in "#!")
    return {pair[0]: pair[1] if len(pair) > 1 else "" for pair in pairs}


def _find_this_package() -> None:
    """Let planning find our package where this process found it: its workers search their working folder first."""
    root = str(Path(__file__).resolve().parents[3])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != root]
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *paths])


def _jars() -> list[Path]:
    """Return all jars. The catalog's is missing in a checkout that cannot compile it."""
    jars = spark_jars()
    try:
        return [*jars, catalog_jar()]
    except SparkSetupError as error:
        logger.warning("SQL over headrace.DATABASE.TABLE is not available: %s", error)
        return jars


def _has_jars(given: Mapping[str, str]) -> bool:
    """Return whether the settings, or the folder of Spark's own jars, have everything by name."""
    named = (_JARS, "spark.jars.packages", "spark.driver.extraClassPath")
    return not missing_jars(",".join(given.get(name, "") for name in named))


def _load_jars(given: Mapping[str, str], needed: Mapping[str, str]) -> None:
    """Load jars into a driver that `spark-submit` has started: Spark reads their setting only at its start."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    before = _parts(given.get(_JARS))
    for jar in _parts(needed.get(_JARS)):
        if jar not in before:
            loader.addURL(jvm.java.io.File(jar).toURI().toURL())


def activate(spark: Any) -> None:
    """Make `spark` the session in which Spark looks data sources up in this thread, whichever session asks.

    A session that `newSession` or cloning created (as Iceberg's actions do) stays active after its use, and does not
    know data sources registered in another session.
    """
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def needed_settings(given: Mapping[str, str], jars: Sequence[Path]) -> dict[str, str]:
    """Return the settings that tables require and that are not among the given ones.

    No jars: they are there already. Without the catalog's jar there is no catalog.
    """
    ours = {
        "spark.sql.extensions": _ICEBERG_EXTENSIONS,
        "spark.python.daemon.module": daemon.__name__,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS_MAX),
    }
    if not jars or any(jar.name == CATALOG_JAR for jar in jars):
        ours[_CATALOG] = _TABLES_CATALOG_CLASS
    present = {path.rpartition("/")[2] for path in _parts(given.get(_JARS))}
    ours[_JARS] = ",".join(str(jar) for jar in jars if jar.name not in present)
    for name in _LISTS:
        before = _parts(given.get(name))
        more = [part for part in _parts(ours.pop(name)) if part not in before]
        if more:
            ours[name] = ",".join([*before, *more])
    return {name: value for name, value in ours.items() if name in _LISTS or name not in given}


def _parts(listed: str | None) -> list[str]:
    return [part.strip() for part in (listed or "").split(",") if part.strip()]


def _local_settings(cores: int, memory: str) -> dict[str, str]:
    return {
        "spark.master": f"local[{cores}]",
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        # Spark writes the catalog of its own tables here if needed, never into the working folder.
        "spark.sql.warehouse.dir": str(
            Path(tempfile.gettempdir()) / f"headrace-spark-warehouse-{os.getpid()}"
        ),
    }


def iceberg_catalog_properties(warehouse: str | Path, catalog_type: str = "hadoop") -> dict[str, str]:
    """Return properties for `attach_catalog`: an Iceberg catalog whose files are under `warehouse`."""
    text = str(warehouse)
    return {"type": catalog_type, "warehouse": text if "://" in text else str(Path(text).resolve())}


def attach_catalog(spark: Any, properties: Mapping[str, str], name: str = LAKE_CATALOG) -> None:
    """Add an Iceberg catalog to the session as `name`.

    Spark keeps a catalog once it was used. Asking for the same name with other properties therefore raises
    SparkSetupError.
    """
    prefix = f"spark.sql.catalog.{name}"
    present = spark.conf.get(prefix, None)
    if present is not None:
        for key, value in properties.items():
            other = spark.conf.get(f"{prefix}.{key}", None)
            if other != value:
                raise SparkSetupError(
                    f"this Spark session's catalog '{name}' has another {key} than required: start another session"
                )
        return
    for key, value in properties.items():
        spark.conf.set(f"{prefix}.{key}", value)
    # Another process may commit to the same tables, so Iceberg's cache could be out of date.
    spark.conf.set(f"{prefix}.cache-enabled", "false")
    spark.conf.set(prefix, _ICEBERG_CATALOG)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    sys.stderr.flush()
    saved = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(target)


def _silence_python_side() -> None:
    """Silence pyspark's loggers: they print a JSON object for every AnalysisException, which has the same text."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
