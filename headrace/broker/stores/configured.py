"""The coordination store that a broker's configuration names: ZooKeeper, if `zookeeper.connect` is set."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Final

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.runtime.ports import Clock, StoreUnavailableError

if TYPE_CHECKING:
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.stores.zookeeper import ZooKeeperStore

logger = logging.getLogger("headrace.zookeeper")

_HOST: Final = re.compile(r"(?:[^\s:,\[\]]+|\[[0-9a-fA-F:.]+\])(?::(\d{1,5}))?")
SILENT_SECONDS: Final = 2.0
"""Seconds after which a wait is logged."""


async def configured_store(
    config: BrokerConfig, clock: Clock, *, makes_path: bool = True
) -> ZooKeeperStore | None:
    """Return an open store; None if the broker has an embedded one. Tries again for `zookeeper.connection.timeout.ms`,
    then raises ConfigError. `makes_path`: the caller may begin a cluster.
    """
    address = config["zookeeper.connect"]
    if address is None:
        return None
    # Imported here, with kazoo: only members of a cluster need it.
    from headrace.broker.stores.zookeeper import ZooKeeperStore
    from headrace.broker.stores.zookeeper_access import access_of

    hosts, _, chroot = address.partition("/")
    if not all(map(_is_host, hosts.split(","))) or (any(not part for part in chroot.split("/")) and chroot):
        raise ConfigError(
            f"{address!r} is not an address of ZooKeeper; write host:port,host:port/path, where the path is "
            "the cluster's own"
        )
    # The client library's messages about each attempt are summed up here.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    store = ZooKeeperStore(
        address,
        clock=clock,
        session_timeout_ms=config["zookeeper.session.timeout.ms"],
        connect_timeout_ms=config["zookeeper.connection.timeout.ms"],
        access=access_of(config),
        makes_path=makes_path,
    )
    waiting = asyncio.get_running_loop().call_later(
        SILENT_SECONDS, logger.warning, "waiting for ZooKeeper at %s", hosts
    )
    try:
        await store.open()
    except StoreUnavailableError as error:
        raise ConfigError(error.message) from None
    finally:
        waiting.cancel()
    return store


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text.strip())
    return found is not None and 0 < int(found[1] or 1) < 65536
