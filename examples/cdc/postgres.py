"""A PostgreSQL server of its own for the example, from the system's packages."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.server import free_port
from examples.stage import StepFailedError

USER = "capture"
DATABASE = "shop"
_SETTINGS = {"wal_level": "logical", "listen_addresses": "127.0.0.1", "fsync": "off", "timezone": "UTC"}


def programs() -> Path:
    """The folder of `initdb` and `postgres`. Raises StepFailedError."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda each: each.parts[-3])
    if found:
        return found[-1].parent
    named = shutil.which("initdb")
    if named is None:
        raise StepFailedError("PostgreSQL is needed: apt-get install postgresql, or initdb on the PATH")
    return Path(named).resolve().parent


@dataclass
class Postgres:
    """One server in a folder; it does not run as root, so root gives it away to the user `postgres`."""

    folder: Path
    port: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def in_temporary_folder(cls, **settings: str) -> Postgres:
        """Return a server in a temporary folder that its user may enter. `settings` are added to its own."""
        return cls(Path(tempfile.mkdtemp(prefix="headrace-postgres-")), settings=settings)

    def start(self) -> str:
        """Make a cluster of databases and start it. Return its version."""
        self.port = free_port(5432)
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        data = str(self.folder / "data")
        self._run("initdb", "-D", data, "-U", USER, "--auth=trust", "--encoding=UTF8", "--no-sync")
        words = [f"-c {name}={value}" for name, value in {**_SETTINGS, **self.settings}.items()]
        words += [f"-p {self.port}", f"-k {self.folder}"]
        self._run("pg_ctl", "-D", data, "-l", str(self.folder / "log"), "-w", "-o", " ".join(words), "start")
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, DATABASE)
        return self.lines("SELECT 'PostgreSQL ' || current_setting('server_version')")[0]

    def stop(self) -> None:
        """End it, and remove its folder."""
        if (self.folder / "data" / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def sql(self, text: str) -> str:
        """Run statements and return their output without titles. Raise StepFailedError."""
        done = subprocess.run(
            [
                str(programs() / "psql"), "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", DATABASE,
                "-v", "ON_ERROR_STOP=1", "-qAt", "-f", "-",
            ],
            input=text, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise StepFailedError(f"psql: {done.stderr.strip()[-1500:]}")
        return done.stdout

    def lines(self, text: str) -> list[str]:
        return self.sql(text).splitlines()

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query, as JSON writes them."""
        return [json.loads(line) for line in self.lines(f"SELECT row_to_json(r) FROM ({query}) r")]

    def _run(self, program: str, *words: str) -> None:
        said = self.folder.with_suffix(".out")  # a file: a server that goes on would keep a pipe open
        with said.open("w+") as out:
            done = subprocess.run(
                [str(programs() / program), *words],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False, timeout=120,
                cwd=self.folder, user="postgres" if os.geteuid() == 0 else None,
            )  # fmt: skip
            out.seek(0)
            text = out.read()
        said.unlink()
        if done.returncode:
            raise StepFailedError(f"{program}: {text.strip()[-1500:]}")
