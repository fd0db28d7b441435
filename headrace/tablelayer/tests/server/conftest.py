"""Fixtures of the table server's tests."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture
def own_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Collect the garbage of earlier tests first, since tasks that were never awaited are logged then."""
    gc.collect()
    return caplog
