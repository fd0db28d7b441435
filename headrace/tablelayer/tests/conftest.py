"""One Spark session for the whole run: starting it takes longer than any test."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SPARK_TIMEOUT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that is interrupted in the middle of a call breaks the session for all others, so none is, on a busy
    machine.
    """
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.needs.with_args(_sparks_jars))
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))


@functools.cache
def _sparks_jars() -> None:
    from headrace.tablelayer.spark.jars import catalog_jar, paimon_jar, spark_jars

    spark_jars()
    paimon_jar()
    catalog_jar()


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from headrace.tablelayer.spark.sessions import session
    from headrace.tablelayer.tests.spark import jvm

    spark = session("headrace tests", cores=2, memory="1g", extra=jvm.settings(writes=True))
    yield spark
    jvm.end(spark)


@pytest.fixture(scope="session")
def make_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """`make_server(folder, settings, properties)`: a server process that is not started yet, with settings in place of
    those of its lakes. With HEADRACE_BROKERS=3 three brokers, which a client with these properties may ask.
    """
    from headrace.tablelayer.tests.spark.spark_tables import Server, Servers
    from simulator.three_brokers import BROKERS, path_in
    from simulator.zookeeper import LONG_SESSIONS, running_zookeeper

    if BROKERS == 1:
        yield lambda folder, settings=None, properties=None: Server(folder, settings)
        return
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper"), settings=LONG_SESSIONS) as zookeeper:
        yield lambda folder, *more: Servers(folder, path_in(zookeeper.address), *more)


@pytest.fixture(autouse=True)
def _close_what_spark_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect the sockets that pyspark leaves to the garbage collector, where their warnings are ignored.

    Sessions that a test made with `newSession` stay active: activate the root before the next one.
    """
    if "spark" not in request.fixturenames:
        yield
        return
    from headrace.tablelayer.spark.sessions import activate

    activate(request.getfixturevalue("spark"))
    yield
    gc.collect()
