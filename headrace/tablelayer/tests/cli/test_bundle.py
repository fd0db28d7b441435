"""`headrace cluster bundle`: an archive with the state and without secrets."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from headrace.tablelayer.cli.bundle import HIDDEN, shown_value, without_secrets
from headrace.tablelayer.client import ConfigListing, connect
from headrace.tablelayer.client.admin.produce import OutgoingRecord

SECRET = "hunter2-of-ann"


def test_a_bundle_has_the_state_and_no_secrets_or_records(headrace: Any, server: str, tmp_path: Path) -> None:
    log, to = tmp_path / "headrace.log", tmp_path / "fault.tar.gz"
    log.write_text(f"INFO started\nWARNING sasl.password={SECRET} is odd\n")
    with connect(server) as connection:
        connection.kafka.create_topic("bundled", partitions=2, configs={"retention.ms": "77"})
        connection.kafka.produce("bundled", [OutgoingRecord(SECRET.encode())])
        connection.kafka.commit_offsets("bundle-app", "bundled", {0: 0})
    words = (
        "--log",
        str(log),
        "--log",
        str(tmp_path / "none.log"),
        "--metrics",
        "http://127.0.0.1:9/metrics",
    )
    done = headrace("cluster", "bundle", str(to), *words)
    assert done.exit_code == 0, done.output
    assert "left out logs/" in done.stderr
    with tarfile.open(to) as archive:
        files = {
            each.name.removeprefix("fault/"): archive.extractfile(each).read().decode()  # type: ignore[union-attr]
            for each in archive
        }
    assert not any(SECRET in text for text in files.values())
    assert json.loads(files["cluster.json"])["is_healthy"]
    topics = {each["topic"]: each for each in json.loads(files["topics.json"])}
    assert [each["offsets"][1] for each in topics["bundled"]["partitions"]].count(1) == 1
    assert {"group": "bundle-app"}.items() <= next(
        each for each in json.loads(files["groups.json"]) if each["group"] == "bundle-app"
    ).items()
    assert json.loads(files["configs/topics.json"])["bundled"] == {"retention.ms": "77"}
    assert json.loads(files["configs/broker-0.json"])["node.id"]["value"] == "0"
    (kept,) = (text for name, text in files.items() if name.startswith("logs/"))
    assert kept == f"INFO started\nWARNING sasl.password={HIDDEN} is odd\n"
    assert len(files["troubles.txt"].splitlines()) == 2, files["troubles.txt"]
    again = headrace("cluster", "bundle", str(to))
    assert (again.exit_code, "exists already" in again.stderr) == (1, True)


def test_secrets_are_hidden_by_the_server_s_word_and_by_name() -> None:
    def shown(name: str, value: str, *, is_sensitive: bool = False) -> str | None:
        return shown_value(ConfigListing(name, value, "default", False, is_sensitive, ""))

    assert shown("retention.ms", "7") == "7"
    assert shown("anything", SECRET, is_sensitive=True) == HIDDEN
    for name in (
        "ssl.keystore.password",
        "x.sasl.jaas.config",
        "metrics.bearer.token",
        "ssl.keystore.key",
    ):
        assert shown(name, SECRET) == HIDDEN
    assert without_secrets(f"a password: '{SECRET} x', b") == f"a password: {HIDDEN}, b"
    assert without_secrets(f'{{"secret_key": "{SECRET}"}}') == f'{{"secret_key": {HIDDEN}}}'
    assert without_secrets("s3.access-key=AKIA7 s3.region=x") == f"s3.access-key={HIDDEN} s3.region=x"
