"""Builds the programs of the foreign clients, once per version, in a folder of the user's cache.

`headrace/compat` in the cache holds one folder per program and content: a changed source or version builds again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from bench.maven import cache_root, java
from headrace.tablelayer.spark.ivy import one_at_a_time

HERE = Path(__file__).resolve().parent
BUILD_SECONDS = 600


class ToolMissingError(Exception):
    """A client cannot be tried because a tool of its language is not installed; the text says which."""


@dataclass(frozen=True)
class Program:
    """One client library at one version."""

    name: str
    language: str
    version: str
    codecs: tuple[str, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
    protocols: tuple[str, ...] = ("range", "cooperative", "consumer")
    null_header: bool = True
    transactions: bool = True
    deletes_records: bool = True
    member_of_commits: str = "empty"
    """The client's name for the state of a group that has offsets and no members."""


PROGRAMS = (
    Program("java-3.9.2", "java", "3.9.2", protocols=("range", "cooperative")),
    Program("java-4.3.1", "java", "4.3.1"),
    Program("franz-go", "go", "1.22.2"),
    Program("sarama", "go", "1.61.1", protocols=("range",)),
    Program("segmentio", "go", "0.4.51", protocols=("range",), transactions=False, deletes_records=False),
    Program("kafkajs", "node", "2.2.4", codecs=("none", "gzip"), protocols=("range",), null_header=False),
    Program(  # its zstd needs Node 22
        "platformatic",
        "node",
        "1.35.0",
        codecs=("none", "gzip", "snappy", "lz4"),
        protocols=("range", "consumer"),
        null_header=False,
    ),
)


def command(program: Program) -> list[str]:
    """Return the command to run, built if necessary, by one process at a time. Raise ToolMissingError."""
    home = _home()
    home.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(home / "lock"):
        return {"java": _java, "go": _go, "node": _node}[program.language](program)


def needed(*names: str) -> pytest.MarkDecorator:
    """Mark a test that uses these programs: they are built before its time begins."""
    return pytest.mark.needs.with_args(lambda: [command(each) for each in PROGRAMS if each.name in names])


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ToolMissingError(f"{name} is not installed")
    return found


def _folder(name: str, *sources: Path) -> Path:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    return _home() / f"{name}-{digest.hexdigest()[:12]}"


def _home() -> Path:
    return cache_root() / "compat"


def _run(arguments: list[str], cwd: Path, **environment: str) -> None:
    result = subprocess.run(
        arguments,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")


def _java(program: Program) -> list[str]:
    source = HERE / "java" / "ForeignClient.java"
    folder = _folder(program.name, source, Path(__file__))  # the versions of the libraries are in this file
    if not (folder / ".complete").exists():
        _tool("javac")
        folder.mkdir(parents=True, exist_ok=True)
        _fetch_kafka_clients(program.version, folder)
        _run(["javac", "-cp", f"{folder}/*", "-d", str(folder), str(source)], folder)
        (folder / ".complete").touch()
    return [java(), "-Xmx128M", "-cp", f"{folder}:{folder}/*", "ForeignClient"]


def _fetch_kafka_clients(version: str, folder: Path) -> None:
    import pyspark

    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    mirror = os.environ.get("HEADRACE_MAVEN_ROOT")
    root = f' root="{mirror}"' if mirror else ""
    (folder / "ivysettings.xml").write_text(
        '<ivysettings><settings defaultResolver="central"/><resolvers>'
        f'<ibiblio name="central" m2compatible="true"{root}/></resolvers></ivysettings>'
    )
    (folder / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="headrace" module="compat"/>'
        '<configurations><conf name="default"/></configurations><dependencies>'
        f'<dependency org="org.apache.kafka" name="kafka-clients" rev="{version}" conf="default->runtime,master"/>'
        '<dependency org="org.slf4j" name="slf4j-nop" rev="1.7.36" conf="default->runtime,master"/>'
        # Reading bearer tokens needs these two, which are not dependencies of kafka-clients.
        '<dependency org="com.fasterxml.jackson.core" name="jackson-databind" rev="2.18.2"'
        ' conf="default->runtime,master"/>'
        '<dependency org="org.bitbucket.b_c" name="jose4j" rev="0.9.6" conf="default->runtime,master"/>'
        "</dependencies></ivy-module>"
    )
    fetch = [java(), "-jar", str(ivy), "-settings", "ivysettings.xml", "-ivy", "ivy.xml"]
    _run([*fetch, "-cache", str(folder / "ivy"), "-retrieve", "[artifact]-[revision].[ext]"], folder)


def _go(program: Program) -> list[str]:
    go = _tool("go")
    module = HERE / "go"
    main = module / program.name.split("-")[0] / "main.go"
    folder = _folder(program.name, main, module / "go.mod")
    binary = folder / program.name
    if not binary.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = binary.with_suffix(".new")
        _run([go, "build", "-o", str(made), f"./{main.parent.name}"], module, GOFLAGS="-mod=readonly")
        made.replace(binary)
    return [str(binary)]


@cache
def _node_modules() -> Path:
    node, npm = _tool("node"), _tool("npm")
    del node
    package = HERE / "node" / "package.json"
    folder = _folder("node", package)
    if not (folder / ".complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(package, folder)
        _run([npm, "install", "--no-package-lock", "--no-audit", "--no-fund"], folder)
        (folder / ".complete").touch()
    return folder / "node_modules"


def _node(program: Program) -> list[str]:
    return ["env", f"NODE_PATH={_node_modules()}", _tool("node"), str(HERE / "node" / f"{program.name}.js")]
