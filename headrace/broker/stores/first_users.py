"""Users of a data directory without a running server: how the first user is made, who then makes other users."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headrace.broker.partitions.data_dir import DataDirectory
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import Entropy, SystemClock, SystemEntropy
from headrace.broker.security.sasl.scram import ScramMechanism, credential_of, salt_text, salted_password
from headrace.broker.security.sasl.users import Change, ScramUsers
from headrace.broker.stores.embedded import EmbeddedStore


async def add_users(
    data: Path,
    wanted: Iterable[tuple[str, ScramMechanism, int, str]],
    node_id: int = 0,
    entropy: Entropy | None = None,
) -> list[str]:
    """Make the directory if it is missing, and users in it: name, mechanism, iterations and password of each.

    Return all names. Raises ConfigError for a directory that cannot be used, or is used by a server.
    """
    entropy = entropy or SystemEntropy()
    directory = DataDirectory(data, node_id, entropy.uuid(), SystemDisk(), SystemClock())
    try:
        store = EmbeddedStore(directory.store_path)
        await store.open()
        try:
            users = ScramUsers(store, entropy)
            await users.load()
            changes = []
            for name, mechanism, iterations, password in wanted:
                salt = salt_text(entropy.uuid().int)
                salted = salted_password(mechanism, password, salt, iterations)
                changes.append(Change(name, mechanism, credential_of(mechanism, salted, salt, iterations)))
            await users.alter(lambda: changes)
            return users.names()
        finally:
            await store.close()
    finally:
        directory.close(clean=directory.was_clean)
