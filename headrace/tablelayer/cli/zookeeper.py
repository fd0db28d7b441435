"""`headrace zookeeper`: ZooKeeper's own server for development, in the foreground, until a signal."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from headrace.broker.configs.listeners import parse_listener
from headrace.broker.stores.zookeeper_server import answers, server_command, server_settings
from headrace.tablelayer.cli.errors import CommandError

TICK_MS: Final = 500
"""Tick of ZooKeeper; sessions last between 1 and 10 s."""
READY_SECONDS: Final = 30.0
STOP_SECONDS: Final = 10.0
_LOG_FILE: Final = "zookeeper.log"


def run_zookeeper(data: Path, listen: str) -> None:
    """Run the server. Raises CommandError if it cannot start."""
    host, port = parse_listener(listen)
    if shutil.which("java") is None:
        raise CommandError("ZooKeeper needs Java (17 or later), but there is no `java` on the PATH")
    if answers(host, port):
        raise CommandError(f"a ZooKeeper server is already running at {host}:{port}")
    data.mkdir(parents=True, exist_ok=True)
    settings, log_file = data / "zoo.cfg", data / _LOG_FILE
    settings.write_text(server_settings(data.resolve(), host, port, TICK_MS))
    try:
        command = server_command(settings)
    except RuntimeError as error:
        raise CommandError(f"{error}; install it, or use a ZooKeeper of your own") from None
    with log_file.open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        _wait(process, host, port, log_file)
        sys.stdout.write(f"zookeeper is ready on {host}:{port} (data {data})\n")
        sys.stdout.flush()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: process.terminate())
        process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(process: subprocess.Popen[bytes], host: str, port: int, log_file: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not answers(host, port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise CommandError(f"ZooKeeper did not start at {host}:{port}: see {log_file}")
        time.sleep(0.05)
