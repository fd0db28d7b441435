"""The limits of the network, in one place."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from headrace.broker.configs.broker_config import BrokerConfig


class Limits(msgspec.Struct, frozen=True):
    """Limits of connections. For a number that is not configurable, the text gives its reason."""

    request_bytes_max: int = 100 * 1024 * 1024
    """`socket.request.max.bytes`: a longer frame closes the connection before anything is allocated."""
    answer_bytes_max: int = 2**31 - 1
    """Maximum size of an answer of another broker: the largest possible length. Memory grows as it arrives."""
    idle_seconds_max: float = 600.0
    """`connections.max.idle.ms`, also for a peer that does not read its answers."""
    backlog: int = 50
    """`socket.listen.backlog.size`."""
    send_buffer_bytes: int = -1
    """`socket.send.buffer.bytes`; -1 leaves it to the system, which adapts it."""
    receive_buffer_bytes: int = -1
    """`socket.receive.buffer.bytes`; as above."""
    scratch_bytes: int = 256 * 1024
    """Maximum bytes of one `recv`: large enough to read many small requests together, small enough for the cache."""
    unsent_bytes_max: int = 1024 * 1024
    """Unsent answers of a connection above which its next request waits."""
    unsent_bytes_of_all_max: int = 512 * 1024 * 1024
    """Unsent answers of all connections, without records in files, above which the slowest readers are closed."""
    pooled_bytes_max: int = 64 * 1024 * 1024
    """Memory kept for the frames of large requests; more is allocated and freed as needed."""
    buffers_per_call: int = 64
    """Buffers handed to one `sendmsg`; IOV_MAX is 1024, but long lists cost more than further calls."""
    file_bytes_per_call: int = 4 * 1024 * 1024
    """Maximum bytes of one `sendfile`, so that one reader of cold data does not delay others for long."""
    sent_bytes_per_turn: int = 8 * 1024 * 1024
    """Bytes that one connection sends before others are served again, however fast its peer reads: one or two
    milliseconds.
    """
    turn_seconds: float = 0.001
    """Time for which one peer's requests are answered before others are served again, in seconds."""
    accepts_per_wakeup: int = 64
    """Connections accepted in one go before others are served again."""
    accept_pause_seconds: float = 0.5
    """Pause of accepting when the process has too few file descriptors left, in seconds."""
    descriptors_max: int = 2**31 - 1
    """Limit of descriptor numbers. They start at 0, and the lowest free one is used first: a connection with this
    number or a higher one is closed. The rest of RLIMIT_NOFILE is for files.
    """
    encrypted_bytes_per_call: int = 256 * 1024
    """Bytes that are encrypted together: TLS in memory reaches nearly a GB/s with this size, and the peer receives the
    first part while the rest is encrypted.
    """
    decrypted_bytes_per_call: int = 64 * 1024
    """Maximum bytes of one `recv` of a connection with TLS. For each connection that ever sent as much at once, OpenSSL
    keeps this much memory and a third more. A larger value is not faster.
    """
    encrypted_bytes_per_turn: int = 1024 * 1024
    """The same as `sent_bytes_per_turn`, for TLS: encryption takes a millisecond per megabyte."""
    handshake_seconds_max: float = 10.0
    """Time from a connection to the end of its TLS handshake, including the wait for its turn, in seconds."""
    authentication_seconds_max: float = 30.0
    """Time from a connection to the end of SASL, in seconds."""
    handshakes_per_second_max: int = 500
    """Maximum number of handshakes begun per second: at a millisecond each (RSA of 2,048 bits) half of a core."""
    handshakes_per_address_per_second_max: int = 100
    """Maximum number of handshakes begun per second for one address; others wait."""
    handshakes_pending_max: int = 2000
    """Maximum number of handshakes in progress or waiting: 100 MB at 50 kB each."""
    handshakes_pending_per_address_max: int = 500
    """The same for one address: five seconds of its turns."""
    unauthenticated_request_bytes_max: int = 512 * 1024
    """`sasl.server.max.receive.size`: a longer frame before authentication closes the connection."""
    drain_seconds: float = 3.0
    """Time that a stopping broker waits for requests in progress and for unsent answers, in seconds."""


def limits_of(config: BrokerConfig) -> Limits:
    """Return the limits that the broker's configuration sets; others keep their defaults."""
    return Limits(
        request_bytes_max=config["socket.request.max.bytes"],
        idle_seconds_max=config["connections.max.idle.ms"] / 1000,
        backlog=config["socket.listen.backlog.size"],
        send_buffer_bytes=config["socket.send.buffer.bytes"],
        receive_buffer_bytes=config["socket.receive.buffer.bytes"],
        descriptors_max=_descriptors_for_connections(),
        unauthenticated_request_bytes_max=config["sasl.server.max.receive.size"],
    )


def _descriptors_for_connections() -> int:
    """Return the number of file descriptors for connections: a quarter of RLIMIT_NOFILE, at most 4096, is kept for
    files.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 - 1 if soft == resource.RLIM_INFINITY else soft - min(soft // 4, 4096)
