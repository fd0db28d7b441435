"""Executors and drivers of Spark are killed, and a broker at the same moment: each row is written once.

Three brokers with three replicas and a real ZooKeeper; Spark's standalone master with two workers.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_kills import WRITES, assert_each_row_once, assert_nothing_is_visible, make_tables, running, submit

from simulator.three_brokers import path_in
from simulator.zookeeper import LONG_SESSIONS, running_zookeeper

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(0)]
PYTHON = Path(sys.executable)
"""The Python of this checkout, which executors on this machine have too."""


@pytest.fixture
def brokers(tmp_path: Path, server_processes_class: Any) -> Iterator[Any]:
    (tmp_path / "brokers").mkdir()
    with running_zookeeper(tmp_path / "zookeeper", settings=LONG_SESSIONS) as zookeeper:
        processes = server_processes_class(tmp_path / "brokers", path_in(zookeeper.address)).start()
        try:
            make_tables(processes.address)
            yield processes
        finally:
            processes.kill_all()
        assert "Traceback" not in processes.log(), processes.log()


def test_executors_and_brokers_that_are_killed_lose_and_double_no_row(
    spark_cluster, brokers, tmp_path, wait_until
) -> None:
    driver = submit(spark_cluster, brokers.address, tmp_path, PYTHON, WRITES)
    for write in WRITES:
        executor = wait_until(lambda write=write: running(driver, tmp_path, write), write, 1800)
        brokers.kill()
        os.kill(executor, signal.SIGKILL)
        brokers.start()
    assert driver.wait() == 0, driver.output()[-8000:]
    for write in WRITES:
        assert_each_row_once(brokers.address, write)
        attempts = {mark.name.rpartition(".")[2] for mark in tmp_path.glob(f"{write}.*")}
        assert len(attempts) > 1, f"{write}: no task was repeated"


@pytest.mark.parametrize("write", WRITES)
def test_a_driver_and_a_broker_that_are_killed_lose_and_double_no_row(
    spark_cluster, brokers, tmp_path, wait_until, write
) -> None:
    """The program is started again with two of the three brokers."""
    driver = submit(spark_cluster, brokers.address, tmp_path, PYTHON, [write])
    wait_until(lambda: running(driver, tmp_path, write), write, 1800)
    brokers.kill()
    driver.kill()
    assert_nothing_is_visible(brokers.address, write)
    again = submit(spark_cluster, brokers.address, tmp_path, PYTHON, [write])
    assert again.wait() == 0, again.output()[-8000:]
    assert_each_row_once(brokers.address, write)
    brokers.start()
    assert_each_row_once(brokers.address, write)
