"""Store of the ACLs: in the coordination store, under `/security/acls`, one node for each pattern.

A change that is overtaken by another one reads its result and decides again. So does a change with an unknown outcome,
because adding an existing ACL and removing a missing one change nothing. `security/followed.py` describes how changes
are told apart.

Survives a kill at any time: a change is on disk before it is answered. Even before the answer it applies to all
connections (`changed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from headrace.broker.runtime.ports import CreateNode, DeleteNode, SetNode, StoreOperation
from headrace.broker.security.acl.model import Acl, AclFilter
from headrace.broker.security.followed import OVERTAKEN, Followed
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.runtime.ports import CoordinationStore
    from headrace.broker.runtime.slices import Slices, Work
    from headrace.broker.security.acl.rules import AclRules

ROOT: Final = "/security/acls"
ACLS_MAX: Final = 100_000
"""Some 50 MB; Kafka's own advice ends at a tenth of it."""
CHANGED_TOGETHER_MAX: Final = 10_000
"""Maximum number of ACLs that one request may create or delete, as in Kafka."""
_ATTEMPTS: Final = 10

_Pattern = tuple[int, int, str]


class AclStore(Followed):
    """Keeps `rules` equal to the store. `changed` is called after each change of them."""

    def __init__(
        self, store: CoordinationStore, rules: AclRules, changed: Callable[[], None], slices: Slices
    ) -> None:
        super().__init__(store, ROOT)
        self.rules = rules
        self._changed = changed
        self._slices = slices
        self._nodes: dict[_Pattern, int] = {}  # the versions of the patterns' nodes

    async def create(self, acls: Sequence[Acl]) -> None:
        """Add ACLs, which are `checked`, all or none. Raises KafkaError."""
        if len(acls) > CHANGED_TOGETHER_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{len(acls)} ACLs in one request; the maximum is {CHANGED_TOGETHER_MAX}",
            )
        async with self._change:
            for _ in range(_ATTEMPTS):
                new = [acl for acl in dict.fromkeys(acls) if acl not in self.rules]
                if not new:
                    return
                if len(self.rules) + len(new) > ACLS_MAX:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        f"there would be more than {ACLS_MAX} ACLs; use prefixed patterns or delete some",
                    )
                if await self._written(new, ()):
                    return
        raise _contended()

    async def delete(self, filters: Sequence[AclFilter]) -> list[list[Acl]]:
        """Remove the ACLs that match the filters; return the removed ones of each filter. Raises KafkaError."""
        async with self._change:
            for _ in range(_ATTEMPTS):
                found = await self._slices.run(self._found(filters))
                gone = list(dict.fromkeys(acl for acls in found for acl in acls))
                if not gone or await self._written((), gone):
                    return found
        raise _contended()

    def _found(self, filters: Sequence[AclFilter]) -> Work[list[list[Acl]]]:
        found, count = [], 0
        for wanted in filters:
            yield
            found.append((yield from self.rules.matching(wanted)))
            count += len(found[-1])
            if count > CHANGED_TOGETHER_MAX:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Cannot remove more than {CHANGED_TOGETHER_MAX} acls in a single delete operation.",
                )
        return found

    async def _written(self, new: Sequence[Acl], gone: Sequence[Acl]) -> bool:
        """Return whether the change is in the store and in the rules. If not, the rules are what the store has now."""
        try:
            await self._store.transact(await self._slices.run(self._operations(new, gone)))
        except OVERTAKEN as refusal:
            await self._read_after(refusal)
            return False
        await self._apply(new, gone)
        for pattern in {_pattern(acl) for acl in (*new, *gone)}:
            if self.rules.of_pattern(*pattern):
                self._nodes[pattern] = self._nodes.get(pattern, -1) + 1
            else:
                del self._nodes[pattern]
        self._version += 1
        return True

    def _operations(self, new: Sequence[Acl], gone: Sequence[Acl]) -> Work[list[StoreOperation]]:
        operations = [self._counted()]
        left = set(gone)
        changed: dict[_Pattern, list[Acl]] = {}
        for acl in (*new, *gone):
            yield
            changed[_pattern(acl)] = []
        for acl in new:
            yield
            changed[_pattern(acl)].append(acl)
        for pattern, added in changed.items():
            yield
            acls = [acl for acl in self.rules.of_pattern(*pattern) if acl not in left] + added
            path = _path(pattern)
            version = self._nodes.get(pattern)
            if version is None:
                operations.append(CreateNode(path, _encode(acls)))
            elif acls:
                operations.append(SetNode(path, _encode(acls), version))
            else:
                operations.append(DeleteNode(path, version))
        return operations

    async def _apply(self, new: Iterable[Acl], gone: Iterable[Acl]) -> None:
        """Add denials first and remove them last: in between, no client may do more than before or after."""
        pace = self._slices.pace()
        for acl in sorted(new, key=_permission):
            self.rules.add(acl)
            self._changed()
            await pace.rest()
        for acl in sorted(gone, key=_permission, reverse=True):
            self.rules.remove(acl)
            self._changed()
            await pace.rest()

    async def _read(self) -> None:
        """Make the rules equal to the store. Read again while another broker changes it."""
        pace = self._slices.pace()
        while (root := await self._store.get(ROOT)) is not None and root.version != self._version:
            stored: dict[Acl, None] = {}
            nodes: dict[_Pattern, int] = {}
            for name in await self._store.children(ROOT):
                node = await self._store.get(f"{ROOT}/{name}")
                if node is None:
                    continue
                for acl in _decode(node.data):
                    stored[acl] = None
                    nodes[_pattern(acl)] = node.version
                    await pace.rest()
            after = await self._store.get(ROOT)
            if after is None or after.version != root.version:
                continue
            new = [acl for acl in stored if acl not in self.rules]
            await self._apply(new, [acl for acl in self.rules if acl not in stored])
            self._nodes = nodes
            self._version = root.version


def _pattern(acl: Acl) -> _Pattern:
    return acl.resource_type, acl.pattern_type, acl.name


def _permission(acl: Acl) -> int:
    return acl.permission


def _path(pattern: _Pattern) -> str:
    resource_type, pattern_type, name = pattern
    return f"{ROOT}/{resource_type}:{pattern_type}:{quote(name, safe='')}"


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[Acl]).decode


def _contended() -> KafkaError:
    return KafkaError(
        ErrorCode.REQUEST_TIMED_OUT, f"other changes of ACLs came first {_ATTEMPTS} times; try again"
    )
