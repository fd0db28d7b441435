"""An S3 server on this machine: moto's, which keeps its objects in memory and accepts any credentials."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from examples.server import free_port
from examples.stage import StepFailedError

BUCKET = "lake"
_PORT = 9000
_READY_TIMEOUT_S = 60.0


@dataclass
class ObjectStore:
    """One S3 server with one bucket; its output goes to `log_path`."""

    log_path: Path
    port: int = field(default_factory=lambda: free_port(_PORT))
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """Return the variables that a process needs to use the store, by the names that all tools know."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "demo",
            "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(18),
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        """Start it, wait until it is ready, and make the bucket."""
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + _READY_TIMEOUT_S
        bucket = urllib.request.Request(f"{self.address}/{BUCKET}", method="PUT")
        while True:
            try:
                urllib.request.urlopen(bucket, timeout=10).close()
                return
            except urllib.error.HTTPError as error:
                raise StepFailedError(f"the S3 server made no bucket: {error}") from error
            except OSError as error:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise StepFailedError(f"the S3 server did not start: see {self.log_path}") from error
                time.sleep(0.1)

    def stop(self) -> None:
        """End it; its objects are gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
