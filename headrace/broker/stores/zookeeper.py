"""A ZooKeeper ensemble as the coordination store, through kazoo.

kazoo works in threads of its own. Its results, watches and states enter the event loop in one place (`_answer`,
`_on_state`). None of our code runs in its threads.

- **The lease is that of our own clock.** kazoo may report a lost session much later than ZooKeeper removes its
  ephemeral nodes (not within 14 s of an outage, seen with 2.11 at a session of 4 s). So a `sync`, which the leader
  answers, is sent a few times per session timeout. `lease_end` is the time when the last answered one was sent, plus
  four fifths of the timeout. It is less than the whole timeout, because a server tells the leader of its clients'
  activity every half tick.
- **An outcome may be unknown.** A connection that is lost during a transaction raises StoreOutcomeUnknownError; during
  a read, StoreUnavailableError.
- **Watches.** ZooKeeper's fire once: they are set again before the callback. After a lost connection or session every
  callback is called.
- Requests above ZooKeeper's limit (`jute.maxbuffer`, 1 MiB by default) would lose the connection: they are refused
  before they are sent.

Not handled, on purpose: lists of children above that limit (about 20,000 names) lose the connection in ZooKeeper
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from kazoo import exceptions as zk
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from headrace.broker.runtime.ports import (
    BadVersionError,
    CheckNode,
    Clock,
    CreateNode,
    DeleteNode,
    Node,
    NodeExistsError,
    NoNodeError,
    SetNode,
    StoreError,
    StoreOperation,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from headrace.broker.stores.zookeeper_access import TlsHandler, ZooKeeperAccess

logger = logging.getLogger("headrace.zookeeper")

Result = TypeVar("Result")

REQUEST_BYTES_MAX = 1_000_000  # jute.maxbuffer is 1,048,575 bytes; paths, versions and headers come on top
OPERATION_BYTES = 64  # size of an operation without its path and data
LEASE_OF_SESSION = 0.8
CLOCKS_APART_MS = 10_000
"""Difference of the clocks from which a warning is logged: more than a slow answer takes."""
BEATS_PER_SESSION = 6
READS_UNDER_WAY = 200  # requests of `get_many` that are in flight on the connection
ANSWER_SESSIONS = 1.0  # a request that is not answered within a session's timeout is cancelled

_LOST = (
    zk.ConnectionLoss,
    zk.ConnectionClosedError,
    zk.ConnectionDropped,
    zk.SessionExpiredError,
    zk.OperationTimeoutError,
    zk.SessionMovedError,
    zk.AuthFailedError,
)


class ZooKeeperStore:
    """A CoordinationStore in the ensemble at `hosts` (`host:port,host:port/chroot`). Call `open` before anything
    else.
    """

    def __init__(
        self,
        hosts: str,
        *,
        clock: Clock,
        session_timeout_ms: int = 6_000,
        connect_timeout_ms: int = 15_000,
        access: ZooKeeperAccess | None = None,
        makes_path: bool = True,
    ) -> None:
        """`makes_path`: make the chroot if it is missing; otherwise it looks empty."""
        self._makes_path = makes_path
        self._access = access or ZooKeeperAccess()
        self._hosts, _, chroot = hosts.partition("/")
        self._chroot = f"/{chroot}".rstrip("/")
        self._clock = clock
        self._session_timeout = session_timeout_ms / 1000
        self._connect_timeout = connect_timeout_ms / 1000
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop
        self._lease_end = -math.inf
        self._beats: asyncio.Task[None] | None = None
        self._again: asyncio.Future[Any] | None = None
        self._watches: dict[str, _Watch] = {}
        self._closed = False
        self._compared_clocks = False

    async def open(self) -> None:
        """Connect and make the chroot. Raises StoreUnavailableError when no server answers in time, or when access is
        refused.
        """
        self._loop = asyncio.get_running_loop()
        if self._chroot and self._makes_path:
            await self._make_chroot()
        again = KazooRetry(
            max_tries=-1, delay=0.05, backoff=2, max_delay=self._session_timeout / BEATS_PER_SESSION
        )
        self._client = self._make_client(self._hosts + self._chroot, connection_retry=again)
        self._client.add_listener(lambda state: self._loop.call_soon_threadsafe(self._on_state, state))
        await self._connect(self._client)
        self._session_timeout = self._client._session_timeout / 1000  # the timeout that the server granted
        try:
            await self._beat()
            await self.children("/")
        except StoreError as error:
            await self._loop.run_in_executor(None, _end, self._client)
            raise self._entry_failed(self._client, error) from error
        self._beats = self._loop.create_task(self._keep_beating(), name="zookeeper lease")

    async def _make_chroot(self) -> None:
        client = self._make_client(self._hosts)
        try:
            await self._connect(client)
            await self._loop.run_in_executor(None, client.ensure_path, self._chroot)
        except (zk.AuthFailedError, zk.NoAuthError, *_LOST) as error:
            raise self._entry_failed(client, error) from error
        finally:
            await self._loop.run_in_executor(None, _end, client)

    def _make_client(self, hosts: str, **more: Any) -> Any:
        access = self._access
        if access.tls is not None:
            more["handler"] = TlsHandler(access.tls)
        if access.user is not None:
            user = access.user
            more["sasl_options"] = {
                "mechanism": "DIGEST-MD5",
                "username": user.name,
                "password": user.password,
            }
        if access.keeps_to_itself:
            more["default_acl"] = CREATOR_ALL_ACL
        return _Client(hosts, timeout=self._session_timeout, **more)

    async def _connect(self, client: Any) -> None:
        try:
            await self._loop.run_in_executor(None, client.enter, self._connect_timeout)
        except KazooTimeoutError as error:
            await self._loop.run_in_executor(None, _end, client)
            failure = getattr(client.handler, "failure", None)
            reason = "is it running there? `headrace zookeeper` starts one"
            raise StoreUnavailableError(
                f"no ZooKeeper server answered at {self._hosts} within {self._connect_timeout:g} s; "
                f"{failure or reason}"
            ) from error
        except zk.AuthFailedError as error:
            await self._loop.run_in_executor(None, _end, client)
            raise self._access_refused(error) from error

    def _entry_failed(self, client: _Client, error: Exception) -> StoreUnavailableError:
        """Return the error for a failed connection. A refusal may show at the first request, in one way or another."""
        if client.is_refused:
            return self._access_refused(zk.AuthFailedError())
        if isinstance(error, (zk.AuthFailedError, zk.NoAuthError)):
            return self._access_refused(error)
        return StoreUnavailableError(str(error) or f"ZooKeeper is lost: {type(error).__name__}")

    def _access_refused(self, error: Exception) -> StoreUnavailableError:
        who = "a client without a user" if self._access.user is None else f"the user {self._access.user.name}"
        if isinstance(error, zk.AuthFailedError):
            return StoreUnavailableError(f"ZooKeeper at {self._hosts} refuses {who}")
        return StoreUnavailableError(
            f"ZooKeeper at {self._hosts} denies {who} access to {self._chroot or '/'}: the ACLs of its "
            "nodes name other users"
        )

    @property
    def session(self) -> int:
        client_id = self._client.client_id
        return int(client_id[0]) if client_id else 0

    @property
    def changes(self) -> int:
        """The last zxid in an answer: it counts all changes of the ensemble."""
        return int(self._client.last_zxid)

    def lease_end(self) -> float:
        return self._lease_end

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        _check_path(path)
        watch = self._watches.get(path)
        if watch is None:
            watch = self._watches[path] = _Watch(self, path)
            watch.arm()
        watch.callbacks.append(callback)
        return partial(watch.callbacks.remove, callback)

    async def get(self, path: str) -> Node | None:
        _check_path(path)
        try:
            data, stat = await self._read(self._client.get_async(path))
        except zk.NoNodeError:
            return None
        ephemeral = stat.ephemeralOwner
        return Node(data, stat.version, ephemeral, stat.czxid if ephemeral else 0)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        found: list[Node | None] = []
        for first in range(0, len(paths), READS_UNDER_WAY):
            some = paths[first : first + READS_UNDER_WAY]
            found += await asyncio.gather(*(self.get(path) for path in some))
        return found

    async def children(self, path: str) -> list[str]:
        _check_path(path)
        try:
            return sorted(await self._read(self._client.get_children_async(path)))
        except zk.NoNodeError:
            return []

    async def transact(self, operations: Sequence[StoreOperation]) -> list[str]:
        operations = tuple(operations)
        for operation in operations:
            _check_path(operation.path)
        size = sum(_size(operation) for operation in operations)
        if size > REQUEST_BYTES_MAX:
            raise StoreError(
                f"a transaction of {size:,} bytes exceeds ZooKeeper's limit of {REQUEST_BYTES_MAX:,}"
            )
        while True:
            try:
                return await self._commit(operations)
            except _NoParentError as error:
                await self._make_parents(error.path)

    async def close(self) -> None:
        """End the session: its ephemeral nodes go at once."""
        if self._client is None or self._closed:
            return
        self._closed = True
        self._lease_end = -math.inf
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
        if self._again is not None:
            await asyncio.gather(self._again, return_exceptions=True)
        await self._loop.run_in_executor(None, _end, self._client)

    # -- requests ------------------------------------------------------------------------------------------

    async def _commit(self, operations: Sequence[StoreOperation]) -> list[str]:
        request = self._client.transaction()
        for operation in operations:
            _add(request, operation)
        try:
            results = await self._answer(request.commit_async())
        except (*_LOST, TimeoutError) as error:
            raise StoreOutcomeUnknownError(
                "the connection to ZooKeeper was lost during a transaction: "
                f"{str(error) or type(error).__name__}"
            ) from error
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, (zk.RolledBackError, zk.RuntimeInconsistency)):
                continue
            if isinstance(result, Exception):
                raise _refusal(operation, result) from result
        paths = [
            result if isinstance(operation, CreateNode) else operation.path
            for operation, result in zip(operations, results, strict=True)
        ]
        mine = (
            path for path, each in zip(paths, operations, strict=True) if getattr(each, "ephemeral", False)
        )
        if not self._compared_clocks and (path := next(mine, None)) is not None:
            self._compared_clocks = True
            await self._compare_clocks(path)
        return paths

    async def _compare_clocks(self, path: str) -> None:
        """Compare clocks by a node that was just made. A wrong clock stops nothing, because no decision uses it."""
        now = self._clock.time_ms()
        with contextlib.suppress(StoreError, zk.ZookeeperError):
            stat = await self._read(self._client.exists_async(path))
            apart = 0 if stat is None else now - stat.ctime
            if abs(apart) > CLOCKS_APART_MS:
                logger.warning(
                    "this machine's clock is %.0f s %s that of ZooKeeper: timestamps of records and "
                    "deletion by age use the clocks of brokers; set it right",
                    abs(apart) / 1000,
                    "ahead of" if apart > 0 else "behind",
                )

    async def _make_parents(self, path: str) -> None:
        parts = path.split("/")[1:-1]
        for depth in range(1, len(parts) + 1):
            parent = "/" + "/".join(parts[:depth])
            try:
                await self._read(self._client.create_async(parent))
            except zk.NodeExistsError:
                continue
            except zk.NoChildrenForEphemeralsError as error:
                raise StoreError(f"the parent of {parent} is ephemeral and cannot have children") from error

    async def _read(self, asked: Any) -> Any:
        try:
            return await self._answer(asked)
        except (zk.AuthFailedError, zk.NoAuthError) as error:
            raise self._access_refused(error) from error
        except (*_LOST, TimeoutError) as error:
            raise StoreUnavailableError(f"ZooKeeper is lost: {str(error) or type(error).__name__}") from error

    async def _answer(self, asked: Any) -> Any:
        """Wait in the event loop for a result of kazoo's threads. Raises TimeoutError after a session's timeout."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        asked.rawlink(lambda result: self._loop.call_soon_threadsafe(_settle, answer, result))
        async with asyncio.timeout(self._session_timeout * ANSWER_SESSIONS):
            return await answer

    # -- the session ---------------------------------------------------------------------------------------

    async def _keep_beating(self) -> None:
        while True:
            try:
                await self._beat()
            except StoreUnavailableError:
                pass  # the lease ends by itself
            except Exception:
                logger.exception("the lease with ZooKeeper is not renewed; the next attempt follows")
            await asyncio.sleep(self._session_timeout / BEATS_PER_SESSION)

    async def _beat(self) -> None:
        session, sent = self.session, self._clock.monotonic()
        await self._read(self._client.sync_async("/"))
        if session == self.session:
            self._lease_end = max(self._lease_end, sent + LEASE_OF_SESSION * self._session_timeout)

    def _on_state(self, state: str) -> None:
        if self._closed:
            return
        if state == KazooState.LOST:
            self._lease_end = -math.inf
            logger.warning("the session with ZooKeeper at %s is lost", self._hosts)
            if self._beats is not None and self._client._state != KeeperState.EXPIRED_SESSION:
                self._loop.call_later(self._session_timeout / BEATS_PER_SESSION, self._begin_again)
        elif state == KazooState.SUSPENDED:
            logger.warning("the connection to ZooKeeper at %s is lost; the session may continue", self._hosts)
        else:
            if self._beats is not None:
                self._beats.cancel()
                self._beats = self._loop.create_task(self._keep_beating(), name="zookeeper lease")
            for watch in list(self._watches.values()):
                if watch.is_wanted:
                    watch.arm()
                    watch.tell()

    def _begin_again(self) -> None:
        """Connect again. kazoo stops for good when it is refused; a server that stops during the authentication looks
        the same.
        """
        if not self._closed and self._client._state in (KeeperState.AUTH_FAILED, KeeperState.CLOSED):
            logger.warning("ZooKeeper at %s refuses this broker; it tries again", self._hosts)
            self._again = self._loop.run_in_executor(None, self._client.start_async)


class _Client(KazooClient):  # type: ignore[misc]
    """kazoo's client, which is connected before it authenticates itself. A server that refuses it closes the connection
    a moment later, and by then kazoo may have forgotten the reason.
    """

    def __init__(self, hosts: str, **more: Any) -> None:
        super().__init__(hosts, **more)
        self.is_refused = False
        self._has_heard = threading.Event()
        self.add_listener(self._hear)

    def _hear(self, _: str) -> None:
        """Runs in a thread of kazoo's."""
        if self._state == KeeperState.AUTH_FAILED:
            self.is_refused = True
        self._has_heard.set()

    def enter(self, seconds: float) -> None:
        """Wait until it is connected; blocks. Raises KazooTimeoutError, and AuthFailedError as soon as it is
        refused.
        """
        self.start_async()
        self._has_heard.wait(seconds)
        if self.is_refused:
            raise zk.AuthFailedError
        if not self.connected:
            _end(self)
            raise KazooTimeoutError


_WATCH_AGAIN_SECONDS: Final = 1.0


class _Watch:
    """The callbacks of one path, behind ZooKeeper's two watches that fire once."""

    def __init__(self, store: ZooKeeperStore, path: str) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self._store = store
        self._path = path
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def arm(self) -> None:
        """Set the watches at ZooKeeper. One attempt at a time: an event during one asks for another after it."""
        if self._task is not None:
            self._again = True
            return
        self._task = self._store._loop.create_task(self._set(), name=f"watch {self._path}")
        self._task.add_done_callback(self._armed)

    def tell(self) -> None:
        for callback in tuple(self.callbacks):
            callback()

    def _armed(self, task: asyncio.Task[None]) -> None:
        self._task = None
        failed = not task.cancelled() and task.exception() is not None
        if failed:
            logger.debug("the watch of %s waits for ZooKeeper: %s", self._path, task.exception())
        if self._again:
            self._again = False
            self.arm()
        elif failed:
            # The state of the next connection sets it, too; but an answer can also be late on a connection that lasts.
            self._store._loop.call_later(_WATCH_AGAIN_SECONDS, self._retry)

    def _retry(self) -> None:
        if self._store._client.connected:
            self._changed()

    async def _set(self) -> None:
        store = self._store
        await store._read(store._client.exists_async(self._path, watch=self._fired))
        try:
            await store._read(store._client.get_children_async(self._path, watch=self._fired))
        except zk.NoNodeError:
            return  # the creation of the node fires the other watch

    def _fired(self, event: object) -> None:
        """Runs in a thread of kazoo's."""
        self._store._loop.call_soon_threadsafe(self._changed)

    @property
    def is_wanted(self) -> bool:
        """Whether there are callbacks; otherwise the watch ends here."""
        if not self.callbacks:
            self._store._watches.pop(self._path, None)
        return bool(self.callbacks)

    def _changed(self) -> None:
        if self._store._closed or not self.is_wanted:
            return
        self.arm()
        task = self._task
        assert task is not None
        # The callbacks are called after the watches are set again, so there is no gap between a read and the next call.
        task.add_done_callback(lambda _: self.tell())


class _NoParentError(Exception):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def _settle(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return
    if result.exception is not None:
        answer.set_exception(result.exception)
    else:
        answer.set_result(result.value)


def _end(client: Any) -> None:
    client.stop()
    client.close()


def _add(request: Any, operation: StoreOperation) -> None:
    if isinstance(operation, CreateNode):
        request.create(
            operation.path, operation.data, ephemeral=operation.ephemeral, sequence=operation.sequence
        )
    elif isinstance(operation, SetNode):
        request.set_data(operation.path, operation.data, operation.version)
    elif isinstance(operation, DeleteNode):
        request.delete(operation.path, operation.version)
    elif isinstance(operation, CheckNode):
        request.check(operation.path, operation.version)
    else:
        raise TypeError(f"{operation!r} is not a store operation")


def _refusal(operation: StoreOperation, error: Exception) -> Exception:
    path = operation.path
    if isinstance(error, zk.NoNodeError):
        return (
            _NoParentError(path)
            if isinstance(operation, CreateNode)
            else NoNodeError(f"{path} does not exist")
        )
    if isinstance(error, zk.NodeExistsError):
        return NodeExistsError(f"{path} exists")
    if isinstance(error, zk.BadVersionError):
        wanted = "" if isinstance(operation, CreateNode) else f", not at version {operation.version}"
        return BadVersionError(f"{path} is at another version{wanted}")
    if isinstance(error, zk.NotEmptyError):
        return StoreError(f"{path} has children and cannot be deleted")
    if isinstance(error, zk.NoChildrenForEphemeralsError):
        return StoreError(f"the parent of {path} is ephemeral and cannot have children")
    return StoreError(f"{path}: {error!r}")


def _size(operation: StoreOperation) -> int:
    data = operation.data if isinstance(operation, CreateNode | SetNode) else b""
    return OPERATION_BYTES + len(operation.path) + len(data)


def _check_path(path: str) -> None:
    if not path.startswith("/") or (path != "/" and path.endswith("/")) or "//" in path:
        raise StoreError(f"{path!r} is not a node path: it must be absolute, without empty parts")
