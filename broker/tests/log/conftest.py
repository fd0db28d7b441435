import pytest

from broker.testing.log import LogWorld


@pytest.fixture
def world() -> LogWorld:
    return LogWorld()
