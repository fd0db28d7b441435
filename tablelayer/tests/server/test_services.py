"""What buckets share: the budget of writes and the cache of transcoded batches keep their bounds."""

from __future__ import annotations

import pytest

from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.server.kafka_face.caches import SizedCache
from tablelayer.server.services import WriteBudget


def test_r1_6_the_budget_admits_what_fits_and_a_single_write_of_any_size() -> None:
    budget = WriteBudget(1000)
    budget.reserve(600)
    for size in (401, 1000):
        with pytest.raises(TableError, match=f"600 bytes of writes wait to be stored; {size} more") as caught:
            budget.reserve(size)
        assert caught.value.code is TableErrorCode.BUFFER_EXHAUSTED
        assert caught.value.retriable
        assert budget.used == 600
    budget.reserve(400)
    with pytest.raises(TableError):
        budget.reserve(1)
    budget.release(1000)
    budget.reserve(5000)
    with pytest.raises(TableError):
        budget.reserve(1)
    budget.release(5000)
    assert budget.used == 0


def test_the_cache_of_transcoded_batches_lets_go_of_what_was_not_used_for_longest() -> None:
    cache = SizedCache(1000)
    batches = {key: memoryview(bytes(250)) for key in range(5)}
    for key in range(4):
        cache.put(key, batches[key], 250)
    assert cache.get(0) is batches[0]
    cache.put(4, batches[4], 250)
    assert [key for key in range(5) if cache.get(key) is not None] == [0, 2, 3, 4]
    cache.put("large", memoryview(bytes(251)), 251)
    assert cache.get("large") is None
    cache.put(0, memoryview(bytes(10)), 10)  # in the place of another one
    cache.put(5, memoryview(bytes(240)), 240)
    assert [key for key in range(6) if cache.get(key) is not None] == [0, 2, 3, 4, 5]
