"""Incremental fetch sessions (KIP-227): the broker's memory of a consumer between its fetches.

A session is a list of partitions with the last request and the last answer of each. The first fetch (session epoch 0)
names all partitions and gets a session id; later ones name only changes, and get only changes: records, an error,
another high watermark or log start.

    epoch    id    what happens
    0        any   the session of that id ends; the answer to this fetch begins another, if there is room
    -1       any   the session of that id ends; no other begins
    n > 0    known its next fetch if n is the epoch expected, else INVALID_FETCH_SESSION_EPOCH
    n > 0    other FETCH_SESSION_ID_NOT_FOUND

Invariants
- The epoch advances when a fetch is accepted, so a repeated request is refused. It goes from 2^31-1 back to 1.
- A session names topics always by name or always by id; the other way is FETCH_SESSION_TOPIC_ID_ERROR.
- A partition that gave records goes to the end of the list, so that full partitions take turns.
- All sessions together hold at most PARTITIONS_MAX partitions: a session that would exceed it ends, and its client
  begins again without one.
- There are at most `slots` sessions. When all are taken, a session unused for `eviction_seconds` is evicted, or else a
  smaller one that is older than that. Otherwise no session begins, and the client goes on with full requests.

Pure: times (monotonic seconds) and the source of random ids are arguments. Sessions do not survive a restart; clients
then begin again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar
from uuid import UUID

from headrace.broker.runtime.slices import Work
from headrace.broker.security.principal import Principal
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

NO_SESSION = 0
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
FIRST_VERSION_WITH_IDS = 13
EVICTION_SECONDS = 120.0  # Kafka's, not configurable there either
PARTITIONS_MAX = 500_000
"""Maximum number of partitions of all sessions together, some 200 MB; Kafka has no such limit."""
_EPOCH_MAX = 2**31 - 1

Key = tuple[str | UUID, int]
Rights = tuple[int, Principal, str, bool]
"""Version of the authorizer, principal, host, and whether a follower asks."""


class SessionPartition:
    """A partition of a fetch. `request` is its last request; `told_*` is its last answer."""

    __slots__ = ("request", "told_high_watermark", "told_log_start", "topic")

    def __init__(self, topic: FetchTopic, request: FetchPartition) -> None:
        self.topic = topic
        self.request = request
        self.told_high_watermark = -1
        self.told_log_start = -1

    def must_tell(self, answer: PartitionData, size: int) -> bool:
        """Return whether an incremental answer must contain `answer` (with `size` bytes of records); if so, note it."""
        changed = (
            size > 0
            or answer.high_watermark != self.told_high_watermark
            or answer.log_start_offset != self.told_log_start
            or answer.error_code != 0
            or answer.diverging_epoch is not None
            or answer.preferred_read_replica >= 0
        )
        self.note(answer)
        return changed

    def note(self, answer: PartitionData) -> None:
        """Note that the client receives `answer`. After an error, any next answer counts as changed."""
        self.told_high_watermark = -1 if answer.error_code else answer.high_watermark
        self.told_log_start = answer.log_start_offset


Entry = TypeVar("Entry", bound=SessionPartition)


class FetchSession(Generic[Entry]):
    """One session. `epoch` is the one that its next request must carry."""

    __slots__ = (
        "by_id",
        "counted",
        "created",
        "epoch",
        "last_used",
        "partitions",
        "rank",
        "rights",
        "session_id",
        "topics",
    )

    def __init__(self, session_id: int, by_id: bool, now: float) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.created = self.last_used = now
        self.epoch = 1
        self.partitions: dict[Key, Entry] = {}
        self.topics: dict[str | UUID, FetchTopic] = {}
        self.rank: tuple[int, int] | None = None  # its place among those that may be evicted
        self.rights: Rights | None = None  # the rights by which its partitions were looked up
        self.counted = 0  # the number of its partitions that is in the total of all sessions

    def fill(self, entries: Iterable[Entry]) -> Work[None]:
        for entry in entries:
            yield
            name = _name(entry.topic, self.by_id)
            self.topics.setdefault(name, entry.topic)
            self.partitions[name, entry.request.partition] = entry

    def update(
        self,
        topics: Iterable[FetchTopic],
        forgotten: Iterable[ForgottenTopic],
        make: Callable[[FetchTopic, FetchPartition], Entry],
    ) -> Work[None]:
        partitions = self.partitions
        for topic in topics:
            name = _name(topic, self.by_id)
            yield
            for request in topic.partitions:
                yield
                entry = partitions.get((name, request.partition))
                if entry is not None:
                    entry.request = request
                    continue
                known = self.topics.get(name)
                if known is None:
                    known = self.topics[name] = FetchTopic(topic=topic.topic, topic_id=topic.topic_id)
                partitions[name, request.partition] = make(known, request)
        for gone in forgotten:
            name = _name(gone, self.by_id)
            yield
            for index in gone.partitions:
                yield
                partitions.pop((name, index), None)
        if len(self.topics) > 2 * len(partitions) + 16:
            used = {name for name, _ in partitions}
            self.topics = {name: topic for name, topic in self.topics.items() if name in used}

    def changes(self, answers: Iterable[tuple[Entry, PartitionData, int]]) -> Work[list[Entry]]:
        """Return the entries that the client must be told, from (entry, answer, bytes of records)."""
        told = []
        for entry, answer, size in answers:
            yield
            if not entry.must_tell(answer, size):
                continue
            told.append(entry)
            if size > 0:
                key = (_name(entry.topic, self.by_id), entry.request.partition)
                if self.partitions.get(key) is entry:
                    self.partitions[key] = self.partitions.pop(key)
        return told


class FetchSessions(Generic[Entry]):
    """All sessions of a broker. `random` returns a number in [0, 1), for ids that cannot be guessed."""

    def __init__(
        self, slots: int, random: Callable[[], float], *, eviction_seconds: float = EVICTION_SECONDS
    ) -> None:
        self._slots = slots
        self._random = random
        self._eviction_seconds = eviction_seconds
        self._sessions: OrderedDict[int, FetchSession[Entry]] = OrderedDict()  # the least recently used first
        self.partition_count = 0
        self._evictable: list[tuple[int, int]] = []  # (partitions, id) of those that have lived long enough

    def __len__(self) -> int:
        return len(self._sessions)

    def end(self, session_id: int) -> None:
        """Forget a session; no error if there is none."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= session.counted
            self._unrank(session)

    def begin(self, entries: list[Entry], *, by_id: bool, now: float) -> Work[int]:
        """Remember a full fetch. Return the id of its session, or NO_SESSION when there is no room."""
        if not entries or self.partition_count + len(entries) > PARTITIONS_MAX:
            return NO_SESSION
        session: FetchSession[Entry] = FetchSession(NO_SESSION, by_id, now)
        yield from session.fill(entries)
        if self.partition_count + len(session.partitions) > PARTITIONS_MAX:  # others began meanwhile
            return NO_SESSION
        if len(self._sessions) >= self._slots and not self._make_room(len(entries), now):
            return NO_SESSION
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = int(self._random() * _EPOCH_MAX)
        session.session_id, self._sessions[session_id] = session_id, session
        self._count(session)
        return session_id

    def resume(
        self,
        request: FetchRequest,
        version: int,
        now: float,
        make: Callable[[FetchTopic, FetchPartition], Entry],
    ) -> Work[FetchSession[Entry] | None]:
        """Take the next fetch of a session; None if it leaves no partition, which ends the session.

        Raises KafkaError: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR. The
        session is unchanged then.
        """
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {request.session_id} does not exist"
            )
        if session.epoch != request.session_epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {session.session_id} is at epoch {session.epoch}, not {request.session_epoch}",
            )
        if session.by_id != (version >= FIRST_VERSION_WITH_IDS):
            raise KafkaError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                f"fetch session {session.session_id} names topics by {'id' if session.by_id else 'name'}",
            )
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.last_used = now
        self._sessions.move_to_end(session.session_id)
        yield from session.update(request.topics, request.forgotten_topics_data, make)
        if self._sessions.get(session.session_id) is not session:
            raise KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {session.session_id} has ended"
            )
        self._count(session)
        if self.partition_count > PARTITIONS_MAX:
            self.end(session.session_id)
            raise KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                f"fetch session {session.session_id} ended: all sessions together hold "
                f"at most {PARTITIONS_MAX} partitions",
            )
        if not session.partitions:
            self.end(session.session_id)
            return None
        self._rank(session, now)
        return session

    def _count(self, session: FetchSession[Entry]) -> None:
        self.partition_count += len(session.partitions) - session.counted
        session.counted = len(session.partitions)

    # -- room for new ones ---------------------------------------------------------------------------------

    def _make_room(self, size: int, now: float) -> bool:
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now - oldest.last_used > self._eviction_seconds:
            self.end(oldest.session_id)
            return True
        if self._evictable and size > self._evictable[0][0]:
            self.end(self._evictable[0][1])
            return True
        return False

    def _rank(self, session: FetchSession[Entry], now: float) -> None:
        if now - session.created <= self._eviction_seconds:
            return
        rank = (len(session.partitions), session.session_id)
        if rank != session.rank:
            self._unrank(session)
            session.rank = rank
            insort(self._evictable, rank)

    def _unrank(self, session: FetchSession[Entry]) -> None:
        if session.rank is not None:
            del self._evictable[bisect_left(self._evictable, session.rank)]
            session.rank = None


def _name(topic: FetchTopic | ForgottenTopic, by_id: bool) -> str | UUID:
    return topic.topic_id if by_id else topic.topic
