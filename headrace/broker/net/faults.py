"""What connections are refused and closed for: how the log's lines and the metrics tell one cause from another."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Final


class Fault(StrEnum):
    ACCEPT = "accept"
    """The process has no room for connections: nobody's fault in particular."""
    REFUSED = "refused"
    """There are too many connections already, of the address or in all: then who comes waits."""
    THROTTLED = "throttled"
    """The address connects too often (`connection_creation_rate`)."""
    HANDSHAKE = "tls"
    """It does not speak TLS, or not as it has to; or too many handshakes are before its own."""
    AUTHENTICATION = "authentication"
    """Its credentials are not accepted."""
    LATE = "late"
    """It has not said in time who it is."""
    SESSION = "session"
    """Its session is over, and it has not begun another one."""
    FRAME = "frame"
    """It announces a frame of a size that is not accepted."""
    REQUEST = "request"
    """What it asks cannot be understood, or is not for it to ask."""
    SLOW = "slow"
    """It does not read its answers."""
    IDLE = "idle"
    SERVER = "server"
    """The server failed at a request of it."""


LEVELS: Final = {
    **dict.fromkeys(Fault, logging.WARNING),
    Fault.ACCEPT: logging.ERROR,
    Fault.IDLE: logging.INFO,
    Fault.THROTTLED: logging.INFO,
}
