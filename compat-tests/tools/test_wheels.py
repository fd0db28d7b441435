"""The wheels, each in an environment without other packages, used from another folder."""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from wheels import build_client, build_headrace

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("wheels")]


class Installed:
    """A wheel with its locked dependencies, in an environment of its own."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self.folder = folder
        environment = folder / "environment"
        self.python, self.headrace = environment / "bin" / "python", environment / "bin" / "headrace"
        for name in ("protocol", "broker", "tablelayer"):  # modules of a user, beside their script
            (folder / f"{name}.py").write_text("OWN = True\n")
        self.alone = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
        self._uv("venv", "--python", sys.executable, environment)
        self._uv("pip", "install", "--python", self.python, "-c", ROOT / "requirements.lock", wheel)

    def _uv(self, *words):
        return self._run(Path(sys.executable).with_name("uv"), "-q", *words, env=None)

    def _run(self, *words, **options):
        done = subprocess.run(
            [str(word) for word in words],
            cwd=self.folder, capture_output=True, text=True, timeout=500, **{"env": self.alone, **options},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def command(self, *words):
        return self._run(self.headrace, *words)

    def program(self, text):
        return self._run(self.python, "-c", textwrap.dedent(text))

    def packages(self):
        listed = json.loads(self._uv("pip", "list", "--format", "json", "--python", self.python))
        return {each["name"] for each in listed}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return Installed(build_headrace(tmp_path_factory.mktemp("dist")), tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def served(whole):
    process = subprocess.Popen(
        [whole.headrace, "serve", "--data", whole.folder / "data", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=whole.folder,
        env=whole.alone,
    )  # fmt: skip
    ready = process.stdout.readline()
    found = re.search(r"ready on (\S+:\d+)", ready)
    if not found:
        process.kill()
    assert found, process.communicate()
    yield found.group(1)
    process.terminate()
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints


def test_the_wheel_has_sparks_catalog(whole):
    """Neither Java nor pyspark is there to compile it."""
    jar = Path(whole.program("from headrace.tablelayer.spark import jars; print(jars.catalog_jar())").strip())
    assert jar.is_relative_to(whole.folder / "environment")


def test_a_users_own_modules_stay_theirs(whole):
    printed = whole.program(
        "import headrace, protocol, broker, tablelayer; print(protocol.OWN, headrace.connect.__name__)"
    )
    assert printed == "True connect\n"


def test_one_install_has_server_sql_and_client(whole, served):
    """No kernel is compiled there yet, so a table with keys is opened here; the soak has rows in one."""
    assert whole.command("--version").startswith("headrace 0.")
    said = whole.command(
        "sql", "-s", served, "-e",
        "CREATE TABLE kept (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED);"
        "CREATE TABLE fruit (id INT, name STRING); INSERT INTO fruit VALUES (1, 'fig');"
        "SELECT name, count(*) AS n FROM fruit GROUP BY name", "-o", "json",
    )  # fmt: skip
    assert said.splitlines()[-1] == '{"name": "fig", "n": 1}'
    printed = whole.program(
        f"""
        import headrace
        with headrace.connect("{served}") as connection:
            rows = connection.table("fruit").to_arrow().to_pylist()
            print(headrace.__version__, connection.table("kept").count(), rows)
        """
    )
    assert printed.endswith(" 0 [{'id': 1, 'name': 'fig'}]\n")


@pytest.mark.soak
def test_the_client_alone_has_no_compiler_no_duckdb_no_rocksdb(whole, served, tmp_path):
    alone = Installed(build_client(tmp_path), tmp_path)
    assert alone.packages() == {
        "headrace-client", "numpy", "pyarrow", "crc32c", "cramjam", "msgspec", "sqlglot", "cryptography", "cffi",
        "pycparser",
    }  # fmt: skip
    printed = alone.program(
        f"""
        import headrace
        from headrace import KafkaError, OutgoingRecord, UnsupportedRequest
        with headrace.connect("{served}") as connection:
            connection.execute(
                "CREATE TABLE placed (a BIGINT, b STRING, d DECIMAL(30, 2), n INT, tags ARRAY<STRING>,"
                " PRIMARY KEY (a, b, d) NOT ENFORCED) WITH ('bucket.num' = '4')"
            )
            placed = connection.table("placed")
            keys = [{{"a": i * -7, "b": f"b{{i}}", "d": f"{{i}}.25"}} for i in range(500)]
            placed.upsert([key | {{"n": 1, "tags": ["x"]}} for key in keys])
            placed.upsert([key | {{"n": 2, "tags": None}} for key in keys[:100]])
            placed.delete(keys[400:])
            found, rows = placed.lookup(keys)
            print(sum(found), sum(filter(None, rows.column("n").to_pylist())), placed.count("n = 2"))
            print(sum(batch.row_count for batch in placed.scan(start="earliest", until="latest")))
            connection.kafka.create_topic("plain")
            connection.kafka.produce("plain", [OutgoingRecord(b"v", b"k")])
            try:
                connection.kafka.read("plain", {{0: 0}})
            except UnsupportedRequest as error:
                print(error)
        try:
            headrace.spark.session
        except ModuleNotFoundError as error:
            print(error.__notes__[0])
        print(headrace.__version__)
        """
    )
    lines = printed.splitlines()
    assert lines[0] == "400 500 100"
    assert lines[1] == str(500 + 2 * 100 + 100)
    assert "reading records needs numba" in lines[2]
    assert "headrace[spark]" in lines[3]
    assert lines[4].startswith("0.")
    # Rows that the interpreter's hash placed are looked up with the compiled one.
    printed = whole.program(
        f"""
        import headrace
        with headrace.connect("{served}") as connection:
            keys = [{{"a": i * -7, "b": f"b{{i}}", "d": f"{{i}}.25"}} for i in range(500)]
            print(sum(connection.table("placed").lookup(keys)[0]))
        """
    )
    assert printed == "400\n"
