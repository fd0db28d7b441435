"""Store of the limits: in the coordination store, under `/security/quotas`, one node for each entity.

A change that is overtaken by another one reads its result and decides again. `security/followed.py` describes how
changes are told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from headrace.broker.runtime.ports import CreateNode, DeleteNode, SetNode, StoreOperation
from headrace.broker.security.followed import OVERTAKEN, Followed
from headrace.broker.security.quotas.model import Entity, Limits, Quota
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.runtime.ports import CoordinationStore
    from headrace.broker.security.quotas.quotas import Quotas

ROOT: Final = "/security/quotas"
ENTITIES_MAX: Final = 10_000
_ATTEMPTS: Final = 10


class _Kept(msgspec.Struct):
    entity: Entity
    limits: dict[Quota, float]


class QuotaStore(Followed):
    """Keeps `quotas` equal to the store."""

    def __init__(self, store: CoordinationStore, quotas: Quotas) -> None:
        super().__init__(store, ROOT)
        self.quotas = quotas
        self._nodes: dict[Entity, int] = {}

    async def alter(self, entity: Entity, change: Callable[[Limits], dict[Quota, float]]) -> None:
        """Replace the limits of an entity by the result of `change` for them. Raises KafkaError."""
        async with self._change:
            for _ in range(_ATTEMPTS):
                await self._read()  # another broker may have changed the limits that this change begins with
                before = self.quotas.limits.get(entity, {})
                after = change(before)
                if after == before:
                    return
                if entity not in self._nodes and len(self._nodes) >= ENTITIES_MAX:
                    raise KafkaError(
                        ErrorCode.POLICY_VIOLATION,
                        f"there would be quotas of more than {ENTITIES_MAX} entities",
                    )
                if await self._written(entity, after):
                    return
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "other changes of quotas came first; try again")

    async def _written(self, entity: Entity, limits: dict[Quota, float]) -> bool:
        path, version = _path(entity), self._nodes.get(entity)
        data = msgspec.json.encode(_Kept(entity, limits))
        node: StoreOperation
        if version is None:
            node = CreateNode(path, data)
        elif limits:
            node = SetNode(path, data, version)
        else:
            node = DeleteNode(path, version)
        try:
            await self._store.transact([self._counted(), node])
        except OVERTAKEN as refusal:
            await self._read_after(refusal)
            return False
        self._version += 1
        if limits:
            self._nodes[entity] = 0 if version is None else version + 1
        else:
            del self._nodes[entity]
        self.quotas.set(entity, limits)
        return True

    async def _read(self) -> None:
        """Make the quotas equal to the store. Read again while another broker changes it."""
        while (root := await self._store.get(ROOT)) is not None and root.version != self._version:
            found: dict[Entity, Limits] = {}
            nodes: dict[Entity, int] = {}
            for name in await self._store.children(ROOT):
                node = await self._store.get(f"{ROOT}/{name}")
                if node is not None:
                    kept = msgspec.json.decode(node.data, type=_Kept)
                    found[kept.entity] = kept.limits
                    nodes[kept.entity] = node.version
            after = await self._store.get(ROOT)
            if after is not None and after.version == root.version:
                self.quotas.replace(found)
                self._nodes = nodes
                self._version = root.version


def _path(entity: Entity) -> str:
    named = [f"{kind}={quote(name, safe='') if name else '<default>'}" for kind, name in entity.pairs()]
    return f"{ROOT}/{','.join(named)}"
