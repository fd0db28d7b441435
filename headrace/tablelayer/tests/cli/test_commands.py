"""The commands that only read: help, topics, tables, groups, top."""

import csv
import io
import json
import math
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.tablelayer.cli import output, process, top
from headrace.tablelayer.client import connect

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def fruit(server):
    with connect(server) as connection:
        connection.execute(
            "CREATE TABLE fruit (id INT, name STRING, price DECIMAL(5,2), PRIMARY KEY (id) NOT ENFORCED)"
            " COMMENT 'edible'"
        )
        table = connection.table("fruit")
        table.upsert([{"id": 1, "name": "apple", "price": "1.50"}, {"id": 2, "name": "pear", "price": None}])
        table.upsert([{"id": 1, "name": "apple", "price": "1.25"}])
        table.delete([2])
        table.upsert([{"id": 3, "name": "fig", "price": "3"}])
        yield table
        connection.admin.drop_table("fruit")


def loaded(module, *names):
    """Return which of these modules the import of `module` loads, in a fresh Python."""
    code = f"import sys, {module}; print([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return done.stdout.strip()


def json_lines(result):
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_help_is_quick_and_imports_nothing_heavy():
    assert (
        loaded("headrace.tablelayer.cli.main", "pyarrow", "numpy", "numba", "sqlglot", "asyncio", "rich")
        == "[]"
    )


def test_help_shows_examples(headrace):
    shown = headrace("--help").stdout
    assert "headrace serve --data ./data\n" in shown
    for command in ("serve", "sql", "topics", "tables", "groups", "top", "tier"):
        assert f"\n  {command} " in shown
        assert headrace(command, "--help").exit_code == 0
    assert "warm-up" in shown


def test_the_client_starts_without_the_compiler():
    assert loaded("headrace.tablelayer.client", "numba", "sqlglot", "duckdb", "pandas") == "[]"


def test_a_server_starts_without_what_only_tables_need():
    heavy = ("numba", "rocksdict", "pyarrow", "numpy", "sqlglot", "pandas", "kazoo", "rich")
    assert loaded("headrace.tablelayer.cli.serve", *heavy) == "[]"


def test_a_server_has_numba_without_what_that_loads_where_it_finds_it(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom headrace.tablelayer.cli import process, serve\n"
        "sys.argv = ['headrace', 'serve']\nprocess.begin()\nserve.run_server = lambda main: main.close()\n"
        f"serve.serve(None, Path({str(tmp_path)!r}), {{}}, None, metrics=None, verbose=False, started=0.0)\n"
        "from headrace.protocol.records import check\ncheck.load()\n"
        "print([name for name in ('numba', 'cffi', 'yaml', 'pycparser') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "['numba']"


@pytest.mark.parametrize(
    ("words", "heavy", "shown"),
    [
        (
            ("sql", "-e", "SHOW DATABASES"),
            ("numpy", "pyarrow", "sqlglot", "pandas", "duckdb", "rich", "numba", "prompt_toolkit"),
            "\ndefault\n",
        ),
        (("sql", "-e", "USE default;"), ("numpy", "pyarrow", "sqlglot"), "using database default\n"),
        (
            ("sql", "-e", "SHOW DATABASES LIKE 'def%'"),
            ("pandas", "duckdb", "rich", "numba", "sqlglot.dialects.duckdb"),
            "\ndefault\n",
        ),
    ],
)
def test_a_short_command_loads_what_it_needs_and_collects_garbage_from_then_on(server, words, heavy, shown):
    code = (
        "import gc, sys\nfrom headrace.tablelayer.cli.main import main\n"
        f"sys.argv = ['headrace', *{words!r}, '-s', '{server}']\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code\n"
        f"heavy = {heavy!r}\n"
        "print([name for name in heavy if name in sys.modules], gc.isenabled(), gc.get_freeze_count() > 10_000)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == "[] True True"
    assert shown in done.stdout


@pytest.mark.parametrize("output", ["table", "csv", "json"])
def test_names_look_the_same_with_and_without_the_parser(headrace, fruit, output):
    by_words = headrace("sql", "-e", "SHOW TABLES", "-o", output)
    parsed = headrace("sql", "-e", "SHOW TABLES LIKE '%'", "-o", output)
    assert by_words.exit_code == 0
    assert by_words.stdout == parsed.stdout
    assert "fruit" in by_words.stdout


def test_a_program_that_calls_a_command_keeps_its_pandas(headrace, fruit):
    assert headrace("sql", "-e", "SELECT name FROM fruit WHERE id = 1").exit_code == 0
    assert not any(isinstance(each, process._WithoutPandas) for each in sys.meta_path)
    assert fruit.to_pandas().columns.tolist() == ["id", "name", "price"]


def test_a_table_too_wide_for_the_terminal_has_a_line_per_column():
    names, columns = ["id", "ein Name", "日本"], [(1, 22), ("x" * 9, None), ("ü\x1b[31m", "本")]
    right = [True, False, False]
    assert "".join(output._table(names, columns, right, None)).splitlines() == [
        "id  ein Name   日本",
        "────────────────────────",
        " 1  xxxxxxxxx  ü\\x1b[31m",
        "22  NULL       本",
    ]
    assert (
        "".join(output._table(names, columns, right, 24)).splitlines()[3] == "22  \x1b[2mNULL\x1b[0m       本"
    )
    assert "".join(output._table(names, columns, right, 20)).splitlines() == [
        "─ row 1 ──", "id        1", "ein Name  xxxxxxxxx", "日本      ü\\x1b[31m",
        "─ row 2 ──", "id        22", "ein Name  \x1b[2mNULL\x1b[0m", "日本      本",
    ]  # fmt: skip


def test_names_of_a_command_are_wrapped_before_a_table_is_too_wide():
    names, columns = ["topic", "under replicated"], [("clicks",), (3,)]
    shown = "".join(output._table(names, columns, [False, True], 20, wraps=True)).splitlines()
    assert shown == ["             under", "topic   replicated", "──────────────────", "clicks           3"]
    assert "".join(output._table(names, columns, [False, True], 20)).startswith("─ row 1 ")


def test_topics_are_created_listed_described_tailed_and_deleted(headrace):
    done = headrace("topics", "create", "clicks", "--partitions", "2", "--set", "retention.ms=3600000")
    assert (done.exit_code, done.stdout) == (0, "topic clicks has 2 partitions\n")
    again = headrace("topics", "create", "clicks")
    assert again.exit_code == 1
    assert "TOPIC_ALREADY_EXISTS" in again.stderr
    listed = json_lines(headrace("topics", "list", "-o", "json"))
    assert [topic["partitions"] for topic in listed if topic["topic"] == "clicks"] == [2]
    described = headrace("topics", "describe", "clicks")
    assert "retention.ms = 3600000" in described.stdout
    assert headrace("topics", "delete", "clicks", input="n\n").exit_code == 1
    assert headrace("topics", "delete", "clicks", "-y").stdout == "deleted topic clicks\n"
    gone = headrace("topics", "describe", "clicks")
    assert gone.exit_code == 1
    assert "there is no topic clicks" in gone.stderr


def test_the_kafka_view_of_a_table_is_a_topic(headrace, fruit):
    records = [
        json.loads(line)
        for line in headrace("topics", "tail", "default.fruit", "-o", "json").stdout.splitlines()
    ]
    values = [None if r["value"] is None else json.loads(r["value"]) for r in records]
    assert [r["offset"] for r in records] == sorted(r["offset"] for r in records)
    assert values == [
        {"id": 1, "name": "apple", "price": 1.5},
        {"id": 2, "name": "pear", "price": None},
        {"id": 1, "name": "apple", "price": 1.25},
        None,
        {"id": 3, "name": "fig", "price": 3},
    ]


def test_tables_are_listed_described_and_looked_into(headrace, fruit):
    listed = list(csv.reader(io.StringIO(headrace("tables", "list", "-o", "csv").stdout)))
    assert listed[0] == ["table", "kind", "buckets", "rows"]
    assert ["default.fruit", "primary key", "1", "2"] in listed
    described = headrace("tables", "describe", "fruit").stdout
    assert "DECIMAL(5, 2)" in described
    assert "primary" in described
    assert "comment: edible" in described
    (told,) = json_lines(headrace("tables", "describe", "fruit", "-o", "json"))
    assert (told["table"], told["comment"], told["primary_key"], told["buckets"]) == (
        "default.fruit",
        "edible",
        ["id"],
        1,
    )
    assert [(each["column"], each["type"]) for each in told["columns"]][2] == ("price", "DECIMAL(5, 2)")
    assert headrace("tables", "count", "fruit").stdout == "2\n"
    assert json_lines(headrace("tables", "count", "fruit", "-o", "json")) == [
        {"table": "default.fruit", "rows": 2}
    ]
    head = [
        json.loads(line)
        for line in headrace("tables", "head", "fruit", "-c", "name,id", "-o", "json").stdout.splitlines()
    ]
    assert head == [{"name": "apple", "id": 1}, {"name": "fig", "id": 3}]
    assert '"price": 1.25' in headrace("tables", "head", "fruit", "-o", "json").stdout, (
        "decimals keep their digits"
    )
    tail = [
        json.loads(line)
        for line in headrace("tables", "tail", "fruit", "-n", "4", "-o", "json").stdout.splitlines()
    ]
    assert [(row["_change_type"], row["_log_offset"], row["id"]) for row in tail] == [
        ("-U", 2, 1), ("+U", 3, 1), ("-D", 4, 2), ("+I", 5, 3),
    ]  # fmt: skip
    missing = headrace("tables", "count", "fruits")
    assert missing.exit_code == 1
    assert "fruits" in missing.stderr


def test_groups_and_their_lag(headrace, fruit):
    fruit.commit("pickers", {0: 4})
    assert any(line.startswith("pickers") for line in headrace("groups", "list").stdout.splitlines())
    (described,) = json_lines(headrace("groups", "describe", "pickers", "-o", "json"))
    assert described == {
        "group": "pickers",
        "state": "Empty",
        "assignor": "",
        "members": [],
        "partitions": [
            {"topic": "default.fruit", "partition": 0, "committed_offset": 4, "end_offset": 6, "lag": 2}
        ],
    }
    unknown = headrace("groups", "describe", "nobody")
    assert unknown.exit_code == 1
    assert "nobody" in unknown.stderr


def test_top_shows_rates(headrace, server, monkeypatch):
    with connect(server) as connection:
        connection.execute("CREATE TABLE busy (id INT)")
        busy = connection.table("busy")

        def write(seconds):
            busy.append([{"id": 100}] * 5_000)
            time.sleep(seconds)

        monkeypatch.setattr(top, "time", SimpleNamespace(monotonic=time.monotonic, sleep=write))
        try:
            busy.commit("watchers", {0: 0})
            shown = headrace("top", "-n", "1", "--interval", "1").stdout
            told = json_lines(headrace("top", "-n", "2", "--interval", "1", "-o", "json"))
        finally:
            monkeypatch.undo()
            connection.admin.drop_table("busy")
    row = next(line.split() for line in shown.splitlines() if line.startswith("default.busy"))
    assert float(row[-1].replace(",", "")) > 0
    assert re.match(r"broker 0, headrace \S+, up [^:]+: CPU \d+ %, memory [\d.]+ MB\n", shown)
    (lag,) = [line.split() for line in shown.splitlines() if line.startswith("watchers")]
    assert (lag[1], lag[4:]) == ("0", ["default.busy", "Empty"])
    first, second = told
    (topic,) = [each for each in second["topics"] if each["topic"] == "default.busy"]
    assert topic["per_second"] > 0
    (of_group,) = [each for each in second["groups"] if each["group"] == "watchers"]
    (before,) = [each for each in first["groups"] if each["group"] == "watchers"]
    assert of_group["lag"] > before["lag"] > 0
    assert of_group["per_second"] > 0
    (process,) = second["servers"]
    assert process["memory_bytes"] > 20e6
    assert 0 <= process["cpu_percent"] < 1000


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("tables", "count", "fruits"), "default.fruit"),
        (("sql", "-e", "SELECT * FROM friut"), "default.fruit"),
        (("sql", "-e", "SHOW TABLES FROM defalt"), "default"),
        (("topics", "describe", "default.fruits"), "default.fruit"),
        (("groups", "describe", "pikers"), "pickers"),
        (("tables", "count", "zzqx_84217_w"), None),
    ],
)
def test_names_that_are_nearly_right(headrace, fruit, words, meant):
    fruit.commit("pickers", {0: 1})
    done = headrace(*words)
    assert done.exit_code == 1
    hints = [line for line in done.stderr.splitlines() if line.startswith("did you mean")]
    assert hints == ([] if meant is None else [f"did you mean {meant}?"])


def test_an_unreachable_server_is_named_with_a_remedy():
    from typer.testing import CliRunner

    from headrace.tablelayer.cli.main import app

    done = CliRunner().invoke(app, ["tables", "list", "--server", "127.0.0.1:1"])
    assert done.exit_code == 1
    assert (
        done.stderr == "cannot connect to 127.0.0.1:1: Connection refused. Check that the server is running\n"
    )


def test_every_module_with_kernels_is_warmed_up(headrace):
    from headrace.tablelayer.cli.warm import KERNEL_MODULES

    sources = (ROOT / "headrace").rglob("*.py")
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sources
        if "tests" not in path.parts and "\ndef warm() ->" in path.read_text()
    }
    assert set(KERNEL_MODULES) == found
    assert headrace("warm-up").exit_code == 0


def test_kernels_of_all_tables_are_warmed_up_before_formats():
    """A server that is killed again and again while it compiles has the kernels of lookups each time it is back."""
    from headrace.tablelayer.cli.warm import KERNEL_MODULES

    formats = [
        name
        for name in KERNEL_MODULES
        if name.startswith(("headrace.tablelayer.model.json", "headrace.tablelayer.model.avro"))
    ]
    assert formats
    assert list(KERNEL_MODULES[-len(formats) :]) == formats


def test_a_request_gets_its_kernel_before_the_next_warm_up(monkeypatch):
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.event import Listener, install_listener

    from headrace.tablelayer.cli import warm

    waits, never, order = threading.Event(), threading.Event(), []

    class Told(Listener):
        def on_start(self, _):
            if threading.current_thread() is other:
                waits.set()
                never.wait(0.2)  # as one that wakes up slowly

        def on_end(self, _):
            """Do nothing: no caller needs it."""

    def request():
        for _ in range(2):
            with global_compiler_lock:
                order.append("request")
            never.wait(0.1)

    def kernel():
        with global_compiler_lock:
            with global_compiler_lock, install_listener("numba:compiler_lock", Told()):  # one that it calls
                if not order:
                    other.start()
                    assert waits.wait(60)
            order.append("kernel")

    def now():
        """A request's kernels follow each other at once."""
        return 0.0 if other.is_alive() else math.inf

    other = threading.Thread(target=request)
    monkeypatch.setattr(
        "headrace.protocol.loading.kernel_cache.time", SimpleNamespace(monotonic=now, sleep=time.sleep)
    )
    monkeypatch.setattr(warm, "KERNEL_MODULES", ("first", "second"))
    monkeypatch.setattr(warm, "import_module", lambda _: SimpleNamespace(warm=kernel))
    assert [name for name, _ in warm.warm_up()] == ["first", "second"]
    other.join()
    assert order == ["kernel", "request", "request", "kernel"]


def test_rates_of_new_and_remade_topics():
    from headrace.tablelayer.cli.top import rates

    listed = rates({"a": {0: 10}, "b": {0: 100}}, {"a": {0: 30, 1: 4}, "b": {0: 6}, "c": {0: 2}}, 2.0)
    assert [(rate.topic, rate.per_second) for rate in listed] == [("a", 10.0), ("b", 3.0), ("c", 1.0)]
