"""Kafka's own command-line tools, from its published jars: `JavaTools().run("TopicCommand", "--list", ...)`.

The jars are fetched on the first use (`python -m bench.kafka_peer`); Java is needed. Nearly all the work of a tool is
the start of the virtual machine, which loads thousands of classes. `prepared` writes them to an archive beside the
jars, once. A tool needs 1.3 s of a core with the archive and 2.7 s without it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.kafka_peer import jars
from bench.maven import java

# The tools run often and briefly: no large heap, no second compiler.
OPTIONS = ["-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
TOOLS = "org.apache.kafka.tools."
SECONDS_MAX = 120
ARCHIVING_SECONDS_MAX = 600


@functools.cache
def archive() -> Path:
    """Return the file for the classes of the jars as this Java loads them; another Java has a file of its own."""
    version = subprocess.run([java(), "-version"], capture_output=True, check=True).stderr
    digest = hashlib.sha256(version + str(sorted(path.name for path in jars().iterdir())).encode())
    return jars().with_name(f"{jars().name}-{digest.hexdigest()[:16]}.jsa")


def prepared() -> None:
    """Write the archive, if there is none, from a tool that lists the topics of a server."""
    with archive().with_suffix(".lock").open("w") as lock, tempfile.TemporaryDirectory() as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive().exists():
            return
        written = archive().with_suffix(".new")
        serve = [sys.executable, "-m", "headrace.tablelayer.cli.main", "serve", "--listen", "127.0.0.1:0"]
        options = [*OPTIONS, "-Xlog:disable", f"-XX:ArchiveClassesAtExit={written}", "-cp", f"{jars()}/*"]
        with subprocess.Popen(
            [*serve, "--data", f"{folder}/data"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server:
            try:
                address = server.stdout.readline().partition("ready on ")[2].partition(" ")[0]
                command = [java(), *options, f"{TOOLS}TopicCommand", "--list", "--bootstrap-server", address]
                subprocess.run(command, capture_output=True, timeout=ARCHIVING_SECONDS_MAX, check=True)
            finally:
                server.terminate()
        written.rename(archive())


NEEDED = pytest.mark.needs.with_args(jars, prepared)


def virtual_machine() -> list[str]:
    """Return the virtual machine's options for a tool."""
    if not archive().exists():
        return OPTIONS
    silent = "-Xlog:disable"  # a tool's output would have the machine's own warnings
    return [*OPTIONS, silent, f"-XX:SharedArchiveFile={archive()}"]


@dataclass(frozen=True)
class Result:
    code: int
    printed: str
    complaints: str

    @property
    def output(self) -> str:
        return self.printed + self.complaints


class JavaTools:
    def __init__(self) -> None:
        self.jars = jars()
        self.java = java()

    def try_run(self, tool: str, *arguments: str, options: Sequence[str] = ()) -> Result:
        """Run a tool by its class, in `org.apache.kafka.tools` unless it begins with `kafka.`.

        `options` are the virtual machine's.
        """
        name = tool if tool.startswith("kafka.") else TOOLS + tool
        command = [self.java, *virtual_machine(), *options, "-cp", f"{self.jars}/*", name, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        return Result(result.returncode, result.stdout, result.stderr)

    def run(self, tool: str, *arguments: str) -> str:
        """Run a tool that must succeed, and return its output without warnings."""
        result = self.try_run(tool, *arguments)
        assert result.code == 0, f"{tool} {' '.join(arguments)}\n{result.output}"
        return result.printed
