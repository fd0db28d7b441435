"""Spark on a cluster: a standalone master with two workers, each with an executor of 1 core and 1 GB."""

from __future__ import annotations

import os
import signal

import pytest

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(0)]

TASKS = """
import os, time
from pyspark.sql import SparkSession

def where(place):
    time.sleep(1)
    return os.getcwd()

context = SparkSession.builder.getOrCreate().sparkContext
while len(set(context.parallelize(range(8), 8).map(where).collect())) < 2:
    pass  # the second executor starts later
print("both executors", flush=True)
while not os.path.exists("go"):
    time.sleep(0.1)
print(sorted(context.parallelize(range(8), 8).map(lambda n: (where(n), n)[1]).collect()), flush=True)
"""


def test_tasks_run_on_both_workers_and_an_executor_that_is_killed_is_replaced(
    spark_cluster, tmp_path, wait_until
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    driver = spark_cluster.submit("tasks.py", folder=tmp_path)
    wait_until(lambda: driver.ended() or "both executors" in driver.output(), "tasks on both workers", 600)
    killed = spark_cluster.executors()[0]
    os.kill(killed, signal.SIGKILL)
    (tmp_path / "go").touch()
    assert driver.wait() == 0, driver.output()
    assert str(list(range(8))) in driver.output()
