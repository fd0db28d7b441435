"""Kafka's own command-line tools, from its published jars: `JavaTools().run("TopicCommand", "--list", ...)`.

The jars are fetched on the first use (`python -m bench.kafka_peer`); Java is needed. A tool takes two to three
seconds, nearly all of it the start of the virtual machine.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from bench.kafka_peer import jars
from bench.maven import java

NEEDED = pytest.mark.needs.with_args(jars)
# The tools run often and briefly: no large heap, no second compiler.
OPTIONS = ["-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
TOOLS = "org.apache.kafka.tools."
SECONDS_MAX = 120


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
        command = [self.java, *OPTIONS, *options, "-cp", f"{self.jars}/*", name, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        return Result(result.returncode, result.stdout, result.stderr)

    def run(self, tool: str, *arguments: str) -> str:
        """Run a tool that must succeed, and return its output without warnings."""
        result = self.try_run(tool, *arguments)
        assert result.code == 0, f"{tool} {' '.join(arguments)}\n{result.output}"
        return result.printed
