"""Settings for every test of the project."""

import asyncio
import inspect
import os
from collections.abc import Callable, Generator

import pytest
from hypothesis import HealthCheck, settings

from headrace.broker.runtime.disk_errors import DISK_LOG
from headrace.protocol.loading.kernel_cache import one_writer

one_writer()  # several workers may compile the same kernels

# A single example of a property has no deadline: the first one of a kernel compiles it, and the machine may be busy.
# Where a change is judged (CI is set), the examples are the same each time; `make test` elsewhere draws others. The
# health checks depend on the speed of the machine and on chance, too.
settings.register_profile(
    "headrace",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("headrace")


@pytest.fixture(autouse=True)
def _nothing_told_of_the_disk() -> None:
    """A cause is logged once a minute in a process: each test gets its own count."""
    DISK_LOG.forget()


_not_to_be_had: set[Callable[[], object]] = set()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fetch the requirements of a test before its time begins. If one is not available, the test says so."""
    for fetch in [each for mark in item.iter_markers("needs") for each in mark.args]:
        if fetch not in _not_to_be_had:
            try:
                fetch()
            except Exception:  # noqa: BLE001
                _not_to_be_had.add(fetch)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
    return True
