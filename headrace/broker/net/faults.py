"""Reasons for refused and closed connections, for the log and the metrics."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Final


class Fault(StrEnum):
    ACCEPT = "accept"
    """The process has no room for connections."""
    REFUSED = "refused"
    """There are too many connections, of the address or in total. In the second case the new connection waits."""
    THROTTLED = "throttled"
    """The address connects too often (`connection_creation_rate`)."""
    HANDSHAKE = "tls"
    """The peer does not use TLS, or not as required; or too many handshakes are pending."""
    AUTHENTICATION = "authentication"
    """The peer's credentials are not accepted."""
    LATE = "late"
    """The peer has not authenticated in time."""
    SESSION = "session"
    """The peer's session has expired, and it has not begun another one."""
    FRAME = "frame"
    """The peer announces a frame of a size that is not accepted."""
    REQUEST = "request"
    """The peer's request cannot be decoded, or is not allowed."""
    SLOW = "slow"
    """The peer does not read its answers."""
    IDLE = "idle"
    SERVER = "server"
    """The broker failed at one of the peer's requests."""


LEVELS: Final = {
    **dict.fromkeys(Fault, logging.WARNING),
    Fault.ACCEPT: logging.ERROR,
    Fault.IDLE: logging.INFO,
    Fault.THROTTLED: logging.INFO,
}
