"""Decisions of a set of ACLs, by the rules of Kafka's StandardAuthorizer.

- An ACL applies to a resource if its pattern is the resource's name, a prefix of it, or the literal `*`.
- An ACL applies to a client if its principal is the client's or `User:*`, and its host is the client's or `*`.
- An ACL that denies the operation, or ALL, takes precedence over all others.
- An ACL that allows it, or ALL, allows it. READ, WRITE, DELETE and ALTER also allow DESCRIBE; ALTER_CONFIGS also allows
  DESCRIBE_CONFIGS. A denied operation implies nothing.
- If ACLs of any principal apply to the resource and none allows the operation, it is refused. If no ACL applies to
  the resource, there is no answer.

A decision costs one look-up for the name, one for each length that prefixes of the type have, and one for `*`; then
only the ACLs of the principal are compared. Pure; nothing is cached between decisions.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from typing import Final

from headrace.broker.runtime.slices import Work
from headrace.broker.security.acl.model import EVERYBODY, WILDCARD, Acl, AclFilter, PatternType, Permission
from headrace.broker.security.rights import Operation

_NOBODYS_NAME: Final = "\0"
_ALL: Final = int(Operation.ALL)
_GRANTING: Final[dict[int, frozenset[int]]] = {
    int(operation): frozenset({_ALL, int(operation)}) for operation in Operation
}
_GRANTING[Operation.DESCRIBE] |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
_GRANTING[Operation.DESCRIBE_CONFIGS] |= {Operation.ALTER_CONFIGS}
"""The operations whose permission also allows an operation."""


_Entries = dict[str, dict[Acl, None]]  # by principal, in the order they were added


class _Patterns:
    """Patterns of one resource type."""

    __slots__ = ("lengths", "literal", "of_principal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _Entries] = {}
        self.prefixed: dict[str, _Entries] = {}
        self.lengths: list[int] = []  # the lengths of the prefixes, each once, ascending
        self.of_principal: dict[str, dict[Acl, None]] = {}

    def about(self, name: str) -> Iterator[_Entries]:
        literal, prefixed = self.literal, self.prefixed
        if (found := literal.get(name)) is not None:
            yield found
        size = len(name)
        for length in self.lengths:
            if length > size:
                break
            if (found := prefixed.get(name[:length])) is not None:
                yield found
        if name != WILDCARD and (found := literal.get(WILDCARD)) is not None:
            yield found

    def named(self, pattern_type: int) -> dict[str, _Entries]:
        return self.prefixed if pattern_type == PatternType.PREFIXED else self.literal

    def probes(self, principal: str) -> Iterator[str]:
        """Yield a name that no pattern but `*` matches, then one name under each pattern of the principal's ACLs."""
        yield _NOBODYS_NAME
        for whose in (principal, EVERYBODY):
            for acl in self.of_principal.get(whose, ()):
                yield acl.name + (_NOBODYS_NAME if acl.pattern_type == PatternType.PREFIXED else "")


class AclRules:
    """A set of ACLs and its decisions. An ACL is in it once, however often it is added."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._acls: dict[Acl, None] = {}
        self._types: dict[int, _Patterns] = {}
        for acl in acls:
            self.add(acl)

    def __len__(self) -> int:
        return len(self._acls)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._acls

    def __iter__(self) -> Iterator[Acl]:
        return iter(tuple(self._acls))

    def add(self, acl: Acl) -> None:
        if acl in self._acls:
            return
        self._acls[acl] = None
        patterns = self._types.setdefault(acl.resource_type, _Patterns())
        if acl.pattern_type == PatternType.PREFIXED and len(acl.name) not in patterns.lengths:
            insort(patterns.lengths, len(acl.name))
        entries = patterns.named(acl.pattern_type).setdefault(acl.name, {})
        entries.setdefault(acl.principal, {})[acl] = None
        patterns.of_principal.setdefault(acl.principal, {})[acl] = None

    def remove(self, acl: Acl) -> None:
        """Remove an ACL, if it exists."""
        if acl not in self._acls:
            return
        del self._acls[acl]
        patterns = self._types[acl.resource_type]
        named = patterns.named(acl.pattern_type)
        entries = named[acl.name]
        _discard(entries, acl.principal, acl)
        _discard(patterns.of_principal, acl.principal, acl)
        if not entries:
            del named[acl.name]
            if acl.pattern_type == PatternType.PREFIXED:
                patterns.lengths = sorted({len(prefix) for prefix in named})

    def of_pattern(self, resource_type: int, pattern_type: int, name: str) -> list[Acl]:
        patterns = self._types.get(resource_type)
        entries = {} if patterns is None else patterns.named(pattern_type).get(name, {})
        return [acl for acls in entries.values() for acl in acls]

    def matching(self, wanted: AclFilter) -> Work[list[Acl]]:
        """Return the ACLs that match a filter, in the order in which they were added."""
        found = []
        for acl in tuple(self._acls):
            yield
            if wanted.matches(acl):
                found.append(acl)
        return found

    def decide(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> bool | None:
        """Return whether `principal` (`Type:name`) at `host` may do the operation; None when no ACL applies to the
        resource.
        """
        patterns = self._types.get(resource_type)
        if patterns is None:
            return None
        about = allowed = False
        granting = _GRANTING[operation]
        for entries in patterns.about(name):
            about = True
            for whose in (principal, EVERYBODY):
                for acl in entries.get(whose, ()):
                    if acl.host not in (WILDCARD, host):
                        continue
                    if acl.permission == Permission.ALLOW:
                        allowed = allowed or acl.operation in granting
                    elif acl.operation in (_ALL, operation):
                        return False
        return allowed if about else None

    def denies(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> bool:
        """Return whether an ACL denies it."""
        patterns = self._types.get(resource_type)
        return patterns is not None and any(
            acl.permission == Permission.DENY
            and acl.host in (WILDCARD, host)
            and acl.operation in (_ALL, operation)
            for entries in patterns.about(name)
            for whose in (principal, EVERYBODY)
            for acl in entries.get(whose, ())
        )

    def allowed(
        self, principal: str, host: str, operation: int, resource_type: int
    ) -> Iterable[tuple[str, bool]]:
        """Return the names (False) and prefixes of names (True) that ACLs allow the principal; "" is the prefix of all
        names. Denials are not taken into account. The ACLs of the principal are read once.
        """
        patterns = self._types.get(resource_type)
        granting = _GRANTING[operation]
        found: dict[tuple[str, bool], None] = {}
        if patterns is None:
            return found
        for whose in (principal, EVERYBODY):
            for acl in patterns.of_principal.get(whose, ()):
                if (
                    acl.permission == Permission.ALLOW
                    and acl.operation in granting
                    and acl.host in (WILDCARD, host)
                ):
                    is_all = acl.pattern_type == PatternType.LITERAL and acl.name == WILDCARD
                    is_prefix = is_all or acl.pattern_type == PatternType.PREFIXED
                    found["" if is_all else acl.name, is_prefix] = None
        return found

    def decide_any(
        self, principal: str, host: str, operation: int, resource_type: int, *, without_acl: bool
    ) -> bool:
        """Return whether some resource of the type may exist for which the answer is yes (KIP-679).

        `without_acl` is the answer for a resource that no ACL applies to.
        """
        patterns = self._types.get(resource_type)
        if patterns is None:
            return without_acl
        for name in patterns.probes(principal):
            said = self.decide(principal, host, operation, resource_type, name)
            if without_acl if said is None else said:
                return True
        return False


def _discard(acls: dict[str, dict[Acl, None]], principal: str, acl: Acl) -> None:
    del acls[principal][acl]
    if not acls[principal]:
        del acls[principal]
