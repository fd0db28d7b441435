"""Apache Fluss from its published jars (ZooKeeper, a coordinator, one tablet server, all defaults), and its two
clients.

Each client is a process of its own. The newest published server is 0.9.1, one jar with everything inside. The Java
client is of the same version and is compiled here with Eclipse's compiler, so that a Java runtime is enough; `pyfluss`
gets a virtual environment of its own. All three are fetched once, into `$XDG_CACHE_HOME/headrace`. `python -m
bench.fluss_peer` does only that.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.maven import COMPLETE, cache_root, fetch, java
from bench.processes import Server, accepts, start
from simulator.ports import free_port

FLUSS = "Apache Fluss"
FLUSS_VERSION = "0.9.1-incubating"
PYFLUSS_VERSION = "1.0.0"
LOG4J_VERSION = "2.25.1"
SERVER_ARTIFACTS = [
    ("org.apache.fluss", "fluss-server", FLUSS_VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
    ("org.apache.logging.log4j", "log4j-core", LOG4J_VERSION),
    ("org.apache.logging.log4j", "log4j-1.2-api", LOG4J_VERSION),
]
CLIENT_ARTIFACTS = [
    ("org.apache.fluss", "fluss-client", FLUSS_VERSION),
    ("org.slf4j", "slf4j-nop", "1.7.36"),
    ("org.eclipse.jdt", "ecj", "3.40.0"),
]
JVM_OPTIONS = [
    "-XX:+UseG1GC",
    "--add-opens=java.base/java.nio=org.apache.arrow.memory.core,ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
]
ZOOKEEPER = "org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.quorum.QuorumPeerMain"
COORDINATOR = "org.apache.fluss.server.coordinator.CoordinatorServer"
TABLET_SERVER = "org.apache.fluss.server.tablet.TabletServer"

ROOT = Path(__file__).parent.parent
JAVA_SOURCE = Path(__file__).parent / "java" / "FlussLoad.java"


def server_jars() -> Path:
    """Return the folder with the server's jars (87 MB)."""
    return fetch(f"fluss-{FLUSS_VERSION}", SERVER_ARTIFACTS, f"fluss-server-{FLUSS_VERSION}.jar")


def java_client() -> list[str]:
    """Return the command that runs the Java client's loads (72 MB), without the address."""
    jars = fetch(f"fluss-client-{FLUSS_VERSION}", CLIENT_ARTIFACTS, f"fluss-client-{FLUSS_VERSION}.jar")
    digest = hashlib.sha256(JAVA_SOURCE.read_bytes()).hexdigest()[:10]
    classes = jars / f"load-{digest}"
    if not (classes / COMPLETE).exists():
        compiler = next(jars.glob("ecj-*.jar"))
        command = [
            java(),
            "-jar",
            str(compiler),
            "-17",
            "-cp",
            str(jars / f"fluss-client-{FLUSS_VERSION}.jar"),
        ]
        _run([*command, "-d", str(classes), str(JAVA_SOURCE)])
        (classes / COMPLETE).touch()
    return [java(), *JVM_OPTIONS[1:], "-cp", f"{classes}:{jars}/*", "FlussLoad"]


def python_client() -> list[str]:
    """Return the command that runs pyfluss's loads, without the address."""
    folder = cache_root() / f"pyfluss-{PYFLUSS_VERSION}"
    python = folder / "bin" / "python"
    if not (folder / COMPLETE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", f"pyfluss=={PYFLUSS_VERSION}"])
        (folder / COMPLETE).touch()
    return [str(python), "-m", "bench.fluss_log_load"]


def _run(command: Sequence[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")


class Client:
    """A load in a process of its own that takes commands line by line."""

    def __init__(self, command: Sequence[str], address: str, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self._log = log

    def ask(self, *words: object) -> list[float]:
        """Return the numbers of the answer. Raise RuntimeError with the client's error."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the client has no pipes")
        stdin.write(" ".join(map(str, words)) + "\n")
        stdin.flush()
        answer = stdout.readline().split()
        if not answer or answer[0] != "ok":
            said = " ".join(answer) or f"ended; its log is {self._log}"
            raise RuntimeError(f"{words[0]} {words[1]}: {said}")
        return [float(number) for number in answer[1:]]

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class FlussServers:
    """The three processes on 127.0.0.1, started one after the other as by Fluss's own scripts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        zookeeper, coordinator, tablet = (free_port() for _ in range(3))
        self._tablet_port = tablet
        self.address = f"127.0.0.1:{coordinator}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "zookeeper.properties").write_text(
            f"dataDir={folder}/zookeeper\nclientPort={zookeeper}\nclientPortAddress=127.0.0.1\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n"
        )
        (folder / "server.yaml").write_text(
            f"zookeeper.address: 127.0.0.1:{zookeeper}\n"
            "default.bucket.number: 1\ndefault.replication.factor: 1\ntablet-server.id: 0\n"
            f"data.dir: {folder}/data\nremote.data.dir: {folder}/remote\n"
            f"bind.listeners: FLUSS://127.0.0.1:{coordinator}\n"
        )
        (folder / "log4j.properties").write_text(
            "rootLogger.level=INFO\nrootLogger.appenderRef.file.ref=F\nappender.main.name=F\n"
            "appender.main.type=File\nappender.main.fileName=${sys:log.file}\n"
            "appender.main.layout.type=PatternLayout\nappender.main.layout.pattern=%d %-5p %c - %m%n\n"
        )
        configuration = ["--configDir", str(folder)]
        self._running = {}
        self._running["zookeeper"] = self._start(
            "zookeeper", zookeeper, ZOOKEEPER, [str(folder / "zookeeper.properties")]
        )
        self._running["coordinator"] = self._start("coordinator", coordinator, COORDINATOR, configuration)
        self.start_tablet_server()
        self.ready_s = sum(server.ready_s for server in self._running.values())

    def _start(self, name: str, port: int, main: str, arguments: Sequence[str]) -> Server:
        logging = [f"-Dlog.file={self._folder}/{name}.log"]
        logging += [f"-Dlog4j.configurationFile=file:{self._folder}/log4j.properties"]
        options = JVM_OPTIONS[1:] if name == "zookeeper" else JVM_OPTIONS
        command = [java(), *options, *logging, "-cp", f"{server_jars()}/*", main, *arguments]
        return start(f"{FLUSS} ({name})", command, port, self._folder / f"{name}.out", answers=accepts)

    def start_tablet_server(self) -> None:
        arguments = [
            f"-Dbind.listeners=FLUSS://127.0.0.1:{self._tablet_port}",
            "--configDir",
            str(self._folder),
        ]
        self._running["tablet"] = self._start("tablet", self._tablet_port, TABLET_SERVER, arguments)

    def kill_tablet_server(self) -> None:
        self._running["tablet"].stop(kill=True)

    def cpu_seconds(self) -> float:
        """Return the CPU time of the tablet server alone: it does the work on tables."""
        return self._running["tablet"].cpu_seconds()

    def resident_mb(self) -> float:
        """Return the memory of all three."""
        return sum(server.resident_mb() for server in self._running.values())

    def stop(self) -> None:
        for server in reversed(self._running.values()):
            server.stop(kill=True)


if __name__ == "__main__":
    print(server_jars(), *java_client(), *python_client(), sep="\n")
