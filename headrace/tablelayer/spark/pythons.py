"""The Pythons of a session: the driver's, which plans and commits, and the executors', which read and write.

They are at different paths where executors unpack an environment (`--archives env.tar.gz#env`, PYSPARK_PYTHON=
./env/bin/python). Spark plans a Python data source with the executors' path, also on the driver. `headrace.spark.
PlacedFunction`, in the catalog's jar, gives it the path of the place where it asks.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from headrace.tablelayer.spark.jars import CATALOG_JAR, SparkSetupError

_PY_FILES = "spark.submit.pyFiles"


def register_source(spark: Any, source: type[Any]) -> None:
    """Register a data source that is planned by this interpreter. Raises SparkSetupError without the jar for it."""
    from pyspark.sql import SparkSession

    if not isinstance(
        spark, SparkSession
    ):  # Spark Connect: the server's environment says which Python it runs
        spark.dataSource.register(source)
        return
    refuse_py_files({_PY_FILES: spark.conf.get(_PY_FILES, "") or ""})
    context = spark.sparkContext
    classes = context._jvm.headrace.spark
    pythons, placed = classes.Pythons, classes.PlacedFunction
    if _is_class(pythons):
        pythons.setRunning(sys.executable)
    if context.pythonExec == sys.executable:
        spark.dataSource.register(source)
    elif _is_class(placed):
        from pyspark.sql.udf import _wrap_function

        sources = context._jvm.org.apache.spark.sql.execution.datasources.v2.python
        function = placed(_wrap_function(context, source), sys.executable)
        spark._jsparkSession.dataSource().registerPython(
            source.name(), sources.UserDefinedPythonDataSource(function)
        )
    elif shutil.which(context.pythonExec) is not None:
        spark.dataSource.register(source)
    else:
        raise SparkSetupError(
            f"the executors' Python, {context.pythonExec}, is not on the driver, where Spark would plan with it:"
            f" add {CATALOG_JAR} to spark.jars before the session starts (`headrace spark conf` prints all settings)"
        )


def refuse_py_files(settings: Mapping[str, str]) -> None:
    """Raise SparkSetupError if an archive of this package is among `--py-files`: it does not run from inside of one."""
    for path in settings.get(_PY_FILES, "").split(","):
        name = os.path.basename(path)
        if name.startswith("headrace") and name.endswith((".whl", ".zip", ".egg")):
            raise SparkSetupError(
                f"--py-files has {name}, but headrace does not run from inside an archive, and requires compiled"
                " packages: install it on all nodes, or make an environment by `headrace spark env` and give it as"
                " --archives env.tar.gz#env with PYSPARK_PYTHON=./env/bin/python"
            )


def _is_class(found: Any) -> bool:
    from py4j.java_gateway import JavaClass

    return isinstance(found, JavaClass)
