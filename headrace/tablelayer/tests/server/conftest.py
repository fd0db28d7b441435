"""What tests of the table server share."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture
def own_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Without what tests before left to the collector, such as tasks that nobody awaits: that is told now."""
    gc.collect()
    return caplog
