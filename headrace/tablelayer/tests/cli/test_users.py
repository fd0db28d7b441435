"""`headrace users` and `headrace format`: users without a password on any command line."""

import itertools

import pytest

_numbers = itertools.count()
SECURED = """
listeners=CLIENT://127.0.0.1:0
listener.security.protocol.map=CLIENT:SASL_PLAINTEXT
inter.broker.listener.name=CLIENT
sasl.enabled.mechanisms=SCRAM-SHA-512
"""


def client_file(directory, name: str, password: str) -> str:
    path = directory / f"{name}.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{name}" password="{password}";\n'
    )
    return str(path)


def test_users_are_added_listed_changed_and_deleted(headrace, monkeypatch) -> None:
    name = f"user{next(_numbers)}"
    added = headrace("users", "add", name, input="pass-1\n")
    assert (added.exit_code, added.stdout) == (0, f"added user {name}\n"), added.output
    listed = headrace("users", "list", "--output", "csv")
    assert f'{name},"SCRAM-SHA-256, SCRAM-SHA-512"' in listed.stdout
    again = headrace("users", "add", name, input="pass-2\n")
    assert (again.exit_code, "--replace" in again.stderr) == (1, True)
    monkeypatch.setenv("HEADRACE_PASSWORD", "pass-3")
    assert headrace("users", "add", name, "--replace").stdout == f"changed the password of user {name}\n"
    monkeypatch.setenv("HEADRACE_PASSWORD", "")
    empty = headrace("users", "add", f"{name}x")
    assert (empty.exit_code, "HEADRACE_PASSWORD" in empty.stderr) == (1, True)
    refused = headrace("users", "delete", name, input="n\n")
    assert (refused.exit_code, name in headrace("users", "list").stdout) == (1, True), refused.output
    assert headrace("users", "delete", name, input="y\n").stdout.endswith(f"deleted user {name}\n")
    gone = headrace("users", "delete", name, "--yes")
    assert (gone.exit_code, f"there is no user {name}" in gone.stderr) == (1, True)
    assert "pass-" not in added.output + listed.output + again.output + gone.output


def test_the_first_user_is_made_before_the_server_starts_and_makes_the_others(
    headrace, serve, tmp_path
) -> None:
    data, config = tmp_path / "data", tmp_path / "server.properties"
    config.write_text(SECURED)
    made = headrace(
        *("format", "--data", str(data), "--add-scram", "SCRAM-SHA-512=[name=admin,iterations=8192]"),
        input="admin-pass\n",
    )
    assert (made.exit_code, made.stdout) == (0, f"{data} is ready; users: admin\n"), made.output
    served = serve("--data", str(data), "--config", str(config))
    assert served.address, served.stop()[2]
    admin = client_file(tmp_path, "admin", "admin-pass")
    to_admin = ("--server", served.address, "--config", admin)
    assert headrace("users", "add", "ann", *to_admin, input="ann-pass\n").exit_code == 0
    ann = client_file(tmp_path, "ann", "ann-pass")
    listed = headrace("users", "list", "--server", served.address, "--config", ann)
    assert "admin" in listed.stdout, listed.output
    wrong = headrace(
        "users", "list", "--server", served.address, "--config", client_file(tmp_path, "eve", "ann-pass")
    )
    assert wrong.exit_code == 1
    assert "ann-pass" not in wrong.output
    busy = headrace("format", "--data", str(data))
    assert busy.exit_code == 1
    code, _, err = served.stop()
    assert (code, "Traceback" in err) == (0, False), err
    shown = (data / "headrace.log").read_text() + err
    assert not [secret for secret in ("admin-pass", "ann-pass") if secret in shown]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SCRAM-SHA-256=[name=a,password=hunter2]", "password on the command line is visible to all users"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=hunter2]", "on the command line is visible to all users"),
        ("SCRAM-SHA-1=[name=a]", "--add-scram takes"),
        ("SCRAM-SHA-256=name=a", "--add-scram takes"),
        ("SCRAM-SHA-256=[iterations=4096]", "--add-scram takes"),
        ("SCRAM-SHA-256=[name=a,iterations=100]", "use 4096 to 16384"),
        ("SCRAM-SHA-256=[name=a,iterations=hunter2]", "--add-scram takes"),
        ("SCRAM-SHA-256=[name=a,salt=hunter2]", "--add-scram takes"),
    ],
)
def test_format_refuses_malformed_users(headrace, tmp_path, text, words) -> None:
    refused = headrace("format", "--data", str(tmp_path / "data"), "--add-scram", text, input="x\n")
    assert (refused.exit_code, words in refused.stderr) == (1, True), refused.output
    assert "hunter2" not in refused.output
    assert not (tmp_path / "data").exists()
