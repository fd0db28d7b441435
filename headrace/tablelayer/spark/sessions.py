"""A quiet, local SparkSession with the Kafka connector, Iceberg and the `headrace` data source.

Settings:
- the jars of `tablelayer.spark.jars`, as local files, with the catalog `headrace` for SQL over tables;
- PYSPARK_PYTHON, so that executors and Spark's planning helpers run this interpreter, and PYTHONPATH, so that they
  find this package even if it is not installed;
- our daemon of workers (`tablelayer.spark.daemon`), which starts in a quarter of the time;
- everything on 127.0.0.1, no UI, few shuffle partitions: one process on one machine;
- the session time zone UTC, so that TIMESTAMP_LTZ columns mean the same everywhere;
- Iceberg's SQL extensions always (they are static in Spark), and a catalog `lake` if a warehouse is given;
- a file for the JVM's stderr, much of which is written before Spark's log level can be set.

There is one JVM per process. A second call returns the running session with the settings that can still change. It
fails with a clear error if it asks for a catalog that already has another warehouse.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.tablelayer.spark import daemon
from headrace.tablelayer.spark.jars import SparkSetupError, catalog_jar, java_command, spark_jars

logger = logging.getLogger("headrace.spark")

LAKE_CATALOG = "lake"
TABLES_CATALOG = "headrace"
ARROW_BATCH_ROWS_MAX = 65_536
"""Rows per Arrow batch between Spark and Python: large batches need fewer lookups, and were fastest in measurements."""

_ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_ICEBERG_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_TABLES_CATALOG_CLASS = "headrace.spark.HeadraceCatalog"


def session(
    app: str,
    *,
    cores: int = 2,
    memory: str = "1g",
    warehouse: str | Path | None = None,
    extra: Mapping[str, str] | None = None,
    log_file: Path | None = None,
) -> Any:
    """Start a `pyspark.sql.SparkSession`, or return the running one.

    `memory` is the JVM's heap; `warehouse` the folder (or URI) of an Iceberg Hadoop catalog named `lake`; `extra` more
    Spark settings; `log_file` receives the JVM's stderr (default: a file in the temporary folder). Raises
    SparkSetupError when Java or the jars are missing.
    """
    java_command()
    jars = spark_jars()
    catalog = _catalog()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Spark's planning workers search their working folder first; our package must be found where this process found it.
    root = str(Path(__file__).resolve().parents[3])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != root]
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *paths])

    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName(app)
    if catalog is not None:
        jars = [*jars, catalog]
        builder = builder.config(f"spark.sql.catalog.{TABLES_CATALOG}", _TABLES_CATALOG_CLASS)
    for name, value in _settings(jars, cores, memory).items():
        builder = builder.config(name, value)
    for name, value in (extra or {}).items():
        builder = builder.config(name, value)
    running = SparkSession.getActiveSession() is not None
    log = log_file or Path(tempfile.gettempdir()) / f"headrace-spark-{os.getpid()}.log"
    if running:
        spark = builder.getOrCreate()
    else:
        with _stderr_to(log):  # the JVM inherits stderr for its whole life
            spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _silence_python_side()
    if warehouse is not None:
        attach_catalog(spark, iceberg_catalog_properties(warehouse))
    from headrace.tablelayer.spark.source import register

    register(spark)
    return spark


def _catalog() -> Path | None:
    """Return the catalog's jar; None in a checkout that cannot compile it."""
    try:
        return catalog_jar()
    except SparkSetupError as error:
        logger.warning("SQL over headrace.DATABASE.TABLE is not available: %s", error)
        return None


def activate(spark: Any) -> None:
    """Make `spark` the session in which Spark looks data sources up in this thread, whichever session asks.

    A session that `newSession` or cloning created (as Iceberg's actions do) stays active after its use, and does not
    know data sources registered in another session.
    """
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def _settings(jars: list[Path], cores: int, memory: str) -> dict[str, str]:
    return {
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.python.daemon.module": daemon.__name__,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        "spark.sql.extensions": _ICEBERG_EXTENSIONS,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS_MAX),
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
