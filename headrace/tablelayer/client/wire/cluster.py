"""The brokers as the client sees them: addresses, leaders of partitions, and connections.

Routes come from Kafka's own Metadata request for topic `db.t` (bucket i is partition i) and are a cache. They are
dropped when an answer or a lost connection says that they are stale, and loaded again at the next use. A connection
belongs to a broker and a *channel*. Requests that the server may hold back (scans, writes) have channels of their own,
because a broker answers the requests of one connection in order.

All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from headrace.protocol.schema import ApiMessage
from headrace.tablelayer.client.config import ClientConfig
from headrace.tablelayer.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    SettingsError,
)
from headrace.tablelayer.client.metrics import Counters
from headrace.tablelayer.client.security.access import access_of
from headrace.tablelayer.client.security.settings import Bootstrap, ConnectionSettings
from headrace.tablelayer.client.wire.connection import BrokerConnection
from headrace.tablelayer.client.wire.retry import Deadline, error_of, retrying
from headrace.tablelayer.client.wire.silence import SILENCE_SECONDS, Address, Watch

ResponseT = TypeVar("ResponseT", bound=ApiMessage)

CONTROL = "control"
DEFAULT_PORT = 9092
AVOIDED_SECONDS = 5.0
"""Time for which other brokers are preferred to one that did not answer."""
METADATA_PATIENCE_MS = 2_000
"""Timeout of a Metadata request if there are other brokers to ask. It doubles after each that did not answer."""
GONE = "it does not answer, and another broker says that it no longer belongs to the cluster"
TURNED_AWAY_MAX = 3
"""Connections in a row that were closed at the first request before a missing SASL configuration is suspected."""


class NotAtOnce(BaseException):
    """A read cannot be done without waiting. A BaseException, so that it is not taken for an error of the server."""


@dataclass(slots=True)
class TopicRoutes:
    """The leaders of a topic's partitions: broker ids by partition, -1 while there is no leader."""

    leaders: dict[int, int]
    loaded_at: float
    in_sync: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The in-sync replicas by partition, including the leader."""
    told_by: Address | None = None


@dataclass(slots=True)
class _Slot:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: BrokerConnection | None = None
    opening: asyncio.Task[BrokerConnection] | None = None
    opening_since: float = 0.0

    def silent_seconds(self, now: float) -> float | None:
        """Return the seconds without an answer; None if nothing is awaited."""
        if self.opening is not None:
            return now - self.opening_since
        connection = self.connection
        if connection is None or connection.is_closed or not connection.in_flight:
            return None
        return connection.silent_seconds(now)


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """Parse `"host:port,host:port"`. The port defaults to 9092. Raises SettingsError for anything else."""
    addresses = []
    for part in text.split(","):
        part = part.strip()
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, str(DEFAULT_PORT)
        host = host.strip("[]")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise SettingsError(
                f"{part!r} is not a server address: give host:port, for example 127.0.0.1:9092"
            )
        addresses.append((host, int(port)))
    return addresses


class Cluster:
    """Connections to the brokers and routes to partitions. `close` ends all connections."""

    waits = True
    """Whether requests may wait in an event loop."""

    def __init__(self, bootstrap: Bootstrap, config: ClientConfig) -> None:
        """Raises SettingsError for a malformed address or wrong properties."""
        settings = ConnectionSettings.make(bootstrap)
        self.config = config
        self.counters = Counters()
        self._bootstrap = parse_bootstrap(settings.bootstrap)
        self._access = access_of(settings)
        self._turned_away = 0
        self._brokers: dict[int, tuple[str, int]] = {}
        self._racks: dict[int, str] = {}
        self._numbers: dict[Address, int] = {}
        """Broker ids of all addresses that were ever seen."""
        self._gone_until: dict[Address, float] = {}
        """Time until which a broker that left the cluster, as another one said, is not connected to."""
        self._watch = Watch(self._waited_for, self._gone, self._give_up)
        self._avoided: dict[Address, float] = {}
        """Time until which other brokers are preferred: no connection could be made there, or its metadata was wrong. A
        broker that is cut off from the others keeps answering with old metadata.
        """
        self._told_by: Address | None = None
        """The broker that the last metadata came from."""
        self._asked_last: Address | None = None
        self._silent: dict[int, float] = {}
        """Time until which other brokers are asked before these."""
        self._spread = random.randrange(1 << 16)
        self._controller: int | None = None
        self._routes: dict[str, TopicRoutes] = {}
        self._slots: dict[tuple[tuple[str, int], str], _Slot] = {}
        self._refreshing: dict[str, asyncio.Task[TopicRoutes]] = {}
        self._closed = False

    async def connect(self) -> None:
        """Connect, with one attempt per bootstrap address. Raises ConnectionFailed if none answers."""
        await self._any_connection()

    def close(self) -> None:
        self._closed = True
        self._watch.end()
        for task in self._refreshing.values():
            task.cancel()
        for slot in self._slots.values():
            if slot.connection is not None:
                slot.connection.close()

    async def connection(self, node_id: int | None, channel: str = CONTROL) -> BrokerConnection:
        """Return an open connection to a broker (None: any broker), and make it if needed.

        One attempt: raises ConnectionFailed.
        """
        self._watch.begin()
        if node_id is None:
            return await self._any_connection(channel)
        address = self._brokers.get(node_id)
        if address is None:
            raise ConnectionFailed(f"broker {node_id} is unknown, or no longer in the cluster")
        return await self._open(address, channel)

    async def _any_connection(self, channel: str = CONTROL) -> BrokerConnection:
        addresses = self._addresses
        if len(addresses) > 1:
            doubts = self._doubts()
            addresses.sort(key=lambda address: doubts.get(address, 0.0))
        else:
            doubts = {}
        for address in addresses:
            slot = self._slots.get((address, channel))
            is_open = slot is not None and slot.connection is not None and not slot.connection.is_closed
            if is_open and address not in doubts:
                assert slot is not None
                assert slot.connection is not None
                return slot.connection
        failures: list[ConnectionFailed] = []
        for address in addresses:
            try:
                return await self._open(address, channel)
            except ConnectionFailed as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        raise ConnectionFailed("; ".join(str(failure) for failure in failures))

    @property
    def _addresses(self) -> list[Address]:
        return list(dict.fromkeys([*self._brokers.values(), *self._bootstrap]))

    async def _open(self, address: tuple[str, int], channel: str) -> BrokerConnection:
        slot = self._slots.setdefault((address, channel), _Slot())
        async with slot.lock:
            if self._closed:
                raise ConnectionClosed("the connection is closed")
            if slot.connection is None or slot.connection.is_closed:
                slot.connection = await self._opened(address, slot)
            return slot.connection

    async def _opened(self, address: Address, slot: _Slot) -> BrokerConnection:
        is_gone = f"{address[0]}:{address[1]}: {GONE}"
        if monotonic() < self._gone_until.get(address, 0.0):
            raise ConnectionFailed(is_gone)
        slot.opening_since = asyncio.get_running_loop().time()
        opening = slot.opening = asyncio.create_task(
            BrokerConnection.open(
                *address,
                client_id=self.config.client_id,
                connect_timeout_ms=self.config.connect_timeout_ms,
                request_timeout_ms=self.config.request_timeout_ms,
                counters=self.counters,
                access=self._access,
                is_told=address not in self._bootstrap,
            )
        )
        try:
            return await opening
        except asyncio.CancelledError:
            if slot.opening is None:
                raise ConnectionFailed(is_gone) from None
            raise
        finally:
            slot.opening = None
            if opening.cancelled() or (opening.done() and opening.exception() is not None):
                self._avoided[address] = monotonic() + AVOIDED_SECONDS

    # -- brokers that do not answer

    def _doubts(self) -> dict[Address, float]:
        """Return the brokers to ask last for what any broker can answer; a greater number is asked later."""
        now = monotonic()
        found = {address: until for address, until in self._avoided.items() if until > now}
        silent = (each for each, seconds in self._waited_for().items() if seconds >= SILENCE_SECONDS)
        return found | dict.fromkeys(silent, math.inf)

    def _waited_for(self) -> dict[Address, float]:
        now, found = asyncio.get_running_loop().time(), dict[Address, float]()
        for (address, _), slot in self._slots.items():
            seconds = slot.silent_seconds(now)
            if seconds is not None:
                found[address] = max(seconds, found.get(address, 0.0))
        return found

    async def _gone(self, silent: set[Address]) -> set[Address]:
        """Return the silent brokers that another broker no longer counts to the cluster. Others are asked in turn."""
        doubtful = {address for address in silent if address in self._numbers}
        known = dict.fromkeys([*self._addresses, *self._numbers])
        others = [address for address in known if address not in silent]
        if not doubtful or not others:
            return set()
        if self._asked_last in others:
            others = others[others.index(self._asked_last) + 1 :] + others
        self._asked_last = other = others[0]
        try:
            async with asyncio.timeout(METADATA_PATIENCE_MS / 1000):
                connection = await self._open(other, CONTROL)
                answer = await connection.request(
                    MetadataRequest(topics=[]), MetadataResponse, timeout_ms=self.config.request_timeout_ms
                )
        except (ClientError, RuntimeError, TimeoutError):  # another broker is asked the next time
            return set()
        alive = {broker.node_id for broker in answer.brokers}
        if self._numbers.get(other, -1) not in alive:
            return set()  # it does not even count itself to the cluster
        return {address for address in doubtful if self._numbers[address] not in alive}

    def _give_up(self, address: Address) -> None:
        self._gone_until[address] = monotonic() + SILENCE_SECONDS
        self._controller = None
        for (where, _), slot in self._slots.items():
            if where != address:
                continue
            opening, slot.opening = slot.opening, None
            if opening is not None:
                opening.cancel()
            if slot.connection is not None and not slot.connection.is_closed:
                slot.connection.give_up(GONE)

    @property
    def has_several(self) -> bool:
        """Whether several brokers were ever seen: a silent one may otherwise be the only one. From any thread."""
        return len({*self._numbers.values()}) > 1

    @property
    def connection_count(self) -> int:
        """The number of connections that are open now."""
        return sum(
            slot.connection is not None and not slot.connection.is_closed for slot in self._slots.values()
        )

    def release(self, channel: str) -> None:
        """Close the connections of a channel that is no longer used."""
        for key in [key for key in self._slots if key[1] == channel]:
            slot = self._slots.pop(key)
            if slot.connection is not None:
                slot.connection.close()

    async def send(
        self,
        message: ApiMessage,
        response: type[ResponseT],
        *,
        node_id: int | None = None,
        channel: str = CONTROL,
        deadline: Deadline,
        extra_wait_ms: int = 0,
    ) -> ResponseT:
        """Send a request once. Raises the errors of `BrokerConnection.request`.

        `extra_wait_ms` is the time that the server may hold the answer back, in addition to its usual timeout.
        """
        connection = await self.connection(node_id, channel)
        timeout_ms = min(self.config.request_timeout_ms + extra_wait_ms, max(deadline.remaining_ms, 1))
        try:
            answer = await connection.request(message, response, timeout_ms=timeout_ms)
        except ConnectionLost as error:
            self._turned_away += not connection.has_answered and not connection.is_given_up
            if self._turned_away >= TURNED_AWAY_MAX and self._access.begin is None:
                raise AuthenticationFailed(
                    f"{connection.host}:{connection.port} closes the connection at the first request: if it"
                    f" requires authentication, configure it (security.protocol is {self._access.protocol})"
                ) from error
            raise
        self._turned_away = 0
        if isinstance(answer, MetadataResponse):
            self._told_by = connection.host, connection.port
        return answer

    async def call(
        self,
        message: ApiMessage,
        response: type[ResponseT],
        *,
        doing: str,
        repeatable: bool = True,
        changes: bool = False,
        node_id: int | None = None,
        to_controller: bool = False,
        deadline: Deadline | None = None,
    ) -> ResponseT:
        """Send a request that any broker (or one named, or the controller) can answer, with retries.

        A top-level error code is raised. `doing` describes the attempt in the error's text, for example "create table
        db.t". `repeatable` and `changes` are those of `retrying`.
        """

        async def attempt(deadline: Deadline) -> ResponseT:
            whom = await self.controller(deadline) if to_controller else node_id
            answer = await self.send(message, response, node_id=whom, deadline=deadline)
            code = getattr(answer, "error_code", 0)
            error = error_of(code, getattr(answer, "error_message", None), doing=doing)
            if error is not None:
                raise error
            return answer

        return await retrying(
            attempt,
            config=self.config,
            deadline=deadline or Deadline(self.config.delivery_timeout_ms),
            repeatable=repeatable,
            changes=changes,
            on_stale_route=self._forget_controller,
            counters=self.counters,
        )

    async def controller(self, deadline: Deadline) -> int | None:
        """Return the cluster's controller; None if no broker has named one. One attempt."""
        if self._controller is None:
            answer = await self.metadata([], deadline)
            self._controller = answer.controller_id if answer.controller_id >= 0 else None
        return self._controller

    def _forget_controller(self) -> None:
        self._controller = None

    async def routes(self, topic: str, deadline: Deadline) -> TopicRoutes:
        """Return the leaders of a topic's partitions, from the cache or the cluster; one refresh at a time per topic.

        One attempt: raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, ...) or ConnectionFailed.
        """
        routes = self.known_routes(topic)
        if routes is not None:
            return routes
        task = self._refreshing.get(topic)
        if task is None:
            task = asyncio.create_task(self._load_routes(topic, deadline), name=f"metadata of {topic}")
            self._refreshing[topic] = task
            task.add_done_callback(lambda done: self._refreshed(topic, done))
        return await asyncio.shield(task)

    async def fresh_routes(self, topic: str, deadline: Deadline) -> TopicRoutes:
        """Return the routes as the cluster knows them now, whatever is in the cache; as `routes` otherwise."""
        self._routes.pop(topic, None)
        return await self.routes(topic, deadline)

    def known_routes(self, topic: str) -> TopicRoutes | None:
        """Return the cached routes unless they are too old. From any thread."""
        routes = self._routes.get(topic)
        if routes is None or (monotonic() - routes.loaded_at) * 1000 >= self.config.metadata_max_age_ms:
            return None
        return routes

    def connected(self, node_id: int) -> BrokerConnection | None:
        """Return the open connection to a broker, if there is one. From any thread."""
        address = self._brokers.get(node_id)
        slot = None if address is None else self._slots.get((address, CONTROL))
        connection = None if slot is None else slot.connection
        return None if connection is None or connection.is_closed else connection

    def _refreshed(self, topic: str, task: asyncio.Task[TopicRoutes]) -> None:
        self._refreshing.pop(topic, None)
        if not task.cancelled():
            task.exception()  # all waiting calls may have been cancelled meanwhile

    async def _load_routes(self, topic: str, deadline: Deadline) -> TopicRoutes:
        answer = await self.metadata([topic], deadline)
        found = answer.topics[0]
        error = error_of(found.error_code, None, doing=f"find topic {topic}")
        if error is not None:
            raise error
        leaders = {partition.partition_index: partition.leader_id for partition in found.partitions}
        in_sync = {each.partition_index: tuple(sorted(each.isr_nodes)) for each in found.partitions}
        routes = TopicRoutes(leaders, monotonic(), in_sync, self._told_by)
        self._routes[topic] = routes
        return routes

    async def metadata(
        self, topics: Sequence[str] | None, deadline: Deadline, *, with_operations: bool = False
    ) -> MetadataResponse:
        """Fetch Kafka's metadata for topics (None: all) and remember the brokers' addresses. One attempt.

        `with_operations` includes the operations that the client may do on each topic (KIP-430).
        """
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(
            topics=wanted,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=with_operations,
        )
        if topics is None:  # a large answer may take long
            answer = await self.send(request, MetadataResponse, deadline=deadline)
        else:
            answer = await self._quickly(request, deadline)
        for broker in answer.brokers:
            self._numbers[broker.host, broker.port] = broker.node_id
            self._gone_until.pop((broker.host, broker.port), None)
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self._racks = {broker.node_id: broker.rack or "" for broker in answer.brokers}
        return answer

    async def _quickly(self, request: MetadataRequest, deadline: Deadline) -> MetadataResponse:
        """Fetch metadata, from the next broker if one does not answer, all within the time of one attempt."""
        one_attempt = Deadline(min(self.config.request_timeout_ms, max(deadline.remaining_ms, 1)))
        patience_ms = METADATA_PATIENCE_MS
        while len(self._addresses) > 1 and patience_ms < one_attempt.remaining_ms:
            try:
                async with asyncio.timeout(patience_ms / 1000):
                    return await self.send(request, MetadataResponse, deadline=deadline)
            except TimeoutError:
                patience_ms *= 2
        return await self.send(request, MetadataResponse, deadline=one_attempt)

    def remember(self, node_id: int, host: str, port: int) -> int:
        """Remember a broker's address from an answer other than metadata, and return its id."""
        self._brokers[node_id] = (host, port)
        self._numbers[host, port] = node_id
        return node_id

    def forget_routes(self, topic: str) -> None:
        """Drop stale routes. The next use asks again, preferably another broker."""
        routes = self._routes.pop(topic, None)
        if routes is not None and routes.told_by is not None:
            self._avoided[routes.told_by] = monotonic() + AVOIDED_SECONDS

    async def leader(self, topic: str, partition: int, deadline: Deadline) -> int:
        """Return a partition's leader. One attempt; raises retriable KafkaErrors while there is none."""
        routes = await self.routes(topic, deadline)
        leader = routes.leaders.get(partition)
        if leader is None:
            self.forget_routes(topic)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has no partition {partition}")
        if leader < 0:
            self.forget_routes(topic)
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"partition {partition} of {topic} has no leader now"
            )
        return leader

    def avoid(self, node_id: int) -> None:
        """For a while, prefer other brokers to this one, which did not answer."""
        self._silent[node_id] = monotonic() + AVOIDED_SECONDS

    async def replicas(self, topic: str, partition: int, deadline: Deadline) -> tuple[list[int], int]:
        """Return the replicas to ask for what any replica can answer, and the leader, -1 while there is none.

        The order is: one on the client's rack or else any one, always the same for a partition; then the leader; then
        the others. Replicas that did not answer lately come last. One attempt; raises as `routes`.
        """
        routes = await self.routes(topic, deadline)
        leader = routes.leaders.get(partition)
        if leader is None:
            self.forget_routes(topic)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has no partition {partition}")
        others = [node for node in routes.in_sync.get(partition, ()) if node in self._brokers]
        rack = self.config.client_rack
        near = [node for node in others if rack and self._racks.get(node) == rack] or others
        first = [near[(partition + self._spread) % len(near)]] if near else []
        found = dict.fromkeys([*first, *([leader] if leader >= 0 else []), *others])
        if not found:
            self.forget_routes(topic)
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"partition {partition} of {topic} has no replica now"
            )
        now = monotonic()
        return sorted(found, key=lambda node: self._silent.get(node, 0.0) > now), leader

    async def by_leader(
        self, topic: str, partitions: Sequence[int], deadline: Deadline
    ) -> dict[int, list[int]]:
        """Return these partitions grouped by their leaders."""
        groups: dict[int, list[int]] = {}
        for partition in partitions:
            groups.setdefault(await self.leader(topic, partition, deadline), []).append(partition)
        return groups
