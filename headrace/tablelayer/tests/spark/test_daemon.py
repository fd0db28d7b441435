"""The path of Spark's Python workers: without the archives of the installed pyspark, and otherwise as it was."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from headrace.tablelayer.spark.daemon import without_archives


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a pyspark that has its archives inside, as pip installs it."""
    lib = tmp_path / "site" / "pyspark" / "python" / "lib"
    lib.mkdir(parents=True)
    (tmp_path / "site" / "pyspark" / "__init__.py").touch()
    archive(lib / "pyspark.zip")
    (tmp_path / "site" / "pyspark" / "jars").mkdir()
    archive(tmp_path / "site" / "pyspark" / "jars" / "spark-core.jar")
    return tmp_path / "site"


def archive(path: Path) -> str:
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("pyspark/__init__.py", "")
    return str(path)


def test_archives_of_the_installed_pyspark_are_left_out(site: Path, tmp_path: Path) -> None:
    own = archive(tmp_path / "own.zip")
    inside = site / "pyspark"
    path = [
        str(inside / "python/lib/pyspark.zip"),
        str(inside / "jars/spark-core.jar"),
        own,
        str(site),
        "rest",
    ]
    assert without_archives(path) == [own, str(site), "rest"]


def test_another_sparks_archives_stay(site: Path, tmp_path: Path) -> None:
    """A Spark of its own in SPARK_HOME, whose workers must not get the modules of the one that pip installed."""
    home = tmp_path / "spark"
    home.mkdir()
    path = [archive(home / "pyspark.zip"), str(site)]
    assert without_archives(path) == path


def test_without_an_installed_pyspark_everything_stays(tmp_path: Path) -> None:
    path = [archive(tmp_path / "pyspark.zip"), str(tmp_path)]
    assert without_archives(path) == path


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_workers_have_the_installed_modules(spark: object) -> None:
    def look(batches: object) -> object:
        import sys

        import pyarrow as pa
        import pyspark

        found = [pyspark.__file__, *(entry for entry in sys.path if entry.endswith((".zip", ".jar")))]
        yield pa.record_batch({"value": [value for value in found if "spark" in value]})

    frame = spark.range(0, 1, 1, 1).mapInArrow(look, "value string")  # type: ignore[attr-defined]
    assert [row.value.endswith("pyspark/__init__.py") for row in frame.collect()] == [True]
