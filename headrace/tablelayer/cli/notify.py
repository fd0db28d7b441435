"""Notifications to systemd by a server of `Type=notify`: ready, reloading, stopping (sd_notify(3)).

Each is a datagram to the socket in NOTIFY_SOCKET; without the variable or a listener, nothing happens. `WATCHDOG=1` is
sent from the event loop if the unit has `WatchdogSec=`: its absence reveals a loop that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from time import CLOCK_MONOTONIC, clock_gettime_ns
from typing import Final

_SECONDS_MIN: Final = 0.05


class Supervisor:
    """The process manager that started this process, if it wants notifications."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        watched = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        text = environment.get("WATCHDOG_USEC", "") if watched else ""
        self.watchdog_seconds: float | None = int(text) / 1e6 if text.isdigit() and int(text) else None

    def ready(self, status: str) -> None:
        """Report that the server is ready. `status`: one line for `systemctl status`."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Report the beginning of a reload, which `ready` ends (`Type=notify-reload`)."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={clock_gettime_ns(CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """Report an orderly stop."""
        self._tell("STOPPING=1", "STATUS=stopping")

    async def keep_alive(self) -> None:
        """Tell the watchdog twice per interval, until cancelled; return at once if there is no watchdog."""
        while self.watchdog_seconds is not None:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(max(_SECONDS_MIN, self.watchdog_seconds / 2))

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        text = "\n".join(line.replace("\n", " ") for line in lines)
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.connect(self._address)
            sender.send(text.encode())
