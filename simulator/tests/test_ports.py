"""Reserved ports belong to the server they were reserved for."""

import errno
import socket

import pytest

from simulator.ports import free_port


def test_a_kept_port_is_reserved_for_servers_that_listen_again():
    port = free_port()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with socket.socket() as other, pytest.raises(OSError) as refused:
        other.bind(("127.0.0.1", port))
    assert refused.value.errno == errno.EADDRINUSE
    for _ in range(2):
        with (
            socket.create_server(("127.0.0.1", port)),  # sets SO_REUSEADDR
            socket.create_connection(("127.0.0.1", port)) as connection,
        ):
            assert connection.getpeername() == ("127.0.0.1", port)
