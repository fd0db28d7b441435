"""Options of the virtual machine of a Spark session that runs for minutes, and the archive of its classes.

Loading Spark's classes is most of the work of a session's start. With an archive of them a session and its first
queries took 16 s of CPU time, and 33 s without it. The first session that finds no archive writes one when it ends,
beside Spark's extra jars.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

from headrace.tablelayer.spark.ivy import jars_folder
from headrace.tablelayer.spark.jars import java_command, spark_jars

ARCHIVING_SECONDS_MAX = 600
_OPTIONS = "spark.driver.extraJavaOptions"
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The optimising compiler would take half of the CPU time (77 s became 41 s)."""


@functools.cache
def _archive() -> Path:
    """Return the archive's file; another Java and another Spark have files of their own."""
    version = subprocess.run([java_command(), "-version"], capture_output=True, check=True).stderr
    folder = jars_folder()
    assert folder is not None
    names = sorted(path.name for path in folder.iterdir())
    digest = hashlib.sha256(version + f"{folder} {names}".encode()).hexdigest()
    return spark_jars()[0].parent.with_name(f"spark-classes-{digest[:16]}.jsa")


def _written() -> Path:
    return _archive().with_suffix(f".{os.getpid()}")


def settings(*, writes: bool = False) -> dict[str, str]:
    """Return Spark settings for a session. With `writes` it writes an archive that is missing, and `end` ends it."""
    options = f"{_SHORT_LIVED} -Xlog:disable"
    if _archive().exists():
        options += f" -XX:SharedArchiveFile={_archive()}"
    elif writes:
        options += f" -XX:ArchiveClassesAtExit={_written()}"
    return {_OPTIONS: options}


def end(spark: Any) -> None:
    """End the session and its virtual machine if that writes the archive."""
    if str(_written()) not in spark.sparkContext.getConf().get(_OPTIONS):
        return  # the process ends them
    from pyspark import SparkContext

    spark.stop()
    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(ARCHIVING_SECONDS_MAX)
    _written().rename(_archive())
