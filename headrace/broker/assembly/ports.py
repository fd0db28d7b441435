"""The ports of one broker: its access to the system, in one value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from headrace.broker.runtime.ports import Clock, CoordinationStore, Disk, Entropy, Sockets, Threads


class Ports(msgspec.Struct, frozen=True):
    clock: Clock
    entropy: Entropy
    disk: Disk
    threads: Threads
    sockets: Sockets
    store: CoordinationStore | None
    """The open store of a cluster; the broker closes it. None: the broker is alone and has an embedded store."""
    executor: Executor | None
    """Executor for slow work; its owner shuts it down. None: the broker starts threads of its own."""
