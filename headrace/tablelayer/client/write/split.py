"""The buckets and partitions of rows, and rows grouped by them. Whole batches, never row by row."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa

from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.partitions import partition_names_of_rows


def buckets_of(definition: TableDefinition, rows: pa.RecordBatch) -> np.ndarray:
    """Return the bucket of each row, int32[n], by the hash of the bucket key. `rows` must have its columns."""
    if definition.bucket_count == 1:
        return np.zeros(rows.num_rows, np.int32)
    from headrace.tablelayer.model.table.buckets import bucket_of  # it imports numba, which only hashes need

    return bucket_of(definition, rows)


def split_by_bucket(buckets: np.ndarray, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
    """Return (bucket, rows in order) for each bucket; `buckets` is int32[n]. One gather for all."""
    first = int(buckets[0]) if len(buckets) else 0
    if (buckets == first).all():
        return [(first, batch)] if batch.num_rows else []
    order = np.argsort(buckets, kind="stable")
    gathered = batch.take(pa.array(order))
    ordered = buckets[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    ends = np.append(starts[1:], len(ordered))
    return [
        (int(ordered[start]), gathered.slice(start, end - start))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def split_by_partition(definition: TableDefinition, rows: pa.Table) -> list[tuple[str, pa.Table, np.ndarray]]:
    """Return (name, rows in order, their positions in `rows`) for each partition. One gather for all.

    Names consist of the values; it is not checked whether those can name a partition. Raises RowError for a null.
    """
    if not rows.num_rows:
        return []
    columns = rows.select(definition.partition_keys).combine_chunks().to_batches()
    codes, names = partition_names_of_rows(definition.partition_keys, columns[0])
    if len(names) == 1:
        return [(names[0], rows, np.arange(rows.num_rows))]
    order = np.argsort(codes, kind="stable")
    gathered = rows.take(pa.array(order))
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1)).tolist()
    return [
        (name, gathered.slice(start, end - start), order[start:end])
        for name, start, end in zip(names, bounds, bounds[1:], strict=False)
    ]


class Spread:
    """Chooses buckets for a log table without a bucket key: one bucket until a batch is full, then the next.

    So small writes make large batches, and in the long run every bucket gets the same number of bytes. With
    `round_robin` each row goes to the next bucket, so that buckets differ by one row at most.
    """

    def __init__(self, bucket_count: int, batch_size_bytes: int, *, round_robin: bool = False) -> None:
        self._round_robin = round_robin
        self._bucket_count = bucket_count
        self._batch_size_bytes = batch_size_bytes
        self._bucket = random.randrange(bucket_count)
        self._given_bytes = 0

    def assign(self, slab: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        if self._round_robin:
            buckets = (self._bucket + np.arange(slab.num_rows, dtype=np.int32)) % self._bucket_count
            self._bucket = (self._bucket + slab.num_rows) % self._bucket_count
            return split_by_bucket(buckets, slab)
        row_size = max(1, slab.nbytes // slab.num_rows)
        step = max(1, self._batch_size_bytes // row_size)
        parts = []
        for start in range(0, slab.num_rows, step):
            part = slab.slice(start, step)
            parts.append((self._bucket, part))
            self._given_bytes += part.num_rows * row_size
            if self._given_bytes + row_size > self._batch_size_bytes:
                self._bucket = (self._bucket + 1) % self._bucket_count
                self._given_bytes = 0
        return parts
