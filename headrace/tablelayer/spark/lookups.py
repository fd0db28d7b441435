"""Lookup join: enrich a batch or streaming DataFrame with the present rows of a PK table.

Flink's counterpart is `FOR SYSTEM_TIME AS OF`. Every Arrow batch of the left side makes one batched lookup through the
table client, in the executors (`mapInArrow`). Spark holds no state, and the table is not read as a whole. The result
shows the table at the time of the lookup: a micro-batch that runs again may see newer rows.

By the whole primary key a row finds at most one match. By the bucket key, if that is a proper prefix of the primary
key, it finds all rows of the prefix. Lookups of several batches run at the same time, and their results come in order.
With `cache_ttl_s`, a worker caches its results, including misses, for that time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.client.config import ClientConfig
from headrace.tablelayer.client.names import pairs_of_names, several
from headrace.tablelayer.client.security.settings import Bootstrap, ConnectionSettings
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.spark.key_set import KeySet
from headrace.tablelayer.spark.types import choose_columns, conform, spark_arrow_schema, spark_schema
from headrace.tablelayer.spark.worker import connection
from headrace.tablelayer.spark.worker import table as open_table

IN_FLIGHT = 3
"""Number of batches whose lookups run at once: enough to hide the latency, and few enough to hold in memory."""
CACHE_ROWS_MAX = 500_000
"""Maximum rows of a cache. A full cache is emptied: frequent keys are soon cached again."""
CACHE_PARTS_MAX = 8
"""Maximum parts of a cache. Every lookup with misses adds a part; above this number, the parts are merged."""


def lookup_join(
    frame: Any,
    bootstrap: Bootstrap,
    table: str,
    *,
    on: Mapping[str, str] | Sequence[str] | str,
    select: Sequence[str] | Mapping[str, str] | None = None,
    how: Literal["left", "inner"] = "left",
    cache_ttl_s: float = 0.0,
    lookup_from: Literal["leader", "any"] = "leader",
    lookup_max_staleness_ms: int | None = None,
) -> Any:
    """Return `frame` with columns of PK table `table` ("db.t") added.

    `on`: the frame's column for each column of the primary key, `{"cust_key": "c_custkey"}`, or of the bucket key if
    that is a proper prefix of it, exactly. A name or a list of names: the same on both sides. `select`: columns to add;
    a mapping renames them, `{"name": "cust_name"}`; the default is all that are not in `on`. `how`: "left" keeps rows
    without a match (nulls; a null in the key matches nothing), "inner" drops them. `cache_ttl_s`: time in seconds that
    a worker may reuse a result (0: never; only by primary key). `lookup_from`, `lookup_max_staleness_ms`: as in
    `ClientConfig`; with "any" every replica answers, at most that stale. Raises TableError for a table without a
    primary key, and for columns that are missing or clash.
    """
    config = ClientConfig(lookup_from=lookup_from)
    if lookup_max_staleness_ms is not None:
        config = replace(config, lookup_max_staleness_ms=lookup_max_staleness_ms)
    on = pairs_of_names("on", on)
    settings = ConnectionSettings.make(bootstrap)
    definition = connection(settings).admin.describe_table(table)
    if not definition.is_primary_key_table:
        raise TableError(
            TableErrorCode.NOT_A_PRIMARY_KEY_TABLE,
            f"{table} has no primary key: only PK tables can be looked up",
        )
    schema = definition.schema
    by_prefix = definition.allows_prefix_lookup and set(on.values()) == set(definition.prefix_columns)
    keys = definition.prefix_columns if by_prefix else schema.primary_key
    if set(on.values()) != set(keys) or len(on) != len(keys):
        prefix = (
            f" or its lookup prefix ({', '.join(definition.prefix_columns)})"
            if definition.allows_prefix_lookup
            else ""
        )
        raise TableError(
            TableErrorCode.INVALID_KEY,
            f"a lookup in {table} needs its whole primary key ({', '.join(keys)}){prefix}; `on` gives"
            f" {', '.join(on.values()) or 'nothing'}",
        )
    missing = [name for name in on if name not in frame.columns]
    if missing:
        raise TableError(
            TableErrorCode.INVALID_KEY,
            f"`on` names column {', '.join(missing)}, but the frame has {', '.join(frame.columns)}",
        )
    if how not in ("left", "inner"):
        raise ValueError(f"how={how!r}: a lookup join must be 'left' or 'inner'")
    if cache_ttl_s < 0 or (cache_ttl_s and by_prefix):
        raise ValueError(
            f"cache_ttl_s={cache_ttl_s}: give seconds from 0 up, and 0 for a lookup by prefix, which cannot be cached"
        )
    if select is None:
        select = [column.name for column in schema.columns if column.name not in keys]
    names = dict(select) if isinstance(select, Mapping) else {n: n for n in several("select", select)}
    if not names:
        raise ValueError("select=[]: name the columns to add, or leave it out for all")
    columns = choose_columns(schema, list(names))
    clashes = [name for name in names.values() if name in frame.columns]
    if clashes or len(set(names.values())) < len(names):
        raise TableError(
            TableErrorCode.INVALID_PROJECTION,
            f"column {', '.join(clashes) or 'names'} would appear twice: give new names,"
            f" select={{'{columns[0].name}': 'new_name'}}",
        )
    added = spark_schema(columns)
    output = type(added)(frame.schema.fields.copy())
    for field, name in zip(added.fields, names.values(), strict=True):
        output = output.add(name, field.dataType, True)
    on_keys = {key: name for name, key in on.items()}
    lookup = BatchLookup(
        settings,
        definition,
        tuple(on_keys[key] for key in keys),
        tuple(names),
        tuple(names.values()),
        how == "inner",
        by_prefix,
        cache_ttl_s,
        config if lookup_from == "any" else None,
    )
    return frame.mapInArrow(lookup, output)


@dataclass(frozen=True, slots=True)
class BatchLookup:
    """Worker's side: one lookup per Arrow batch, with several in flight.

    `key_columns` are the frame's columns, in the order of the primary or bucket key. `columns` are the table's, and
    `new_names` their names in the result.
    """

    bootstrap: Bootstrap
    definition: StoredTable
    key_columns: tuple[str, ...]
    columns: tuple[str, ...]
    new_names: tuple[str, ...]
    matched_only: bool
    by_prefix: bool = False
    cache_ttl_s: float = 0.0
    config: ClientConfig | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table: Any = open_table(self.bootstrap, self.definition, self.config)
        if self.cache_ttl_s:
            table = _cached(table, self.columns, self.cache_ttl_s)
        target = self.target()
        waiting: deque[Future[pa.RecordBatch]] = deque()
        with ThreadPoolExecutor(IN_FLIGHT, "lookup") as pool:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if len(waiting) == IN_FLIGHT:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(self.join, batch, table, target))
            while waiting:
                yield waiting.popleft().result()

    def target(self) -> pa.Schema:
        """Return the Arrow schema of the added columns, with the table's names."""
        schema = self.definition.schema
        return spark_arrow_schema([replace(schema.column(name), nullable=True) for name in self.columns])

    def join(self, batch: pa.RecordBatch, table: Any, target: pa.Schema) -> pa.RecordBatch:
        """Join one batch. A key that occurs several times is looked up once."""
        schema = self.definition.schema
        names = self.definition.prefix_columns if self.by_prefix else schema.primary_key
        keys = pa.table(
            {
                key: batch.column(name).cast(schema.column(key).type.arrow())
                for key, name in zip(names, self.key_columns, strict=True)
            }
        )
        distinct, positions = distinct_keys(keys)
        if self.by_prefix:
            return self._join_prefixes(batch, table, target, distinct, positions)
        if not distinct.num_rows:
            return self._widen(batch, target, None, positions, positions.is_valid())
        found, rows = table.lookup(distinct, columns=list(self.columns))
        matched = pc.fill_null(pa.array(found, pa.bool_()).take(positions), False)
        return self._widen(batch, target, rows, positions, matched)

    def _join_prefixes(
        self, batch: pa.RecordBatch, table: Any, target: pa.Schema, distinct: pa.Table, positions: pa.Array
    ) -> pa.RecordBatch:
        """Repeat every row once per row of its prefix; once with nulls if there is none."""
        owners, rows = table.prefix_lookup_grouped(distinct, columns=list(self.columns))
        counts = np.bincount(owners, minlength=max(1, distinct.num_rows))
        starts = np.cumsum(counts) - counts
        prefix = pc.fill_null(positions, -1).to_numpy()
        matches = np.where(prefix >= 0, counts[prefix], 0)
        repeats = np.maximum(matches, 1)
        left = np.repeat(np.arange(batch.num_rows), repeats)
        nth = np.arange(len(left)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        matched = matches[left] > 0
        right = np.where(matched, starts[prefix[left]] + nth, 0)
        picked = pa.array(right, mask=~matched)
        return self._widen(batch.take(pa.array(left)), target, rows, picked, pa.array(matched))

    def _widen(
        self,
        batch: pa.RecordBatch,
        target: pa.Schema,
        rows: pa.Table | None,
        positions: pa.Array,
        matched: pa.Array,
    ) -> pa.RecordBatch:
        if rows is None or not rows.num_rows:
            added = [pa.nulls(batch.num_rows, field.type) for field in target]
        else:
            found = conform(rows.combine_chunks().to_batches()[0], target)
            added = [column.take(positions) for column in found.columns]
        fields = [pa.field(name, field.type) for name, field in zip(self.new_names, target, strict=True)]
        joined = pa.RecordBatch.from_arrays(
            [*batch.columns, *added], schema=pa.schema([*batch.schema, *fields])
        )
        return joined.filter(matched) if self.matched_only else joined


_Part = tuple[float, KeySet, pa.Table, Any, pa.Table]
"""Time of the lookup, its keys as a set, its rows, found flags, and keys."""


class CachedLookups:
    """Cached lookups of a table, one cache per worker process, table and choice of columns.

    The threads of one task use it at a time; if two ask for the same key at once, both ask the server.
    """

    def __init__(
        self, table: Any, columns: Sequence[str], ttl_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._table = table
        self._columns = list(columns)
        self._ttl_s = ttl_s
        self._now = now
        self._held: list[_Part] = []

    def lookup(self, keys: pa.Table, columns: Sequence[str]) -> tuple[Any, pa.Table]:
        """Look keys up as the table does. `columns` are always those of the cache."""
        count = keys.num_rows
        now = self._now()
        fresh = [entry for entry in self._held if now - entry[0] < self._ttl_s]
        source = np.full(count, -1, np.int64)
        parts: list[tuple[Any, pa.Table]] = []
        base = 0
        for _, known, rows, found, _ in reversed(fresh):
            open_rows = np.flatnonzero(source < 0)
            if not len(open_rows):
                break
            positions = known.positions(keys.take(pa.array(open_rows)).combine_chunks())
            at = pc.fill_null(positions, -1).to_numpy()
            hits = at >= 0
            if hits.any():
                source[open_rows[hits]] = base + at[hits]
                parts.append((found, rows))
                base += rows.num_rows
        missing = np.flatnonzero(source < 0)
        if len(missing):
            asked = keys.take(pa.array(missing)).combine_chunks()
            found, rows = self._table.lookup(asked, columns=self._columns)
            source[missing] = base + np.arange(len(missing))
            parts.append((found, rows))
            self._remember(fresh, now, asked, rows, found)
        all_found = np.concatenate([np.asarray(found, bool) for found, _ in parts])
        all_rows = pa.concat_tables([rows for _, rows in parts]).combine_chunks()
        return all_found[source], all_rows.take(pa.array(source))

    def _remember(self, fresh: list[_Part], now: float, keys: pa.Table, rows: pa.Table, found: Any) -> None:
        held = sum(entry[2].num_rows for entry in fresh) + rows.num_rows
        kept = [] if held > CACHE_ROWS_MAX else fresh
        if len(kept) >= CACHE_PARTS_MAX:
            # The merged part is as old as its oldest part. For a repeated key the newer row is found, which comes
            # first.
            parts = [(keys, rows, found), *((entry[4], entry[2], entry[3]) for entry in reversed(kept))]
            keys = pa.concat_tables([part[0] for part in parts]).combine_chunks()
            rows = pa.concat_tables([part[1] for part in parts]).combine_chunks()
            found = np.concatenate([np.asarray(part[2], bool) for part in parts])
            now, kept = kept[0][0], []
        self._held = [*kept, (now, KeySet(keys, keys.column_names), rows, found, keys)]


_caches: dict[tuple[int, tuple[str, ...], float], CachedLookups] = {}


def _cached(table: Any, columns: tuple[str, ...], ttl_s: float) -> CachedLookups:
    """Return this process's cache: worker processes run many tasks and micro-batches."""
    key = (id(table), columns, ttl_s)
    found = _caches.get(key)
    if found is None:
        found = _caches[key] = CachedLookups(table, columns, ttl_s)
    return found


def distinct_keys(keys: pa.Table) -> tuple[pa.Table, pa.Array]:
    """Return the distinct keys without nulls, and for each row the position of its key (null: no such key)."""
    names = keys.column_names
    numbered = keys.append_column("_row", pa.array(np.arange(keys.num_rows)))
    groups = numbered.drop_null().group_by(names, use_threads=False).aggregate([("_row", "list")])
    rows_of_group = groups.column("_row_list").combine_chunks()
    positions = np.full(keys.num_rows, -1, np.int64)
    positions[rows_of_group.flatten().to_numpy()] = pc.list_parent_indices(rows_of_group).to_numpy()
    return groups.select(names), pa.array(positions, mask=positions < 0)
