"""Entities and kinds of quotas, in Kafka's words (KIP-13, 124, 546, 599, 612), checked as in Kafka.

An entity is a user, a client id, both, or an address; each by name, or as the default for those without a limit of
their own. The default is the empty name.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from headrace.protocol.errors import ErrorCode, KafkaError

DEFAULT: Final = ""
"""Instead of a name: the default for all without a limit of their own."""
USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)
NAME_LENGTH_MAX: Final = 1000


class Quota(StrEnum):
    """The kinds of quotas."""

    PRODUCER = "producer_byte_rate"
    """Bytes of requests with records or rows, per second."""
    CONSUMER = "consumer_byte_rate"
    """Bytes of answers with records or rows, per second."""
    REQUEST = "request_percentage"
    """Percentage of the time of one thread; the broker has one thread for requests."""
    MUTATION = "controller_mutation_rate"
    """Partitions that are created and deleted, per second."""
    CONNECTION = "connection_creation_rate"
    """Connections from an address, per second."""


_OF_USERS: Final = (Quota.PRODUCER, Quota.CONSUMER, Quota.REQUEST, Quota.MUTATION)
_OF_ADDRESSES: Final = (Quota.CONNECTION,)
_FRACTIONS: Final = (Quota.REQUEST, Quota.MUTATION)
_WHOLE_MAX: Final = {Quota.CONNECTION: 2**31 - 1}


class Entity(msgspec.Struct, frozen=True, order=True):
    """The entity of a quota. None: the entity does not have this part; DEFAULT: the default of this part."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str | None]]) -> Entity:
        """Make an entity from types and names of the wire (None: the default). Raises KafkaError."""
        found: dict[str, str] = {}
        for kind, name in pairs:
            if kind not in ENTITY_TYPES:
                raise _invalid(f"Unhandled client quota entity type: {kind[:100]}")
            if kind in found:
                raise _invalid(f"the entity type {kind!r} is named twice")
            if name == "":
                raise _invalid(f"Empty {kind} not supported")
            if name is not None and len(name) > NAME_LENGTH_MAX:
                raise _invalid(
                    f"a name for {kind!r} has {len(name)} characters; the maximum is {NAME_LENGTH_MAX}"
                )
            found[kind] = DEFAULT if name is None else name
        if not found:
            raise _invalid("Invalid empty client quota entity")
        if IP in found and len(found) > 1:
            raise _invalid("Invalid quota entity combination: ip cannot be combined with other types")
        return cls(found.get(USER), found.get(CLIENT_ID), found.get(IP))

    def pairs(self) -> list[tuple[str, str | None]]:
        """The parts as on the wire."""
        named = ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip))
        return [(kind, name or None) for kind, name in named if name is not None]


Limits = Mapping[Quota, float]


def changed(
    entity: Entity, limits: Limits, operations: Iterable[tuple[str, float, bool]]
) -> dict[Quota, float]:
    """Return the limits after these operations: key, value, and whether it is removed. Raises KafkaError."""
    result = dict(limits)
    seen = set()
    for key, value, remove in operations:
        allowed = _OF_ADDRESSES if entity.ip is not None else _OF_USERS
        if key not in allowed:
            raise _invalid(
                f"Invalid configuration key {key[:100]}; {', '.join(allowed)} can be set for this entity"
            )
        quota = Quota(key)
        if quota in seen:
            raise _invalid(f"{key} is named twice")
        seen.add(quota)
        if remove:
            result.pop(quota, None)
        else:
            result[quota] = _checked(quota, value)
    if entity.ip and any(quota in result for quota in _OF_ADDRESSES):
        _check_address(entity.ip)
    return result


def _checked(quota: Quota, value: float) -> float:
    if not math.isfinite(value) or value <= 0:
        raise _invalid(f"{quota} is {value:g}: a quota must be greater than 0")
    if quota not in _FRACTIONS:
        if abs(value - round(value)) > 1e-6:
            raise _invalid(f"{quota} cannot be a fractional value.")
        if value > _WHOLE_MAX.get(quota, 2**63 - 1):
            raise _invalid(f"Proposed value for {quota} is too large for its type: {value:g}")
    return float(value)


def _check_address(text: str) -> None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise _invalid(f"{text!r} is not a valid IP or resolvable host.") from None


def same_address(host: str) -> str:
    """Return an address as limits name it: the IPv4 address of a client that connects over IPv6 with one."""
    if host.startswith("::ffff:"):
        try:
            return str(ipaddress.IPv6Address(host).ipv4_mapped or host)
        except ValueError:
            return host
    return host


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
