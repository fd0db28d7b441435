"""`import headrace`: the names for users, and that nothing else is imported."""

import subprocess
import sys
from pathlib import Path

import headrace
import headrace.spark
from headrace.tablelayer import client

ROOT = Path(__file__).resolve().parents[3]


def test_the_package_exports_everything_of_the_client():
    assert set(headrace.__all__) - {"spark"} == set(client.__all__)
    for name in client.__all__:
        assert getattr(headrace, name) is getattr(client, name)
    assert headrace.__version__[0].isdigit()
    assert set(headrace.__all__) <= set(dir(headrace))


def test_spark_names_are_functions_however_they_are_imported_and_how_often():
    for name in headrace.spark.__all__:
        assert callable(getattr(headrace.spark, name)), name
        assert getattr(headrace.spark, name) is getattr(headrace.spark, name)
    from headrace.spark import lookup_join, session

    assert (session.__name__, lookup_join.__name__) == ("session", "lookup_join")


def test_the_import_brings_nothing_heavy():
    heavy = (
        "numba",
        "sqlglot",
        "duckdb",
        "pandas",
        "pyspark",
        "rocksdict",
        "broker",
        "headrace.tablelayer.server",
    )
    code = f"import sys, headrace; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_lists_its_names_with_errors_of_statements():
    shown = [name for name in dir(headrace) if not name.startswith("_")]
    assert set(shown) == set(headrace.__all__)
    assert issubclass(headrace.SqlError, headrace.ClientError)
    assert issubclass(headrace.DdlError, headrace.TableError)
