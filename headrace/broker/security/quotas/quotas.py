"""Find the limit for a request, and the time that its client has to wait.

A limit is looked for in Kafka's order: user and client id, user and any client, user, any user and client id, any user
and any client, any user, client id, any client. Usage is counted for the entity of the limit that is found. With a
limit for a user, all its clients share it; with one for any user, each user has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from headrace.broker.runtime.token_bucket import TokenBucket
from headrace.broker.security.quotas.model import DEFAULT, Entity, Limits, Quota, same_address

_BUCKETS_MAX: Final = 10_000
"""Number of buckets beyond which full ones are dropped: they are the same as new ones."""
_SWEEP_SECONDS: Final = 1.0
"""Shortest time between two searches for full buckets. Otherwise a client with invented names would cause one search
per name.
"""
BURST_PART: Final = 5
"""A burst is this part of the window: two seconds' worth by default. That is 7 % of half a minute, which leaves room
for the request that exceeds it.
"""

_Scope = tuple[str | None, str | None]
_Key = tuple[Quota, str | None, str | None]


class Quotas:
    """All limits, and the usage of them. `is_set` says whether there is any limit; otherwise nothing is counted."""

    def __init__(
        self,
        now: Callable[[], float],
        window_seconds: float = 11.0,
        controller_window_seconds: float = 11.0,
        wait_seconds_max: float = 1.0,
    ) -> None:
        """`window_seconds` is Kafka's quota.window.num times quota.window.size.seconds; a fifth of its amount may pass
        at once. `controller_window_seconds` is that of controller.quota, whose whole amount of changes may be made at
        once. `wait_seconds_max` bounds each wait of a client that uses too much time, or connects too often, as in
        Kafka. `now` returns seconds.
        """
        self.is_set = False
        self._now = now
        self._wait_seconds_max = wait_seconds_max
        self._burst_seconds = {
            quota: controller_window_seconds if quota is Quota.MUTATION else window_seconds / BURST_PART
            for quota in Quota
        }
        self._limits: dict[Entity, Limits] = {}
        self._by_quota: dict[Quota, dict[_Scope, float]] = {quota: {} for quota in Quota}
        self._addresses: dict[str, float] = {}
        self._buckets: dict[_Key, TokenBucket] = {}
        self._swept_at = -_SWEEP_SECONDS

    # -- limits --------------------------------------------------------------------------------------------

    @property
    def limits(self) -> Mapping[Entity, Limits]:
        return self._limits

    def set(self, entity: Entity, limits: Limits) -> None:
        """Set the limits of an entity; an empty mapping removes them."""
        before = self._limits.pop(entity, {})
        if limits:
            self._limits[entity] = dict(limits)
        for quota in {*before, *limits}:
            if entity.ip is not None:
                places: dict[str, float] | dict[_Scope, float] = self._addresses
                place: str | _Scope = entity.ip
            else:
                places, place = self._by_quota[quota], (entity.user, entity.client_id)
            if quota in limits:
                places[place] = limits[quota]  # type: ignore[index]
            else:
                places.pop(place, None)  # type: ignore[arg-type]
        self.is_set = bool(self._limits)

    def replace(self, limits: Mapping[Entity, Limits]) -> None:
        """Replace all limits at once."""
        for entity in [entity for entity in self._limits if entity not in limits]:
            self.set(entity, {})
        for entity, values in limits.items():
            self.set(entity, values)

    def limit_of(self, quota: Quota, user: str, client_id: str) -> tuple[_Scope, float] | None:
        """Return the scope that shares the limit that applies, and the limit."""
        limits = self._by_quota[quota]
        if not limits:
            return None
        for scope in (
            (user, client_id), (user, DEFAULT), (user, None),
            (DEFAULT, client_id), (DEFAULT, DEFAULT), (DEFAULT, None),
            (None, client_id), (None, DEFAULT),
        ):  # fmt: skip
            limit = limits.get(scope)
            if limit is not None:
                of_user, of_client = scope
                return (None if of_user is None else user, None if of_client is None else client_id), limit
        return None

    # -- what is used --------------------------------------------------------------------------------------

    def used(self, quota: Quota, user: str, client_id: str, amount: float) -> float:
        """Count usage, and return the seconds to wait. Not for MUTATION and CONNECTION."""
        found = self.limit_of(quota, user, client_id)
        if found is None:
            return 0.0
        scope, limit = found
        now = self._now()
        bucket = self._bucket((quota, *scope), limit, now)
        bucket.take(amount, limit, now)
        wait = bucket.wait_seconds(limit, now)
        return min(wait, self._wait_seconds_max) if quota is Quota.REQUEST else wait

    def connected(self, host: str) -> float:
        """Count a connection from an address, and return the seconds that it has to wait; a connection that has to wait
        is not counted.
        """
        if not self._addresses:
            return 0.0
        address = same_address(host)
        limit = self._addresses.get(address, self._addresses.get(DEFAULT))
        if limit is None:
            return 0.0
        now = self._now()
        bucket = self._bucket((Quota.CONNECTION, address, None), limit, now)
        bucket.take(1, limit, now)
        wait = bucket.wait_seconds(limit, now)
        if wait:
            bucket.take(-1, limit, now)
        return min(wait, self._wait_seconds_max)

    def may_mutate(self, user: str, client_id: str, partitions: int, *, strict: bool) -> bool:
        """Count partitions that are created or deleted. With `strict`, count nothing and return False if the entity
        already has to wait.
        """
        found = self.limit_of(Quota.MUTATION, user, client_id)
        if found is None:
            return True
        scope, limit = found
        now = self._now()
        bucket = self._bucket((Quota.MUTATION, *scope), limit, now)
        if strict and bucket.wait_seconds(limit, now):
            return False
        bucket.take(partitions, limit, now)
        return True

    def mutation_wait(self, user: str, client_id: str) -> float:
        """Return the seconds to wait because of changes of topics."""
        found = self.limit_of(Quota.MUTATION, user, client_id)
        if found is None:
            return 0.0
        scope, limit = found
        bucket = self._buckets.get((Quota.MUTATION, *scope))
        return 0.0 if bucket is None else bucket.wait_seconds(limit, self._now())

    def _bucket(self, key: _Key, limit: float, now: float) -> TokenBucket:
        buckets = self._buckets
        bucket = buckets.get(key)
        if bucket is None:
            if len(buckets) >= _BUCKETS_MAX and now - self._swept_at >= _SWEEP_SECONDS:
                self._swept_at = now
                self._forget_unused(now)
            bucket = buckets[key] = TokenBucket(limit, self._burst_seconds[key[0]], now)
        return bucket

    def _forget_unused(self, now: float) -> None:
        for key, bucket in list(self._buckets.items()):
            if bucket.is_full(now):
                del self._buckets[key]
