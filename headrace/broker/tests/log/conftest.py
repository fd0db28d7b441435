import pytest

from simulator.log import LogWorld


@pytest.fixture
def world() -> LogWorld:
    return LogWorld()
