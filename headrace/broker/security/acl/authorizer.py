"""The authorizer that uses ACLs: super users may do everything; `rules` decide for all other users.

Answers are cached per version: a request with a thousand topics asks the rules a thousand times at first, and never
again until an ACL changes. `changed` has to follow every change of the rules before anything else runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.security.acl.model import address
from headrace.broker.security.rights import EVERYTHING, ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from headrace.broker.security.acl.rules import AclRules
    from headrace.broker.security.principal import Session
    from headrace.broker.security.rights import Operation

ANSWERS_MAX, REMEMBERED_NAME_LENGTH_MAX = 50_000, 256
"""Maximum number of cached answers, of all principals together: 25 MB; beyond it the cache is cleared. Longer names,
which topics cannot have, are decided each time.
"""


class AclAuthorizer:
    """An Authorizer (`broker.security.rights`). `super_users` are texts as `User:ann`.

    `judged_as` returns the name of the topic whose ACLs apply to a topic: its own, unless an extension made the topic a
    part of another one.
    """

    is_open = False

    def __init__(
        self, rules: AclRules, super_users: Collection[str] = (), *, allow_without_acl: bool = False
    ) -> None:
        self.version = 1
        self.rules = rules
        self._super_users = frozenset(super_users)
        self._allow_without_acl = allow_without_acl
        self._answers: dict[tuple[str, str, str, int, str | None], bool] = {}
        self.judged_as: Callable[[str], str] | None = None

    def changed(self) -> None:
        """Note that the rules have changed."""
        self.version += 1
        self._answers.clear()

    def may(
        self, session: Session, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        principal = session.principal
        if resource_type is ResourceType.TOPIC and self.judged_as is not None:
            name = self.judged_as(name)
        key = (principal.type, principal.name, host, operation << 8 | resource_type, name)
        known = self._answers.get(key)
        if known is None:
            known = self._decide(str(principal), host, operation, resource_type, name)
            self._remember(key, known)
        return known

    def denies(
        self, session: Session, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        principal = str(session.principal)
        if principal in self._super_users:
            return False
        if resource_type is ResourceType.TOPIC and self.judged_as is not None:
            name = self.judged_as(name)
        return self.rules.denies(principal, address(host), operation, resource_type, name)

    def may_any(self, session: Session, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        principal = session.principal
        key = (principal.type, principal.name, host, operation << 8 | resource_type, None)
        known = self._answers.get(key)
        if known is None:
            known = str(principal) in self._super_users or self.rules.decide_any(
                str(principal),
                address(host),
                operation,
                resource_type,
                without_acl=self._allow_without_acl,
            )
            self._remember(key, known)
        return known

    def allowed(
        self, session: Session, host: str, operation: Operation, resource_type: ResourceType
    ) -> Iterable[tuple[str, bool]]:
        principal = str(session.principal)
        if self._allow_without_acl or principal in self._super_users:
            return EVERYTHING
        return self.rules.allowed(principal, address(host), operation, resource_type)

    def _decide(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> bool:
        if principal in self._super_users:
            return True
        said = self.rules.decide(principal, address(host), operation, resource_type, name)
        return self._allow_without_acl if said is None else said

    def _remember(self, key: tuple[str, str, str, int, str | None], answer: bool) -> None:
        if key[-1] is not None and len(key[-1]) > REMEMBERED_NAME_LENGTH_MAX:
            return
        if len(self._answers) >= ANSWERS_MAX:
            self._answers.clear()
        self._answers[key] = answer
