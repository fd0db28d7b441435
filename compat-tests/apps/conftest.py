"""Collect the outcome of each application, for the table in COMPATIBILITY.md."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from apps.loads import Attempt
from apps.programs import UnavailableError
from apps.report import write_applications

from simulator.three_brokers import BROKERS


@pytest.fixture(scope="session")
def outcomes() -> Iterator[dict[str, tuple[str, str, str]]]:
    """(version, what, outcome) by application, written into COMPATIBILITY.md at the end if that is requested."""
    found: dict[str, tuple[str, str, str]] = {}
    yield found
    if os.environ.get("HEADRACE_WRITE_COMPATIBILITY") and BROKERS == 1:
        write_applications(found)


@pytest.fixture
def attempt(outcomes: dict[str, tuple[str, str, str]]) -> Attempt:
    """Record the outcome of the body of the `with`; skip an application that is not available."""

    @contextmanager
    def trying(name: str, version: str, what: str) -> Iterator[None]:
        outcomes[name] = (version, what, "**failed**")
        try:
            yield
        except UnavailableError as error:
            outcomes[name] = (version, what, f"not tried: {error}")
            pytest.skip(str(error))
        outcomes[name] = (version, what, "passed")

    return trying
