"""The choice of a bucket for rows without a bucket key."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.tablelayer.client.config import ClientConfig
from headrace.tablelayer.client.write.split import Spread


@pytest.mark.parametrize("row_bytes", [8, 24, 40])
def test_a_full_batch_is_followed_by_the_next_bucket(row_bytes: int) -> None:
    rows = pa.record_batch({str(each): pa.array(range(1_000), pa.int64()) for each in range(row_bytes // 8)})
    parts = Spread(4, 1_000).assign(rows)
    assert pa.Table.from_batches([part for _, part in parts]) == pa.Table.from_batches([rows])
    first = parts[0][0]
    assert [bucket for bucket, _ in parts] == [(first + place) % 4 for place in range(len(parts))]
    assert all(part.num_rows == 1_000 // row_bytes for _, part in parts[:-1])


def test_round_robin_gives_each_row_to_the_next_bucket() -> None:
    rows = pa.record_batch({"a": list(range(10))})
    spread = Spread(4, 1_000, round_robin=True)
    first, second = spread.assign(rows.slice(0, 3)), spread.assign(rows.slice(3))
    begin = next(bucket for bucket, part in first if part.column("a")[0].as_py() == 0)
    found = {value: bucket for bucket, part in (*first, *second) for value in part.column("a").to_pylist()}
    assert found == {value: (begin + value) % 4 for value in range(10)}
    with pytest.raises(ValueError, match="no_key_assigner is 'random'"):
        ClientConfig(no_key_assigner="random")
