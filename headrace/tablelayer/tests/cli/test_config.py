"""`--config`, HEADRACE_CONFIG, and the error of a user who is refused."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.tablelayer.cli.main import app
from headrace.tablelayer.tests.client.conftest import FakeServer, HangUp

PASSWORD = "pencil of wonder"


@pytest.fixture
def strict() -> Iterator[FakeServer]:
    """A server without topics that accepts clients with PASSWORD."""
    loop, server = asyncio.new_event_loop(), FakeServer()
    known = False

    def api_versions(request: Any) -> Any:
        nonlocal known
        known = False  # a connection begins with it
        return server.api_versions(request)

    def authenticate(request: Any) -> Any:
        nonlocal known
        known = request.auth_bytes == b"\0ann\0" + PASSWORD.encode()
        return SaslAuthenticateResponse(
            error_code=0 if known else 58, error_message=None if known else "Invalid"
        )

    def metadata(_: Any) -> Any:
        if not known:
            raise HangUp
        return MetadataResponse()

    server.handlers[ApiVersionsRequest] = api_versions
    server.handlers[SaslHandshakeRequest] = lambda _: SaslHandshakeResponse(mechanisms=["PLAIN"])
    server.handlers[SaslAuthenticateRequest] = authenticate
    server.handlers[MetadataRequest] = metadata
    loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield server
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


def properties(place: Path, server: FakeServer, password: str = PASSWORD) -> str:
    place.write_text(
        f"bootstrap.servers={server.address}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
        f'  username="ann" password="{password}";\n'
    )
    return str(place)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_every_command_that_connects_takes_a_file_of_properties() -> None:
    import typer.main

    def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from commands(command, (*path, name))
            else:
                yield (*path, name), command

    found = dict(commands(typer.main.get_command(app)))
    assert {("sql",), ("tier",), ("top",), ("doctor",), ("tables", "tail"), ("groups", "describe")} <= set(
        found
    )
    for path, command in found.items():
        names = [parameter.name for parameter in command.params]
        of_servers = path in (("serve",), ("cluster", "adopt"))
        assert names.count("config") == (1 if of_servers or "server" in names else 0), path


def test_a_command_is_let_in_by_a_file_by_the_environment_and_by_the_groups_option(
    strict: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = properties(tmp_path / "client.properties", strict)
    wrong = properties(tmp_path / "wrong.properties", strict, "another")
    for words in (
        ("topics", "list", "--config", right),
        ("--config", right, "topics", "list"),
        ("--config", wrong, "topics", "list", "--config", right),
        ("topics", "list", "--config", right, "--server", strict.address),
    ):
        assert run(*words).exit_code == 0, words
    refused = run("topics", "list", "--server", strict.address)
    assert refused.exit_code == 1, "options of an earlier command are forgotten"
    assert "if it requires authentication, configure it (security.protocol is PLAINTEXT)" in refused.stderr
    monkeypatch.setenv("HEADRACE_CONFIG", wrong)
    assert run("topics", "list").exit_code == 1
    assert run("topics", "list", "--config", right).exit_code == 0
    monkeypatch.setenv("HEADRACE_CONFIG", right)
    assert run("topics", "list").exit_code == 0
    monkeypatch.setenv("HEADRACE_CLIENT_SASL_PASSWORD", "another")
    assert run("topics", "list").exit_code == 1


def test_a_wrong_password_is_one_sentence_without_it(strict: FakeServer, tmp_path: Path) -> None:
    secret = "not " + PASSWORD
    refused = run("topics", "list", "--config", properties(tmp_path / "p", strict, secret))
    assert refused.exit_code == 1
    assert refused.stderr.strip() == f"{strict.address} refused user ann by PLAIN: Invalid"
    assert secret not in refused.output
    looked = run("doctor", "--config", properties(tmp_path / "p", strict, secret), "--output", "json")
    assert looked.exit_code == 1
    assert "refused user ann" in looked.output
    assert secret not in looked.output


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    refused = run("topics", "list", "--config", str(tmp_path / "none"))
    assert refused.exit_code == 1
    assert (
        refused.stderr.strip()
        == f"cannot read the properties in {tmp_path / 'none'}: No such file or directory"
    )


def test_a_profile_is_a_file_of_its_name(
    strict: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)
    assert "cannot read the properties in prod" in run("--config", "prod", "topics", "list").stderr
    (tmp_path / "kept" / "headrace").mkdir(parents=True)
    properties(tmp_path / "kept" / "headrace" / "prod.properties", strict)
    assert run("--config", "prod", "topics", "list").exit_code == 0
    monkeypatch.setenv("HEADRACE_CONFIG", "prod")
    assert run("topics", "list").exit_code == 0
    properties(tmp_path / "prod", strict, "another")
    assert "refused user ann" in run("topics", "list").stderr, "a file that is there counts"
