"""What systemd is told by a server of `Type=notify`: when it is ready, reloads, stops (sd_notify(3)).

A datagram to the socket that NOTIFY_SOCKET names; without it, or with nobody there, nothing happens. `WATCHDOG=1` goes
out from the event loop where the unit has `WatchdogSec=`: a loop that stands still is noticed by its absence.
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
    """The one who started this process, if it wants to be told."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        watched = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        text = environment.get("WATCHDOG_USEC", "") if watched else ""
        self.watchdog_seconds: float | None = int(text) / 1e6 if text.isdigit() and int(text) else None

    def ready(self, status: str) -> None:
        """It serves. `status`: one line for `systemctl status`."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """A reload begins, which `ready` ends (`Type=notify-reload`)."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={clock_gettime_ns(CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """It ends in good order."""
        self._tell("STOPPING=1", "STATUS=stopping")

    async def keep_alive(self) -> None:
        """Twice in the time of the watchdog, until cancelled; returns at once where there is none."""
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
