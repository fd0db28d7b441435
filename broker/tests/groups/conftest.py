import pytest

from broker.testing.groups import GroupHarness


@pytest.fixture
def group() -> GroupHarness:
    return GroupHarness()
