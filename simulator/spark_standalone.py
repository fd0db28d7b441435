"""Spark's own standalone master and workers, from the pyspark package: a cluster of Spark on this machine, for tests.

Each worker runs executors of 1 core and 1 GB. Its processes are a master, the workers, and an executor for each worker
and application. An application reaches it by `SparkCluster.master`, or by `submit`, which is `spark-submit`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from simulator.ports import free_port

READY_SECONDS = 120.0
STOP_SECONDS = 20.0
SUBMIT_SECONDS = 900.0
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that runs for minutes needs half the CPU time without the optimising compiler."""
_OF_THE_DRIVER = re.compile("PYSPARK_|SPARK_|PYTHONPATH$|VIRTUAL_ENV$")


def spark_home() -> Path:
    """Return the folder of the installed pyspark, which is a Spark distribution."""
    found = find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("pyspark is not installed, which contains Spark's master and workers")
    return Path(found.submodule_search_locations[0])


class SparkCluster:
    """A master and workers on 127.0.0.1, with logs and the folders of executors in `folder`.

    `environment` is added to the environment of the daemons, and so of the executors. They do not inherit variables of
    Python and Spark, so that executors have what an application gives them.
    """

    def __init__(
        self, folder: Path, *, workers: int = 2, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.master = f"spark://127.0.0.1:{free_port()}"
        self._workers = workers
        own = {name: value for name, value in os.environ.items() if not _OF_THE_DRIVER.match(name)}
        self._environment = {
            **own,
            "SPARK_HOME": str(spark_home()),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_TOOL_OPTIONS": QUICK_JVM,
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            **(environment or {}),
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start all; return when the workers are registered. Raise RuntimeError if they do not register in time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        host, port = self.master.removeprefix("spark://").split(":")
        self._run("master", "master.Master", "--host", host, "--port", port, "--webui-port", "0")
        for number in range(1, self._workers + 1):
            work = self.folder / f"worker{number}"
            size = ["--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(work)]
            self._run(f"worker{number}", "worker.Worker", "--host", host, *size, self.master)
        deadline = time.monotonic() + READY_SECONDS
        while any("Successfully registered" not in self.log(f"worker{n + 1}") for n in range(self._workers)):
            if time.monotonic() > deadline or any(each.poll() is not None for each in self._processes):
                raise RuntimeError(f"Spark's master and workers did not start: see the logs in {self.folder}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End all processes, executors included."""
        for each in reversed(self._processes):
            each.terminate()
        for each in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(STOP_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()
        self._processes.clear()

    def log(self, name: str) -> str:
        """Return the log of `master` or of a worker (`worker1`)."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def executor_logs(self) -> str:
        """Return the end of what each executor wrote to its standard error, for a failed test."""
        logs = sorted(self.folder.glob("worker*/app-*/*/stderr"))
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-4000:]}" for log in logs)

    def submit(
        self, *arguments: str, folder: Path, environment: Mapping[str, str] | None = None
    ) -> Application:
        """Run `spark-submit --master MASTER ARGUMENTS` in client mode, with `folder` as its working folder."""
        submit = str(spark_home() / "bin" / "spark-submit")
        return Application([submit, "--master", self.master, *arguments], folder, environment or {})

    def _run(self, name: str, main: str, *arguments: str) -> None:
        command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    env=self._environment,
                    start_new_session=True,
                )
            )


class Application:
    """A driver on this machine: its JVM and the Python that it starts."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        own = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_TOOL_OPTIONS": QUICK_JVM}
        descriptor, path = tempfile.mkstemp(suffix=".log", prefix="driver-", dir=folder)
        self._log = Path(path)
        with os.fdopen(descriptor, "wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**own, **environment},
                start_new_session=True,
            )

    def output(self) -> str:
        """Return the output of the process, with the log of its JVM."""
        return self._log.read_text(errors="replace")

    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, timeout_s: float = SUBMIT_SECONDS) -> int:
        """Return its exit code. Kill it if it does not end in time."""
        try:
            return self._process.wait(timeout_s)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill the JVM and its Python with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def running_spark_cluster(
    folder: Path, *, workers: int = 2, environment: Mapping[str, str] | None = None
) -> Iterator[SparkCluster]:
    """Run a cluster for the time of the block."""
    cluster = SparkCluster(folder, workers=workers, environment=environment)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
