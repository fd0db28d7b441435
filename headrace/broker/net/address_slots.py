"""Limit the open connections of each address.

The configurations are `max.connections.per.ip` and, for exceptions, `max.connections.per.ip.overrides`. A connection
beyond the limit is closed. (kafka.network.ConnectionQuotas)

Pure, except `addresses_of`, which resolves names when they are configured, not for each connection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.connections import OVERRIDES, UNLIMITED, overrides
from headrace.broker.runtime.ports import Sockets
from headrace.broker.security.quotas.model import same_address


class AddressSlots:
    """The open connections of each address, and their limits."""

    def __init__(self) -> None:
        self._max_of_each = UNLIMITED
        self._max_of: Mapping[str, int] = {}
        self._taken: Counter[str] = Counter()

    def set(self, of_each: int, of_some: Mapping[str, int]) -> None:
        """Set the limit of each address, and other limits of some. Open connections stay."""
        self._max_of_each = of_each
        self._max_of = {same_address(address): number for address, number in of_some.items()}

    def take(self, host: str) -> None:
        self._taken[same_address(host)] += 1

    def leave(self, host: str) -> None:
        address = same_address(host)
        self._taken[address] -= 1
        if not self._taken[address]:
            del self._taken[address]

    def full(self, host: str) -> int | None:
        """Return the limit that `host` has reached; None: it may connect."""
        address = same_address(host)
        most = self._max_of.get(address, self._max_of_each)
        return most if self._taken[address] >= most else None


async def addresses_of(text: str, sockets: Sockets) -> dict[str, int]:
    """Return the limits of `max.connections.per.ip.overrides` by address, with all addresses of each host. Raises
    ConfigError for a host without an address.
    """
    found: dict[str, int] = {}
    for host, number in overrides(text).items():
        try:
            addresses = await sockets.addresses(host)
        except (OSError, UnicodeError) as error:  # a label beyond 63 characters raises UnicodeError
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"{OVERRIDES}: the address of host {host} cannot be found: {reason}") from None
        found.update(dict.fromkeys(addresses, number))
    return found
