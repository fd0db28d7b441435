"""The bounds of the network side, in one place."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from headrace.broker.configs.broker_config import BrokerConfig


class Limits(msgspec.Struct, frozen=True):
    """Where a number is not configurable, the line says where it comes from."""

    request_bytes_max: int = 100 * 1024 * 1024
    """`socket.request.max.bytes`; a longer frame closes the connection before anything is allocated."""
    answer_bytes_max: int = 2**31 - 1
    """Of what this process has asked another broker for: all that a length can say. Room is made as it arrives."""
    idle_seconds_max: float = 600.0
    """`connections.max.idle.ms`, also for a peer that does not read its answers."""
    backlog: int = 50
    """`socket.listen.backlog.size`."""
    send_buffer_bytes: int = -1
    """`socket.send.buffer.bytes`; -1 leaves it to the system, which adapts it."""
    receive_buffer_bytes: int = -1
    """`socket.receive.buffer.bytes`; as above."""
    scratch_bytes: int = 256 * 1024
    """What one `recv` may bring: large enough that small requests come many at a time, small enough for the cache."""
    unsent_bytes_max: int = 1024 * 1024
    """Answers waiting for a slow reader; above it no further request of that connection is looked at."""
    unsent_bytes_of_all_max: int = 512 * 1024 * 1024
    """The same of all connections together, records in files apart; above it those that read least are closed."""
    pooled_bytes_max: int = 64 * 1024 * 1024
    """Memory kept for the frames of large requests; more is allocated and freed as needed."""
    buffers_per_call: int = 64
    """Buffers handed to one `sendmsg`; IOV_MAX is 1024, but long lists cost more than further calls."""
    file_bytes_per_call: int = 4 * 1024 * 1024
    """Bytes of one `sendfile`, so that one reader of cold data cannot hold up everybody else for long."""
    sent_bytes_per_turn: int = 8 * 1024 * 1024
    """Bytes that one connection sends before others are served again, however fast its peer reads: a millisecond or
    two."""
    turn_seconds: float = 0.001
    """How long the requests that one peer has sent together are answered before others are served again."""
    accepts_per_wakeup: int = 64
    """Connections accepted in one go before others are served again."""
    accept_pause_seconds: float = 0.5
    """How long accepting rests when the process has too few file descriptors left."""
    descriptors_max: int = 2**31 - 1
    """Descriptors are numbered from 0, the lowest free one first: a connection with this number or a higher one is not
    taken. The rest of RLIMIT_NOFILE is for files."""
    encrypted_bytes_per_call: int = 256 * 1024
    """What is encrypted at a time: TLS in memory comes near a GB/s from here on, and the peer takes the first of it
    while the rest is encrypted."""
    decrypted_bytes_per_call: int = 64 * 1024
    """What one `recv` of a connection with TLS may bring. OpenSSL keeps so much memory, and a third more, for each
    connection that has ever sent as much at once; above, nothing becomes faster."""
    encrypted_bytes_per_turn: int = 1024 * 1024
    """`sent_bytes_per_turn` of a connection with TLS: encryption costs a millisecond per megabyte."""
    handshake_seconds_max: float = 10.0
    """How long a peer has from its connection to the end of TLS's handshake, waiting for its turn included."""
    authentication_seconds_max: float = 30.0
    """The same to the end of SASL."""
    handshakes_per_second_max: int = 500
    """Begun in all: at a millisecond each (RSA of 2,048 bits) half of a core."""
    handshakes_per_address_per_second_max: int = 100
    """Begun by one address; more wait."""
    handshakes_pending_max: int = 2000
    """Begun or waiting, in all: 100 MB at 50 kB each."""
    handshakes_pending_per_address_max: int = 500
    """The same of one address; five seconds of its turns."""
    stranger_request_bytes_max: int = 512 * 1024
    """`sasl.server.max.receive.size`: a longer frame before authentication closes the connection."""
    drain_seconds: float = 3.0
    """How long a stopping broker waits for requests under way and for answers to leave."""


def limits_of(config: BrokerConfig) -> Limits:
    """The limits that the broker's configuration sets; the others keep their defaults."""
    return Limits(
        request_bytes_max=config["socket.request.max.bytes"],
        idle_seconds_max=config["connections.max.idle.ms"] / 1000,
        backlog=config["socket.listen.backlog.size"],
        send_buffer_bytes=config["socket.send.buffer.bytes"],
        receive_buffer_bytes=config["socket.receive.buffer.bytes"],
        descriptors_max=_descriptors_for_connections(),
        stranger_request_bytes_max=config["sasl.server.max.receive.size"],
    )


def _descriptors_for_connections() -> int:
    """File descriptors for connections: a quarter of RLIMIT_NOFILE, at most 4096, is kept for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 - 1 if soft == resource.RLIM_INFINITY else soft - min(soft // 4, 4096)
