"""Rights of a fetch: which topics its client may read, and whether that has changed since it was checked."""

from __future__ import annotations

from typing import Any, Final

from headrace.broker.api.fetch_sessions import FIRST_VERSION_WITH_IDS, FetchSession, Rights
from headrace.broker.requests.declaration import RequestContext
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.fetch import FetchRequest

_COMPARING: Final = -2
"""The replica id of kafka-replica-verification, which reads from all replicas."""


class FetchRights:
    """The rights of one fetch. Its session remembers those by which partitions were checked last."""

    __slots__ = ("_checked", "_context", "_session", "by_id", "is_follower", "reads_replicas")

    def __init__(
        self, context: RequestContext, request: FetchRequest, session: FetchSession[Any] | None
    ) -> None:
        self.by_id = context.api_version >= FIRST_VERSION_WITH_IDS
        self.is_follower = is_follower(request)
        self.reads_replicas = bool(request.rack_id) or _replica_id(request) == _COMPARING
        """Whether the client may be served by a replica that does not lead."""
        self._context = context
        self._session = session
        self._checked: Rights | None = None if session is None else session.rights

    @property
    def is_checked(self) -> bool:
        """Return whether the rights to the partitions are still those that were checked."""
        return self._context.authorizer.is_open or self._checked == self._now()

    def check(self) -> None:
        """Note the present rights as those by which partitions are checked."""
        self._checked = self._now()
        if self._session is not None:
            self._session.rights = self._checked

    def _now(self) -> Rights:
        context = self._context
        return context.authorizer.version, context.principal, context.client_host, self.is_follower

    def may_read(self, topic: str) -> bool:
        """Return whether the topic may be read. A follower that belongs to the cluster may read all."""
        if self.is_follower:
            return self._context.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        return self._context.may(Operation.READ, ResourceType.TOPIC, topic)

    def code_of_denied(self, topic: str) -> ErrorCode:
        """Return the error of a denied topic. Without DESCRIBE, its id is answered as an unknown one."""
        if self.by_id and not self._context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic, audited=False):
            return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED


def is_follower(request: FetchRequest) -> bool:
    """Return whether a broker asks, for its replicas."""
    return _replica_id(request) >= 0


def _replica_id(request: FetchRequest) -> int:
    state = request.replica_state
    return request.replica_id if state is None else state.replica_id
