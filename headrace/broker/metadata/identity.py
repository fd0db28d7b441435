"""The identity of this broker, and the addresses that clients are told."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class BrokerIdentity(msgspec.Struct, frozen=True):
    """`advertised` returns the host and port that clients of a listener are told; known once the broker listens."""

    broker_id: int
    cluster_id: str
    rack: str | None
    advertised: Callable[[str], tuple[str, int]]
