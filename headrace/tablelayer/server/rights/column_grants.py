"""Grants of single columns, for principals that may not read the whole table.

Kafka's ACLs know whole topics only. Column grants are beside them in the coordination store: a node for each table
under `/security/columns`, by column id. So a renamed column stays readable, and a column that is dropped and added
again is not. A grant adds to what ACLs allow; an ACL that denies READ overrides it. Changes are compare-and-set, and
take effect at once, also on open connections and scans.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.metadata.nodes import follow, modify

if TYPE_CHECKING:
    from headrace.broker.runtime.ports import CoordinationStore
    from headrace.broker.security.principal import Principal

ROOT = "/security/columns"
EVERYBODY = "User:*"

ByPrincipal = Mapping[str, frozenset[int]]


class ColumnGrants:
    def __init__(self) -> None:
        self._by_table: dict[UUID, ByPrincipal] = {}
        self._store: CoordinationStore
        self._changing = asyncio.Lock()

    async def load(self, store: CoordinationStore) -> None:
        """Read all grants. Call it once, before anything else."""
        self._store = store
        await self._read()

    async def run(self) -> None:
        """Follow other brokers' grants, until cancelled."""

        async def read() -> None:
            async with self._changing:
                await self._read()

        await follow(self._store, ROOT, read)

    async def _read(self) -> None:
        names = await self._store.children(ROOT)
        nodes = await self._store.get_many([f"{ROOT}/{name}" for name in names])
        self._by_table = {
            UUID(name): _decode(node.data)
            for name, node in zip(names, nodes, strict=True)
            if node is not None
        }

    def readable(self, principal: Principal, table_id: UUID) -> frozenset[int]:
        """Return the ids of the columns that are granted to the principal or to `User:*`."""
        granted = self._by_table.get(table_id)
        if granted is None:
            return frozenset()
        nothing: frozenset[int] = frozenset()
        return granted.get(str(principal), nothing) | granted.get(EVERYBODY, nothing)

    def of_table(self, table_id: UUID) -> ByPrincipal:
        return self._by_table.get(table_id, {})

    def tables(self) -> list[UUID]:
        """Return the tables with column grants."""
        return list(self._by_table)

    async def grant(self, table_id: UUID, principal: str, columns: Sequence[int]) -> None:
        """Add columns to a principal's grants."""
        async with self._changing:

            def granted(before: dict[str, frozenset[int]]) -> ByPrincipal:
                return {**before, principal: before.get(principal, frozenset()) | frozenset(columns)}

            await self._write(table_id, granted)

    async def revoke(self, table_id: UUID, principal: str, columns: Sequence[int] | None) -> frozenset[int]:
        """Remove some columns, or all (None), from a principal's grants. Return the removed ones."""
        async with self._changing:
            taken: frozenset[int] = frozenset()

            def left(before: dict[str, frozenset[int]]) -> ByPrincipal:
                nonlocal taken
                had = before.pop(principal, frozenset())
                taken = had if columns is None else had & frozenset(columns)
                return {**before, principal: had - taken} if had - taken else before

            await self._write(table_id, left)
            return taken

    async def forget(self, table_id: UUID) -> None:
        """Forget a dropped table."""
        async with self._changing:
            if table_id in self._by_table:
                await self._write(table_id, lambda _: {})

    async def _write(
        self, table_id: UUID, changed: Callable[[dict[str, frozenset[int]]], ByPrincipal]
    ) -> None:
        """Replace a table's grants in the store by the result of `changed` for them."""

        def written(data: bytes | None) -> bytes | None:
            granted = changed({} if data is None else dict(_decode(data)))
            return _encode(granted) if granted else None

        stored = await modify(self._store, f"{ROOT}/{table_id}", written, root=ROOT)
        if stored is None:
            self._by_table.pop(table_id, None)
        else:
            self._by_table[table_id] = _decode(stored)


def _encode(granted: ByPrincipal) -> bytes:
    return json.dumps({each: sorted(columns) for each, columns in sorted(granted.items())}).encode()


def _decode(data: bytes) -> ByPrincipal:
    return {each: frozenset(columns) for each, columns in json.loads(data).items()}
