"""Object stores as servers: versitygw (S3, in Go), Azurite (Microsoft's Azure emulator) and fake-gcs-server (Google's
API, in Go) behind `gcs_uploads`.

`go` and `npm` install them once, into a folder that outlives the tests; HEADRACE_TEST_TOOLS names it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from gcs_uploads import XmlUploads

TOOLS = Path(os.environ.get("HEADRACE_TEST_TOOLS", "~/.cache/headrace-test-tools")).expanduser()
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
FAKE_GCS_SERVER = "github.com/fsouza/fake-gcs-server@v1.56.1"
AZURITE = "azurite@3.37.0"
INSTALL_SECONDS = 1500
START_SECONDS = 60
BUCKET = "bucket"
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account key of every Azurite."""


class ObjectStore:
    """A running object store. `environment` has the variables that a process needs to use it; `url` is that of its
    bucket.
    """

    def __init__(
        self, command: list[str], port: int, url: str, environment: dict[str, str], folder: Path
    ) -> None:
        self.url = url
        self.environment = environment
        folder.mkdir(parents=True)
        with (folder / "out").open("w") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**os.environ, **environment}
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self.stop()
                    raise RuntimeError((folder / "out").read_text()) from None
                time.sleep(0.1)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(30)


class GcsStore(ObjectStore):
    """fake-gcs-server on `port`, and a proxy on another one that accepts Google's uploads."""

    def __init__(self, program: Path, port: int, folder: Path) -> None:
        self._uploads = XmlUploads(port)
        account = folder.with_name("account.json")
        account.parent.mkdir(parents=True)
        secrets = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        account.write_text(json.dumps({"gcs_base_url": self._uploads.url, "disable_oauth": True, **secrets}))
        environment = {"GOOGLE_SERVICE_ACCOUNT": str(account), "GOOGLE_BASE_URL": self._uploads.url}
        command = [str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
        command += ["-public-host", f"127.0.0.1:{port}", "-backend", "memory", "-log-level", "warn"]
        try:
            super().__init__(command, port, f"gs://{BUCKET}", environment, folder)
            bucket, json_type = json.dumps({"name": BUCKET}).encode(), {"Content-Type": "application/json"}
            status, _, answer = self._uploads.send("POST", "/storage/v1/b", bucket, json_type)
            if status != 200:
                super().stop()
                raise RuntimeError(f"no bucket: {status} {answer!r}")
        except BaseException:
            self._uploads.stop()
            raise

    def stop(self) -> None:
        super().stop()
        self._uploads.stop()


def _go_program(name: str, module: str) -> Path:
    program = TOOLS / "bin" / name
    if not program.exists():
        environment = {**os.environ, "GOBIN": str(program.parent), "GOPATH": str(TOOLS / "go")}
        subprocess.run(["go", "install", module], check=True, env=environment, timeout=INSTALL_SECONDS)
    return program


def fake_gcs_server(folder: Path, port: int) -> ObjectStore:
    return GcsStore(_go_program("fake-gcs-server", FAKE_GCS_SERVER), port, folder / "run")


def versitygw(folder: Path, port: int) -> ObjectStore:
    program = _go_program("versitygw", VERSITYGW)
    data = folder / "data"
    (data / BUCKET).mkdir(parents=True)  # a bucket is a folder of its data
    environment = {
        "ROOT_ACCESS_KEY": "key",
        "ROOT_SECRET_KEY": "secretsecret",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secretsecret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    command = [str(program), "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(data)]
    return ObjectStore(command, port, f"s3://{BUCKET}", environment, folder / "run")


def azurite(folder: Path, port: int) -> ObjectStore:
    program = TOOLS / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        TOOLS.mkdir(parents=True, exist_ok=True)
        install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(TOOLS), AZURITE]
        subprocess.run(install, check=True, timeout=INSTALL_SECONDS)
    environment = {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}",
    }
    command = [str(program), "--silent", "--skipApiVersionCheck", "--blobHost", "127.0.0.1"]
    command += ["--blobPort", str(port), "--location", str(folder / "data")]
    store = ObjectStore(command, port, f"az://{BUCKET}", environment, folder / "run")
    _make_container(port)
    return store


def _make_container(port: int) -> None:
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06", "Content-Length": "0"}
    signed = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:2021-08-06\n"
    signed += f"/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container"
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("PUT", f"/{ACCOUNT}/{BUCKET}?restype=container", b"", headers)
    answer = connection.getresponse()
    connection.close()
    if answer.status != 201:
        raise RuntimeError(f"no container: {answer.status}")


STORES: dict[str, Callable[[Path, int], ObjectStore]] = {
    "versitygw": versitygw,
    "azurite": azurite,
    "fake-gcs-server": fake_gcs_server,
}
