"""Services that buckets share: the budget of writes and the cache of transcoded batches keep their bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.server.kafka_view.caches import SizedCache
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.services import WriteBudget
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.shared_memory import SharedMemory
from headrace.tablelayer.tests.server.tables import tables


def test_r1_6_the_budget_admits_fitting_writes_and_a_single_large_one() -> None:
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


def test_the_cache_of_transcoded_batches_drops_the_least_recently_used() -> None:
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


def property_of(store: KeyValueStore, name: str) -> Any:
    assert store._files._database is not None
    return store._files._database.property_value(f"rocksdb.{name}")


@pytest.mark.parametrize("mebibytes", [128, 1])
async def test_the_states_of_all_tables_share_as_much_memory_as_is_configured(
    tmp_path: Path, mebibytes: int
) -> None:
    """The rule includes stores that exist already."""
    config = {} if mebibytes == 128 else {"kv.block.cache.bytes": str(mebibytes << 20)}
    async with tables(tmp_path / "data", config) as made:
        services = made.extension._services
        assert services is not None
        memory = services.memory
        for is_new in (True, False):
            store = KeyValueStore.open(tmp_path / "s", memory)
            assert property_of(store, "block-cache-capacity") == str(mebibytes << 20)
            store.write([([b"\x01a"], [b"a"])], 1, is_new)
            store.close()
        for keys in ([b"\x01%06d" % number for number in range(start, 40_000, 2)] for start in (0, 1)):
            store = KeyValueStore.open(tmp_path / "s", memory)
            store.write([(keys, [bytes(200)] * len(keys))], 1, len(keys))
            store.close()
        store = KeyValueStore.open(tmp_path / "s", memory)
        assert store.get(keys) == [bytes(200)] * len(keys)
        used = memory.cache.get_usage()
        store.close()
    assert 0 < used < 2 << 20 if mebibytes == 1 else used > 4 << 20, used


def test_files_of_a_store_that_was_opened_again_have_a_filter(tmp_path: Path) -> None:
    memory = SharedMemory(Limits())
    for number in range(3):
        store = KeyValueStore.open(tmp_path / "s", memory)
        store.write([([b"\x01%d" % number], [b"a"])], number, number)
        store.flush()
        found = property_of(store, "aggregated-table-properties")
        store.close()
        assert f"# entries={2 * number + 2};" in found
        assert int(found.partition("filter block size=")[2].partition(";")[0]) >= 60 * (number + 1)
