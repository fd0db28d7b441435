"""The time and the bounds that a step is given."""

from __future__ import annotations

import math

import msgspec

NEVER = math.inf


class Now(msgspec.Struct, frozen=True):
    """The time of a step: `monotonic` seconds for deadlines, `time_ms` for stored values."""

    monotonic: float
    time_ms: int


class Limits(msgspec.Struct, frozen=True):
    """Bounds of the coordinator. Defaults are Kafka's unless stated otherwise."""

    initial_rebalance_delay_ms: int = 3_000
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    group_size_max: int = 2_147_483_647
    new_member_join_timeout_ms: int = 300_000
    """Time that a client that joins and does not know its member id is kept. It cannot send heartbeats yet."""
    pending_members_max: int = 10_000
    """Member ids per group that were given out and are not used yet. Kafka has no bound, so there a loop of joins
    fills memory.
    """
    offset_metadata_size_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    consumer_session_timeout_ms: int = 45_000
    """In groups of the consumer protocol the broker sets the session timeout (KIP-848)."""
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_group_size_max: int = 2_147_483_647
    allows_upgrade: bool = True
    """A classic group changes to the consumer protocol when the first member of that protocol joins."""
    allows_downgrade: bool = True
    """A group changes back to the classic protocol when its last member of the consumer protocol has left."""
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """Assignors that members may name. The first one is for members that name none."""
