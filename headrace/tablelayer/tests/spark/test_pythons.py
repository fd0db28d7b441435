"""The Python that plans on the driver and the one that runs tasks, when their paths differ."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader

from headrace.tablelayer.client import Connection
from headrace.tablelayer.model.types.column_types import BIGINT
from headrace.tablelayer.spark.pythons import register_source
from headrace.tablelayer.tests.spark.spark_tables import create

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Placed(DataSource):
    """A source of one row: the Python that planned it, and the one that read it."""

    @classmethod
    def name(cls) -> str:
        return "placed"

    def schema(self) -> str:
        return f"planned_by_{os.environ.get('PLACE', 'tasks')} string"

    def reader(self, schema: Any) -> DataSourceReader:
        return PlacedReader()


class PlacedReader(DataSourceReader):
    def read(self, partition: Any) -> Iterator[tuple[str]]:
        yield (os.environ.get("PLACE", "tasks"),)


@pytest.fixture
def driver_python(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """The driver has a Python of another path; returns the number of its starts."""
    starts = tmp_path / "starts"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho >> {starts}\nPLACE=driver exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    before = sys.executable
    monkeypatch.setattr(sys, "executable", str(python))
    yield lambda: starts.read_bytes().count(b"\n") if starts.exists() else 0
    spark._jvm.headrace.spark.Pythons.setRunning(before)


def test_a_data_source_is_planned_by_the_drivers_python_and_read_by_the_tasks(
    spark: Any, driver_python: Callable[[], int]
) -> None:
    register_source(spark, Placed)
    frame = spark.read.format("placed").load()
    assert frame.columns == ["planned_by_driver"]
    assert [tuple(row) for row in frame.collect()] == [("tasks",)]


def test_the_catalog_plans_by_the_drivers_python_and_reads_and_writes_by_the_tasks(
    spark: Any, client: Connection, address: str, driver_python: Callable[[], int]
) -> None:
    path = create(client, [("id", BIGINT)])
    client.table(path).append([{"id": 1}])
    register_source(spark, Placed)
    spark.conf.set("spark.sql.catalog.placed", "headrace.spark.HeadraceCatalog")
    spark.conf.set("spark.sql.catalog.placed.bootstrap.servers", address)
    spark.sql(f"INSERT INTO placed.{path} VALUES (2)")
    assert sorted(row.id for row in spark.table(f"placed.{path}").collect()) == [1, 2]
    pythons = spark._jvm.headrace.spark.Pythons
    assert (pythons.ofDriver(), pythons.ofTasks()) == (sys.executable, os.environ["PYSPARK_PYTHON"])
    assert driver_python() == 1, "one process of the catalog, for the driver; tasks have their own"
