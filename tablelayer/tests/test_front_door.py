"""`import headrace`: what users import, and that nothing else comes with it."""

import subprocess
import sys
from pathlib import Path

import headrace
import headrace.spark
import tablelayer.client
import tablelayer.spark

ROOT = Path(__file__).parents[2]


def test_the_door_has_everything_of_the_client():
    assert set(headrace.__all__) - {"spark"} == set(tablelayer.client.__all__)
    for name in tablelayer.client.__all__:
        assert getattr(headrace, name) is getattr(tablelayer.client, name)
    assert headrace.__version__[0].isdigit()
    assert set(headrace.__all__) <= set(dir(headrace))


def test_spark_names_are_functions_however_they_are_imported_and_how_often():
    for door in (headrace.spark, tablelayer.spark):
        for name in door.__all__:
            assert callable(getattr(door, name)), name
            assert getattr(door, name) is getattr(door, name)
    from tablelayer.spark import lookup_join, session

    assert (session.__name__, lookup_join.__name__) == ("session", "lookup_join")
    modules = {path.stem for path in (ROOT / "tablelayer" / "spark").glob("*.py")}
    assert not modules & set(tablelayer.spark.__all__), "the import of a module would hide the name"


def test_the_import_brings_nothing_heavy():
    heavy = ("numba", "sqlglot", "duckdb", "pandas", "pyspark", "rocksdict", "broker", "tablelayer.server")
    code = f"import sys, headrace; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
