"""Random conditions in Spark: the predicates that the builder and the catalog push down lose no row and add none."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.tablelayer.client import Connection
from headrace.tablelayer.tests.sql.differential.run import seed_and_seconds
from headrace.tablelayer.tests.sql.differential.spark import SparkRun

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
_numbers = itertools.count()


@pytest.fixture
def session(spark: Any, address: str) -> Iterator[Any]:
    spark.conf.set("spark.headrace.bootstrap.servers", address)
    yield spark
    spark.conf.unset("spark.headrace.bootstrap.servers")


def _run(session: Any, address: str, client: Connection, seed: int, seconds: float, rounds: int) -> None:
    database = f"differential{next(_numbers)}"
    client.admin.create_database(database)
    run = SparkRun(seed, session, address, client)
    run.asked_in_spark(database, seconds, rounds)
    client.admin.drop_database(database, cascade=True)
    print(run.report)
    assert not run.report.faults, "\n".join([str(run.report), *run.report.faults])
    assert run.report.asked.total() > 0


def test_conditions_pushed_down_by_spark_change_no_answer(
    session: Any, address: str, client: Connection
) -> None:
    """The same conditions each time, unless the environment asks for others."""
    seed, seconds = seed_and_seconds(8, seed=1)
    _run(session, address, client, seed, seconds, sys.maxsize)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_conditions_pushed_down_by_spark_change_no_answer_for_ten_minutes(
    session: Any, address: str, client: Connection
) -> None:
    seed, seconds = seed_and_seconds(600)
    print(f"HEADRACE_DIFFERENTIAL_SEED={seed} HEADRACE_DIFFERENTIAL_SECONDS={seconds}")
    _run(session, address, client, seed, seconds, sys.maxsize)
