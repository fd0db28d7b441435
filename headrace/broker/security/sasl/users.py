"""Users with SCRAM credentials: in the coordination store, with a copy in memory.

Each user has a node `/security/users/<name>` with salted keys by mechanism; passwords are not stored. Every change sets
the parent node, at the version that was read, in the same transaction. So two changes at once are done one after the
other, and a watch on that node sees all of them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from headrace.broker.runtime.ports import (
    BadVersionError,
    CoordinationStore,
    CreateNode,
    DeleteNode,
    Entropy,
    NodeExistsError,
    NoNodeError,
    SetNode,
    StoreOperation,
)
from headrace.broker.security.sasl.scram import BY_NAME, Decoy, ScramCredential, ScramMechanism

logger = logging.getLogger("headrace.security")

ROOT: Final = "/security/users"
DECOY: Final = "/security/scram-decoy"
_ATTEMPTS: Final = 5
_CHANGES_AT_ONCE: Final = 50
"""Number of changes that are encoded before the event loop serves other work: half a millisecond."""

Credentials = Mapping[ScramMechanism, ScramCredential]


class _User(msgspec.Struct, frozen=True):
    credentials: Credentials
    version: int
    """Version of the node."""


class Change(msgspec.Struct, frozen=True):
    """A change of a user's credential for one mechanism; `credential` None deletes it."""

    name: str
    mechanism: ScramMechanism
    credential: ScramCredential | None


class ScramUsers:
    """The users of a cluster; see the module. Call `load` before anything else."""

    def __init__(self, store: CoordinationStore, entropy: Entropy) -> None:
        self._store = store
        self._entropy = entropy
        self._users: dict[str, _User] = {}
        self._version = -1
        self.decoy = Decoy(b"")

    async def load(self) -> None:
        """Read all users; also after other brokers may have changed them."""
        await self._make_root()
        while True:
            version = await self._root_version()
            if version == self._version:
                return
            users = {}
            for child in await self._store.children(ROOT):
                node = await self._store.get(f"{ROOT}/{child}")
                if node is not None:
                    users[unquote(child)] = _User(_decoded(node.data), node.version)
            if await self._root_version() == version:
                self._users, self._version = users, version
                return

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call back when another broker may have changed something, to call `load`; return a function that ends it."""
        return self._store.watch(ROOT, changed)

    def names(self) -> list[str]:
        return sorted(self._users)

    def credentials(self, name: str) -> Credentials:
        """Return the credentials of a user; empty for an unknown one."""
        user = self._users.get(name)
        return {} if user is None else user.credentials

    async def alter(self, decide: Callable[[], Sequence[Change]]) -> None:
        """Make the changes that `decide` returns for the present users, all or none.

        `decide` is called again when another broker has changed something meanwhile.
        """
        for _ in range(_ATTEMPTS):
            changes = decide()
            if not changes:
                return
            users, version = dict(self._users), self._version
            operations: list[StoreOperation] = [SetNode(ROOT, b"", version)]
            for count, change in enumerate(changes, 1):
                operations.append(self._operation(change, users))
                if count % _CHANGES_AT_ONCE == 0:
                    await asyncio.sleep(0)
            try:
                await self._store.transact(operations)
            except (BadVersionError, NodeExistsError, NoNodeError):
                await self.load()
                continue
            self._users, self._version = users, version + 1
            return
        raise BadVersionError("other brokers keep changing the users; try again")

    def _operation(self, change: Change, users: dict[str, _User]) -> StoreOperation:
        """Return the store's operation for a change, and make the change in `users`."""
        path = f"{ROOT}/{_node_name(change.name)}"
        old = users.get(change.name)
        new = {} if old is None else dict(old.credentials)
        if change.credential is None:
            new.pop(change.mechanism, None)
        else:
            new[change.mechanism] = change.credential
        if old is None:
            users[change.name] = _User(new, 0)
            return CreateNode(path, _encoded(new))
        if not new:
            del users[change.name]
            return DeleteNode(path, old.version)
        users[change.name] = _User(new, old.version + 1)
        return SetNode(path, _encoded(new), old.version)

    async def _make_root(self) -> None:
        for path, data in ((ROOT, b""), (DECOY, self._entropy.uuid().bytes + self._entropy.uuid().bytes)):
            if await self._store.get(path) is None:
                with contextlib.suppress(NodeExistsError):
                    await self._store.transact([CreateNode(path, data)])
        node = await self._store.get(DECOY)
        if node is None:
            raise NoNodeError(DECOY)
        self.decoy = Decoy(node.data)

    async def _root_version(self) -> int:
        node = await self._store.get(ROOT)
        if node is None:
            raise NoNodeError(ROOT)
        return node.version


def _node_name(name: str) -> str:
    """Return a name as a part of a path; ZooKeeper does not allow `.` and `..`."""
    return quote(name, safe="").replace(".", "%2E") if name.strip(".") == "" else quote(name, safe="")


def _encoded(credentials: Credentials) -> bytes:
    return json.dumps(
        {mechanism.sasl_name: encode_credential(credential) for mechanism, credential in credentials.items()}
    ).encode()


def _decoded(data: bytes) -> Credentials:
    return {BY_NAME[name]: decode_credential(fields) for name, fields in json.loads(data).items()}


def encode_credential(credential: ScramCredential) -> dict[str, str | int]:
    """Return a credential for JSON, in Kafka's names."""
    return {
        "salt": base64.b64encode(credential.salt).decode(),
        "storedKey": base64.b64encode(credential.stored_key).decode(),
        "serverKey": base64.b64encode(credential.server_key).decode(),
        "iterations": credential.iterations,
    }


def decode_credential(fields: Mapping[str, str | int]) -> ScramCredential:
    salt, stored_key, server_key = (
        base64.b64decode(str(fields[name])) for name in ("salt", "storedKey", "serverKey")
    )
    return ScramCredential(salt, stored_key, server_key, int(fields["iterations"]))
