import pytest

from simulator.groups import GroupHarness


@pytest.fixture
def group() -> GroupHarness:
    return GroupHarness()
