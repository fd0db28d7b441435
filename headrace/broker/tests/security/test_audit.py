"""The audit log: its lines, its place, and that no request waits for it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.security.audit import ALL_LINES_MAX, LINES_MAX, LOGGER, AuditLog
from headrace.broker.security.principal import Principal, Session
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.tests.security.people import SECURED, allow, client, creation, secured_broker
from headrace.protocol.messages.create_acls import CreateAclsRequest
from simulator.direct import direct_broker

ANN = Session(Principal("User", "ann"), "SASL", "PLAIN")


def asked(client_id: str | None = "app") -> SimpleNamespace:
    return SimpleNamespace(
        api_key=0, client_id=client_id, client_host="10.0.0.7", listener="SASL", session=ANN
    )


def lines(*files: Path) -> list[dict[str, object]]:
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


async def test_a_refusal_is_logged_with_principal_and_resource(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with secured_broker(tmp_path / "data", {"authorizer.audit.log.file": str(file)}) as admin:
        await client(admin, "ann").send(
            CreateAclsRequest(creations=[creation(Operation.READ, ResourceType.TOPIC, "t")])
        )
        await allow(admin, Operation.READ, ResourceType.TOPIC, "t")
    (line,) = lines(file)
    time = line.pop("time")
    assert isinstance(time, str)
    assert time.endswith("Z")
    assert line == {
        "principal": "User:ann", "host": "10.0.0.7", "listener": "SASL", "mechanism": "PLAIN", "client_id": "test",
        "api": "CreateAcls", "operation": "ALTER", "resource_type": "CLUSTER", "resource": CLUSTER_NAME,
        "allowed": False,
    }  # fmt: skip


async def test_changes_that_were_allowed_are_written_down_if_asked(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    config = {"authorizer.audit.log.file": str(file), "authorizer.audit.log.administration": "true"}
    async with secured_broker(tmp_path / "data", config) as admin:
        await allow(admin, Operation.READ, ResourceType.TOPIC, "t")
    assert [(line["principal"], line["operation"], line["allowed"]) for line in lines(file)] == [
        ("User:admin", "ALTER", True)
    ]


async def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    config = {**SECURED, "authorizer.audit.log.file": str(tmp_path / "no" / "such" / "audit.jsonl")}
    with pytest.raises(ConfigError, match=r"authorizer\.audit\.log\.file: .*cannot be written: No such file"):
        async with direct_broker(tmp_path / "data", config):
            pass


def test_files_are_rotated_by_size(tmp_path: Path) -> None:
    audit = AuditLog(lambda: 1_000, tmp_path / "audit.jsonl", bytes_max=1024, files=2)
    audit.start()
    for number in range(50):
        audit.note(asked(), Operation.READ, ResourceType.TOPIC, f"t{number}", allowed=False)
    audit.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(file.stat().st_size <= 1024 for file in files)
    assert lines(files[0])[-1]["resource"] == "t49"
    assert lines(files[0])[-1]["time"] == "1970-01-01T00:00:01.000Z"


def test_without_a_file_the_logger_has_them(caplog) -> None:
    audit = AuditLog(lambda: 0)
    with caplog.at_level(logging.INFO, LOGGER):
        audit.start()
        audit.note(asked(), Operation.READ, ResourceType.TOPIC, "a\nb", allowed=False)
        audit.note(asked(), Operation.READ, ResourceType.TOPIC, "t", allowed=True)
        audit.close()
    (record,) = [record for record in caplog.records if record.name == LOGGER]
    assert json.loads(record.getMessage())["resource"] == "a\nb"
    assert "\n" not in record.getMessage()


def test_a_thread_that_falls_behind_costs_lines_and_no_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("headrace.broker.security.audit.QUEUED_MAX", 3)
    audit = AuditLog(lambda: 0, tmp_path / "audit.jsonl")
    for number in range(20):
        audit.note(asked("c" * 5000), Operation.READ, ResourceType.TOPIC, f"{number}" * 5000, allowed=False)
    audit.start()
    audit.close()
    found = lines(tmp_path / "audit.jsonl")
    assert [str(line["resource"])[0] for line in found] == ["0", "1", "2"]
    assert all(len(json.dumps(line)) < 3000 for line in found)


def test_the_number_of_dropped_lines_is_logged(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("headrace.broker.security.audit.QUEUED_MAX", 4)
    audit = AuditLog(lambda: 0, tmp_path / "audit.jsonl")
    for number in range(7):
        audit.note(asked(), Operation.READ, ResourceType.TOPIC, f"{number}", allowed=False)
    for _ in range(2):
        audit._queue.get_nowait()
    audit.note(asked(), Operation.READ, ResourceType.TOPIC, "8", allowed=False)
    audit.start()
    audit.close()
    found = lines(tmp_path / "audit.jsonl")
    assert [line.get("resource", line.get("dropped")) for line in found] == ["2", "3", 3, "8"]


class Minutes:
    def __init__(self) -> None:
        self.ms = 60_000 * 7

    def __call__(self) -> int:
        return self.ms


def refused(audit: AuditLog, name: str, host: str, resource: str) -> None:
    who = asked()
    who.session, who.client_host = Session(Principal("User", name), "SASL", "PLAIN"), host
    audit.note(who, Operation.READ, ResourceType.TOPIC, resource, allowed=False)


def test_repeated_refusals_are_summarized_per_principal_and_host(tmp_path: Path) -> None:
    time = Minutes()
    audit = AuditLog(time, tmp_path / "audit.jsonl", with_administration=True)
    audit.start()
    for number in range(3 * LINES_MAX):
        refused(audit, "eve", "10.0.0.9", f"t{number}")
    refused(audit, "eve", "10.0.0.8", "other host")
    refused(audit, "ann", "10.0.0.9", "other principal")
    for _ in range(2 * LINES_MAX):
        audit.note(asked(), Operation.ALTER, ResourceType.TOPIC, "allowed", allowed=True)
    time.ms += 60_000
    refused(audit, "eve", "10.0.0.9", "next minute")
    audit.close()
    found = lines(tmp_path / "audit.jsonl")
    resources = [line.get("resource") for line in found]
    assert resources[:LINES_MAX] == [f"t{number}" for number in range(LINES_MAX)]
    assert resources[LINES_MAX : LINES_MAX + 2] == ["other host", "other principal"]
    assert resources.count("allowed") == 2 * LINES_MAX
    summary = found[-2]
    assert summary.pop("time")
    assert summary == {"principal": "User:eve", "host": "10.0.0.9", "left_out": 2 * LINES_MAX}
    assert resources[-1] == "next minute"


def test_audit_lines_per_minute_are_bounded(tmp_path: Path) -> None:
    audit = AuditLog(Minutes(), tmp_path / "audit.jsonl")
    audit.start()
    for number in range(ALL_LINES_MAX + 500):
        refused(audit, "eve", f"fe80::{number:x}", "t")
    assert len(audit._written) <= ALL_LINES_MAX, "nor is more of them remembered"
    audit.close()
    found = lines(tmp_path / "audit.jsonl")
    assert len(found) == ALL_LINES_MAX + 1
    assert found[-1]["left_out"] == 500
    assert "principal" not in found[-1]
