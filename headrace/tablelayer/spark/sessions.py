"""A SparkSession that is quiet, local, and knows the Kafka connector, Iceberg and the `headrace` data source.

What it sets and why:
- the jars of `tablelayer.spark.jars`, as local files, and with them the catalog `headrace` for SQL over tables;
- PYSPARK_PYTHON, so that executors and Spark's planning helpers run this interpreter, and PYTHONPATH, so that
  they find this package even where it is not installed;
- our daemon of workers (`tablelayer.spark.daemon`), which starts in a quarter of the time;
- everything on 127.0.0.1, no UI, few shuffle partitions: one process on one machine;
- the session time zone UTC: TIMESTAMP_LTZ columns mean the same everywhere;
- Iceberg's SQL extensions always (they are static in Spark), and a catalog `lake` when a warehouse is given;
- what the JVM says on stderr goes to a file: much of it is written before Spark's log level can be set.

There is one JVM per process: a second call returns the running session, with the settings that can still be
changed, and fails clearly if it asks for a catalog that another warehouse already has.
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
"""Rows per Arrow batch between Spark and Python: large batches make few lookups, and measured fastest."""

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
    """A `pyspark.sql.SparkSession`, started or the one that runs already.

    `memory` is the JVM's heap; `warehouse` the folder (or URI) of an Iceberg Hadoop catalog named `lake`;
    `extra` more Spark settings; `log_file` takes the JVM's stderr (default: a file in the temporary folder).
    Raises SparkSetupError when Java or the jars are missing.
    """
    java_command()
    jars = spark_jars()
    catalog = _catalog()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Spark's planning workers look into their working folder first; ours must come from where we came from.
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
        with _stderr_to(log):  # the JVM inherits it for its whole life
            spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _silence_python_side()
    if warehouse is not None:
        attach_catalog(spark, iceberg_catalog_properties(warehouse))
    from headrace.tablelayer.spark.source import register

    register(spark)
    return spark


def _catalog() -> Path | None:
    """The catalog's jar; a checkout that cannot compile it does without."""
    try:
        return catalog_jar()
    except SparkSetupError as error:
        logger.warning("SQL over headrace.DATABASE.TABLE is not there: %s", error)
        return None


def activate(spark: Any) -> None:
    """Make `spark` the session in which Spark looks data sources up in this thread, whichever session asks.

    A session made by `newSession` or cloned (as Iceberg's actions do) stays active after it was used, and knows
    no data source that was registered in another.
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
        # Spark writes the catalog of its own tables here if it ever needs one; never into the working folder.
        "spark.sql.warehouse.dir": str(
            Path(tempfile.gettempdir()) / f"headrace-spark-warehouse-{os.getpid()}"
        ),
    }


def iceberg_catalog_properties(warehouse: str | Path, catalog_type: str = "hadoop") -> dict[str, str]:
    """Properties for `attach_catalog`: an Iceberg catalog whose files are under `warehouse`."""
    text = str(warehouse)
    return {"type": catalog_type, "warehouse": text if "://" in text else str(Path(text).resolve())}


def attach_catalog(spark: Any, properties: Mapping[str, str], name: str = LAKE_CATALOG) -> None:
    """Make an Iceberg catalog known to the session as `name`.

    Spark keeps a catalog once it was used, so asking for the same name with other properties raises
    SparkSetupError instead of silently reading the first one.
    """
    prefix = f"spark.sql.catalog.{name}"
    present = spark.conf.get(prefix, None)
    if present is not None:
        for key, value in properties.items():
            other = spark.conf.get(f"{prefix}.{key}", None)
            if other != value:
                raise SparkSetupError(
                    f"this Spark session's catalog '{name}' has another {key} than is needed: start another session"
                )
        return
    for key, value in properties.items():
        spark.conf.set(f"{prefix}.{key}", value)
    # Another process may commit to the same tables: what Iceberg has cached would be out of date.
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
    """pyspark prints a JSON object for every AnalysisException; the exception says the same."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
