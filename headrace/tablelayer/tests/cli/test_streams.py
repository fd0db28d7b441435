"""The command as a process: its errors on a full disk, with a closed output, in other locales, and after misuse."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.tablelayer.client import connect

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def run(server):
    """`run("topics", "list")` as a process of its own; `shell` is what stands behind it."""

    def command(*words, shell="", stdin=None, **variables):
        line = " ".join(['exec "$0" -m headrace "$@"', shell])
        return subprocess.run(
            ["/bin/sh", "-c", line, sys.executable, *words],
            input=stdin,
            capture_output=True,
            timeout=60,
            cwd=ROOT,
            env={**os.environ, "HEADRACE_SERVER": server, **variables},
        )

    return command


@pytest.fixture(scope="module")
def greek(server):
    with connect(server) as connection:
        connection.execute("CREATE TABLE greek (id INT, word STRING, PRIMARY KEY (id) NOT ENFORCED)")
        connection.table("greek").upsert([{"id": 1, "word": "λόγος"}])
        yield
        connection.admin.drop_table("greek")


def one_line(done, code=1):
    assert done.returncode == code, done.stderr
    said = done.stderr.decode().splitlines()
    assert len(said) == 1, said
    return said[0]


COMMANDS = [
    ("tables", "list"),
    ("sql", "-e", "SHOW DATABASES", "-o", "json"),
    ("--help",),
    ("completion", "bash"),
]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_full_disk_is_said_once(run, words):
    for unbuffered in ("", "1"):
        done = run(*words, shell="> /dev/full", PYTHONUNBUFFERED=unbuffered)
        assert one_line(done) == "the output cannot be written: No space left on device"


@pytest.mark.parametrize("words", COMMANDS)
def test_a_closed_output_is_said_once(run, words):
    assert one_line(run(*words, shell=">&-")) == "the output cannot be written: Bad file descriptor"


def test_a_pipe_without_a_reader_is_not_an_error(run):
    done = run("configs", "describe", "broker", "0", "--all", shell="| true")
    assert done.stderr == b""


def test_a_reader_that_stops_early_gets_no_error(run):
    done = run("sql", "-o", "csv", "-e", "SELECT range AS n FROM range(300000)", shell="| head -n 2")
    assert (done.stdout, done.stderr) == (b"n\n0\n", b"")


def test_everything_closed_disturbs_nothing_that_is_opened_later(run, greek):
    done = run("tables", "count", "greek", shell="<&- 2>&-")
    assert (done.returncode, done.stdout) == (0, b"1\n")


@pytest.mark.parametrize(
    "output", ["table", *(pytest.param(each, marks=pytest.mark.soak) for each in ("csv", "json"))]
)
def test_a_pipe_gets_utf_8_whatever_the_locale(run, greek, output):
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "latin-1"}
    done = run("sql", "-e", "SELECT word FROM greek", "-o", output, **locale)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "λόγος" in done.stdout.decode("utf-8")


def test_bytes_that_are_not_text_are_reported(run):
    done = run("topics", "describe", b"a\xff".decode("utf-8", "surrogateescape"), PYTHONUTF8="1")
    assert "not text in this locale" in one_line(done)
    typed = b"SELECT 'a\xff' AS x".decode("utf-8", "surrogateescape")
    assert "not text in this locale" in one_line(run("sql", "-e", typed, PYTHONUTF8="1"))
    done = run("sql", stdin=b"SELECT '\xff';")
    assert "is not UTF-8" in one_line(done)


@pytest.mark.parametrize(
    "address",
    [
        "host:99999",
        *(pytest.param(each, marks=pytest.mark.soak) for each in ("", "host:port", "127.0.0.1:0")),
    ],
)
def test_a_malformed_address_is_refused(run, address):
    assert "is not a server address: give host:port" in one_line(run("tables", "list", "-s", address))
    assert "is not a server address" in one_line(run("sql", "-e", "SHOW TABLES", "-s", address))


def test_the_version(run):
    from importlib.metadata import version

    done = run("--version")
    assert done.stdout.decode().startswith(f"headrace {version('headrace')} (Python 3.")
    assert (done.returncode, done.stderr) == (0, b"")


def test_examples_stand_on_lines_of_their_own(run):
    for words in (
        ("topics", "tail"),
        ("tables", "lookup"),
        ("top",),
        ("groups", "reset"),
        ("configs", "set"),
    ):
        shown = run(*words, "--help").stdout.decode()
        examples = [line for line in shown.splitlines() if line.strip().startswith(f"headrace {words[0]}")]
        assert examples, shown
        assert all(line.count("headrace ") == 1 for line in examples), examples


def test_the_server_serves_with_a_closed_output(tmp_path):
    served = subprocess.Popen(
        [
            "/bin/sh", "-c", 'exec "$0" -m headrace serve --listen 127.0.0.1:0 --data "$1" >&-',
            sys.executable, str(tmp_path / "data"),
        ],
        stderr=subprocess.PIPE, cwd=ROOT, text=True,
    )  # fmt: skip
    try:
        assert "standard output cannot be written: Bad file descriptor" in served.stderr.readline()
    finally:
        served.terminate()
        rest = served.communicate(timeout=60)[1]
    assert served.returncode == 0, rest
    assert "Traceback" not in rest


# -- shells


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("headrace to", "top topics"),
        ("headrace topics pro", "produce"),
        ("headrace tables describe default.gr", "default.greek"),
        ("headrace topics tail default.gr", "default.greek"),
        ("headrace topics tail clicks --fo", "--follow --format"),
        ("headrace configs describe to", "topic"),
        ("headrace tables describe -s 127.0.0.1:1 x", ""),
    ],
)
def test_bash_completes_commands_options_and_names(run, server, greek, tmp_path, words, offered):
    """The script that `headrace completion bash` prints, in bash, with what bash gives it."""
    command = tmp_path / "headrace"
    command.write_text(
        f"#!{sys.executable}\nfrom headrace.tablelayer.cli import names\n"
        "from headrace.tablelayer.cli.main import main\n"
        "names._PATIENCE_MS = 60_000  # of somebody who is sure that the server answers\nmain()\n"
    )
    command.chmod(0o755)
    script = run("completion", "bash").stdout.decode()
    typed = words.split(" ")
    asked = subprocess.run(
        ["bash", "-c", f"""{script}
COMP_WORDS=({words}) COMP_CWORD={len(typed) - 1}
_headrace_completion headrace
echo "${{COMPREPLY[@]}}"
"""],
        capture_output=True, text=True, cwd=ROOT, timeout=60,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HEADRACE_SERVER": server},
    )  # fmt: skip
    assert asked.stderr == ""
    assert sorted(asked.stdout.split()) == sorted(offered.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(run, shell):
    script = run("completion", shell).stdout.decode()
    assert "_HEADRACE_COMPLETE" in script
    assert f"complete_{shell}" in script
