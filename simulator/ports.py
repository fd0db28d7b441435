"""Reserve ports of 127.0.0.1 for servers in other processes that are told their port, or restart at the same one.

The system gives a port that was free a moment ago to the next socket, also as the near end of a connection: a client
that retries where its server was even reaches itself. So a reserved port is bound by a socket that never listens. The
system gives it to no other process, connections to it are refused, and a server that sets SO_REUSEADDR (Headrace,
ZooKeeper, Kafka and by default Go, Python and Java) may listen at it.
"""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that is reserved until this process ends."""
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", 0))
    port: int = keeper.getsockname()[1]
    keeper.detach()
    return port


def free_ports(count: int) -> int:
    """Return the first of `count` ports in a row that are reserved until this process ends."""
    while True:
        first = free_port()
        keepers = []
        try:
            for number in range(1, count):
                keeper = socket.socket()
                keepers.append(keeper)
                keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                keeper.bind(("127.0.0.1", first + number))
        except (OSError, OverflowError):
            for keeper in keepers:
                keeper.close()
            continue
        for keeper in keepers:
            keeper.detach()
        return first
