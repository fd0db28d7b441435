"""Settings for every test of the project."""

import asyncio
import atexit
import contextlib
import gc
import inspect
import os
import sys
from collections.abc import Callable, Generator

import pytest
from _pytest.assertion import rewrite
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


def pytest_sessionstart(session: pytest.Session) -> None:
    """Rewrite the assertions of this worker's share of the tests; pytest keeps them beside the sources for all workers.

    Without this each worker of a new work tree rewrites all tests, for 20 s of a core.
    """
    config = session.config
    if not hasattr(config, "workerinput") or sys.dont_write_bytecode:
        return
    number, count = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    files = sorted(path for each in config.args for path in (config.rootpath / each).glob("**/test_*.py"))
    for path in files[number::count]:
        kept = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
        if not kept.exists() or kept.stat().st_mtime < path.stat().st_mtime:
            with contextlib.suppress(SyntaxError):  # the collection tells of it
                source, code = rewrite._rewrite_test(path, config)
                rewrite.try_makedirs(kept.parent)
                rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, kept)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Switch the garbage collector off during the collection, and freeze the objects that it makes. Later runs of the
    garbage collector took a tenth of the tests' time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # extension modules warn of objects that are left when the process ends
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests that share a module's fixture to one worker, which makes the fixture once."""
    for item in items:
        if item.get_closest_marker("xdist_group") or not isinstance(item, pytest.Function):
            continue
        used = item._fixtureinfo.name2fixturedefs.values()
        if any(each[-1].scope == "module" for each in used):
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(item.config.rootpath).as_posix()))


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
