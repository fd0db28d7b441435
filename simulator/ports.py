"""Ports of 127.0.0.1 for servers in processes of their own that are told their port, or come back at the same one.

A port that was free a moment ago is given to the next one who asks for any, and to the near end of a connection: a
client that tries again and again where its server was even reaches itself. So a port is kept: bound by a socket that
never listens. Nobody else is given it meanwhile, whoever connects is refused, and a server that sets SO_REUSEADDR
(Headrace, ZooKeeper, Kafka and what Go, Python and Java start by themselves) may listen at it.
"""

from __future__ import annotations

import socket


def free_port() -> int:
    """Kept until this process ends."""
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", 0))
    port: int = keeper.getsockname()[1]
    keeper.detach()
    return port
