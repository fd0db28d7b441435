"""A MariaDB server of its own with a binary log, from Debian's packages in a folder."""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from apps.programs import Unpacked, debian

from examples.server import free_port

READY_SECONDS = 120.0
USER, PASSWORD, DATABASE = "capture", "trusted", "shop"


def packages() -> Unpacked:
    return debian("mariadb", ("mariadb-server-core", "mariadb-client-core"))


@dataclass
class MariaDb:
    """One server in a folder."""

    folder: Path
    unpacked: Unpacked
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Create an empty server with the user and the database, and start it."""
        self.folder.mkdir(parents=True)
        data = self.folder / "data"
        for part in (data, data / "mysql", data / "performance_schema"):
            part.mkdir()
        self.port = free_port(0)
        share = self.unpacked.folder("usr/share/mysql")
        tables = "USE mysql;\n" + "".join(
            (share / name).read_text()
            for name in (
                "mysql_system_tables.sql",
                "mysql_performance_tables.sql",
                "mysql_system_tables_data.sql",
                "fill_help_tables.sql",
            )
            if (share / name).exists()
        )
        words = [
            self.unpacked.program("usr/sbin/mariadbd"), "--no-defaults", "--user=root", f"--datadir={data}",
            f"--basedir={self.unpacked.folder('usr')}", f"--lc-messages-dir={share}",
            f"--character-sets-dir={share / 'charsets'}",
            f"--plugin-dir={self.unpacked.folder('usr/lib/mysql/plugin')}",
        ]  # fmt: skip
        grants = f"""
            CREATE DATABASE {DATABASE};
            FLUSH PRIVILEGES;
            CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';
            GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'%';
        """
        done = subprocess.run(
            [*words, "--bootstrap"], input=tables + grants, capture_output=True, text=True, check=False,
            env=self.unpacked.environment, timeout=READY_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *words, f"--port={self.port}", "--bind-address=127.0.0.1", f"--socket={self.folder / 'socket'}",
                    f"--pid-file={self.folder / 'pid'}", "--server-id=1", "--log-bin=binlog", "--binlog-format=ROW",
                    "--binlog-row-image=FULL", "--default-time-zone=+00:00", "--skip-name-resolve",
                ],
                stdout=log, stderr=subprocess.STDOUT, env=self.unpacked.environment,
            )  # fmt: skip
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            alive = self.process.poll() is None and time.monotonic() < deadline
            assert alive, (self.folder / "log").read_text(errors="replace")[-3000:]
            time.sleep(0.2)

    def _client(self, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                self.unpacked.program("usr/bin/mariadb"), "--no-defaults", "--protocol=tcp", "-h", "127.0.0.1",
                "-P", str(self.port), "-u", USER, f"-p{PASSWORD}", "--batch", "--skip-column-names", DATABASE,
            ],
            input=text, capture_output=True, text=True, check=False, env=self.unpacked.environment, timeout=60,
        )  # fmt: skip

    def _answers(self) -> bool:
        return self._client("SELECT 1;").returncode == 0

    def sql(self, text: str) -> str:
        """Run statements; return the output."""
        done = self._client(text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self) -> None:
        """End it, and remove its folder."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
