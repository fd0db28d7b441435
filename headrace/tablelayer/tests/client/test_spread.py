"""The choice of a bucket for rows without a bucket key."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.tablelayer.client.write.split import Spread


@pytest.mark.parametrize("row_bytes", [8, 24, 40])
def test_a_full_batch_is_followed_by_the_next_bucket(row_bytes: int) -> None:
    rows = pa.record_batch({str(each): pa.array(range(1_000), pa.int64()) for each in range(row_bytes // 8)})
    parts = Spread(4, 1_000).assign(rows)
    assert pa.Table.from_batches([part for _, part in parts]) == pa.Table.from_batches([rows])
    first = parts[0][0]
    assert [bucket for bucket, _ in parts] == [(first + place) % 4 for place in range(len(parts))]
    assert all(part.num_rows == 1_000 // row_bytes for _, part in parts[:-1])
